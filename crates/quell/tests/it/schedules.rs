//! Schedules as a user meets them: declared in code, fired by whichever worker is there (R36).

use std::sync::Arc;
use std::time::Duration;

use quell::schedule::ScheduleInfo;
use quell::schedule::{CatchUp, ScheduleName, ScheduleState};
use quell::store::{MemoryStore, Store};
use quell::testing::TestKit;
use quell::{JobState, Quell, Result, Timestamp};

use crate::tasks::{App, Reindex, Script, reindex, script, secs};

/// A kit whose worker knows the tasks that these tests schedule.
fn start(store: &Arc<MemoryStore>) -> Result<(TestKit, App)> {
    let log = App::default();
    let state = Arc::clone(&log);
    let store: Arc<dyn Store> = Arc::<MemoryStore>::clone(store);
    let kit =
        TestKit::start_on(store, |quell| quell.worker(state).register(reindex).register(script))?;
    Ok((kit, log))
}

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(TestKit::START))
}

/// Minutes since the start at which something ran.
fn minutes(log: &App) -> Vec<u64> {
    log.runs().iter().map(|run| run.at.since(TestKit::START).as_secs() / 60).collect()
}

fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).unwrap()
}

async fn info(store: &dyn Store) -> Result<ScheduleInfo> {
    Ok(store.schedules().await?.remove(0))
}

#[tokio::test]
async fn r36_a_task_runs_at_each_tick_of_its_schedule() -> Result<()> {
    let (kit, log) = start(&memory())?;
    // Before the worker knows of any schedule, and then one with an earlier tick.
    kit.advance(secs(90)).await;
    kit.quell().schedule("daily", Script::new(&[])).cron("0 3 * * *").await?;
    kit.quell().schedule("often", Script::new(&[])).every(secs(3_600)).await?;
    kit.advance(secs(4 * 3_600)).await;
    assert_eq!(minutes(&log), [60, 120, 180, 180, 240]);
    let runs = log.runs();
    assert!(runs.iter().all(|run| run.at.as_micros() % 60_000_000 == 0), "to the microsecond");
    Ok(())
}

#[tokio::test]
async fn r36_each_declaration_at_each_start_is_one_schedule() -> Result<()> {
    let store = memory();
    let (kit, log) = start(&store)?;
    for _ in 0..3 {
        kit.quell().schedule("often", Script::new(&[])).every(secs(600)).await?;
    }
    kit.advance(secs(600)).await;
    let now = kit.quell().clock().store_time();
    store.set_schedule_state(now, &name("often"), ScheduleState::Paused).await?;
    kit.quell().schedule("often", Script::new(&[])).every(secs(600)).await?;
    kit.advance(secs(1_900)).await;
    assert_eq!(minutes(&log), [10], "an operator's pause outlives a deploy");
    let now = kit.quell().clock().store_time();
    store.set_schedule_state(now, &name("often"), ScheduleState::Active).await?;
    kit.advance(secs(600)).await;
    assert_eq!(minutes(&log), [10, 50]);
    Ok(())
}

#[tokio::test]
async fn r36_what_was_missed_while_no_worker_was_there_follows_catch_up() -> Result<()> {
    let hour = secs(3_600);
    // The tick after the worker came, and what it caught up.
    for (catch_up, expected) in [(CatchUp::None, 1), (CatchUp::Latest, 2), (CatchUp::All, 5)] {
        let store = memory();
        let quell = Quell::with_store(Arc::<MemoryStore>::clone(&store))
            .clock(Arc::new(quell::testing::TestClock::new(TestKit::START)))
            .build()?;
        quell.schedule("s", Script::new(&[])).every(hour).catch_up(catch_up).await?;
        // The worker comes four and a half hours later.
        let late = TestKit::START + hour * 9 / 2;
        store.tick(Some(late), 0).await?;
        let (kit, log) = start(&store)?;
        kit.advance(hour * 5).await;
        // Its own clock is far behind the store's (R38).
        let last = info(&*store).await?.last;
        assert_eq!(last, Some(TestKit::START + hour * 5), "{catch_up:?}");
        assert_eq!(log.runs().len(), expected, "{catch_up:?}");
    }
    Ok(())
}

/// The first whole multiple of seven seconds after a moment.
fn every_seven(after: Timestamp) -> Timestamp {
    let interval = 7_000_000;
    Timestamp::from_micros((after.as_micros() / interval + 1) * interval)
}

#[tokio::test]
async fn r36_ticks_of_a_debounced_task_share_its_window() -> Result<()> {
    let (kit, log) = start(&memory())?;
    kit.quell().schedule("pages", Reindex::page("a")).every(secs(7)).delay(secs(1)).await?;
    kit.advance(secs(67)).await;
    let runs: Vec<_> = log.runs().iter().map(|run| (run.at, run.triggers)).collect();
    let first = every_seven(TestKit::START);
    assert_eq!(runs, [(first + secs(60), 9)], "the first trigger and max");
    Ok(())
}

