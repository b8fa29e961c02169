//! Telling other processes, and hearing of them (R34), by `NOTIFY` and `LISTEN`.
//!
//! A hint is sent after the commit that it is about, in a transaction of its own: inside it, it
//! would make all commits of the server that notify wait for each other's writes to disk. Hints
//! that gather while one is on its way go together. A hint that is lost only delays (R39).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_core::{QueueName, Result, Timestamp, WakeHub};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};
use tokio::sync::Notify;
use tracing::{debug, warn};

use crate::connections::Connections;
use crate::error::explain;
use crate::sql::Sql;

/// How long a hint to oneself may take before there is no pushing.
const SELF_TEST: Duration = Duration::from_secs(1);
/// How often sessions are compared: others' traffic may hide a pooler once.
const PROBES: usize = 5;
/// Between two tries to listen again.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
/// Stands for every queue; no name has it.
const ANY: &str = "*";

/// Hints that wait to be sent.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Tells this store's hints from others'.
    origin: u64,
    /// By queue; none stands for all of them.
    pending: Mutex<BTreeMap<Option<QueueName>, Timestamp>>,
    ready: Notify,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        // Zero stands for callers' own transactions.
        let origin = fastrand::u64(1..);
        Outbox { origin, pending: Mutex::default(), ready: Notify::new() }
    }

    /// Takes hints to send.
    pub(crate) fn put(&self, wakes: impl IntoIterator<Item = (Option<QueueName>, Timestamp)>) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let before = pending.len();
        for (queue, due) in wakes {
            let earliest = pending.entry(queue).or_insert(due);
            *earliest = due.min(*earliest);
        }
        if before == 0 && !pending.is_empty() {
            self.ready.notify_one();
        }
    }

    fn take(&self) -> Vec<String> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let hint = |(queue, due): (Option<QueueName>, Timestamp)| {
            let queue = queue.as_ref().map_or(ANY, QueueName::as_str);
            format!("{:x} {} {queue}", self.origin, due.as_micros())
        };
        std::mem::take(&mut *pending).into_iter().map(hint).collect()
    }
}

/// Sends hints until the task that runs it is dropped, on a connection of its own: calls go on
/// meanwhile on the one that they just used.
pub(crate) async fn tell(pool: Connections, sql: Arc<Sql>, outbox: Arc<Outbox>) {
    // The first hint should not wait for its connection; where there is none yet, it tries again.
    if let Ok(db) = pool.acquire().await {
        db.release();
    }
    loop {
        outbox.ready.notified().await;
        let hints = outbox.take();
        // It writes nothing, so there is nothing to wait for on the disk.
        let query = sql.query(
            "select set_config('synchronous_commit', 'off', true), pg_notify($1, hint)
               from unnest($2::text[]) hint",
        );
        let query = query.bind(sql.channel().to_owned()).bind(hints);
        if let Err(error) = crate::tx::one_shot(&pool, &sql, query).await {
            debug!(%error, "hints to other processes were lost, polling finds the work");
        }
    }
}

/// Whether transactions of one connection run in different sessions, as behind a transaction pooler.
///
/// It is found out without listening: a pooled session that listens would tell strangers. While one
/// connection holds a session, another must neither have had it before nor have lost its own.
pub(crate) async fn is_pooled(
    options: &PgConnectOptions,
    first: &mut PgConnection,
) -> Result<bool> {
    let what = "look for a pooler";
    let pid = async |db: &mut PgConnection, begin: &'static str| {
        let row = db.fetch_one(sqlx::raw_sql(begin)).await.map_err(|e| explain(what, e))?;
        crate::row::get::<i32, _>(&row, 0)
    };
    let mut second = options.connect().await.map_err(|e| explain(what, e))?;
    let mut pooled = false;
    for _ in 0..PROBES {
        let before = pid(first, "select pg_backend_pid()").await?;
        let held = pid(&mut second, "begin; select pg_backend_pid()").await?;
        let after = async { pid(first, "select pg_backend_pid()").await };
        pooled = match held {
            // Waiting for an answer would be waiting for oneself where the pool has one session.
            _ if held == before => true,
            _ => tokio::time::timeout(SELF_TEST, after)
                .await
                .map_or(Ok(true), |after| after.map(|after| after != before))?,
        };
        let ended = second.execute(sqlx::raw_sql("commit")).await;
        ended.map_err(|e| explain(what, e))?;
        if pooled {
            break;
        }
    }
    // It was only needed to ask; how it ends changes nothing.
    let _ended = second.close().await;
    Ok(pooled)
}

