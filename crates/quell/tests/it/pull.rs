//! Workers in other programs: they claim, renew and settle through `PullTasks` (R8, R21, R24, R25,
//! R29, R34), in virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use quell::store::{
    Answer, Capabilities, EndNotification, MemoryStore, Now, Operation, Renewal, SettledAs, Store,
    Wakeups,
};
use quell::testing::TestClock;
use quell::worker::pull::{
    PullClaim, PullLease, PullOutcome, PullProcess, PullTasks, Pulled, PulledJob,
};
use quell::worker::{WorkerDrain, WorkerId};
use quell::{
    Batch, ErrorKind, Job, JobId, JobState, Payload, Policy, Quell, Result, TaskName, Timestamp,
};
use quell_conformance::rig::secs;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// A store that counts the operations that it is asked for.
#[derive(Debug)]
struct Counting {
    store: MemoryStore,
    asked: Mutex<BTreeMap<&'static str, usize>>,
    /// Fails settlements by their jobs.
    fails: Mutex<BTreeMap<JobId, ErrorKind>>,
    /// The operation that is answered after this token has fired.
    hangs: Mutex<Option<(&'static str, CancellationToken)>>,
}

#[async_trait]
impl Store for Counting {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        *self.asked.lock().unwrap().entry(operation.name()).or_default() += 1;
        let hangs = self.hangs.lock().unwrap().clone();
        if let Some((_, goes_on)) = hangs.filter(|(name, _)| *name == operation.name()) {
            goes_on.cancelled().await;
        }
        if let Operation::Settle { settlements } = &operation {
            let fails = self.fails.lock().unwrap();
            let kind = settlements.iter().find_map(|one| fails.get(&one.lease.job));
            if let Some(kind) = kind {
                return Err(quell::Error::new(*kind, "made up"));
            }
        }
        self.store.call(now, operation).await
    }

    fn wakeups(&self) -> Wakeups {
        self.store.wakeups()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.store.ended(job)
    }
}

/// The end of one attempt.
async fn settled(tasks: &PullTasks, lease: &PullLease, outcome: PullOutcome) -> SettledAs {
    let mut settled = tasks.settle(vec![(lease.clone(), outcome)]).await.unwrap();
    settled.remove(0).unwrap().became
}

/// Tasks `t` and `u` for workers elsewhere, on a clock that only moves on command.
struct Rig {
    clock: Arc<TestClock>,
    store: Arc<Counting>,
    quell: Quell,
    policy: Policy,
    tasks: PullTasks,
}

fn task(name: &str) -> TaskName {
    TaskName::new(name).unwrap()
}

fn process(name: &str) -> PullProcess {
    PullProcess::new(WorkerId::new(name).unwrap(), 7)
}

/// A claim of ten jobs of `t`.
fn ten(name: &str) -> PullClaim {
    PullClaim::new(process(name), vec![task("t")]).limit(10)
}

impl Rig {
    fn new(policy: Policy) -> Self {
        let start = Timestamp::from_secs(1_000);
        let clock = Arc::new(TestClock::new(start));
        let store = MemoryStore::new(start);
        let store = Counting {
            store,
            asked: Mutex::default(),
            fails: Mutex::default(),
            hangs: Mutex::default(),
        };
        let store = Arc::new(store);
        let quell = Quell::with_store(Arc::clone(&store) as Arc<dyn Store>);
        let quell = quell.clock(Arc::clone(&clock) as Arc<_>).build().unwrap();
        let tasks = PullTasks::new(quell.clone()).task(task("t"), &policy).unwrap();
        let tasks = tasks.task(task("u"), &Policy::queue("other")).unwrap();
        Rig { clock, store, quell, policy, tasks }
    }

    fn now(&self) -> Timestamp {
        quell::clock::Clock::now(&*self.clock)
    }

    async fn trigger(&self, payload: &str) -> JobId {
        let trigger = self.policy.trigger(task("t"), Payload::from_stored(payload), None).unwrap();
        let receipts = self.quell.enqueue(Batch::one(trigger)).await.unwrap();
        receipts[0].job().unwrap()
    }

    async fn job(&self, id: JobId) -> Job {
        self.store.store.job(id).await.unwrap().unwrap()
    }

