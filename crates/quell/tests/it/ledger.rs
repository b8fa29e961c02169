//! Exactly once by transaction (R22): account updates in bursts, booked in the handlers' own
//! transactions, under workers that are killed, leases that expire, and attempts that fail before
//! and after their commit.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell::job::{Attempt, AttemptOutcome, JobFilter};
use quell::store::Store;
use quell::{Collected, Ctx, Fold, JobState, Policy, Quell, Result, Task, TaskError};
use quell_conformance::effort::cases;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Updates in all, in a usual run and in a long one.
const UPDATES: (u64, u64) = (3_000, 10_000);
const ACCOUNTS: usize = 400;
const WORKERS: usize = 3;
const LEASE: Duration = Duration::from_millis(300);

const BOOK: &str = "insert into ledger (job, account, amount) values ($1, $2, $3)";
const JOBS: &str = "select job from ledger order by job";
const TOTAL: &str = "select cast(sum(amount) as bigint) from ledger";

/// Where the ledger is: in the database that holds the store.
enum Books {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
}

/// What an attempt comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Goes,
    Lingers,
    FailsBefore,
    FailsAfter,
}

impl Fate {
    fn draw() -> Self {
        match fastrand::u8(..100) {
            0..78 => Fate::Goes,
            78..85 => Fate::Lingers,
            85..93 => Fate::FailsBefore,
            _ => Fate::FailsAfter,
        }
    }
}

/// Books and settles in one transaction.
macro_rules! book {
    ($begun:expr, $ctx:expr, $amount:expr, $fate:expr) => {{
        let mut tx = $begun.await?;
        let account = $ctx.key().map(ToString::to_string).unwrap_or_default();
        let job = i64::try_from($ctx.job().get()).unwrap();
        let row = sqlx::query(BOOK).bind(job).bind(account).bind($amount);
        row.execute(&mut *tx).await?;
        $ctx.settle_in(&mut tx).await?;
        if $fate == Fate::FailsBefore {
            return Err(TaskError::retry("before the commit"));
        }
        tx.commit().await?;
    }};
}

impl Books {
    async fn book(&self, ctx: &Ctx<App>, amount: i64, fate: Fate) -> Result<(), TaskError> {
        match self {
            #[cfg(feature = "sqlite")]
            Books::Sqlite(pool) => book!(pool.begin_with("begin immediate"), ctx, amount, fate),
            #[cfg(feature = "postgres")]
            Books::Postgres(pool) => book!(pool.begin(), ctx, amount, fate),
        }
        Ok(())
    }

    async fn jobs_booked(&self) -> Vec<i64> {
        match self {
            #[cfg(feature = "sqlite")]
            Books::Sqlite(pool) => sqlx::query_scalar(JOBS).fetch_all(pool).await.unwrap(),
            #[cfg(feature = "postgres")]
            Books::Postgres(pool) => sqlx::query_scalar(JOBS).fetch_all(pool).await.unwrap(),
        }
    }

    async fn total(&self) -> i64 {
        match self {
            #[cfg(feature = "sqlite")]
            Books::Sqlite(pool) => sqlx::query_scalar(TOTAL).fetch_one(pool).await.unwrap(),
            #[cfg(feature = "postgres")]
            Books::Postgres(pool) => sqlx::query_scalar(TOTAL).fetch_one(pool).await.unwrap(),
        }
    }
}

/// What the handlers share.
struct Bank {
    books: Books,
    /// The handlers' work, which goes on when their worker is killed: zombies.
    work: Mutex<JoinSet<()>>,
    /// Attempts that were refused because their lease was lost.
    refused: AtomicUsize,
}

type App = Arc<Bank>;

#[derive(Serialize, Deserialize)]
struct Update {
    account: usize,
    amount: i64,
}

impl Task for Update {
    const NAME: &'static str = "update";
    type Output = ();

    fn policy() -> Policy {
        Policy::default()
            .debounce(Duration::from_millis(5)..=Duration::from_millis(40))
            .fold(Fold::Collect { cap: 1_000 })
            .attempts(100_000)
            // Workers are killed on purpose, and a busy machine lets more leases expire.
            .max_crashes(u32::MAX)
            .min_backoff(Duration::from_millis(1))
            .max_backoff(Duration::from_millis(5))
    }

    fn debounce_key(&self) -> Option<String> {
        Some(self.account.to_string())
    }
}

async fn update(updates: Collected<Update>, ctx: Ctx<App>) -> Result<(), TaskError> {
    let (fate, bank) = (Fate::draw(), Arc::clone(ctx.state()));
    let amount = updates.iter().map(|update| update.amount).sum();
    let (end, ended) = oneshot::channel();
    let work = async move {
        if fate == Fate::Lingers {
            tokio::time::sleep(LEASE * 2).await;
        }
        let bank = Arc::clone(ctx.state());
        let booked = bank.books.book(&ctx, amount, fate).await;
        if format!("{booked:?}").contains("was lost") {
            bank.refused.fetch_add(1, Ordering::Relaxed);
        }
        // No worker receives the end of a zombie.
        let _dropped = end.send(booked);
    };
    bank.work.lock().unwrap().spawn(work);
    ended.await??;
    if fate == Fate::FailsAfter { Err(TaskError::retry("after the commit")) } else { Ok(()) }
}

/// A worker that lives until its set is dropped.
fn start(quell: &Quell, bank: &App) -> JoinSet<Result<()>> {
    let worker = quell.worker(Arc::clone(bank)).register(update).lease(LEASE).concurrency(8);
    let mut running = JoinSet::new();
    running.spawn(worker.run_until(std::future::pending()));
    running
}

