//! Triggers inside a caller's own transaction (R4).
//!
//! They are appended to an inbox there, and folded into jobs by the next store call after the
//! commit: they count from the commit, and a rollback leaves no trace. SQLite has one writer, so a
//! caller's open write transaction does hold up other writers of the file, as any write does.

use quell_core::{Batch, Error, Location, Result};
use quell_engine::sql::{Inbox, Refused};
use sqlx::SqliteConnection;
use tracing::error;

use crate::error::{corrupt, explain};
use crate::row::get;
use crate::tx::Tx;

/// Batches folded in one store call, at most; the next call goes on.
const FOLD: i64 = 1_000;

/// Triggers a batch inside the caller's transaction on the database that holds the store.
///
/// The batch must have been validated. What became of each trigger is decided after the commit, by
/// the next call of any store on the file, at the time of that call.
///
/// SQLite has one writer: from here to the end of the transaction, other writers of the file wait,
/// Quell among them, for their busy timeout at the longest. So trigger late and commit soon. (On
/// PostgreSQL, whose locks are on rows, no writer waits.)
///
/// # Errors
/// [`ErrorKind::Foreign`](quell_core::ErrorKind::Foreign) where the database has no Quell tables;
/// [`ErrorKind::Unsupported`](quell_core::ErrorKind::Unsupported) where they are another store's;
/// else what the database says. After an error the caller should roll back.
pub async fn trigger_in(db: &mut SqliteConnection, store: &Location, batch: &Batch) -> Result<()> {
    const WHAT: &str = "trigger in the transaction";
    const PUT: &str = "insert into quell_inbox (triggers)
         select ?1 from quell_meta where store_id = ?2";
    let triggers = serde_json::to_string(&(&batch.triggers, &batch.dedup))
        .map_err(|error| corrupt(format_args!("triggers: {error}")))?;
    let put = sqlx::query(PUT).bind(triggers).bind(store.id.as_str().to_owned());
    let put = put.execute(&mut *db).await.map_err(|e| explain(WHAT, e))?;
    if put.rows_affected() == 0 { Err(other_store(db, store, WHAT).await) } else { Ok(()) }
}

/// The refusal of a transaction whose database holds another store, which it names.
pub(crate) async fn other_store(
    db: &mut SqliteConnection,
    store: &Location,
    what: &'static str,
) -> Error {
    let found = sqlx::query_scalar::<_, String>("select store_id from quell_meta");
    match found.fetch_one(db).await {
        Ok(found) => store.other_store(&found),
        Err(error) => explain(what, error),
    }
}

impl Tx {
    /// Folds all that committed transactions have left in the inbox, in order: no trigger of a key may
    /// overtake one that committed before it (R4, R10, R19), and a flush or cancellation of a key
    /// includes those (R7).
    pub(crate) async fn fold_inbox_first(&mut self) -> Result<()> {
        while self.inbox_waits {
            self.fold_inbox().await?;
        }
        Ok(())
    }

    /// Folds the oldest of what committed transactions left in the inbox; what is left wakes workers.
    pub(crate) async fn fold_inbox(&mut self) -> Result<()> {
        const TAKE: &str = "delete from quell_inbox
              where id in (select id from quell_inbox where refused is null order by id limit ?1 + 0)
          returning id, triggers";
        if !self.inbox_waits {
            return Ok(());
        }
        let what = "read the inbox";
        let rows = sqlx::query(TAKE).bind(FOLD).fetch_all(&mut self.writer.db).await;
        let rows = rows.map_err(|e| explain(what, e))?;
        self.inbox_waits = i64::try_from(rows.len()) == Ok(FOLD);
        self.wakes_all |= self.inbox_waits;
        let mut taken = Vec::with_capacity(rows.len());
        for row in &rows {
            taken.push((get::<i64, _>(row, 0)?, get::<&str, _>(row, 1)?));
        }
        taken.sort_unstable_by_key(|(id, _)| *id);
        let (inbox, undecoded) = Inbox::decode(taken);
        self.refuse_inbox(undecoded).await?;
        let answers = self.accept_promised(&inbox.batches).await?;
        self.refuse_inbox(inbox.refused_by(answers)).await?;
        Ok(())
    }

    /// Keeps rows that cannot be folded, out of the way, with the reasons.
    async fn refuse_inbox(&mut self, refused: Vec<Refused<'_>>) -> Result<()> {
        const KEEP: &str = "insert into quell_inbox (id, triggers, refused) values (?1, ?2, ?3)";
        for Refused { id, triggers, why } in refused {
            error!(inbox = id, error = %why, "triggers of a transaction cannot be accepted: set aside");
            let query = sqlx::query(KEEP).bind(id).bind(triggers.to_owned()).bind(why);
            let kept = query.execute(&mut self.writer.db).await;
            kept.map_err(|e| explain("set an inbox row aside", e))?;
        }
        Ok(())
    }
}