/// A connection that hears hints; none where they do not arrive.
pub(crate) async fn listen(
    options: &PgConnectOptions,
    teller: &mut PgConnection,
    sql: &Sql,
) -> Result<Option<PgListener>> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_lazy_with(options.clone());
    let what = "listen for hints";
    let mut listener = PgListener::connect_with(&pool).await.map_err(|e| explain(what, e))?;
    listener.listen(sql.channel()).await.map_err(|e| explain(what, e))?;
    let nonce = format!("test {:x}", fastrand::u64(..));
    let notify = format!("select pg_notify('{}', '{nonce}')", sql.channel());
    let told = teller.execute(sqlx::raw_sql(AssertSqlSafe(notify))).await;
    told.map_err(|e| explain(what, e))?;
    let heard = async {
        loop {
            match listener.recv().await {
                Ok(hint) if hint.payload() == nonce => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    };
    let heard = tokio::time::timeout(SELF_TEST, heard).await.unwrap_or(false);
    Ok(heard.then_some(listener))
}

/// Hands what it hears to the workers of this process, until the task that runs it is dropped.
pub(crate) async fn hear(mut listener: PgListener, outbox: Arc<Outbox>, hub: Arc<WakeHub>) {
    loop {
        match listener.try_recv().await {
            Ok(Some(hint)) => {
                if let Some((queue, due)) = read(hint.payload(), outbox.origin) {
                    hub.wake(queue.as_ref(), due);
                }
            }
            // The connection was lost and is back, or will be by the next call: nobody knows what
            // was told meanwhile.
            Ok(None) => hub.wake(None, Timestamp::MIN),
            Err(error) => {
                warn!(%error, "cannot hear the hints of other processes, polling instead");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                hub.wake(None, Timestamp::MIN);
            }
        }
    }
}

/// A hint of another store; none for one's own and for what is no hint.
fn read(hint: &str, own: u64) -> Option<(Option<QueueName>, Timestamp)> {
    let mut words = hint.splitn(3, ' ');
    let origin = u64::from_str_radix(words.next()?, 16).ok().filter(|origin| *origin != own)?;
    let due = words.next()?.parse().ok().map(Timestamp::from_micros)?;
    let queue = words.next()?;
    debug_assert!(origin != own);
    if queue == ANY { Some((None, due)) } else { Some((Some(QueueName::new(queue).ok()?), due)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r34_hints_of_others_are_read_and_ones_own_are_not() {
        let queue = QueueName::new("q:1").unwrap();
        let outbox = Outbox::new();
        outbox.put([(Some(queue.clone()), Timestamp::from_secs(9))]);
        outbox.put([(Some(queue.clone()), Timestamp::from_secs(3))]);
        let hints = outbox.take();
        assert_eq!(hints.len(), 1);
        let due = Timestamp::from_secs(3);
        assert_eq!(read(&hints[0], outbox.origin), None);
        assert_eq!(read(&hints[0], 0), Some((Some(queue), due)));
        assert_eq!(read("0 -5 *", outbox.origin), Some((None, Timestamp::from_micros(-5))));
        for other in ["", "test 1", "0", "0 x *", "0 1", "zz 1 q", "0 1 <q>"] {
            assert_eq!(read(other, outbox.origin), None, "{other}");
        }
    }
}
