//! A store under test with a virtual clock, and short words for what tests do to it.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_core::heartbeat::Heartbeat;
use quell_core::job::{Adjusted, Adjustment};
use quell_core::trace::TraceContext;
use quell_core::trigger::Keyed;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    AttemptOutcome, Batch, Claim, ClaimedJob, Draw, ExpiredLease, ExplainTarget, Explanation,
    Failure, FailureKind, Fold, Job, JobFilter, JobId, JobState, Key, Lease, LeaseToken,
    NewTrigger, NextDue, Outcome, Payload, Pruned, QueueName, QueueSettings, Receipt, Renewal,
    Result, Retention, SettledAs, Settlement, Store, TaskName, Timestamp, WorkerId,
};

/// A fresh store and whatever must outlive it.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Kept until the test ends, for example a temporary folder.
    pub guard: Box<dyn Any + Send>,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A store with a virtual clock that starts at second 0 of the test.
#[derive(Debug)]
pub struct Rig {
    /// The store under test.
    pub store: Arc<dyn Store>,
    now: Timestamp,
    /// The jobs that receipts named, for stores that list nothing.
    seen: Mutex<BTreeSet<JobId>>,
    // Behind a lock so that a rig can be shared by the futures of one test.
    _guard: Mutex<Opened>,
}

/// Seconds as a duration.
#[must_use]
pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Waits until `done`, for at most a minute.
///
/// # Panics
/// When that time is over.
pub async fn until<F: Future<Output = bool>>(what: &str, done: impl Fn() -> F) {
    let waited = tokio::time::timeout(secs(60), async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "timed out waiting until {what}");
}

