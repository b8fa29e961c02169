//! Jobs that a worker takes ahead of its slots are held for a moment at most (R8), and never where a
//! rate counts what starts (R31).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell::job::JobFilter;
use quell::queue::{QueueSettings, Rate};
use quell::store::Store;
use quell::testing::{TestClock, TestKit};
use quell::{
    Batch, Ctx, JobState, Payload, Policy, Quell, QueueName, Result, TaskError, TaskName, Timestamp,
};
use quell_conformance::rig::{secs, until};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

fn task() -> TaskName {
    TaskName::new("t").unwrap()
}

/// Jobs whose handlers take these numbers of milliseconds, in this order.
async fn enqueue(quell: &Quell, millis: impl IntoIterator<Item = u64>) -> Result<()> {
    let trigger = |millis| Policy::default().trigger(task(), Payload::encode(&millis)?, None);
    let triggers = millis.into_iter().map(trigger).collect::<Result<Vec<_>>>()?;
    quell.enqueue(Batch { triggers, dedup: None }).await.map(drop)
}

async fn count(store: &dyn Store, state: JobState) -> u64 {
    let counts = store.counts().await.unwrap();
    counts.iter().filter(|count| count.state == state).map(|count| count.jobs).sum()
}

/// When handlers began.
type Log = Mutex<Vec<Timestamp>>;

async fn works(payload: Payload, ctx: Ctx<Arc<Log>>) -> std::result::Result<(), TaskError> {
    let millis: u64 = payload.decode()?;
    ctx.state().lock().unwrap().push(ctx.quell().clock().now());
    if millis > 0 {
        ctx.sleep(Duration::from_millis(millis)).await;
    }
    Ok(())
}

#[tokio::test]
async fn r08_jobs_wait_100_ms_at_most_behind_busy_slots() -> Result<()> {
    let log = Arc::new(Log::default());
    let kit = TestKit::start(|quell| {
        let worker = quell.worker(Arc::clone(&log)).concurrency(4);
        worker.register_raw(task(), &Policy::default(), works)
    })?;
    // The first ones take no time, so that many are taken ahead.
    let (fast, slow) = ([0; 200], [300_000; 4]);
    enqueue(kit.quell(), fast.into_iter().chain(slow).chain([0; 40])).await?;
    kit.settle().await;
    let store = Arc::clone(kit.quell().store());
    assert_eq!(count(&*store, JobState::Succeeded).await, 200);
    kit.advance(Duration::from_millis(100)).await;
    assert_eq!(count(&*store, JobState::Running).await, 4, "the others are released");
    for _ in 0..10 {
        enqueue(kit.quell(), [0]).await?;
        kit.advance(secs(1)).await;
        assert_eq!(count(&*store, JobState::Running).await, 4, "and not taken back");
    }
    for job in kit.jobs("t", JobState::Scheduled).await? {
        assert_eq!((job.attempt, job.window.due_at), (0, job.window.first_at), "{job:?}");
    }
    let clock = Arc::new(TestClock::new(kit.now()));
    let other = Quell::with_store(Arc::clone(&store)).clock(clock).build()?;
    let free = other.worker(Arc::clone(&log)).register_raw(task(), &Policy::default(), works);
    let drained = until("another worker has run them", || async {
        count(&*store, JobState::Scheduled).await == 0
    });
    free.run_until(drained).await?;
    assert_eq!(log.lock().unwrap().len(), 254);
    Ok(())
}

