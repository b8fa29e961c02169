//! Settling a job inside its handler's own transaction (R22): its effects and the end of the job
//! commit together, or neither does.

use quell_core::effect::lease_lost;
use quell_core::{JobState, Lease, Location, Now, Payload, Result, in_savepoint};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteTransactionManager;
use sqlx_core::transaction::TransactionManager;

use crate::clock::{LONGEST_REST, wall_clock};
use crate::counts::{LaneState, LaneTally};
use crate::error::explain;
use crate::hot::settle::FREE_KEYS;
use crate::inbox::other_store;
use crate::row::{get, signed};

const WHAT: &str = "settle in the transaction";

/// Ends a running attempt well inside the caller's transaction (R22): its effects and the end of
/// the job commit together, or neither does. `now` is virtual time, for tests. `output` is what the
/// handler returned (R19), which the caller has checked.
///
/// SQLite has one writer: from here to the end of the transaction, other writers of the file wait,
/// Quell among them, for their busy timeout at the longest. So settle last and commit soon. Begin
/// with `begin immediate` where the transaction reads before it writes: else SQLite refuses the
/// write where another has written in between.
///
/// # Errors
/// [`ErrorKind::IllegalMove`](quell_core::ErrorKind::IllegalMove) where the lease was lost: the
/// transaction cannot commit any more, and must be rolled back.
/// [`ErrorKind::Unsupported`](quell_core::ErrorKind::Unsupported) where the database holds another
/// store, or inside a nested transaction: a savepoint that is rolled back alone would undo the
/// fence. SQLite does not report one that the caller's own SQL opened: settle outside of those. Else
/// what the database says.
pub async fn settle_in(
    db: &mut SqliteConnection,
    store: &Location,
    lease: &Lease,
    now: Now,
    output: Option<&Payload>,
) -> Result<()> {
    // The first statement writes, so that what follows sees the last commit.
    // R38: an attempt runs here, so its worker has moved a clock that rested.
    const CLOCK: &str = "update quell_meta
            set clock = case when ?1 - clock > ?3 then clock else max(clock, ?1) end
          where store_id = ?2 returning clock";
    // R21: only a current lease that has not expired counts.
    const END: &str = "update quell_job
            set state = 2, hold = null, lease_until = null, failures = 0, ended_at = ?3,
                output = ?4
          where id = ?1 and token = ?2 and state = 1 and lease_until > ?3
      returning lane_id";
    if SqliteTransactionManager::get_transaction_depth(db) > 1 {
        return Err(in_savepoint());
    }
    let now = now.unwrap_or_else(wall_clock).as_micros();
    let clock = sqlx::query_scalar(CLOCK).bind(now).bind(store.id.as_str().to_owned());
    let clock = clock.bind(i64::try_from(LONGEST_REST.as_micros()).unwrap_or(i64::MAX));
    let clock: Option<i64> = clock.fetch_optional(&mut *db).await.map_err(|e| explain(WHAT, e))?;
    let Some(clock) = clock else { return Err(other_store(db, store, WHAT).await) };
    let ended = sqlx::query(END)
        .bind(signed(lease.job.get()))
        .bind(signed(lease.token.get()))
        .bind(clock)
        .bind(output.map(|output| output.as_str().to_owned()))
        .fetch_all(&mut *db)
        .await
        .map_err(|e| explain(WHAT, e))?;
    let Some(ended) = ended.first() else {
        forbid_commit(db).await?;
        return Err(lease_lost(lease.job));
    };
    let mut tally = LaneTally::default();
    let running = LaneState::new(get(ended, 0)?, JobState::Running);
    tally.move_one(running, running.with(JobState::Succeeded));
    tally.write(db).await?;
    // R11: the commit wakes every worker, this process's too.
    let freed = sqlx::query(FREE_KEYS).bind(format!("[{}]", signed(lease.job.get())));
    freed.execute(db).await.map_err(|e| explain(WHAT, e))?;
    Ok(())
}

/// R22: nothing that the transaction did can be committed from here on. SQLite has no error that
/// says so, but refuses to commit a broken reference; where the caller's connection does not check
/// references, the transaction is rolled back at once, and its commit has nothing to commit.
async fn forbid_commit(db: &mut SqliteConnection) -> Result<()> {
    const BREAK: &str = "insert into quell_fence (never) values (-1)";
    const ROLL_BACK: &str = "insert or rollback into quell_meta select * from quell_meta";
    let checks = sqlx::query_scalar("pragma foreign_keys").fetch_one(&mut *db).await;
    if checks.map_err(|e| explain(WHAT, e))? {
        return match sqlx::query(BREAK).execute(db).await {
            // Outside of a transaction the check comes at once, and nothing is there to forbid.
            Err(sqlx::Error::Database(error)) if error.is_foreign_key_violation() => Ok(()),
            broken => broken.map(drop).map_err(|e| explain(WHAT, e)),
        };
    }
    if SqliteTransactionManager::get_transaction_depth(db) > 0 {
        // By the driver, which else would count the transaction as open for good.
        let rolled_back = SqliteTransactionManager::rollback(db).await;
        return rolled_back.map_err(|e| explain(WHAT, e));
    }
    // A transaction that the driver did not begin. Its error is that it did so.
    let _conflict = sqlx::query(ROLL_BACK).execute(db).await;
    Ok(())
}
