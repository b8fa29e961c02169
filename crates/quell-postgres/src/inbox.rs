//! What callers do inside their own transactions: trigger (R4) and settle (R22).
//!
//! Triggers are appended to an inbox there, and folded into jobs by the next store call after the
//! commit: they count from the commit, a rollback leaves no trace, and a transaction that stays
//! open holds up nobody.

use quell_core::dedup::Dedup;
use quell_core::{Batch, Lease, Location, NewTrigger, Payload, Result, Timestamp, in_savepoint};
use sqlx::PgConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;
use tracing::error;

use crate::error::{corrupt, explain};
use crate::row::{get, signed};
use crate::sql::Sql;
use crate::tx::Tx;

/// Batches folded in one store call, at most; the next call goes on.
const FOLD: i64 = 1_000;

/// Triggers a batch inside the caller's transaction on the database that holds the store in
/// `schema`.
///
/// The batch must have been validated. What became of each trigger is decided after the commit, by
/// the next call of any store on the schema, at the time of that call. Workers are woken by the
/// commit.
///
/// # Errors
/// [`ErrorKind::Foreign`](quell_core::ErrorKind::Foreign) where the database has no Quell schema of
/// that name; else what the database says. After an error the caller must roll back.
pub async fn trigger_in(db: &mut PgConnection, store: &Location, batch: &Batch) -> Result<()> {
    const WHAT: &str = "trigger in the transaction";
    let triggers = serde_json::to_string(&(&batch.triggers, &batch.dedup))
        .map_err(|error| corrupt(format_args!("triggers: {error}")))?;
    let sql = sql_of(store)?;
    let put = sql.query("select quell.put($1) from quell.meta where store_id = $2");
    let put = put.bind(triggers).bind(store.id.as_str().to_owned());
    let found = put.fetch_optional(&mut *db).await.map_err(|e| explain(WHAT, e))?;
    check_store(found.is_some(), db, store, WHAT).await
}

/// Ends a running attempt well inside the caller's transaction (R22): its effects and the end of
/// the job commit together, or neither does. `now` is virtual time, for tests.
///
/// # Errors
/// [`ErrorKind::IllegalMove`](quell_core::ErrorKind::IllegalMove) where the lease was lost: the
/// transaction cannot commit any more, and must be rolled back.
/// [`ErrorKind::Unsupported`](quell_core::ErrorKind::Unsupported) where the schema holds another
/// store, or inside a nested transaction: a savepoint that is rolled back alone would undo the
/// fence. Else what the database says.
pub async fn settle_in(
    db: &mut PgConnection,
    store: &Location,
    lease: &Lease,
    now: Option<Timestamp>,
) -> Result<()> {
    end(db, store, lease, now, None).await
}

/// As [`settle_in`], with what the handler returned (R19), which the caller has checked.
///
/// # Errors
/// As [`settle_in`].
pub async fn settle_in_with(
    db: &mut PgConnection,
    store: &Location,
    lease: &Lease,
    now: Option<Timestamp>,
    output: &Payload,
) -> Result<()> {
    end(db, store, lease, now, Some(output)).await
}

async fn end(
    db: &mut PgConnection,
    store: &Location,
    lease: &Lease,
    now: Option<Timestamp>,
    output: Option<&Payload>,
) -> Result<()> {
    const WHAT: &str = "settle in the transaction";
    if PgTransactionManager::get_transaction_depth(db) > 1 {
        return Err(in_savepoint());
    }
    let sql = sql_of(store)?;
    let query = match output {
        None => sql.query("select quell.settle($1, $2, $3) from quell.meta where store_id = $4"),
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
    check_store(found.is_some(), db, store, WHAT).await
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

impl Tx<'_> {
    /// Folds what committed transactions left in the inbox, in order. Only one call folds at a
    /// time; the others wait for it, so that no later trigger overtakes.
    pub(crate) async fn fold_inbox(&mut self) -> Result<()> {
        const ALONE: &str = "select pg_advisory_xact_lock(hashtextextended($1, 1))";
        const TAKE: &str = "delete from quell.inbox
              where id = any(array(
                    select id from quell.inbox where refused is null order by id limit $1))
          returning id, triggers";
        if !self.inbox_waits {
            return Ok(());
        }
        self.inbox_waits = false;
        let query = self.sql.query(ALONE).bind(format!("quell {}", self.sql.schema()));
        self.run("fold the inbox alone", query).await?;
        let rows = self.fetch("read the inbox", self.sql.query(TAKE).bind(FOLD)).await?;
        self.news.wakes_all |= i64::try_from(rows.len()) == Ok(FOLD);
        let mut taken = Vec::with_capacity(rows.len());
        for row in &rows {
            taken.push((get::<i64, _>(row, 0)?, get::<&str, _>(row, 1)?));
        }
        taken.sort_unstable_by_key(|(id, _)| *id);
        let (mut batches, mut sources) = (Vec::with_capacity(taken.len()), Vec::new());
        for (id, text) in taken {
            match serde_json::from_str::<(Vec<NewTrigger>, Option<Dedup>)>(text) {
                Ok((triggers, dedup)) => {
                    batches.push(Batch { triggers, dedup });
                    sources.push((id, text));
                }
                Err(error) => {
                    let why = format!("it is not Quell's writing: {error}");
                    self.refuse_inbox(id, text, why).await?;
                }
            }
        }
        let answers = self.accept_promised(&batches).await?;
        for ((id, text), answer) in sources.into_iter().zip(answers) {
            // R19: nobody waits for this answer, so a conflict is kept where an operator finds it.
            if let Err(error) = answer {
                self.refuse_inbox(id, text, error.to_string()).await?;
            }
        }
        Ok(())
    }

    /// Keeps a row that cannot be folded, out of the way, with the reason.
    async fn refuse_inbox(&mut self, id: i64, text: &str, why: String) -> Result<()> {
        const KEEP: &str = "insert into quell.inbox (id, triggers, refused)
                            overriding system value values ($1, $2, $3)";
        error!(inbox = id, error = %why, "triggers of a transaction cannot be accepted: set aside");
        let query = self.sql.query(KEEP).bind(id).bind(text.to_owned()).bind(why);
        self.run("set an inbox row aside", query).await
    }
}
