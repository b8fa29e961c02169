//! What callers do inside their own transactions: trigger (R4) and settle (R22).
//!
//! Triggers are appended to an inbox there, and folded into jobs by the next store call after the
//! commit: they count from the commit, a rollback leaves no trace, and a transaction that stays
//! open delays no other call.

use quell_core::{
    Batch, Lease, Location, Now, Payload, QueueName, Result, Timestamp, in_savepoint,
};
use quell_engine::sql::{Inbox, Refused};
use sqlx::PgConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;
use tracing::error;

use crate::connections::LONG;
use crate::error::{corrupt, explain};
use crate::row::{get, signed};
use crate::sql::Sql;
use crate::tx::{Tx, first};

/// Batches folded at once, at most.
const FOLD: i64 = 1_000;
/// Bytes of triggers folded at once, at most, unless a single batch has more.
const FOLD_BYTES: i64 = 8 << 20;
/// How long a transaction that folds may stand idle before the server rolls it back.
const AWAY: &str = "5s";

/// Triggers a batch inside the caller's transaction on the database that holds the store in
/// `schema`.
///
/// The batch must have been validated. What became of each trigger is decided after the commit, by
/// the next call of any store on the schema, at the time of that call. Workers are woken by the
/// commit, or look for it where transactions do not notify
/// ([`PostgresOptions::notify_in_transactions`](crate::PostgresOptions::notify_in_transactions)).
///
/// # Errors
/// [`ErrorKind::Foreign`](quell_core::ErrorKind::Foreign) where the database has no Quell schema of
/// that name; else what the database says. After an error the caller must roll back.
pub async fn trigger_in(db: &mut PgConnection, store: &Location, batch: &Batch) -> Result<()> {
    put(db, store, batch, "select quell.put($1) from quell.meta where store_id = $2").await
}

/// As [`trigger_in`], but the commit notifies no worker: call
/// [`transaction_committed`](quell_core::Store::transaction_committed) of any store on the schema after
/// it. Without that, workers find the triggers when they poll.
///
/// # Errors
/// As [`trigger_in`].
pub async fn trigger_in_silently(
    db: &mut PgConnection,
    store: &Location,
    batch: &Batch,
) -> Result<()> {
    put(db, store, batch, "select quell.put($1, true) from quell.meta where store_id = $2").await
}

async fn put(
    db: &mut PgConnection,
    store: &Location,
    batch: &Batch,
    statement: &'static str,
) -> Result<()> {
    const WHAT: &str = "trigger in the transaction";
    let triggers = serde_json::to_string(&(&batch.triggers, &batch.dedup))
        .map_err(|error| corrupt(format_args!("triggers: {error}")))?;
    let sql = sql_of(store)?;
    let put = sql.query(statement);
    let put = put.bind(triggers).bind(store.id.as_str().to_owned());
    let found = put.fetch_optional(&mut *db).await.map_err(|e| explain(WHAT, e))?;
    check_store(found.is_some(), db, store, WHAT).await
}

/// Ends a running attempt well inside the caller's transaction (R22): its effects and the end of
/// the job commit together, or neither does. `now` is virtual time, for tests. `output` is what the
/// handler returned (R19), which the caller has checked.
///
/// # Errors
/// [`ErrorKind::IllegalMove`](quell_core::ErrorKind::IllegalMove) where the lease was lost: the
/// transaction cannot commit any more, and must be rolled back.
/// [`ErrorKind::Unsupported`](quell_core::ErrorKind::Unsupported) where the schema holds another
/// store, or inside a savepoint, which could be rolled back alone and would take the fence with it.
/// Else what the database says.
pub async fn settle_in(
    db: &mut PgConnection,
    store: &Location,
    lease: &Lease,
    now: Now,
    output: Option<&Payload>,
) -> Result<()> {
    const WHAT: &str = "settle in the transaction";
    if PgTransactionManager::get_transaction_depth(db) > 1 {
        return Err(in_savepoint());
    }
    let sql = sql_of(store)?;
    loop {
        let query = match output {
            None => {
                sql.query("select quell.settle($1, $2, $3) from quell.meta where store_id = $4")
            }
            Some(_) => {
                sql.query("select quell.settle($1, $2, $3, $5) from quell.meta where store_id = $4")
            }
        };
        let query = query.bind(signed(lease.job.get())).bind(signed(lease.token.get()));
        let query = query.bind(now.map(Timestamp::as_micros)).bind(store.id.as_str().to_owned());
        let query = match output {
            None => query,
            Some(output) => query.bind(output.as_str().to_owned()),
        };
        let found = query.fetch_optional(&mut *db).await.map_err(|e| explain(WHAT, e))?;
        match found.as_ref().map(|row| get::<bool, _>(row, 0)).transpose()? {
            Some(true) => return Ok(()),
            Some(false) => release(db).await?,
            None => return check_store(false, db, store, WHAT).await,
        }
    }
}

/// Releases a savepoint that the driver left open: it rolls a nested transaction back to its savepoint,
/// and keeps that. Any other is the caller's own.
async fn release(db: &mut PgConnection) -> Result<()> {
    const LEFT: &str = "release savepoint _sqlx_savepoint_1";
    const NO_SAVEPOINT: &str = "3B001";
    let released = sqlx::query(LEFT).execute(db).await;
    match released {
        Ok(_) => Ok(()),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(NO_SAVEPOINT) => {
            Err(in_savepoint())
        }
        Err(error) => Err(explain("release a savepoint", error)),
    }
}

