//! Receives notifications of other processes by `LISTEN`, where they arrive (R34).
//!
//! A connection on which nothing arrives may be quiet, or silent for good. So a listener that received
//! nothing for a while requests a notification that it must receive, too. Without one it listens on
//! another connection. What was sent meanwhile is lost, so workers look then.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use quell_core::{Cancelled, Result, Timestamp, WakeHub};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Acquire, AssertSqlSafe, Error, Executor};
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::bounded::Bounded;
use crate::ends::Ends;
use crate::error::{explain, is_full, silent};
use crate::hosts::Hosts;
use crate::hot::trail::Trails;
use crate::push::{FREED, Hint, Outbox};
use crate::sql::Sql;
use crate::tx::tcp_settings;
use crate::watch::Watch;

/// How long a notification to oneself may take before there is no pushing.
const SELF_TEST: Duration = Duration::from_secs(1);
/// How often sessions are compared: others' traffic may hide a pooler once.
const PROBES: usize = 5;
/// Between two tries to listen again.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
/// A process that receives nothing for this long, or up to twice as long, requests a notification.
/// All processes receive it and start again, so most of the time one of them sends it.
const QUIET: Duration = Duration::from_secs(5);
/// How long that notification may take.
const ANSWER: Duration = Duration::from_secs(5);

/// Whether transactions of one connection run in different sessions, as behind a transaction pooler.
///
/// The check does not listen: a pooled session that listens would deliver notifications to other clients
/// of the pooler. While one connection holds a session, another must neither have had it before nor have lost
/// its own.
pub(crate) async fn is_pooled(hosts: &Hosts, first: &mut Bounded, limit: Duration) -> Result<bool> {
    let what = "look for a pooler";
    let pid = async |db: &mut Bounded, begin: &'static str| {
        let row = db.fetch_one(sqlx::raw_sql(begin)).await.map_err(|e| explain(what, e))?;
        crate::row::get::<i32, _>(&row, 0)
    };
    let mut second = hosts.connect_alone(limit).await.map_err(|e| explain(what, e))?;
    let mut pooled = false;
    for _ in 0..PROBES {
        let before = pid(first, "select pg_backend_pid()").await?;
        let held = pid(&mut second, "begin; select pg_backend_pid()").await?;
        let after = async { pid(first, "select pg_backend_pid()").await };
        pooled = match held {
            // Waiting for an answer would be waiting for oneself where the pool has one session.
            _ if held == before => true,
            _ => timeout(SELF_TEST, after)
                .await
                .map_or(Ok(true), |after| after.map(|after| after != before))?,
        };
        let ended = second.execute(sqlx::raw_sql("commit")).await;
        ended.map_err(|e| explain(what, e))?;
        if pooled {
            break;
        }
    }
    second.close().await;
    Ok(pooled)
}

/// A connection that receives notifications, and how to make another one.
#[derive(Debug)]
pub(crate) struct Listener {
    inner: PgListener,
    hosts: Hosts,
    channel: String,
    /// How long it may take to connect.
    limit: Duration,
}

/// A connection that receives notifications; none where they do not arrive.
pub(crate) async fn listen(
    hosts: Hosts,
    teller: &mut Bounded,
    sql: &Sql,
    limit: Duration,
) -> Result<Option<Listener>> {
    let what = "listen for hints";
    let channel = sql.channel().to_owned();
    let inner = subscribe(&hosts, &channel, limit).await.map_err(|e| explain(what, e))?;
    let mut listener = Listener { inner, hosts, channel, limit };
    let nonce = format!("test {:x}", fastrand::u64(..));
    let notify = format!("select pg_notify('{}', '{nonce}')", sql.channel());
    match teller.execute(sqlx::raw_sql(AssertSqlSafe(notify))).await {
        // Notifications come again once the server's queue of them is read.
        Err(error) if is_full(&error) => return Ok(Some(listener)),
        sent => sent.map_err(|e| explain(what, e))?,
    };
    let received = async {
        loop {
            match listener.inner.try_recv().await {
                Ok(Some(hint)) if hint.payload() == nonce => return true,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return false,
            }
        }
    };
    let received = timeout(SELF_TEST, received).await.unwrap_or(false);
    Ok(received.then_some(listener))
}

