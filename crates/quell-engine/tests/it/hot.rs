//! A backend with hot paths, and what operations say of the rows that they touch.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use quell_conformance::Rig;
use quell_conformance::rig::{lease, plain, secs};
use quell_core::checkup::Checkup;
use quell_core::part::{Ids, Notifications};
use quell_core::schedule::Schedule;
use quell_core::{
    Answer, Batch, Capabilities, Claim, Claimed, EndNotification, Error, ErrorKind, Job, JobId,
    JobState, Lease, NextDue, Now, Operation, Outcome, Receipt, Renewal, Result, Retention, Root,
    Scope, Settled, SettledAs, Settlement, Steps, Store, Wakeups,
};
use quell_engine::{
    Access, Backend, Beginning, Changes, Committed, Engine, Maps, Row, RowName, Scan, Seen,
    SettingsOf, Taken, Tally, TasksOf, Time,
};

use crate::over_maps::over_maps;

/// Maps that take every second hot operation by themselves, ends by halves, and show what each commit
/// changes.
#[derive(Debug)]
struct Watched {
    maps: Maps,
    /// Where there is one, it takes hot operations on the same rows.
    hot: Option<Engine<Maps>>,
    offered: Arc<AtomicU64>,
    changed: Arc<Mutex<Changes>>,
    /// A commit that changes more rows meets another step.
    most_rows: usize,
    /// Rows that the engine plans one step for.
    most_changes: usize,
    /// How many commits of steps come before one that fails.
    commits_left: Arc<AtomicU64>,
}

