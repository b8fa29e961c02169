//! What a round costs the server: WAL, transactions, and rows changed or left dead.
//!
//! Read only while no connection to the round's database is open: a backend reports its counts with
//! a delay while it lives, and at once when it ends.

use sqlx::{Connection, PgConnection};

use crate::database::Database;

/// The server's counters at one moment, and differences of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Of the whole server: nothing else may write to it meanwhile.
    pub wal_bytes: f64,
    /// Committed or rolled back.
    pub transactions: f64,
    /// Updates and deletes: each leaves a dead row version.
    pub changed: f64,
    /// Dead row versions that no vacuum has removed yet.
    pub dead: f64,
}

impl Counters {
    /// Waits for connections to end, then reads.
    ///
    /// # Errors
    ///
    /// Where the server does not answer, or connections stay open.
    pub async fn read(database: &mut Database) -> anyhow::Result<Self> {
        database.quiet().await?;
        let mut inside = database.inside().await?;
        let (changed, dead) = rows(&mut inside).await?;
        inside.close().await?;
        // Its own connection must not be among the transactions.
        database.quiet().await?;
        let (wal_bytes, transactions) = sqlx::query_as(
            "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8,
                    (xact_commit + xact_rollback)::float8
               from pg_stat_database where datname = $1",
        )
        .bind(&database.name)
        .fetch_one(&mut database.outside)
        .await?;
        Ok(Counters { wal_bytes, transactions, changed, dead })
    }

    /// What came since.
    #[must_use]
    pub fn since(self, earlier: Counters) -> Counters {
        Counters {
            wal_bytes: self.wal_bytes - earlier.wal_bytes,
            transactions: self.transactions - earlier.transactions,
            changed: self.changed - earlier.changed,
            dead: self.dead - earlier.dead,
        }
    }

    pub(crate) fn per(self, jobs: usize) -> Counters {
        let jobs = jobs as f64;
        Counters {
            wal_bytes: self.wal_bytes / jobs,
            transactions: self.transactions / jobs,
            changed: self.changed / jobs,
            dead: self.dead / jobs,
        }
    }
}

async fn rows(inside: &mut PgConnection) -> anyhow::Result<(f64, f64)> {
    Ok(sqlx::query_as(
        "select coalesce(sum(n_tup_upd + n_tup_del), 0)::float8,
                coalesce(sum(n_dead_tup), 0)::float8
           from pg_stat_user_tables",
    )
    .fetch_one(inside)
    .await?)
}
