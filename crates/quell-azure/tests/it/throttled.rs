//! A service that is busy for longer than a call may take and a lease holds: calls end by their
//! deadline, nothing is lost, and everything runs afterwards.
//!
//! The stretch stands for a minute beside the default timeout of 10 s and the default lease of 30 s.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell::{
    Batch, Ctx, Job, JobFilter, JobState, Payload, Policy, Quell, Receipt, Store, TaskError,
};
use quell_conformance::Rig;
use quell_conformance::rig::lease as lease_of;
use quell_core::{
    Claim, Error, ErrorKind, Lease, Outcome, Result, SettledAs, Settlement, TaskName,
};
use quell_portable::Timer;
use quell_services::ServiceBus as StandIn;
use quell_services::servicebus::Fault;
use tokio::sync::Semaphore;

use crate::proxy::{Act, Proxy, failure};
use crate::server::{Place, until_in};
use crate::servicebus::{QUEUE, lock, options_at};

/// A sixth of the stretch, as the default timeout is of a minute; a lease is half of it.
const TIMEOUT: Duration = Duration::from_millis(1_500);
const LEASE: Duration = Duration::from_millis(4_500);
const STRETCH: Duration = Duration::from_secs(9);
/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_secs(3);
/// On a busy machine everything is slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// Jobs that run when the stretch begins.
const RUNNING: u32 = 3;

/// The worker's task; that of [`Rig::wish`] is claimed by the test itself.
fn task() -> TaskName {
    TaskName::new("waits").unwrap()
}

/// A trigger without a key is ready at once.
fn trigger(task: TaskName) -> Batch {
    let payload = Payload::encode(&1).unwrap();
    Batch::one(Policy::default().trigger(task, payload, None).unwrap())
}

/// What the handlers have done, and what they wait for.
#[derive(Clone, Debug)]
struct Gate {
    started: Arc<Semaphore>,
    permits: Arc<Semaphore>,
}

async fn waits(_: Payload, ctx: Ctx<Gate>) -> std::result::Result<(), TaskError> {
    ctx.state().started.add_permits(1);
    let _permit = ctx.state().permits.acquire().await?;
    Ok(())
}

/// A store that is not throttled, and the same one that is.
struct Scene {
    direct: Arc<dyn Store>,
    through: Arc<dyn Store>,
}

impl Scene {
    /// Jobs run and one is held when the service becomes busy; `is_refused` says which calls must fail.
    async fn play(&self, set_busy: impl Fn(bool) + Sync, is_refused: impl Fn(&str) -> bool + Sync) {
        let (started, permits) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let gate = Gate { started, permits };
        let client = |store: &Arc<dyn Store>| Quell::with_store(Arc::clone(store)).build().unwrap();
        let (direct, through) = (client(&self.direct), client(&self.through));
        let worker = through.worker(gate.clone()).lease(LEASE).concurrency(5);
        let worker = worker.register_raw(task(), &Policy::default(), waits);
        let story = async {
            let held = self.hold(&direct).await;
            for _ in 0..RUNNING {
                direct.enqueue(trigger(task())).await.unwrap();
            }
            let _started = gate.started.acquire_many(RUNNING).await.unwrap();
            set_busy(true);
            let (began, mut rounds) = (Instant::now(), 0);
            while began.elapsed() < STRETCH {
                self.try_all(&through, &held, &is_refused).await;
                rounds += 1;
            }
            assert!(rounds > 1, "no call outlasts the stretch");
            set_busy(false);
            gate.permits.add_permits(100);
            self.all_succeed(&direct, &through, held).await;
        };
        worker.run_until(story).await.unwrap();
    }

    /// A job that the test itself runs, with a lease that outlasts the stretch.
    async fn hold(&self, direct: &Quell) -> Lease {
        let trigger = trigger(TaskName::new("t").unwrap());
        let queue = trigger.triggers[0].queue.clone();
        direct.enqueue(trigger).await.unwrap();
        let claim = Claim { queue, lease: PATIENCE * 5, ..Rig::wish(1) };
        let claimed = self.direct.claim(None, &claim).await.unwrap();
        lease_of(&claimed.jobs[0])
    }

