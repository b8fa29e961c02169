//! A service that is busy for longer than a call may take and a lease holds, or rejects the credentials
//! for a while: calls end by their deadline, nothing is lost, and everything runs afterwards.
//!
//! The stretch stands for a minute beside the default timeout of 10 s and the default lease of 30 s.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell::job::JobFilter;
use quell::store::Store;
use quell::{Batch, Ctx, Job, JobState, Payload, Policy, Quell, Receipt, TaskError};
use quell_azure::AzureOptions;
use quell_conformance::Rig;
use quell_conformance::rig::lease as lease_of;
use quell_core::{
    Claim, Error, ErrorKind, Lease, Outcome, Result, SettledAs, Settlement, TaskName,
};
use quell_portable::Timer;
use quell_services::ServiceBus as StandIn;
use quell_services::servicebus::Fault;
use tokio::sync::Semaphore;

use crate::opening::{printed, with_sas};
use crate::proxy::{Act, Proxy, failure};
use crate::server::{Place, until_in};
use crate::servicebus::{QUEUE, lock, options_at};

/// A sixth of the stretch, as the default timeout is of a minute; a lease is half of it.
const TIMEOUT: Duration = Duration::from_millis(1_500);
const LEASE: Duration = Duration::from_millis(4_500);
const STRETCH: Duration = Duration::from_secs(9);
/// What a busy machine may add to a deadline. The stretch lasts until the calls have ended: one that waits
/// for its end would never do.
const SLACK: Duration = Duration::from_secs(60);
/// On a busy machine everything is slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// Jobs that run when the stretch begins.
const RUNNING: u32 = 3;

/// The worker's task; that of [`Rig::claim_of`] is claimed by the test itself.
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

/// A store that always works, and the same one that is refused for a stretch.
struct Scene {
    direct: Arc<dyn Store>,
    through: Arc<dyn Store>,
    /// What the error of a trigger says meanwhile.
    says: &'static str,
}

impl Scene {
    /// Jobs run and one is held when the stretch begins; `is_refused` says which calls must fail in it.
    async fn play(
        &self,
        set_refused: impl Fn(bool) + Sync,
        is_refused: impl Fn(&str) -> bool + Sync,
    ) {
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
            set_refused(true);
            // Connections that are lost, and tokens that hold for a while yet, end first.
            let is_in_force = async || match through.enqueue(trigger(task())).await {
                Ok(_) => false,
                Err(error) => {
                    let printed = printed(&error);
                    assert!(!printed.contains("sig="), "{printed}");
                    printed.contains(self.says)
                }
            };
            until_in(PATIENCE, is_in_force).await;
            let (began, mut rounds) = (Instant::now(), 0);
            while began.elapsed() < STRETCH || rounds < 2 {
                self.try_all(&through, &held, &is_refused).await;
                rounds += 1;
                // Refusals come at once where no call is made again.
                tokio::time::sleep(TIMEOUT / 10).await;
            }
            set_refused(false);
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
        let claim = Claim { queue, lease: PATIENCE * 5, ..Rig::claim_of(1) };
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
            async { check("claim", began, store.claim(None, &Rig::claim_of(1)).await.err()) },
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

/// A table by these options, where requests are answered with one of these while they are refused.
async fn a_table_refuses(
    place: &Place,
    options: impl FnOnce(u16) -> AzureOptions,
    answers: [String; 2],
    says: &'static str,
) {
    let is_refused = Arc::new(AtomicBool::new(false));
    let (shared, mut answers) = (Arc::clone(&is_refused), answers.into_iter().cycle());
    let proxy = Proxy::start(place.port(), move |_| match shared.load(Ordering::Relaxed) {
        true => Act::Answer(answers.next().unwrap()),
        false => Act::Forward,
    })
    .await;
    let direct = Arc::new(place.options().timeout(PATIENCE).open().await.unwrap());
    let through = Arc::new(options(proxy.port).timeout(TIMEOUT).open().await.unwrap());
    let set_refused = |refused| is_refused.store(refused, Ordering::Relaxed);
    Scene { direct, through, says }.play(set_refused, |_| true).await;
}

#[tokio::test]
async fn r01_r21_r39_a_busy_table_only_delays() {
    let place = Place::new();
    let answers = [
        failure("503 Service Unavailable", "ServerBusy", ""),
        failure("429 Too Many Requests", "TooManyRequests", ""),
    ];
    a_table_refuses(&place, |port| place.through(port, TIMEOUT), answers, "the service answers")
        .await;
}

#[tokio::test]
async fn r01_r21_r39_a_sas_token_that_the_account_rejects_only_delays() {
    let place = Place::new();
    let options = |port| {
        let (options, _) = with_sas(&place, "2099-01-01T00:00:00Z");
        options.endpoint(&format!("http://127.0.0.1:{port}/devstoreaccount1")).unwrap()
    };
    // It has expired, or was revoked.
    let answers = ["AuthenticationFailed", "AuthorizationFailure"];
    let answers = answers.map(|code| failure("403 Forbidden", code, ""));
    let says = "check the SAS token: it expires at 2099-01-01T00:00:00Z, and needs raud";
    a_table_refuses(&place, options, answers, says).await;
}

/// A queue of the stand-in with these faults while calls are refused.
async fn service_bus_refuses(faults: &[Fault], says: &'static str) {
    let (place, stand_in) = (Place::new(), StandIn::start().unwrap());
    stand_in.create_queue(QUEUE, lock(LEASE)).unwrap();
    let open = async |timeout| {
        let options = options_at(stand_in.port()).timeout(timeout).lock(LEASE);
        let timer: Arc<dyn Timer> = Arc::new(options.open().await.unwrap());
        let options = place.options().timeout(PATIENCE);
        options.timer("servicebus://stand-in/q", timer).open_store().await.unwrap()
    };
    let (through, direct) = (open(TIMEOUT).await, open(PATIENCE).await);
    let set_refused = |refused| {
        for fault in faults {
            stand_in.fault(QUEUE, *fault, if refused { u32::MAX } else { 0 }).unwrap();
        }
        // Connections are lost, too, and none is opened meanwhile.
        if refused {
            stand_in.disconnect().unwrap();
        }
    };
    // A job that is ready needs a message; what reads and what a lease covers needs none.
    Scene { direct, through, says }.play(set_refused, |call| call == "trigger").await;
    let counts = stand_in.counts(QUEUE).unwrap();
    assert_eq!(counts.dead, 0, "{counts:?}");
}

#[tokio::test]
async fn r01_r21_r34_r39_a_busy_service_bus_only_delays() {
    service_bus_refuses(&[Fault::Busy, Fault::BusyManagement, Fault::BusyAttach], "50004").await;
}

#[tokio::test]
async fn r01_r21_r34_r39_a_key_that_service_bus_rejects_only_delays() {
    service_bus_refuses(&[Fault::Token], "check SharedAccessKey of \"quell\"").await;
}
