//! Commits a second of callers' own transactions, each with a row of its own and a trigger, beside the
//! same transactions without a trigger. All kinds of transactions take turns, for several rounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use pg_common::{Database, median};
use quell::Quell;
use quell::postgres::PostgresStore;
use sqlx::{Connection, PgConnection, Postgres, Transaction};
use tokio::task::JoinSet;

use crate::jobs::Noop;
use crate::part::Part;

const CALLERS: usize = 32;
/// Of the commits of the same transactions without a trigger.
const GOAL: f64 = 0.9;

/// What a transaction does beside its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Alone,
    /// A statement that reads no table: what one more trip costs.
    Statement,
    Notifies,
    Silent,
    /// As the store is set; the caller wakes workers after the commit.
    AfterCommit,
}

impl Kind {
    const ALL: [Kind; 5] =
        [Kind::Alone, Kind::Statement, Kind::Notifies, Kind::Silent, Kind::AfterCommit];

    fn name(self) -> &'static str {
        match self {
            Kind::Alone => "a row, no trigger",
            Kind::Statement => "a row and `select 1`",
            Kind::Notifies => "a row and a trigger that notifies",
            Kind::Silent => "a row and a trigger, notifications off",
            Kind::AfterCommit => "a row and a silent trigger, notified after the commit",
        }
    }

    fn notifies(self) -> bool {
        self != Kind::Silent
    }
}

/// One transaction.
async fn commit(quell: &Quell, db: &mut PgConnection, kind: Kind, n: usize) -> Result<()> {
    let mut tx: Transaction<'_, Postgres> = db.begin().await?;
    sqlx::query("insert into orders (amount) values ($1)").bind(1).execute(&mut *tx).await?;
    let trigger = || quell.trigger(Noop { n });
    let after_commit = match kind {
        Kind::Alone => None,
        Kind::Statement => {
            sqlx::query("select 1").execute(&mut *tx).await?;
            None
        }
        Kind::Notifies | Kind::Silent => {
            trigger().within(&mut tx).await?;
            None
        }
        Kind::AfterCommit => Some(trigger().within_silently(&mut tx).await?),
    };
    tx.commit().await?;
    after_commit.into_iter().for_each(quell::trigger::AfterCommit::wake);
    Ok(())
}

/// Commits a second.
async fn rate(quell: &Quell, database: &Database, kind: Kind, span: Duration) -> Result<f64> {
    let mut callers: JoinSet<Result<usize>> = JoinSet::new();
    let mut connections = Vec::with_capacity(CALLERS);
    for _ in 0..CALLERS {
        connections.push(database.inside().await?);
    }
    let began = Instant::now();
    for mut db in connections {
        let quell = quell.clone();
        callers.spawn(async move {
            let mut commits = 0;
            while began.elapsed() < span {
                commit(&quell, &mut db, kind, commits).await?;
                commits += 1;
            }
            db.close().await?;
            Ok(commits)
        });
    }
    let mut commits = 0;
    while let Some(ended) = callers.join_next().await {
        commits += ended??;
    }
    Ok(commits as f64 / began.elapsed().as_secs_f64())
}

pub(crate) async fn measure(url: &str, rounds: usize, seconds: u64) -> Result<()> {
    let mut database = crate::database(url).await?;
    let store = Arc::new(PostgresStore::open(database.url()).await?);
    let quell = Quell::with_store(Arc::clone(&store) as Arc<dyn quell::store::Store>).build()?;
    let mut db = database.inside().await?;
    let orders =
        "create table orders (id bigint generated always as identity primary key, amount integer)";
    sqlx::raw_sql(orders).execute(&mut db).await?;
    let mut rates = Kind::ALL.map(|_| Vec::with_capacity(rounds));
    for _ in 0..rounds {
        for (kind, rates) in Kind::ALL.into_iter().zip(&mut rates) {
            store.notify_in_transactions(kind.notifies()).await?;
            sqlx::raw_sql("truncate orders, quell.inbox").execute(&mut db).await?;
            database.checkpoint().await?;
            rates.push(rate(&quell, &database, kind, Duration::from_secs(seconds)).await?);
        }
    }
    let mut part =
        Part::new(&["commits per second", "of those without a trigger", "lowest", "highest"])?;
    let alone = rates[0].clone();
    for (kind, rates) in Kind::ALL.into_iter().zip(rates) {
        let mut ratios: Vec<f64> =
            rates.iter().zip(&alone).map(|(rate, alone)| rate / alone).collect();
        ratios.sort_by(f64::total_cmp);
        let (lowest, highest) = (ratios.first().copied(), ratios.last().copied());
        part.add(kind.name(), [Some(median(rates)), Some(median(ratios)), lowest, highest])?;
    }
    db.close().await?;
    drop((quell, store));
    database.drop().await?;
    let silent = part.cell(3, 1);
    let met = if silent >= GOAL { "met" } else { "not met" };
    part.conclude(&format!(
        "{CALLERS} callers, {rounds} rounds in turn, ratios by round; with notifications off \
         {silent:.2} x the commits without a trigger, goal {GOAL} x: {met}"
    ))
}