    /// Makes each call of a client and of a worker, at one time. Those that are refused have done
    /// nothing, and all end by their deadline.
    async fn try_all(&self, client: &Quell, held: &Lease, is_refused: impl Fn(&str) -> bool) {
        let check = |call: &str, began: Instant, failed: Option<Error>| {
            assert!(began.elapsed() < TIMEOUT + SLACK, "{call}: {:?}", began.elapsed());
            let kind = failed.as_ref().map(Error::kind);
            let wanted = is_refused(call).then_some(ErrorKind::Unavailable);
            assert_eq!(kind, wanted, "{call}: {failed:?}");
        };
        let (store, began) = (&self.through, Instant::now());
        let lease = PATIENCE * 5;
        tokio::join!(
            async { check("trigger", began, client.enqueue(trigger(task())).await.err()) },
            async { check("claim", began, store.claim(None, &Rig::wish(1)).await.err()) },
            async {
                let renewed = store.renew(None, std::slice::from_ref(held), lease).await;
                check("renew", began, renewed.err());
            },
            async { check("look", began, store.jobs(&JobFilter::default()).await.err()) },
        );
    }

    /// The service is well again: triggers are taken, and what ran, waited or is new ends.
    async fn all_succeed(&self, direct: &Quell, through: &Quell, held: Lease) {
        let taken = async || -> Result<Vec<Receipt>> { through.enqueue(trigger(task())).await };
        until_in(PATIENCE, || async { taken().await.is_ok() }).await;
        let outcome = Outcome::Succeeded { output: None };
        let settlement = vec![Settlement { lease: held, outcome }];
        let settled = self.direct.settle(None, settlement).await.unwrap();
        assert_eq!(settled[0].became, SettledAs::Succeeded, "its lease held");
        let jobs = async || direct.jobs(&JobFilter::default()).await.unwrap();
        let has_ended = |job: &Job| job.state == JobState::Succeeded;
        until_in(PATIENCE, || async { jobs().await.iter().all(has_ended) }).await;
        let jobs = jobs().await;
        assert!(jobs.len() > RUNNING as usize + 1, "{jobs:#?}");
    }
}

#[tokio::test]
async fn r01_r21_r39_a_busy_table_only_delays() {
    let (place, is_busy) = (Place::new(), Arc::new(AtomicBool::new(false)));
    let shared = Arc::clone(&is_busy);
    let mut requests = 0;
    let proxy = Proxy::start(place.port(), move |_| {
        requests += 1;
        match (shared.load(Ordering::Relaxed), requests % 2) {
            (false, _) => Act::Forward,
            (true, 0) => Act::Answer(failure("503 Service Unavailable", "ServerBusy", "")),
            (true, _) => Act::Answer(failure("429 Too Many Requests", "TooManyRequests", "")),
        }
    })
    .await;
    let direct = Arc::new(place.options().timeout(PATIENCE).open().await.unwrap());
    let through = Arc::new(place.through(proxy.port, TIMEOUT).open().await.unwrap());
    let set_busy = |busy| is_busy.store(busy, Ordering::Relaxed);
    Scene { direct, through }.play(set_busy, |_| true).await;
}

#[tokio::test]
async fn r01_r21_r34_r39_a_busy_service_bus_only_delays() {
    let (place, stand_in) = (Place::new(), StandIn::start().unwrap());
    stand_in.create_queue(QUEUE, lock(LEASE)).unwrap();
    let open = async |timeout| {
        let timer = options_at(stand_in.port()).timeout(timeout).lock(LEASE).open().await.unwrap();
        let options = place.options().timeout(PATIENCE);
        let timer: Arc<dyn Timer> = Arc::new(timer);
        options.timer("servicebus://stand-in/q", timer).open_store().await.unwrap()
    };
    let (through, direct) = (open(TIMEOUT).await, open(PATIENCE).await);
    let set_busy = |busy| {
        for fault in [Fault::Busy, Fault::BusyManagement, Fault::BusyAttach] {
            stand_in.fault(QUEUE, fault, if busy { u32::MAX } else { 0 }).unwrap();
        }
        // Connections are lost, too, and none is opened meanwhile.
        if busy {
            stand_in.disconnect().unwrap();
        }
    };
    // A job that is ready needs a message; what reads and what a lease covers needs none.
    Scene { direct, through }.play(set_busy, |call| call == "trigger").await;
    let counts = stand_in.counts(QUEUE).unwrap();
    assert_eq!(counts.dead, 0, "{counts:?}");
}