    /// Claims without a wait.
    async fn pull(&self, claim: PullClaim) -> Vec<PulledJob> {
        self.tasks.claim(claim).await.unwrap().delivered().jobs
    }

    /// Begins a claim that waits.
    async fn waits(&self, claim: PullClaim) -> Waits {
        let tasks = self.tasks.clone();
        let claim = claim.wait(secs(20));
        let claim = async move { tasks.claim(claim).await.unwrap().delivered() };
        let mut set = JoinSet::new();
        let task = set.spawn(claim);
        quiet().await;
        Waits { set, task }
    }

    /// Moves the clock, and lets everything that is due happen on the way.
    async fn advance(&self, by: Duration) {
        let end = self.now() + by;
        while let Some(next) = self.clock.next_sleeper().filter(|next| *next <= end) {
            self.clock.set(next);
            quiet().await;
        }
        self.clock.set(end);
        quiet().await;
    }

    fn asked(&self, operation: &str) -> usize {
        self.store.asked.lock().unwrap().get(operation).copied().unwrap_or_default()
    }

    async fn settle(&self, job: &PulledJob, outcome: PullOutcome) -> SettledAs {
        settled(&self.tasks, &job.lease, outcome).await
    }

    async fn renew(&self, name: &str, job: &PulledJob) -> Renewal {
        self.tasks.renew(&process(name), std::slice::from_ref(&job.lease), secs(30)).await.unwrap()
            [0]
    }
}

/// A claim that waits. Dropping it is what a server does whose caller goes away.
struct Waits {
    set: JoinSet<Pulled>,
    task: AbortHandle,
}

impl Waits {
    fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    async fn jobs(mut self) -> Pulled {
        self.set.join_next().await.unwrap().unwrap()
    }
}

/// Lets all tasks of this thread go on until none of them can.
async fn quiet() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}

fn failed(error: &str) -> PullOutcome {
    PullOutcome::Failed {
        error: error.to_owned(),
        permanent: false,
        retry_in: None,
        timed_out: false,
    }
}

#[tokio::test]
async fn r08_a_waiting_claim_gets_a_job_as_soon_as_it_is_due() {
    let rig = Rig::new(Policy::default());
    let waits = rig.waits(ten("w")).await;
    assert!(!waits.is_finished());
    let job = rig.trigger("[1]").await;
    quiet().await;
    let pulled = waits.jobs().await;
    let got: Vec<_> =
        pulled.jobs.iter().map(|one| (one.job.id, one.job.payload.as_str())).collect();
    assert_eq!((got, pulled.now), (vec![(job, "[1]")], rig.now()));
    let row = rig.job(job).await;
    assert_eq!((row.state, row.worker), (JobState::Running, Some(WorkerId::new("w").unwrap())));
}

#[tokio::test]
async fn r08_a_claim_waits_for_due_times_and_no_longer_than_asked() {
    let rig = Rig::new(Policy::default());
    let mut trigger = rig.policy.trigger(task("t"), Payload::from_stored("1"), None).unwrap();
    trigger.when = quell::When::After(secs(13));
    rig.quell.enqueue(Batch::one(trigger)).await.unwrap();
    let waits = rig.waits(ten("w")).await;
    rig.advance(Duration::from_millis(12_999)).await;
    assert!(!waits.is_finished());
    rig.advance(Duration::from_millis(1)).await;
    assert_eq!(waits.jobs().await.jobs.len(), 1);
    let waits = rig.waits(ten("w")).await;
    rig.advance(Duration::from_millis(19_999)).await;
    assert!(!waits.is_finished());
    rig.advance(Duration::from_millis(1)).await;
    assert_eq!(waits.jobs().await.jobs.len(), 0);
}