/// Listens at the first server that lets it; a standby does not.
async fn subscribe(hosts: &Hosts, channel: &str, limit: Duration) -> Result<PgListener, Error> {
    let mut failed = Error::PoolClosed;
    for options in hosts.in_order() {
        let subscribed = timeout(limit, subscribe_at(options, channel)).await;
        match subscribed.unwrap_or_else(|_| Err(silent(limit))) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn subscribe_at(options: &PgConnectOptions, channel: &str) -> Result<PgListener, Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    // The next connection may have to lead to another server.
    listener.eager_reconnect(false);
    listener.execute(sqlx::raw_sql(AssertSqlSafe(tcp_settings()))).await?;
    listener.listen(channel).await?;
    Ok(listener)
}

/// How a listener lost its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// The connection broke.
    Broken,
    /// Nothing arrives on the connection.
    Silent,
}

impl Listener {
    /// Listens on another connection.
    async fn listen_again(&mut self, loss: Loss) -> Result<(), Error> {
        match loss {
            Loss::Broken => {
                self.inner = subscribe(&self.hosts, &self.channel, self.limit).await?;
            }
            Loss::Silent => {
                // A listener that is dropped sends UNLISTEN and waits for the answer. So only its
                // connection is replaced, and the silent one is closed at once.
                let listen = format!("{}; listen \"{}\"", tcp_settings(), self.channel);
                let mut fresh = self.hosts.connect(self.limit).await?;
                let listens = fresh.execute(sqlx::raw_sql(AssertSqlSafe(listen)));
                let listens = timeout(self.limit, listens).await;
                listens.unwrap_or_else(|_| Err(silent(self.limit)))?;
                let silent = timeout(self.limit, (&mut self.inner).acquire()).await;
                *silent.unwrap_or(Err(Error::PoolTimedOut))? = fresh;
            }
        }
        Ok(())
    }
}

/// Passes notifications on to the workers of this process and to callers waiting for ends, until the
/// task that runs it is dropped.
pub(crate) async fn receive(
    mut listener: Listener,
    outbox: Arc<Outbox>,
    (hub, trails, watch): (Arc<WakeHub>, Arc<Trails>, Arc<Watch>),
    ends: Arc<Ends>,
) {
    let (mut has_requested, mut since) = (false, Instant::now());
    loop {
        let wait = if has_requested { ANSWER } else { QUIET.mul_f64(1.0 + fastrand::f64()) };
        // The driver panics over some of what a pooler sends that lost its server.
        let received = AssertUnwindSafe(listener.inner.try_recv()).catch_unwind();
        let received = timeout(
            wait,
            received.map(|reported| {
                reported.unwrap_or_else(|_| Err(Error::Protocol("garbled messages".to_owned())))
            }),
        );
        let loss = match received.await {
            Ok(Ok(Some(hint))) => {
                has_requested = false;
                if let Some(hint) = outbox.read(hint.payload()) {
                    pass_on(hint, (&hub, &trails, &watch), &ends);
                }
                continue;
            }
            Err(_) if !has_requested => {
                has_requested = true;
                outbox.put_probe();
                continue;
            }
            Err(_) => Loss::Silent,
            Ok(Ok(None)) => Loss::Broken,
            Ok(Err(error)) => {
                debug!(%error, "the connection that listens broke");
                Loss::Broken
            }
        };
        has_requested = false;
        if since.elapsed() < PAUSE_AFTER_ERROR {
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
        }
        while let Err(error) = listener.listen_again(loss).await {
            warn!(%error, "cannot listen for notifications, polling instead");
            look((&hub, &trails, &watch), &ends);
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
        }
        // Notifications may have been lost meanwhile.
        look((&hub, &trails, &watch), &ends);
        since = Instant::now();
    }
}

/// Makes up for notifications that were missed.
fn look((hub, trails, watch): (&WakeHub, &Trails, &Watch), ends: &Ends) {
    watch.look();
    trails.tell_all();
    hub.wake(None, Timestamp::MIN);
    hub.cancelled(Cancelled::Any);
    ends.lost_touch();
}

fn pass_on(hint: Hint, (hub, trails, watch): (&WakeHub, &Trails, &Watch), ends: &Ends) {
    match hint {
        Hint::Wake(queue, due) => {
            if let Some(queue) = queue.as_ref().filter(|_| due != FREED) {
                trails.note_due(queue, due);
            }
            hub.wake(queue.as_ref(), due);
        }
        Hint::Wait(jobs) => ends.await_elsewhere(&jobs),
        Hint::Ended(jobs) => ends.ended_elsewhere(jobs),
        Hint::Cancelled(jobs) => {
            jobs.into_iter().for_each(|job| hub.cancelled(Cancelled::Job(job)));
        }
        Hint::Settings => watch.look(),
    }
}