/// All jobs that have ended, and whether any has not.
async fn states(store: &dyn Store) -> (BTreeSet<i64>, bool, usize) {
    let (mut succeeded, mut waits, mut expiries) = (BTreeSet::new(), false, 0);
    let mut filter = JobFilter { limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
    loop {
        let page = store.jobs(&filter).await.unwrap();
        let Some(last) = page.last() else { return (succeeded, waits, expiries) };
        filter.before = Some(last.id);
        for job in page {
            // Enough to mean something: not all are looked for.
            if job.starts() > 1 && expiries <= 10 {
                let attempts = store.attempts(job.id).await.unwrap();
                let expired = |one: &&Attempt| one.outcome == Some(AttemptOutcome::LeaseExpired);
                expiries += attempts.iter().filter(expired).count();
            }
            match job.state {
                JobState::Succeeded => {
                    succeeded.insert(i64::try_from(job.id.get()).unwrap());
                }
                JobState::Absorbed => {}
                JobState::Scheduled | JobState::Running => waits = true,
                JobState::Dead | JobState::Cancelled | JobState::Unreadable => panic!("{job:?}"),
            }
        }
    }
}

/// Triggers updates while workers are killed, and answers their sum.
async fn bursts(
    quells: &[Quell],
    workers: &mut [JoinSet<Result<()>>],
    bank: &App,
    rounds: usize,
) -> Result<i64> {
    let mut sum = 0;
    for round in 0..rounds {
        let updates: Vec<Update> = (0..100)
            .map(|_| Update { account: fastrand::usize(..ACCOUNTS), amount: fastrand::i64(1..100) })
            .collect();
        sum += updates.iter().map(|update| update.amount).sum::<i64>();
        quells[round % quells.len()].trigger_many(updates).await?;
        tokio::time::sleep(Duration::from_millis(10)).await;
        if round % 4 == 0 {
            // Dropped with all it runs, wherever that is; only the zombies go on.
            let victim = fastrand::usize(..WORKERS);
            workers[victim] = start(&quells[victim % quells.len()], bank);
        }
    }
    Ok(sum)
}

async fn one_row_for_each_job(stores: Vec<Arc<dyn Store>>, books: Books) -> Result<()> {
    let work = Mutex::default();
    let bank = Arc::new(Bank { books, work, refused: AtomicUsize::new(0) });
    let quells: Vec<Quell> =
        stores.iter().map(|s| Quell::with_store(Arc::clone(s)).build()).collect::<Result<_>>()?;
    let mut workers: Vec<_> =
        (0..WORKERS).map(|n| start(&quells[n % quells.len()], &bank)).collect();
    let rounds = usize::try_from(cases(UPDATES.0, UPDATES.1) / 100).unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut expected = 0;
    // A busy machine joins more updates and kills fewer attempts: updates come until the test has met all
    // that it is about.
    loop {
        expected += bursts(&quells, &mut workers, &bank, rounds).await?;
        let rest = Instant::now() + Duration::from_secs(90);
        let (jobs, expiries) = loop {
            let (succeeded, waits, expiries) = states(&*stores[0]).await;
            if !waits {
                break (succeeded.len(), expiries);
            }
            assert!(Instant::now() < rest, "it does not come to rest");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let refused = bank.refused.load(Ordering::Relaxed);
        if jobs > 500 && expiries > 10 && refused > 5 {
            break;
        }
        assert!(Instant::now() < deadline, "too little happened: {jobs}, {expiries}, {refused}");
    }
    drop(workers);
    let mut work = std::mem::take(&mut *bank.work.lock().unwrap());
    while work.join_next().await.is_some() {}
    let booked = bank.books.jobs_booked().await;
    let (succeeded, ..) = states(&*stores[0]).await;
    assert_eq!(booked, succeeded.into_iter().collect::<Vec<_>>(), "one row for each job");
    assert_eq!(bank.books.total().await, expected, "every update is booked once");
    Ok(())
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_updates_are_booked_once_each_on_sqlite() -> Result<()> {
    use quell::sqlite::{SqliteOptions, Synchronous};

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..2 {
        let options = SqliteOptions::new(&file).synchronous(Synchronous::Normal);
        stores.push(Arc::new(options.open().await?));
    }
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let options = options.busy_timeout(Duration::from_secs(20));
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(4);
    let pool = pool.connect_with(options).await.unwrap();
    let made = "create table ledger (job integer, account text, amount integer)";
    sqlx::query(made).execute(&pool).await.unwrap();
    one_row_for_each_job(stores, Books::Sqlite(pool)).await
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_updates_are_booked_once_each_on_postgres() -> Result<()> {
    let url = quell_services::url_for_tests();
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..2 {
        stores.push(Arc::new(quell::postgres::PostgresStore::open(&url).await?));
    }
    let (plain, schema) =
        (url.split('?').next().unwrap(), stores[0].location().unwrap().schema.clone().unwrap());
    // Its tables stand beside the store's.
    let options: sqlx::postgres::PgConnectOptions = plain.parse().unwrap();
    let options = options.options([("search_path", schema)]);
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(8);
    let pool = pool.connect_with(options).await.unwrap();
    let made = "create table ledger (job bigint, account text, amount bigint)";
    sqlx::query(made).execute(&pool).await.unwrap();
    one_row_for_each_job(stores, Books::Postgres(pool)).await
}