fn sql_of(store: &Location) -> Result<Sql> {
    let schema = store.schema.as_deref().ok_or_else(|| store.other_store("unknown"))?;
    Sql::new(schema, false)
}

/// Refuses a transaction whose schema holds another store, and names it.
async fn check_store(
    found: bool,
    db: &mut PgConnection,
    store: &Location,
    what: &'static str,
) -> Result<()> {
    if found {
        return Ok(());
    }
    let query = sql_of(store)?.query("select store_id from quell.meta");
    let row = query.fetch_one(db).await.map_err(|e| explain(what, e))?;
    Err(store.other_store(get(&row, 0)?))
}

/// The queue in which a settlement in a caller's transaction set something free, without notifying (R34).
fn wake_up(text: &str) -> Option<QueueName> {
    QueueName::new(text.strip_prefix("wake ")?).ok()
}

impl Tx {
    /// Folds what committed transactions left in the inbox, unless another call is doing it: then
    /// this one goes on without.
    ///
    /// That is right for calls whose effect does not depend on what the inbox holds. A claim that
    /// passes it over starts older jobs; what waits in the inbox is a job later, and an attempt that
    /// starts after that covers it (R2). A job that failed, was redriven or whose lease expired goes
    /// into the newest window of its key as the older one, whichever of both is there first (R12); one
    /// that has used up its attempts is dead then, and the trigger in the inbox has a window of its own.
    pub(crate) async fn fold_inbox(&mut self) -> Result<()> {
        const ALONE: &str = "select pg_try_advisory_xact_lock(hashtextextended($1, 1)),
                                    9223372036854775807,
                                    set_config('idle_in_transaction_session_timeout', $2, true),
                                    set_config('statement_timeout', '0', true)";
        if let Some(newest) = self.lock_inbox(ALONE).await? {
            self.news.wakes_all |= self.fold_some(newest).await?;
        }
        Ok(())
    }

    /// Folds all that committed transactions have left in the inbox, in order, and waits for another
    /// call that is doing it: no trigger of a key may overtake one that committed before it (R4, R10, R16,
    /// R19), and a flush or cancellation of a key includes those (R7).
    ///
    /// A process that is suspended meanwhile is not waited for: the server undoes its fold after
    /// [`AWAY`].
    pub(crate) async fn fold_inbox_first(&mut self) -> Result<()> {
        // What is committed from here on comes later.
        const ALONE: &str = "select true, (select max(id) from quell.inbox where refused is null),
                    set_config('idle_in_transaction_session_timeout', $2, true),
                    set_config('statement_timeout', '0', true)
               from pg_advisory_xact_lock(hashtextextended($1, 1))";
        if let Some(newest) = self.lock_inbox(ALONE).await? {
            while self.fold_some(newest).await? {}
        }
        Ok(())
    }

    /// Up to which row this call folds the inbox, alone; none where there is nothing to fold, or
    /// another call is at it.
    async fn lock_inbox(&mut self, alone: &'static str) -> Result<Option<i64>> {
        if !self.inbox_waits {
            return Ok(None);
        }
        let query = self.sql.query(alone).bind(format!("quell {}", self.sql.schema()));
        let locked = self.fetch("fold the inbox alone", query.bind(AWAY)).await?;
        let locked = first(&locked)?;
        if !get::<bool, _>(locked, 0)? {
            return Ok(None);
        }
        self.inbox_waits = false;
        // A single row may be larger than what one statement writes in its time.
        self.db().lengthen(LONG);
        get(locked, 1)
    }

    /// Folds the oldest rows of the inbox up to this one; says whether there may be more.
    async fn fold_some(&mut self, newest: i64) -> Result<bool> {
        const TAKE: &str = "with waiting as materialized (
                 select id, sum(size) over (order by id) - size as before
                   from (select id, octet_length(triggers)::bigint as size
                           from quell.inbox where refused is null and id <= $3
                          order by id limit $1) i),
             taken as (
                 delete from quell.inbox
                  where id = any(array(select id from waiting where before < $2))
              returning id, triggers)
             select id, triggers, (select count(*) = $1 or bool_or(before >= $2) from waiting)
               from taken order by id";
        let query = self.sql.query(TAKE).bind(FOLD).bind(FOLD_BYTES).bind(newest);
        let rows = self.fetch("read the inbox", query).await?;
        let has_more = rows.first().map_or(Ok(false), |row| get(row, 2))?;
        let mut taken = Vec::with_capacity(rows.len());
        for row in &rows {
            let (id, text) = (get::<i64, _>(row, 0)?, get::<&str, _>(row, 1)?);
            match wake_up(text) {
                Some(queue) => self.news.wake(&queue, Timestamp::MIN),
                None => taken.push((id, text)),
            }
        }
        let (inbox, undecoded) = Inbox::decode(taken);
        self.refuse_inbox(undecoded).await?;
        let answers = self.accept_promised(&inbox.batches).await?;
        self.refuse_inbox(inbox.refused_by(answers)).await?;
        Ok(has_more)
    }

    /// Keeps rows that cannot be folded, out of the way, with the reasons.
    async fn refuse_inbox(&mut self, refused: Vec<Refused<'_>>) -> Result<()> {
        const KEEP: &str = "insert into quell.inbox (id, triggers, refused)
                            overriding system value values ($1, $2, $3)";
        for Refused { id, triggers, why } in refused {
            error!(inbox = id, error = %why, "triggers of a transaction cannot be accepted: set aside");
            let query = self.sql.query(KEEP).bind(id).bind(triggers.to_owned()).bind(why);
            self.run("set an inbox row aside", query).await?;
        }
        Ok(())
    }
}
