//! An application without work costs nothing: once its worker rests, no request reaches the table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell::store::Store;
use quell::{Batch, Ctx, JobState, Payload, Policy, Quell, TaskError, TaskName};
use quell_azure::Monotonic;
use quell_portable::Timer;
use quell_services::ServiceBus as StandIn;

use crate::proxy::{Act, Proxy};
use crate::quick::Quick;
use crate::server::{Place, until_in};
use crate::servicebus::{QUEUE, lock, options_at};

/// A worker rests after a minute, which is three seconds here, and looks by itself after 45.
const TIMES: u32 = 20;
/// Longer than one call waits for messages.
const WATCHED: Duration = Duration::from_secs(22);
/// On a busy machine everything is slow.
const PATIENCE: Duration = Duration::from_secs(120);

fn trigger() -> Batch {
    let task = TaskName::new("t").unwrap();
    let trigger = Policy::default().trigger(task, Payload::encode(&1).unwrap(), None);
    Batch::one(trigger.unwrap())
}

async fn works(_: Payload, _: Ctx<()>) -> Result<(), TaskError> {
    Ok(())
}

#[tokio::test]
async fn r34_no_request_reaches_the_table_of_an_application_that_rests() {
    let (place, stand_in) = (Place::new(), StandIn::start().unwrap());
    stand_in.create_queue(QUEUE, lock(Duration::from_secs(60))).unwrap();
    let proxy = Proxy::start(place.port(), |_| Act::Forward).await;
    // Tokens are replaced each second: what waits for messages is seen to be alive.
    let timer = async || {
        let options = options_at(stand_in.port()).token_lifetime(Duration::from_secs(2));
        let timer: Arc<dyn Timer> = Arc::new(options.open().await.unwrap());
        timer
    };
    let (began, ahead) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let shared = Arc::clone(&ahead);
    let clock = Monotonic::new(move || {
        began.elapsed() + Duration::from_secs(shared.load(Ordering::Relaxed))
    });
    let through = place.through(proxy.port, PATIENCE).monotonic(clock);
    let through = through.timer("stand-in", timer().await).open_store().await.unwrap();
    let direct = place.options().timeout(PATIENCE).timer("stand-in", timer().await);
    let direct = direct.open_store().await.unwrap();
    let quell = Quell::with_store(through).clock(Arc::new(Quick::new(TIMES))).build().unwrap();
    let worker =
        quell.worker(()).register_raw(TaskName::new("t").unwrap(), &Policy::default(), works);
    let story = async {
        runs(&*direct).await;
        let rests = async || direct.workers(None).await.unwrap().rows.is_empty();
        until_in(PATIENCE, rests).await;
        // What the process knows of the service's time is too old from now on.
        ahead.fetch_add(3_600, Ordering::Relaxed);
        let (seen, tokens) = (proxy.seen().len(), stand_in.stats().unwrap().tokens);
        let watched = Instant::now();
        let is_alive = || stand_in.stats().unwrap().tokens > tokens + 10;
        until_in(PATIENCE, || async { watched.elapsed() > WATCHED && is_alive() }).await;
        let asked = proxy.seen().split_off(seen);
        assert!(asked.is_empty(), "{asked:#?}");
        runs(&*direct).await;
        assert_eq!(stand_in.counts(QUEUE).unwrap().dead, 0);
    };
    worker.run_until(story).await.unwrap();
}

/// A job that another process triggers runs.
async fn runs(direct: &dyn Store) {
    let accepted = direct.enqueue(None, vec![trigger()]).await.unwrap().remove(0).unwrap();
    let job = accepted[0].job().unwrap();
    let has_run = async || direct.job(job).await.unwrap().unwrap().state == JobState::Succeeded;
    until_in(PATIENCE, has_run).await;
}