/// Every job of a store, by its id.
pub async fn all_jobs(store: &dyn Store) -> BTreeMap<JobId, Job> {
    let mut jobs = BTreeMap::new();
    let mut before = None;
    loop {
        let filter = JobFilter { before, limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
        let page = store.jobs(&filter).await.expect("the store lists jobs");
        let Some(last) = page.last() else { return jobs };
        before = Some(last.id);
        jobs.extend(page.into_iter().map(|job| (job.id, job)));
    }
}

/// The queue that tests use.
#[must_use]
pub fn queue() -> QueueName {
    QueueName::new("q").expect("a valid name")
}

/// A task by name.
#[must_use]
pub fn task(name: &str) -> TaskName {
    TaskName::new(name).expect("a valid name")
}

/// A key by its text.
#[must_use]
pub fn key(text: &str) -> Key {
    Key::new(text).expect("a valid key")
}

/// Debounce of 10 s to 60 s.
#[must_use]
pub fn debounce() -> Debounce {
    Debounce::new(Thresholds::new(secs(10), secs(60)).expect("valid thresholds"))
}

/// A trigger of task `t` without a key.
#[must_use]
pub fn plain(payload: &str) -> NewTrigger {
    NewTrigger::new(task("t"), queue(), Payload::from_text(payload).expect("JSON"))
}

/// A trigger of task `t` with a key, debounced 10 s to 60 s.
#[must_use]
pub fn keyed(k: &str) -> NewTrigger {
    keyed_with(k, debounce(), Fold::Last, "1")
}

/// A trigger of task `t` with a key and everything that goes with it.
#[must_use]
pub fn keyed_with(k: &str, debounce: Debounce, fold: Fold, payload: &str) -> NewTrigger {
    NewTrigger { keyed: Some(Keyed { key: key(k), debounce }), fold, ..plain(payload) }
}

/// A trigger with the trace context of this number, which is not 0.
#[must_use]
pub fn traced(number: u64, trigger: NewTrigger) -> NewTrigger {
    let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{number:016x}-01");
    // Each second one has both headers.
    let state = number.is_multiple_of(2).then(|| format!("n={number}, m=\\x"));
    NewTrigger { trace: TraceContext::new(&parent, state.as_deref()).ok(), ..trigger }
}

/// Each way in which an attempt may end; what goes back waits for 900 s, unless it was released.
#[must_use]
pub fn every_end() -> [Outcome; 6] {
    [
        Outcome::succeeded(),
        fails(secs(900), false),
        fails(secs(1), true),
        Outcome::Snoozed { delay: secs(900) },
        Outcome::Cancelled { reason: "enough".to_owned() },
        Outcome::Released,
    ]
}

/// A transient failure with this backoff.
#[must_use]
pub fn fails(backoff: Duration, last: bool) -> Outcome {
    let kind = FailureKind::Transient { backoff, last, asked: false };
    Outcome::Failed(Failure { error: "boom".to_owned(), ended: AttemptOutcome::Failed, kind })
}

/// The lease of a claimed job.
#[must_use]
pub fn lease(job: &ClaimedJob) -> Lease {
    Lease { job: job.id, token: job.token }
}

impl Rig {
    /// When second 0 is.
    pub const START: Timestamp = Timestamp::from_secs(1_767_225_600);
    /// How long leases hold.
    pub const LEASE: Duration = Duration::from_secs(30);
    /// What is drawn for each claim of a test. Its digits fill what there is.
    pub const DRAW: Draw = Draw::new(0x7a_5f3c_9d17);

    /// Starts on a fresh store.
    #[must_use]
    pub fn new(opened: Opened) -> Self {
        let (store, seen) = (Arc::clone(&opened.store), Mutex::default());
        Rig { store, now: Rig::START, seen, _guard: Mutex::new(opened) }
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Moves the clock to this second of the test.
    pub fn at(&mut self, second: u64) -> &mut Self {
        self.now = Rig::START + secs(second);
        self
    }

    /// Moves the clock to this moment.
    pub fn at_time(&mut self, now: Timestamp) -> &mut Self {
        self.now = now;
        self
    }

    /// The second of the test that a moment is in.
    #[must_use]
    pub fn second(time: Timestamp) -> u64 {
        time.since(Rig::START).as_secs()
    }

    /// Triggers once.
    pub async fn trigger(&self, trigger: NewTrigger) -> Receipt {
        self.trigger_batch(Batch::one(trigger)).await.remove(0)
    }

    /// Triggers a batch.
    pub async fn trigger_batch(&self, batch: Batch) -> Vec<Receipt> {
        self.try_batch(batch).await.expect("the batch is accepted")
    }

    /// Triggers a batch that may be refused.
    ///
    /// # Errors
    /// What the store says of the batch.
    pub async fn try_batch(&self, batch: Batch) -> Result<Vec<Receipt>> {
        let answer = self.store.enqueue(Some(self.now), vec![batch]).await;
        let receipts = answer.expect("the store accepts triggers").remove(0)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(receipts.iter().filter_map(Receipt::job));
        drop(seen);
        Ok(receipts)
    }

    /// The claim of a worker that knows task `t`.
    #[must_use]
    pub fn claim_of(limit: usize) -> Claim {
        Claim {
            queue: queue(),
            tasks: Arc::from([task("t")]),
            worker: WorkerId::new("w1").expect("a valid name"),
            limit,
            lease: Rig::LEASE,
            draw: Rig::DRAW,
        }
    }

    /// The token of a job's `starts`-th start, by a claim as [`Rig::claim_of`] has it.
    #[must_use]
    pub fn token(starts: u64) -> LeaseToken {
        LeaseToken::of(starts, Rig::DRAW)
    }

    /// A worker reports that it is alive, at this second of the test.
    pub async fn beat(&self, worker: &str, incarnation: u32, second: u64) {
        let worker = WorkerId::new(worker).expect("a valid name");
        let beat = heartbeat(&worker, incarnation);
        let now = Some(Rig::START + secs(second));
        self.store.heartbeat(now, &beat).await.expect("the store takes heartbeats");
    }

    /// Claims whatever is due of task `t`.
    pub async fn claim(&self) -> Vec<ClaimedJob> {
        self.claim_with(&Rig::claim_of(1_000)).await
    }

    /// Claims as asked.
    pub async fn claim_with(&self, claim: &Claim) -> Vec<ClaimedJob> {
        self.store.claim(Some(self.now), claim).await.expect("the store hands out jobs").jobs
    }

    /// Claims and expects exactly one job.
    pub async fn claim_one(&self) -> ClaimedJob {
        let mut jobs = self.claim().await;
        if jobs.len() != 1 {
            panic!("one job was to be due, not {}: {jobs:#?}\n{}", jobs.len(), self.dump().await);
        }
        jobs.remove(0)
    }

    /// Claims and expects none.
    pub async fn claim_none(&self) {
        let jobs = self.claim().await;
        assert!(jobs.is_empty(), "nothing was to be due: {jobs:#?}\n{}", self.dump().await);
    }

    /// Settles one attempt.
    pub async fn settle(&self, lease: Lease, outcome: Outcome) -> SettledAs {
        let settlements = vec![Settlement { lease, outcome }];
        let settled = self.store.settle(Some(self.now), settlements).await;
        settled.expect("the store settles")[0].became
    }

    /// Ends an attempt well.
    pub async fn succeed(&self, job: &ClaimedJob) {
        let became = self.settle(lease(job), Outcome::succeeded()).await;
        assert_eq!(became, SettledAs::Succeeded, "{}", self.dump().await);
    }

    /// Ends an attempt with a transient failure.
    pub async fn fail(&self, job: &ClaimedJob, backoff: Duration) -> SettledAs {
        self.settle(lease(job), fails(backoff, false)).await
    }

    /// Reclaims expired leases.
    pub async fn reap(&self) -> Vec<ExpiredLease> {
        self.store.reap(Some(self.now), 1_000).await.expect("the store reaps")
    }

    /// Extends one lease.
    pub async fn renew(&self, lease: Lease) -> Option<Timestamp> {
        let renewed = self.store.renew(Some(self.now), &[lease], Rig::LEASE).await;
        let renewed = renewed.expect("the store renews").remove(0);
        assert_ne!(renewed, Renewal::Unknown, "the store was there");
        renewed.until()
    }

    /// Cancels a job.
    ///
    /// # Errors
    /// What the store says.
    pub async fn cancel(&self, id: JobId) -> Result<()> {
        self.store.cancel(Some(self.now), id, "no longer wanted").await
    }

    /// Makes the open window of a key of task `t` due now.
    pub async fn flush(&self, k: &str) -> Option<JobId> {
        self.store.flush(Some(self.now), &task("t"), &key(k)).await.expect("the store flushes")
    }

    /// Changes a job that waits.
    ///
    /// # Errors
    /// What the store says.
    pub async fn adjust(&self, id: JobId, adjustment: Adjustment) -> Result<Adjusted> {
        self.store.adjust(Some(self.now), id, adjustment).await
    }

    /// When a worker that knows task `t` has to look again.
    pub async fn next_due(&self) -> NextDue {
        let next = self.store.next_due(Some(self.now), &queue(), &[task("t")]).await;
        next.expect("the store looks")
    }

    /// Explains a job, trigger or key.
    pub async fn explain(&self, target: &ExplainTarget) -> Option<Explanation> {
        self.store.explain(Some(self.now), target).await.expect("the store explains")
    }

    /// Puts a dead job back.
    ///
    /// # Errors
    /// What the store says.
    pub async fn redrive(&self, id: JobId) -> Result<SettledAs> {
        self.store.redrive(Some(self.now), &id.into()).await
    }

    /// Removes ended jobs as of this second of the test.
    pub async fn prune(&self, second: u64, keep: &Retention, limit: usize) -> u64 {
        let now = Rig::START + secs(second);
        self.pruned(now, keep, limit).await.jobs
    }

    /// Removes what may go as of a moment, once.
    pub async fn pruned(&self, now: Timestamp, keep: &Retention, limit: usize) -> Pruned {
        self.store.prune(Some(now), keep, limit).await.expect("the store prunes")
    }

    /// Sets the queue that tests use.
    pub async fn set_queue(&self, settings: QueueSettings) {
        self.store
            .set_queue(Some(self.now()), &queue(), &settings)
            .await
            .expect("the store sets queues");
    }

    /// The ids of jobs that match.
    pub async fn list(&self, filter: &JobFilter) -> Vec<JobId> {
        let jobs = self.store.jobs(filter).await.expect("the store lists");
        jobs.into_iter().map(|job| job.id).collect()
    }

    /// A job's row.
    pub async fn job(&self, id: JobId) -> Job {
        self.store.job(id).await.expect("the store reads").expect("the job is there")
    }

    /// Every job, oldest first.
    pub async fn jobs(&self) -> Vec<Job> {
        if !self.store.capabilities().listing {
            return self.jobs_that_were_seen().await;
        }
        let mut jobs = Vec::new();
        loop {
            let before = jobs.last().map(|job: &Job| job.id);
            let filter = JobFilter { before, limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
            let page = self.store.jobs(&filter).await.expect("the store lists");
            if page.is_empty() {
                jobs.reverse();
                return jobs;
            }
            jobs.extend(page);
        }
    }

    /// Every job that a receipt named and that is still there, oldest first.
    async fn jobs_that_were_seen(&self) -> Vec<Job> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut jobs = Vec::new();
        for id in seen {
            jobs.extend(self.store.job(id).await.expect("the store reads"));
        }
        jobs
    }

    /// Every job, one per line, for failing tests.
    pub async fn dump(&self) -> String {
        let line = |job: &Job| {
            let (due, second) = (job.window.due_at, Rig::second(job.window.due_at));
            format!("{} {} {:?} due {second} ({due}) {job:?}\n", job.id, job.state, job.key)
        };
        self.jobs().await.iter().map(line).collect()
    }

    /// Claims and ends well whatever is due at each whole second until `until`; returns the second
    /// and the triggers of each run.
    pub async fn run_until(&mut self, until: u64) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        while self.now <= Rig::START + secs(until) {
            for job in self.claim().await {
                runs.push((Rig::second(self.now), job.triggers));
                self.succeed(&job).await;
            }
            self.now = self.now + secs(1);
        }
        runs
    }

    /// The states of all jobs, oldest first.
    pub async fn states(&self) -> Vec<JobState> {
        self.jobs().await.iter().map(|job| job.state).collect()
    }
}

/// A heartbeat of a worker that claims as [`Rig::claim_of`] says and has just started.
#[must_use]
pub fn heartbeat(worker: &WorkerId, incarnation: u32) -> Heartbeat {
    Heartbeat {
        worker: worker.clone(),
        incarnation,
        host: "host".to_owned(),
        pid: 4_711,
        version: "0.1.0".to_owned(),
        queues: vec![queue()],
        tasks: Some(vec![task("t")]),
        slots: 8,
        busy: 0,
        lease: Rig::LEASE,
        age: Duration::ZERO,
    }
}