#[tokio::test]
async fn r40_a_schedule_that_cannot_be_meant_is_refused_before_anything_is_written() -> Result<()> {
    let quell = Quell::open("memory:").await?;
    let make = |name: &str| quell.schedule(name, Script::new(&[]));
    let anchor = Timestamp::from_secs(5);
    let refused = [
        (make("").every(secs(1)).await, "schedule"),
        (make("a b").every(secs(1)).await, "schedule"),
        (make("s").await, "cron"),
        (make("s").cron("* * * * *").every(secs(1)).await, "cron"),
        (make("s").cron("every day").await, "cron"),
        (make("s").cron("* * * * *").zone("Mars/Base").await, "zone"),
        (make("s").cron("* * * * *").anchor(anchor).await, "anchor"),
        (make("s").every(secs(1)).zone("UTC").await, "zone"),
        (make("s").every(Duration::ZERO).await, "interval"),
        (make("s").every(secs(1)).delay(Duration::ZERO).await, "delay"),
    ];
    for (row, (answer, field)) in refused.into_iter().enumerate() {
        assert_eq!(answer.unwrap_err().field(), Some(field), "row {row}");
    }
    assert!(quell.store().schedules().await?.is_empty());
    Ok(())
}

/// Two processes on one file: each tick is one job, whichever process fires it, and a schedule that one sets is
/// noticed by the other.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r36_workers_on_one_file_fire_each_tick_once() -> Result<()> {
    use quell::job::JobFilter;
    use quell::sqlite::{SqliteOptions, Synchronous};
    use quell::worker::PollSettings;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let mut workers = tokio::task::JoinSet::new();
    let mut quells = Vec::new();
    let log = App::default();
    for _ in 0..3 {
        let options = SqliteOptions::new(&file).synchronous(Synchronous::Normal);
        let quell = Quell::with_store(Arc::new(options.open().await?)).build()?;
        // Polling is too slow: only notifications can pass the test.
        let poll = PollSettings { base: secs(600), ceiling: secs(600) };
        let worker = quell.worker(Arc::clone(&log)).register(script).poll(poll);
        workers.spawn(worker.run_until(std::future::pending()));
        quells.push(quell);
    }
    let interval = Duration::from_millis(50);
    let every = quells[0].schedule("s", Script::new(&[])).every(interval);
    every.catch_up(CatchUp::All).await?;
    let store = quells[1].store();
    let set = info(&**store).await?.handled;
    let deadline = tokio::time::Instant::now() + secs(20);
    while log.runs().len() < 20 {
        assert!(tokio::time::Instant::now() < deadline, "{} runs", log.runs().len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.set_schedule_state(None, &name("s"), ScheduleState::Paused).await?;
    workers.shutdown().await;
    let info = info(&**store).await?;
    let first = info.schedule.spec.next(set).unwrap();
    let ticks = info.last.unwrap().since(first).as_micros() / interval.as_micros() + 1;
    let all = JobFilter { limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
    let jobs = store.jobs(&all).await?;
    assert_eq!(jobs.len() as u128, ticks, "{jobs:#?}");
    for job in &jobs {
        let explanation =
            store.explain(None, &quell::job::ExplainTarget::Job(job.id)).await?.unwrap();
        assert_eq!(explanation.ticks.len(), 1, "{explanation}");
    }
    assert!(jobs.iter().all(|job| job.state != JobState::Dead));
    Ok(())
}

/// The newest ticks are found whatever the plan was, and however many there are.
#[tokio::test]
async fn r36_the_newest_ticks_are_found_after_pauses_new_plans_and_backfills() -> Result<()> {
    let store = memory();
    let (kit, _log) = start(&store)?;
    let often = name("often");
    let quell = kit.quell();
    let newest = async |limit| -> Result<Vec<u64>> {
        let ticks = quell.fired(&often, limit).await?;
        Ok(ticks.iter().map(|tick| tick.tick.since(TestKit::START).as_secs() / 60).collect())
    };
    quell.schedule("often", Script::new(&[])).every(secs(600)).await?;
    kit.advance(secs(1_800)).await;
    assert_eq!(newest(2).await?, [30, 20]);
    assert_eq!(newest(50).await?, [30, 20, 10]);
    // A pause of days leaves a gap that the plan does not know.
    quell.pause_schedule(&often).await?;
    kit.advance(secs(3 * 86_400)).await;
    assert_eq!(newest(2).await?, [30, 20]);
    quell.resume_schedule(&often).await?;
    // A plan that ticks far less often, with a backfill of more ticks than one read returns.
    let begin = kit.now();
    quell.schedule("often", Script::new(&[])).every(secs(60)).await?;
    kit.advance(secs(1_500 * 60)).await;
    let minute = |at: Timestamp| at.since(TestKit::START).as_secs() / 60;
    quell.schedule("often", Script::new(&[])).every(secs(30 * 86_400)).await?;
    let last = minute(begin) + 1_500;
    assert_eq!(newest(3).await?, [last, last - 1, last - 2]);
    let error = quell.fired(&name("none"), 1).await.unwrap_err();
    assert_eq!(error.kind(), quell::ErrorKind::NotFound);
    Ok(())
}
