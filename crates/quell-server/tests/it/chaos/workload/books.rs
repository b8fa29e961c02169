//! Orders and a ledger in the database that holds the store: triggers within callers' transactions
//! (R4) and attempts that settle in their handlers' (R22).
//!
//! Redis has no transactions that take part: there is no book.

use std::str::FromStr;
use std::time::Duration;

use quell::{Ctx, Quell, TaskError};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{ConnectOptions as _, Connection as _};

use super::tasks::Booked;

const TABLES: [&str; 2] = [
    "create table if not exists chaos_orders (number bigint not null)",
    "create table if not exists chaos_ledger (job bigint not null, number bigint not null)",
];
const ORDER: &str = "insert into chaos_orders (number) values ($1)";
const ENTRY: &str = "insert into chaos_ledger (job, number) values ($1, $2)";
/// How long a call waits for a connection or for the file's lock.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a transaction may take on a server, which may fall silent.
const DEADLINE: Duration = Duration::from_secs(2);

/// Where the tables are.
#[derive(Debug)]
pub(crate) enum Books {
    /// In the store's file.
    Sqlite(SqlitePool),
    /// In the store's database. Each use has a connection of its own: one that is silent is given up
    /// with it.
    Postgres(Box<PgConnectOptions>),
}

/// What becomes of an attempt that settles in its own transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It commits.
    Commits,
    /// It rolls back after the settlement and fails.
    RollsBack,
    /// It commits and then returns an error, which comes too late to count.
    FailsAfterwards,
}

macro_rules! order {
    ($begun:expr, $quell:expr, $number:expr, $commit:expr) => {{
        let mut tx = $begun.await?;
        let number = i64::try_from($number)?;
        sqlx::query(ORDER).persistent(false).bind(number).execute(&mut *tx).await?;
        $quell.trigger(Booked { order: $number }).within(&mut tx).await?;
        if $commit { tx.commit().await? } else { tx.rollback().await? }
    }};
}

macro_rules! settle {
    ($begun:expr, $ctx:expr, $number:expr, $fate:expr) => {{
        let mut tx = $begun.await?;
        let (job, number) = (i64::try_from($ctx.job().get())?, i64::try_from($number)?);
        sqlx::query(ENTRY).persistent(false).bind(job).bind(number).execute(&mut *tx).await?;
        $ctx.settle_in(&mut tx).await?;
        match $fate {
            Fate::RollsBack => {
                tx.rollback().await?;
                return Err(TaskError::retry("its transaction was rolled back"));
            }
            Fate::Commits => tx.commit().await?,
            Fate::FailsAfterwards => {
                tx.commit().await?;
                return Err(TaskError::retry("it has settled already"));
            }
        }
    }};
}

impl Books {
    /// The books of a store, if its database can have any. Connects with the first use.
    pub(crate) fn open(url: &str) -> anyhow::Result<Option<Books>> {
        let (address, _) = url.split_once('?').unwrap_or((url, ""));
        if let Some(file) = address.strip_prefix("sqlite://") {
            let options = SqliteConnectOptions::new().filename(file).busy_timeout(PATIENCE);
            let pool = SqlitePoolOptions::new().max_connections(2).acquire_timeout(PATIENCE);
            return Ok(Some(Books::Sqlite(pool.connect_lazy_with(options))));
        }
        if !address.starts_with("postgres") {
            return Ok(None);
        }
        // A pooler would have to know every parameter of the start, and which statements are prepared.
        let options = PgConnectOptions::from_str(address)?.application_name("books");
        Ok(Some(Books::Postgres(Box::new(options.extra_float_digits(None)))))
    }

    /// Creates the tables.
    pub(crate) async fn create(&self) -> sqlx::Result<()> {
        for table in TABLES {
            match self {
                Books::Sqlite(pool) => {
                    sqlx::query(table).execute(pool).await?;
                }
                Books::Postgres(options) => {
                    let mut db = options.connect().await?;
                    sqlx::query(table).persistent(false).execute(&mut db).await?;
                }
            }
        }
        Ok(())
    }

    /// The committed orders, and the ledger as pairs of job and order.
    pub(crate) async fn read(&self) -> sqlx::Result<(Vec<i64>, Vec<(i64, i64)>)> {
        let orders = "select number from chaos_orders";
        let ledger = "select job, number from chaos_ledger";
        Ok(match self {
            Books::Sqlite(pool) => (
                sqlx::query_scalar(orders).fetch_all(pool).await?,
                sqlx::query_as(ledger).fetch_all(pool).await?,
            ),
            Books::Postgres(options) => {
                let mut db = options.connect().await?;
                (
                    sqlx::query_scalar(orders).persistent(false).fetch_all(&mut db).await?,
                    sqlx::query_as(ledger).persistent(false).fetch_all(&mut db).await?,
                )
            }
        })
    }

    /// Writes an order and triggers it in one transaction, which commits or is rolled back.
    pub(super) async fn order(
        &self,
        quell: &Quell,
        number: u64,
        commit: bool,
    ) -> anyhow::Result<()> {
        match self {
            Books::Sqlite(pool) => {
                order!(pool.begin_with("begin immediate"), quell, number, commit);
            }
            Books::Postgres(options) => {
                let ordered = async {
                    let mut db = options.connect().await?;
                    order!(db.begin(), quell, number, commit);
                    anyhow::Ok(())
                };
                tokio::time::timeout(DEADLINE, ordered).await??;
            }
        }
        Ok(())
    }

    /// Writes the ledger's entry and settles the job in one transaction.
    pub(super) async fn settle<S>(
        &self,
        ctx: &Ctx<S>,
        number: u64,
        fate: Fate,
    ) -> Result<(), TaskError> {
        match self {
            Books::Sqlite(pool) => {
                settle!(pool.begin_with("begin immediate"), ctx, number, fate);
            }
            Books::Postgres(options) => {
                let settled = async {
                    let mut db = options.connect().await?;
                    settle!(db.begin(), ctx, number, fate);
                    Ok::<_, TaskError>(())
                };
                tokio::time::timeout(DEADLINE, settled).await??;
            }
        }
        Ok(())
    }
}
