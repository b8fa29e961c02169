//! What callers do inside their own transactions: trigger (R4) and settle (R22).
//!
//! Triggers are appended to an inbox there, and folded into jobs by the next store call after the
//! commit: they count from the commit, a rollback leaves no trace, and a transaction that stays
//! open holds up nobody.

use quell_core::dedup::Dedup;
use quell_core::{Batch, Lease, NewTrigger, Payload, Result, Timestamp};
use sqlx::PgConnection;
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
pub async fn trigger_in(db: &mut PgConnection, schema: &str, batch: &Batch) -> Result<()> {
    let sql = Sql::new(schema, false)?;
    let triggers = serde_json::to_string(&(&batch.triggers, &batch.dedup))
        .map_err(|error| corrupt(format_args!("triggers: {error}")))?;
    let put = sql.query("select quell.put($1)").bind(triggers).execute(db).await;
    put.map(drop).map_err(|e| explain("trigger in the transaction", e))
}

/// Ends a running attempt well inside the caller's transaction (R22): its effects and the end of
/// the job commit together, or neither does. `now` is virtual time, for tests.
///
/// # Errors
/// [`ErrorKind::IllegalMove`](quell_core::ErrorKind::IllegalMove) where the lease was lost: the
/// transaction cannot commit any more, and must be rolled back. Else what the database says.
pub async fn settle_in(
    db: &mut PgConnection,
    schema: &str,
    lease: &Lease,
    now: Option<Timestamp>,
) -> Result<()> {
    let sql = Sql::new(schema, false)?;
    let query = sql.query("select quell.settle($1, $2, $3)");
    let query = query.bind(signed(lease.job.get())).bind(signed(lease.token.get()));
    let settled = query.bind(now.map(Timestamp::as_micros)).execute(db).await;
    settled.map(drop).map_err(|e| explain("settle in the transaction", e))
}

/// As [`settle_in`], with what the handler returned (R19), which the caller has checked.
///
/// # Errors
/// As [`settle_in`].
pub async fn settle_in_with(
    db: &mut PgConnection,
    schema: &str,
    lease: &Lease,
    now: Option<Timestamp>,
    output: &Payload,
) -> Result<()> {
    let sql = Sql::new(schema, false)?;
    let query = sql.query("select quell.settle($1, $2, $3, $4)");
    let query = query.bind(signed(lease.job.get())).bind(signed(lease.token.get()));
    let query = query.bind(now.map(Timestamp::as_micros)).bind(output.as_str().to_owned());
    let settled = query.execute(db).await;
    settled.map(drop).map_err(|e| explain("settle in the transaction", e))
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