#[tokio::test]
async fn r31_a_rate_holds_for_what_starts() -> Result<()> {
    let log = Arc::new(Log::default());
    let kit = TestKit::start(|quell| {
        let worker = quell.worker(Arc::clone(&log)).concurrency(4);
        worker.register_raw(task(), &Policy::default(), works)
    })?;
    let rate = Some(Rate { limit: 10, period: secs(1) });
    let settings = QueueSettings { rate, ..QueueSettings::default() };
    kit.quell().queue(quell::DEFAULT_QUEUE).set(&settings).await?;
    enqueue(kit.quell(), [0; 10]).await?;
    kit.settle().await;
    // Four that keep all slots busy for more than two periods, and then many that take no time.
    enqueue(kit.quell(), [2_500; 4].into_iter().chain([0; 60])).await?;
    kit.advance(secs(60)).await;
    let starts = log.lock().unwrap().clone();
    assert_eq!(starts.len(), 74);
    for first in &starts {
        let within = starts.iter().filter(|at| first <= at && **at < *first + secs(1));
        assert!(
            within.count() <= 10,
            "more than 10 starts in the second after {first}: {starts:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn r33_a_pause_holds_for_jobs_that_were_taken_ahead() -> Result<()> {
    let log = Arc::new(Log::default());
    let kit = TestKit::start(|quell| {
        let worker = quell.worker(Arc::clone(&log)).concurrency(2);
        worker.register_raw(task(), &Policy::default(), works)
    })?;
    enqueue(kit.quell(), [0; 50].into_iter().chain([150; 2]).chain([0; 20])).await?;
    kit.settle().await;
    let queue = kit.quell().queue(quell::DEFAULT_QUEUE);
    queue.set(&QueueSettings::default()).await?;
    queue.pause().await?;
    kit.advance(secs(10)).await;
    assert_eq!(log.lock().unwrap().len(), 52, "what had not started has not");
    queue.resume().await?;
    kit.advance(secs(1)).await;
    assert_eq!(log.lock().unwrap().len(), 72);
    Ok(())
}

/// What attempts wait for.
#[derive(Debug, Default)]
struct Gate {
    open: CancellationToken,
    /// Attempts that have come to it.
    reached: AtomicUsize,
}

/// Waits for the gate where the payload says so.
async fn gated(payload: Payload, ctx: Ctx<Arc<Gate>>) -> std::result::Result<(), TaskError> {
    let waits: bool = payload.decode()?;
    if waits {
        ctx.state().reached.fetch_add(1, Ordering::Relaxed);
        ctx.state().open.cancelled().await;
    }
    Ok(())
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r08_a_busy_worker_keeps_nothing_from_an_idle_one() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?synchronous=normal", folder.path().join("app.db").display());
    let (busy, idle) = (Quell::open(&url).await?, Quell::open(&url).await?);
    let gate = Arc::new(Gate::default());
    let trigger = |waits: bool| Policy::default().trigger(task(), Payload::encode(&waits)?, None);
    let jobs = [false; 1_000].into_iter().chain([true; 32]).chain([false; 400]);
    let triggers = jobs.map(trigger).collect::<Result<Vec<_>>>()?;
    busy.enqueue(Batch { triggers, dedup: None }).await?;
    let end = CancellationToken::new();
    let mut workers = JoinSet::new();
    let mut start = |quell: &Quell| {
        let worker = quell.worker(Arc::clone(&gate));
        let worker = worker.register_raw(task(), &Policy::default(), gated);
        workers.spawn(worker.run_until(end.clone().cancelled_owned()));
    };
    start(&busy);
    let store = Arc::clone(busy.store());
    let running = async || count(&*store, JobState::Running).await;
    let waiting = async || count(&*store, JobState::Scheduled).await;
    until("the first worker's slots are busy and it holds no more", || async {
        gate.reached.load(Ordering::Relaxed) >= 32 && running().await == 32
    })
    .await;
    // On a slow machine it may have run some of those that come after the ones that wait.
    let more = [false; 100].map(trigger).into_iter().collect::<Result<Vec<_>>>()?;
    busy.enqueue(Batch { triggers: more, dedup: None }).await?;
    start(&idle);
    until("the other worker has run the rest", || async {
        running().await == 32 && waiting().await == 0
    })
    .await;
    gate.open.cancel();
    until("all have ended", || async { running().await == 0 }).await;
    end.cancel();
    while let Some(ended) = workers.join_next().await {
        ended.unwrap()?;
    }
    let queue = Some(QueueName::new(quell::DEFAULT_QUEUE)?);
    let dead = JobFilter { queue, state: Some(JobState::Dead), ..JobFilter::default() };
    assert_eq!(store.jobs(&dead).await?, []);
    Ok(())
}