impl Watched {
    fn new() -> Self {
        let (offered, changed) = (Arc::default(), Arc::default());
        Watched {
            maps: Maps::new(Rig::START),
            hot: None,
            offered,
            changed,
            most_rows: usize::MAX,
            most_changes: usize::MAX,
            commits_left: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }

    fn with_hot_paths(self) -> Self {
        Watched { hot: Some(Engine::new(self.maps.clone())), ..self }
    }
}

over_maps!(Watched {
    async fn commit(
        &self,
        tx: Self::Tx,
        changes: Changes,
        news: &Notifications,
    ) -> Result<Committed> {
        let left = &self.commits_left;
        let one_less = |left: u64| left.checked_sub(1);
        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err() {
            return Err(Error::new(ErrorKind::Unavailable, "no commit is left"));
        }
        if changes.rows.len() > self.most_rows {
            return Ok(Committed::Conflict);
        }
        *self.changed.lock().unwrap() = changes.clone();
        self.maps.commit(tx, changes, news).await
    }

    fn most_changes(&self) -> usize {
        self.most_changes
    }

    async fn hot_enqueue(&self, now: Now, batches: &[Batch]) -> Taken<Vec<Result<Vec<Receipt>>>> {
        let Some(hot) = self.turn() else { return Ok(None) };
        let mut wakeups = hot.wakeups();
        let receipts = Steps::enqueue(hot, now, batches.to_vec()).await?;
        let mut news = Notifications::default();
        while let Some(Some(wakeup)) = wakeups.next().now_or_never() {
            news.wakes.extend(wakeup.queue.map(|queue| (queue, wakeup.due)));
        }
        Ok(Some((receipts, news)))
    }

    async fn hot_claim(&self, now: Now, claim: &Claim) -> Taken<Claimed> {
        let Some(hot) = self.turn() else { return Ok(None) };
        Ok(Some((Steps::claim(hot, now, claim).await?, Notifications::default())))
    }

    async fn hot_renew(&self, now: Now, leases: &[Lease], lease: Duration) -> Taken<Vec<Renewal>> {
        let Some(hot) = self.turn() else { return Ok(None) };
        Ok(Some((Steps::renew(hot, now, leases, lease).await?, Notifications::default())))
    }

    async fn hot_settle(
        &self,
        now: Now,
        settlements: &[Settlement],
    ) -> Taken<Vec<Option<Settled>>> {
        let Some(hot) = self.turn() else { return Ok(None) };
        let mut wakeups = hot.wakeups();
        let some = settlements[..settlements.len().div_ceil(2)].to_vec();
        let settled = Steps::settle(hot, now, some).await?;
        let goes_on = |became| matches!(became, SettledAs::Scheduled { .. } | SettledAs::Refused);
        let ended = settled.iter().filter(|settled| !goes_on(settled.became));
        let mut news = Notifications::default();
        news.ended.extend(ended.map(|settled| settled.lease.job));
        while let Some(Some(wakeup)) = wakeups.next().now_or_never() {
            news.wakes.extend(wakeup.queue.map(|queue| (queue, wakeup.due)));
        }
        Ok(Some((settled.into_iter().map(Some).collect(), news)))
    }

    async fn hot_next_due(&self, now: Now, (queue, tasks): TasksOf<'_>) -> Result<Option<NextDue>> {
        let Some(hot) = self.turn() else { return Ok(None) };
        Steps::next_due(hot, now, queue, tasks).await.map(Some)
    }
});

impl Watched {
    /// The engine that takes the next hot operation; none where it declines.
    fn turn(&self) -> Option<&Engine<Maps>> {
        let hot = self.hot.as_ref()?;
        let offered = self.offered.fetch_add(1, Ordering::SeqCst);
        (!offered.is_multiple_of(2)).then_some(hot)
    }
}

#[test]
fn a_store_with_hot_paths_answers_like_the_model() {
    let offered = Arc::new(AtomicU64::new(0));
    let open = || {
        let offered = Arc::clone(&offered);
        async move {
            let backend = Watched { offered, ..Watched::new() }.with_hot_paths();
            crate::opened(Engine::new(backend))
        }
    };
    quell_conformance::oracle::compare(open, quell_conformance::oracle::COUNTED);
    assert!(offered.load(Ordering::SeqCst) > 100);
}

/// Where other calls change what a prune reads all the time, it removes fewer jobs at a time.
#[tokio::test]
async fn r37_a_prune_that_meets_other_calls_removes_fewer() {
    let backend = Watched { most_rows: 40, ..Watched::new() };
    let rig = Rig::new(crate::opened(Engine::new(backend)));
    for _ in 0..64 {
        rig.trigger(plain("1")).await;
        let run = rig.claim_one().await;
        rig.succeed(&run).await;
    }
    let now = rig.now() + secs(10);
    let removed = rig.pruned(now, &Retention { succeeded: Some(secs(1)), dead: None }, 64).await;
    assert!(removed.jobs > 0 && removed.more, "{removed:?}");
}

/// Ends four attempts, where the commit of a step after `commits` others fails, and says how many ended.
async fn ends_again_after(backend: Watched, commits: u64) -> usize {
    let left = Arc::clone(&backend.commits_left);
    let rig = Rig::new(crate::opened(Engine::new(backend)));
    for _ in 0..4 {
        rig.trigger(plain("1")).await;
    }
    let jobs = rig.claim().await;
    assert_eq!(jobs.len(), 4);
    let of = |job| Settlement { lease: lease(job), outcome: Outcome::succeeded() };
    let settle = async || {
        let settled = rig.store.settle(Some(rig.now()), jobs.iter().map(of).collect()).await;
        settled.map(|settled| settled.into_iter().map(|one| one.became).collect::<Vec<_>>())
    };
    left.store(commits, Ordering::SeqCst);
    assert_eq!(settle().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let mut ended = 0;
    for job in &jobs {
        ended += usize::from(rig.job(job.id).await.state == JobState::Succeeded);
    }
    left.store(u64::MAX, Ordering::SeqCst);
    assert_eq!(settle().await.unwrap(), [SettledAs::Succeeded; 4]);
    assert_eq!(settle().await.unwrap(), [SettledAs::Refused; 4], "each is answered once");
    ended
}

#[tokio::test]
async fn r21_what_has_ended_in_a_step_before_one_that_failed_is_answered_later() {
    let of_two = Watched { most_changes: 16, ..Watched::new() };
    assert_eq!(ends_again_after(of_two, 1).await, 2);
}

#[tokio::test]
async fn r21_what_a_hot_path_ended_before_a_step_failed_is_answered_later() {
    let backend = Watched::new().with_hot_paths();
    // The operations before it are offered, too.
    let offered = Arc::new(AtomicU64::new(0));
    assert_eq!(ends_again_after(Watched { offered, ..backend }, 0).await, 2);
}

/// A store that compares what each operation changes with its scope.
#[derive(Debug)]
struct Scoped {
    engine: Engine<Watched>,
    judged: Arc<AtomicU64>,
}

#[async_trait]
impl Store for Scoped {
    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        *self.engine.backend().changed.lock().unwrap() = Changes::default();
        let (name, kind, scope) = (operation.name(), operation.kind(), operation.scope());
        let answer = self.engine.call(now, operation).await;
        let changes = self.engine.backend().changed.lock().unwrap().clone();
        assert!(changes.is_empty() || kind.writes(), "{name} changed {changes:?}");
        if let Scope::Of(roots) = scope {
            let roots = self.with_triggers(roots).await;
            let jobs = self.jobs_of(&changes, &roots).await;
            let outside = changes.rows.keys().find(|row| !belongs(row, &roots, &jobs));
            assert!(outside.is_none(), "{name} changed {outside:?}, its scope is {roots:?}");
            self.judged.fetch_add(u64::from(!changes.rows.is_empty()), Ordering::SeqCst);
        }
        answer
    }

    fn wakeups(&self) -> Wakeups {
        self.engine.wakeups()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.engine.ended(job)
    }
}

impl Scoped {
    /// The roots, and those of the triggers of schedules among them.
    async fn with_triggers(&self, mut roots: BTreeSet<Root>) -> BTreeSet<Root> {
        for info in Store::schedules(&self.engine).await.unwrap() {
            let Schedule { name, trigger, .. } = info.schedule;
            let enqueue = Operation::Enqueue { batches: vec![Batch::one(trigger)] };
            if let (true, Scope::Of(of_trigger)) =
                (roots.contains(&Root::Schedule(name)), enqueue.scope())
            {
                roots.extend(of_trigger);
            }
        }
        roots
    }