#[tokio::test]
async fn r28_a_worker_gets_only_the_tasks_that_it_names() {
    let rig = Rig::new(Policy::default());
    rig.trigger("1").await;
    let others = PullClaim::new(process("w"), vec![task("u")]).limit(10);
    assert_eq!(rig.pull(others).await, []);
    let error = rig.tasks.claim(PullClaim::new(process("w"), vec![task("x")])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(rig.pull(ten("w")).await.len(), 1);
}

#[tokio::test]
async fn r34_a_hundred_idle_claims_look_no_more_often_than_one() {
    let mut looks = Vec::new();
    for claims in [1, 100] {
        let rig = Rig::new(Policy::default());
        let mut waiting = Vec::new();
        for n in 0..claims {
            waiting.push(rig.waits(ten(&format!("w{n}"))).await);
        }
        let (before, beats) = (rig.asked("peek"), rig.asked("heartbeat"));
        rig.advance(Duration::from_millis(19_500)).await;
        looks.push(rig.asked("peek") - before);
        assert_eq!(rig.asked("claim"), 0, "nothing was due");
        // Each third of the lease, a sign of life of each.
        assert_eq!((beats, rig.asked("heartbeat")), (claims, 2 * claims));
        rig.trigger("1").await;
        quiet().await;
        let done = waiting.iter().filter(|one| one.is_finished()).count();
        assert_eq!((done, rig.asked("claim")), (1, 1), "one of them looked, and got it");
    }
    assert_eq!(looks[0], looks[1], "looks by one claim, and by a hundred");
    assert!((15..=25).contains(&looks[0]), "{looks:?}: one a second");
}

#[tokio::test]
async fn r29_jobs_that_reach_no_worker_are_released() {
    let rig = Rig::new(Policy::default());
    let job = rig.trigger("1").await;
    drop(rig.tasks.claim(ten("w")).await.unwrap());
    quiet().await;
    let row = rig.job(job).await;
    assert_eq!((row.state, row.attempt, row.starts()), (JobState::Scheduled, 0, 1));
    // One whose caller goes away while it waits takes nothing with it.
    let pulled = rig.pull(ten("w")).await;
    rig.settle(&pulled[0], PullOutcome::succeeded()).await;
    let waits = rig.waits(ten("w")).await;
    drop(waits);
    quiet().await;
    rig.trigger("2").await;
    assert_eq!(rig.pull(ten("v")).await.len(), 1);
}

#[tokio::test]
async fn r29_a_worker_that_leaves_gets_no_more() {
    let rig = Rig::new(Policy::default());
    let (leaves, stays) = (rig.waits(ten("w")).await, rig.waits(ten("v")).await);
    assert_eq!(rig.quell.workers().await.unwrap().rows.len(), 2);
    rig.tasks.leave(&WorkerId::new("w").unwrap(), 8).await.unwrap();
    quiet().await;
    assert!(!leaves.is_finished(), "another process of that name left");
    rig.tasks.leave(&WorkerId::new("w").unwrap(), 7).await.unwrap();
    assert_eq!(leaves.jobs().await.jobs, []);
    let rows = rig.quell.workers().await.unwrap().rows;
    assert_eq!(rows.iter().map(|row| row.worker.as_str()).collect::<Vec<_>>(), ["v"]);
    rig.tasks.close();
    assert_eq!(stays.jobs().await.jobs, []);
    let late = rig.waits(ten("v")).await;
    assert!(late.is_finished(), "no claim waits at a server that stops");
}

#[tokio::test]
async fn r24_the_policy_decides_when_a_failed_job_runs_again() {
    let policy = Policy::default().attempts(2).min_backoff(secs(10)).jitter(quell::Jitter::None);
    let rig = Rig::new(policy);
    let job = rig.trigger("1").await;
    let first = rig.pull(ten("w")).await;
    let became = rig.settle(&first[0], failed("no luck")).await;
    assert_eq!(became, SettledAs::Scheduled { due: rig.now() + secs(10) });
    rig.advance(secs(10)).await;
    let second = rig.pull(ten("w")).await;
    assert_eq!((second[0].lease.attempt, second[0].lease.failures), (2, 1));
    let snoozed = rig.settle(&second[0], PullOutcome::Snoozed { delay: secs(5) }).await;
    assert_eq!(snoozed, SettledAs::Scheduled { due: rig.now() + secs(5) });
    rig.advance(secs(5)).await;
    let third = rig.pull(ten("w")).await;
    assert_eq!(third[0].lease.attempt, 2, "a snooze spends no attempt");
    assert_eq!(rig.settle(&third[0], failed("again")).await, SettledAs::Dead);
    let row = rig.job(job).await;
    assert_eq!((row.state, row.error.as_deref()), (JobState::Dead, Some("again")));
}

#[tokio::test]
async fn r25_a_permanent_failure_and_an_output_that_is_too_large_are_not_tried_again() {
    let rig = Rig::new(Policy::default());
    let large = PullOutcome::Succeeded {
        output: Some(Payload::from_stored(format!("\"{}\"", "x".repeat(256 << 10)))),
    };
    let gone = PullOutcome::Failed {
        error: "gone".to_owned(),
        permanent: true,
        retry_in: None,
        timed_out: false,
    };
    for outcome in [large, gone] {
        rig.trigger("1").await;
        let pulled = rig.pull(ten("w")).await;
        assert_eq!(rig.settle(&pulled[0], outcome).await, SettledAs::Dead);
    }
}

#[tokio::test]
async fn r21_a_lease_that_expired_settles_nothing_and_the_next_worker_gets_the_job() {
    let rig = Rig::new(Policy::default());
    let job = rig.trigger("1").await;
    let late = rig.pull(ten("w")).await;
    rig.advance(secs(20)).await;
    assert!(
        matches!(rig.renew("w", &late[0]).await, Renewal::Held(until) if until == rig.now() + secs(30))
    );
    rig.advance(secs(31)).await;
    rig.store.reap(Some(rig.now()), 10).await.unwrap();
    let next = rig.pull(ten("v")).await;
    assert_eq!((next[0].job.id, next[0].job.token.starts()), (job, 2));
    assert_eq!(rig.renew("w", &late[0]).await, Renewal::Lost);
    assert_eq!(rig.settle(&late[0], PullOutcome::succeeded()).await, SettledAs::Refused);
    assert_eq!(rig.settle(&next[0], PullOutcome::succeeded()).await, SettledAs::Succeeded);
    // A repeat, as after a lost answer, says how the job ended; the other attempt's is still refused.
    assert_eq!(rig.settle(&next[0], PullOutcome::succeeded()).await, SettledAs::Succeeded);
    assert_eq!(rig.settle(&late[0], PullOutcome::succeeded()).await, SettledAs::Refused);
}

#[tokio::test]
async fn r21_another_server_renews_and_settles_what_this_one_handed_out() {
    let rig = Rig::new(Policy::default());
    rig.trigger("1").await;
    let pulled = rig.pull(ten("w")).await;
    let text = pulled[0].lease.to_string();
    let elsewhere = PullTasks::new(rig.quell.clone()).task(task("t"), &rig.policy).unwrap();
    let lease = text.parse::<quell::worker::pull::PullLease>().unwrap();
    let held =
        elsewhere.renew(&process("w"), std::slice::from_ref(&lease), secs(60)).await.unwrap();
    assert_eq!(held, [Renewal::Held(rig.now() + secs(60))]);
    let became = settled(&elsewhere, &lease, PullOutcome::succeeded()).await;
    assert_eq!(became, SettledAs::Succeeded);
}

#[tokio::test]
async fn r21_an_attempt_that_outlasts_its_timeout_is_renewed_no_more() {
    let rig = Rig::new(Policy::default().timeout(secs(60)));
    rig.trigger("1").await;
    let pulled = rig.pull(ten("w")).await;
    assert_eq!(pulled[0].timeout, secs(60));
    for _ in 0..6 {
        rig.advance(secs(10)).await;
        assert!(rig.renew("w", &pulled[0]).await.until().is_some());
    }
    rig.advance(secs(6)).await;
    assert_eq!(rig.renew("w", &pulled[0]).await, Renewal::Lost);
    rig.advance(secs(30)).await;
    assert_eq!(rig.store.reap(Some(rig.now()), 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn r25_a_job_that_crashes_its_workers_is_not_handed_out_for_ever() {
    let rig = Rig::new(Policy::default().max_crashes(2));
    let job = rig.trigger("1").await;
    for crash in 0..2 {
        rig.tasks.renew(&process("lives"), &[], secs(30)).await.unwrap();
        // The other one dies at once: no sign of life comes after its claim.
        let dies = ten(&format!("dies-{crash}"));
        let pulled = rig.pull(dies).await;
        assert_eq!(pulled.len(), 1, "crash {crash}");
        for _ in 0..4 {
            rig.advance(secs(9)).await;
            rig.tasks.renew(&process("lives"), &[], secs(30)).await.unwrap();
        }
        let expired = rig.store.reap(Some(rig.now()), 10).await.unwrap();
        assert!(expired[0].crash, "{expired:?}");
        rig.advance(secs(60)).await;
    }
    assert_eq!(rig.pull(ten("w")).await, []);
    let row = rig.job(job).await;
    assert_eq!(row.state, JobState::Dead, "{row:?}");
    assert!(row.error.unwrap().contains("max_crashes is 2"));
}

#[tokio::test]
async fn r40_requests_out_of_bounds_are_refused_by_field() {
    let rig = Rig::new(Policy::default());
    let many = (0..101).map(|n| task(&format!("t{n}"))).collect();
    let table = [
        (ten("w").limit(0), "limit"),
        (ten("w").limit(1_001), "limit"),
        (ten("w").wait(secs(26)), "wait"),
        (ten("w").lease(Duration::from_millis(999)), "lease"),
        (ten("w").lease(secs(3_601)), "lease"),
        (PullClaim::new(process("w"), many), "tasks"),
        (PullClaim::new(process("w"), Vec::new()), "tasks"),
    ];
    for (claim, field) in table {
        let error = rig.tasks.claim(claim.clone()).await.unwrap_err();
        assert_eq!(error.field(), Some(field), "{claim:?}: {error}");
    }
    let error = rig.tasks.settle(Vec::new()).await.unwrap_err();
    assert_eq!(error.field(), Some("settlements"));
}

#[tokio::test]
async fn r31_a_claim_brings_no_more_bytes_than_asked() {
    let rig = Rig::new(Policy::default());
    let large = format!("\"{}\"", "x".repeat(100_000));
    for _ in 0..60 {
        rig.trigger(&large).await;
    }
    let mut claim = ten("w").limit(60);
    claim.bytes = 1 << 20;
    let bytes =
        |jobs: &[PulledJob]| jobs.iter().map(|one| one.job.payload.as_str().len()).sum::<usize>();
    let mut got = 0;
    while got < 60 {
        let jobs = rig.pull(claim.clone()).await;
        assert!(!jobs.is_empty() && bytes(&jobs) <= 1 << 20, "{} bytes", bytes(&jobs));
        got += jobs.len();
    }
}

#[tokio::test]
async fn r21_a_worker_takes_back_leases_of_a_queue_that_it_only_watches() {
    let rig = Rig::new(Policy::default());
    let watcher = rig.quell.worker(()).watch(rig.tasks.queues());
    let mut running = JoinSet::new();
    running.spawn(watcher.run_until(std::future::pending()));
    quiet().await;
    rig.trigger("1").await;
    rig.trigger("2").await;
    assert_eq!(rig.asked("claim"), 0, "the queue's work is another's");
    assert_eq!(rig.pull(ten("dies")).await.len(), 2);
    let claims = rig.asked("claim");
    rig.advance(secs(29)).await;
    assert_eq!(rig.pull(ten("w")).await, []);
    rig.advance(secs(2)).await;
    assert_eq!(rig.asked("reap"), 1 + 1, "at the start, and once the leases had expired");
    assert_eq!(rig.asked("claim"), claims);
    assert_eq!(rig.pull(ten("w")).await.len(), 2);
    running.shutdown().await;
    let error = rig.quell.worker(()).run_until(async {}).await.unwrap_err();
    assert!(error.to_string().contains("no task"), "{error}");
}

#[tokio::test]
async fn r08_r31_a_claim_that_a_limit_keeps_waiting_looks_no_more_often_than_an_idle_one() {
    let rig = Rig::new(Policy::default());
    let queue = rig.quell.queue(quell::DEFAULT_QUEUE);
    let settings = quell::queue::QueueSettings::default;
    let rate = quell::queue::Rate { limit: 1, period: secs(3_600) };
    for limits in [settings().concurrency(1), settings().rate(rate), settings().paused(true)] {
        queue.set(&settings()).await.unwrap();
        while let Some(job) = rig.pull(ten("w")).await.pop() {
            rig.settle(&job, PullOutcome::succeeded()).await;
        }
        queue.set(&settings().paused(limits.paused)).await.unwrap();
        queue.set(&limits).await.unwrap();
        rig.trigger("1").await;
        let running = rig.pull(ten("w").limit(1)).await;
        rig.trigger("2").await;
        let before = rig.asked("peek") + rig.asked("claim");
        let waits = rig.waits(ten("v")).await;
        rig.advance(secs(15)).await;
        let calls = rig.asked("peek") + rig.asked("claim") - before;
        assert!(!waits.is_finished() && (15..=60).contains(&calls), "{limits:?}: {calls} calls");
        drop(waits);
        for job in &running {
            rig.settle(job, PullOutcome::succeeded()).await;
        }
    }
}

#[tokio::test]
async fn r08_a_busy_worker_that_is_first_in_line_keeps_no_job_from_a_free_one() {
    let rig = Rig::new(Policy::default());
    let settings = quell::queue::QueueSettings::default().worker_concurrency(1);
    rig.quell.queue(quell::DEFAULT_QUEUE).set(&settings).await.unwrap();
    rig.trigger("1").await;
    assert_eq!(rig.pull(ten("busy")).await.len(), 1);
    let (busy, free) = (rig.waits(ten("busy")).await, rig.waits(ten("free")).await);
    rig.trigger("2").await;
    rig.advance(secs(3)).await;
    assert!(!busy.is_finished());
    assert_eq!(free.jobs().await.jobs.len(), 1);
}

#[tokio::test]
async fn r29_what_a_stopped_server_still_claims_is_released_before_it_ends() {
    let rig = Rig::new(Policy::default());
    let job = rig.trigger("1").await;
    drop(rig.tasks.claim(ten("w")).await.unwrap());
    rig.tasks.close();
    rig.tasks.drained(secs(5)).await;
    assert_eq!(rig.job(job).await.state, JobState::Scheduled);
}

#[tokio::test]
async fn r21_an_attempt_that_goes_on_elsewhere_keeps_its_lease_and_no_slot() {
    let rig = Rig::new(Policy::default());
    let (send, mut leases) = tokio::sync::mpsc::unbounded_channel();
    let hand_over = |_: Payload, ctx: quell::Ctx<tokio::sync::mpsc::UnboundedSender<_>>| async move {
        ctx.state().send(ctx.lease()).unwrap();
        Err::<(), _>(quell::TaskError::hand_over(secs(3_600)))
    };
    let worker = rig.quell.worker(send).concurrency(1).lease(secs(30));
    let worker = worker.register_raw(task("t"), &rig.policy, hand_over);
    let mut running = JoinSet::new();
    running.spawn(worker.run_until(std::future::pending()));
    let jobs = [rig.trigger("1").await, rig.trigger("2").await];
    rig.advance(secs(1)).await;
    for id in jobs {
        let job = rig.job(id).await;
        let left = job.lease_until.unwrap().since(rig.now());
        assert!(job.state == JobState::Running && left > secs(3_590), "{left:?}: {job:?}");
    }
    // Renewals of the worker do not shorten it, and neither does its end.
    rig.advance(secs(100)).await;
    running.shutdown().await;
    let job = rig.job(jobs[0]).await;
    assert!(job.lease_until.unwrap().since(rig.now()) > secs(3_400), "{job:?}");
    let lease = leases.recv().await.unwrap();
    let became = settled(&rig.tasks, &lease, PullOutcome::succeeded()).await;
    assert_eq!(became, SettledAs::Succeeded);
    assert_eq!(rig.job(jobs[0]).await.state, JobState::Succeeded);
}

#[tokio::test]
async fn r39_a_worker_that_holds_a_task_off_claims_none_of_its_jobs_until_then() {
    let rig = Rig::new(Policy::default());
    let tries = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let snooze = |_: Payload, ctx: quell::Ctx<Arc<std::sync::atomic::AtomicUsize>>| async move {
        ctx.state().fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        ctx.hold_off(secs(10));
        Err::<(), _>(quell::TaskError::snooze(secs(1)))
    };
    let fine = |_: Payload, _: quell::Ctx<_>| async { Ok::<(), quell::TaskError>(()) };
    let worker = rig.quell.worker(Arc::clone(&tries)).register_raw(task("t"), &rig.policy, snooze);
    let worker = worker.register_raw(task("fine"), &Policy::default(), fine);
    let mut running = JoinSet::new();
    running.spawn(worker.run_until(std::future::pending()));
    rig.trigger("1").await;
    quiet().await;
    let tried = || tries.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(tried(), 1);
    rig.advance(Duration::from_millis(9_900)).await;
    let other = Policy::default().trigger(task("fine"), Payload::from_stored("1"), None).unwrap();
    let other = rig.quell.enqueue(Batch::one(other)).await.unwrap()[0].job().unwrap();
    quiet().await;
    assert_eq!((tried(), rig.job(other).await.state), (1, JobState::Succeeded));
    rig.advance(Duration::from_millis(200)).await;
    assert_eq!(tried(), 2, "it is tried again as soon as the time is over");
    running.shutdown().await;
}

#[tokio::test]
async fn the_end_of_an_attempt_elsewhere_is_reported_as_that_of_a_worker_here() {
    let (seen, _guard) = crate::seen::Seen::start();
    let rig = Rig::new(Policy::default().attempts(1));
    rig.trigger("1").await;
    let pulled = rig.pull(ten("w")).await;
    assert_eq!(rig.settle(&pulled[0], failed("no such image")).await, SettledAs::Dead);
    let ends = seen.ends();
    let shown: Vec<_> = ends.iter().map(|end| (end.level, end.field("error"))).collect();
    assert_eq!(shown, [(tracing::Level::WARN, "no such image")]);
}

/// What became of the settlements of twelve jobs, where these fail with this kind, and the number of
/// calls to the store.
async fn twelve_with(fail: &[usize], kind: ErrorKind) -> (Result<Vec<Option<SettledAs>>>, usize) {
    let rig = Rig::new(Policy::default());
    for number in 0..12 {
        rig.trigger(&number.to_string()).await;
    }
    let pulled = rig.pull(ten("w").limit(12)).await;
    let kinds = fail.iter().map(|place| (pulled[*place].job.id, kind));
    rig.store.fails.lock().unwrap().extend(kinds);
    let ended = pulled.iter().map(|job| (job.lease.clone(), PullOutcome::succeeded())).collect();
    let settled = rig.tasks.settle(ended).await;
    let became = |one: Result<quell::worker::pull::PullSettled>| one.ok().map(|one| one.became);
    for (place, job) in pulled.iter().enumerate() {
        let is_done = rig.job(job.job.id).await.state == JobState::Succeeded;
        let is_answered = settled.as_ref().is_ok_and(|all| all[place].is_ok());
        assert_eq!(is_done, is_answered, "{place}");
    }
    (settled.map(|all| all.into_iter().map(became).collect()), rig.asked("settle"))
}

#[tokio::test]
async fn r39_a_settlement_that_fails_for_good_fails_no_other() {
    let (settled, calls) = twelve_with(&[3, 8], ErrorKind::Corrupt).await;
    let done = Some(SettledAs::Succeeded);
    let expected: Vec<_> = (0..12).map(|place| done.filter(|_| ![3, 8].contains(&place))).collect();
    assert_eq!(settled.unwrap(), expected);
    assert!(calls > 2 && calls < 20, "{calls}");
    // A store that is away takes none, and is asked once.
    let (settled, calls) = twelve_with(&[3], ErrorKind::Unavailable).await;
    assert_eq!((settled.unwrap_err().kind(), calls), (ErrorKind::Unavailable, 1));
    // One that takes nothing is not asked for each.
    let all: Vec<usize> = (0..12).collect();
    let (settled, calls) = twelve_with(&all, ErrorKind::Internal).await;
    assert_eq!(settled.unwrap_err().kind(), ErrorKind::Internal);
    assert!(calls < 22, "{calls}");
}

#[tokio::test]
async fn r21_a_heartbeat_that_hangs_holds_up_no_renewal() {
    let rig = Rig::new(Policy::default());
    rig.trigger("1").await;
    let job = rig.pull(ten("w")).await.remove(0);
    let goes_on = CancellationToken::new();
    *rig.store.hangs.lock().unwrap() = Some(("heartbeat", goes_on.clone()));
    // By then another heartbeat is due, too.
    rig.advance(secs(20)).await;
    let (tasks, lease) = (rig.tasks.clone(), job.lease.clone());
    let mut renewal = JoinSet::new();
    renewal.spawn(async move { tasks.renew(&process("w"), &[lease], secs(30)).await });
    quiet().await;
    assert_eq!(rig.asked("heartbeat"), 2);
    let left = rig.job(job.job.id).await.lease_until.unwrap().since(rig.now());
    assert_eq!(left, secs(30), "the lease is extended although the heartbeat hangs");
    assert!(renewal.try_join_next().is_none(), "the answer waits for both");
    goes_on.cancel();
    let answer = renewal.join_next().await.unwrap().unwrap().unwrap();
    assert!(matches!(answer[..], [Renewal::Held(_)]), "{answer:?}");
}

/// Each claim begins with any of its queues, so that one which is never empty holds up no other.
#[tokio::test]
async fn r30_of_several_queues_with_work_each_has_its_turn() {
    let quell = Quell::open("memory:").await.unwrap();
    let (mut tasks, mut names) = (PullTasks::new(quell.clone()), Vec::new());
    for name in ["a", "b", "c"] {
        let policy = Policy::queue(name);
        tasks = tasks.task(task(name), &policy).unwrap();
        names.push(task(name));
        for _ in 0..60 {
            let trigger = policy.trigger(task(name), Payload::from_stored("1"), None).unwrap();
            quell.enqueue(Batch::one(trigger)).await.unwrap();
        }
    }
    let mut from: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..60 {
        let claim = PullClaim::new(process("w"), names.clone());
        let pulled = tasks.claim(claim).await.unwrap().delivered().jobs;
        assert_eq!(pulled.len(), 1);
        *from.entry(pulled[0].queue.to_string()).or_default() += 1;
    }
    // By chance alone a queue has less than one of sixty turns once in ten thousand million runs.
    assert_eq!(from.len(), 3, "{from:?}");
}

/// From its next heartbeat on, at each server. It holds up no other in line.
#[tokio::test]
async fn r29_a_drained_worker_gets_no_jobs_from_any_server_until_it_is_resumed() {
    let rig = Rig::new(Policy::default());
    let drain = async |drains| {
        let drain = WorkerDrain::new(WorkerId::new("w").unwrap(), drains);
        rig.quell.drain_worker(&drain).await.unwrap()
    };
    rig.trigger("1").await;
    let running = rig.pull(ten("w")).await.remove(0);
    let in_line = rig.waits(ten("w")).await;
    assert_eq!(drain(true).await, 1);
    rig.advance(secs(10)).await;
    assert!(in_line.is_finished(), "a claim that waits learns it with a heartbeat");
    let answer = in_line.jobs().await;
    assert!(answer.drained && answer.jobs.is_empty(), "{answer:?}");

    let drained = rig.waits(ten("w")).await;
    let other = rig.waits(ten("x")).await;
    rig.trigger("2").await;
    quiet().await;
    assert_eq!(other.jobs().await.jobs.len(), 1, "another worker gets the job");
    assert!(!drained.is_finished());
    let elsewhere = PullTasks::new(rig.quell.clone()).task(task("t"), &rig.policy).unwrap();
    let answer = elsewhere.claim(ten("w")).await.unwrap().delivered();
    assert!(answer.drained, "another server reads it with its first heartbeat: {answer:?}");
    assert_eq!(rig.settle(&running, PullOutcome::succeeded()).await, SettledAs::Succeeded);

    assert_eq!(drain(false).await, 1);
    rig.advance(secs(10)).await;
    let answer = drained.jobs().await;
    assert!(!answer.drained && answer.jobs.is_empty(), "it may claim again: {answer:?}");
    rig.trigger("3").await;
    assert_eq!(rig.pull(ten("w")).await.len(), 1);
}