    /// The jobs that a change moved and those that the scope names.
    async fn jobs_of(&self, changes: &Changes, roots: &BTreeSet<Root>) -> Vec<Job> {
        let moved = changes.rows.values().flatten().filter_map(|row| match row {
            Row::Job(job) => Some((**job).clone()),
            _ => None,
        });
        let mut jobs: Vec<Job> = moved.collect();
        for root in roots {
            if let Root::Job(id) = root {
                jobs.extend(Store::job(&self.engine, *id).await.unwrap());
            }
        }
        jobs
    }
}

/// Whether a row is one of these, or belongs to one.
fn belongs(row: &RowName, roots: &BTreeSet<Root>, jobs: &[Job]) -> bool {
    let has = |root: Root| roots.contains(&root);
    let of_job = |id: &JobId| {
        let Some(job) = jobs.iter().find(|job| job.id == *id) else { return has(Root::Job(*id)) };
        let key = job.key.clone().map(|key| (job.task.clone(), key));
        let is_sibling =
            |other: &Job| has(Root::Job(other.id)) && other.key.is_some() && other.key == job.key;
        has(Root::Job(*id))
            || has(Root::Queue(job.queue.clone()))
            || key.is_some_and(|(task, key)| has(Root::Key(task, key)))
            || jobs.iter().any(is_sibling)
    };
    let of_a_job =
        |test: &dyn Fn(&Job) -> bool| jobs.iter().any(|job| of_job(&job.id) && test(job));
    match row {
        RowName::Job(id)
        | RowName::Attempts(id)
        | RowName::Effects(id)
        | RowName::Past(id)
        | RowName::Aside(id) => of_job(id),
        RowName::Key((task, key)) | RowName::Memory((task, key)) => {
            has(Root::Key(task.clone(), key.clone()))
                || of_a_job(&|job| job.task == *task && job.key.as_ref() == Some(key))
        }
        RowName::Hold((task, key)) => {
            has(Root::Dedup(task.clone(), key.clone())) || of_a_job(&|job| job.task == *task)
        }
        RowName::Record((task, key)) => {
            has(Root::Idempotency(task.clone(), key.clone())) || of_a_job(&|job| job.task == *task)
        }
        RowName::Queue(queue)
        | RowName::Remarks(SettingsOf::Queue(queue))
        | RowName::Turn(queue)
        | RowName::Starts(queue, _) => {
            has(Root::Queue(queue.clone())) || of_a_job(&|job| job.queue == *queue)
        }
        // A change of a task's settings writes those that claims go through.
        RowName::Gate(_) => true,
        RowName::Task(task) | RowName::Remarks(SettingsOf::Task(task)) => {
            has(Root::Task(task.clone())) || of_a_job(&|job| job.task == *task)
        }
        RowName::Schedule(name) | RowName::Tick(name, _) => has(Root::Schedule(name.clone())),
        RowName::Origin(_) => of_a_job(&|_| true),
        RowName::Worker(worker, _) | RowName::Remarks(SettingsOf::Worker(worker, _)) => {
            has(Root::Worker(worker.clone()))
        }
        RowName::Alert(name) => has(Root::Alert(name.clone())),
    }
}

#[test]
fn operations_change_no_row_outside_their_scopes() {
    let judged = Arc::new(AtomicU64::new(0));
    let open = || {
        let judged = Arc::clone(&judged);
        async move {
            let engine = Engine::new(Watched::new());
            crate::opened(Scoped { engine, judged })
        }
    };
    quell_conformance::oracle::compare(open, quell_conformance::oracle::COUNTED);
    assert!(judged.load(Ordering::SeqCst) > 100);
}
