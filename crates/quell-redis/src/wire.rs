//! One server's connection, which all calls of the process share.
//!
//! Every call has a deadline. A connection that is silent at one is replaced, and with it fail all
//! other calls that wait on it; so is one whose server turns out to be another than the one that the
//! address should lead to. The address is resolved again for each connection. Where a call fails,
//! the answer says whether it may have been done.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ErrorKind, Pipeline, RedisError, RedisResult,
    ServerErrorKind, Value,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{info, warn};

use crate::source::Source;

/// A connection that was quiet for longer is tried with `PING` before a call is sent: the server, or
/// something on the way, may have ended it.
const TRUSTED: Duration = Duration::from_millis(250);
/// A connection is not replaced sooner because of what its server says: the next one would lead to
/// the same.
const LEAST_AGE: Duration = Duration::from_secs(1);
/// The pause after a connection could not be made; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A caller that waited for less, because of its own deadline, says nothing of the server's health.
const FAIR: Duration = Duration::from_millis(500);
/// A server that cannot be reached for longer is away: calls no longer wait for it.
const AWAY: Duration = Duration::from_secs(2);

/// What goes to a server in one piece.
#[derive(Clone, Copy)]
pub(crate) enum Sent<'s> {
    One(&'s Cmd),
    All(&'s Pipeline),
    /// The first is `ASKING`, which lets the server take the others.
    Asking(&'s Pipeline),
}

/// A call without an answer, or with one that refuses it.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: RedisError,
    /// Whether the server may have done it.
    pub(crate) may_be_done: bool,
}

impl Failed {
    /// It was not sent, or the server says that it did nothing.
    pub(crate) fn not_done(error: RedisError) -> Self {
        Failed { error, may_be_done: false }
    }

    fn lost(error: RedisError) -> Self {
        Failed { error, may_be_done: true }
    }

    /// Whether the connection broke, and was not silent.
    pub(crate) fn is_broken(&self) -> bool {
        self.may_be_done && !self.error.is_timeout()
    }
}

/// A server's connection, shared and replaced.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Inner>);

struct Inner {
    source: Source,
    timeout: Duration,
    live: Mutex<Option<Arc<Live>>>,
    /// Held by the call that makes or tries the connection.
    turn: tokio::sync::Mutex<()>,
    away: Mutex<Option<Away>>,
}

/// A connection, and what is known of its health.
struct Live {
    connection: MultiplexedConnection,
    /// Where it leads.
    address: ConnectionAddr,
    opened: Instant,
    /// When the last answer came, in milliseconds since it was opened.
    received: AtomicU64,
    /// How many calls wait on it.
    waiting: AtomicUsize,
    abandoned: watch::Sender<bool>,
}

/// A server that could not be reached when a connection was last made.
struct Away {
    error: RedisError,
    since: Instant,
    failed_at: Instant,
    pause: Duration,
}

impl Live {
    fn quiet_for(&self) -> Duration {
        let received = Duration::from_millis(self.received.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(received)
    }

    fn receive(&self) {
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.received.fetch_max(now, Ordering::Relaxed);
    }

    /// Whether a call may be sent without trying the connection first: answers came lately, or others
    /// wait for theirs, which a `PING` would only queue behind. Callers may stop waiting before their
    /// deadline, so that is so for one deadline at most.
    fn is_trusted(&self, timeout: Duration) -> bool {
        let quiet = self.quiet_for();
        quiet < TRUSTED || (quiet < timeout && self.waiting.load(Ordering::Relaxed) > 0)
    }

    /// Answers, or an error where it broke, was given up, or the deadline came.
    async fn call(&self, sent: Sent<'_>, deadline: Instant) -> RedisResult<Vec<Value>> {
        let mut connection = self.connection.clone();
        let mut abandoned = self.abandoned.subscribe();
        let call = async {
            match sent {
                Sent::One(command) => Ok(vec![connection.req_packed_command(command).await?]),
                Sent::All(commands) | Sent::Asking(commands) => {
                    connection.req_packed_commands(commands, 0, commands.len()).await
                }
            }
        };
        let answer = tokio::select! {
            biased;
            answer = call => answer,
            _ = abandoned.wait_for(|abandoned| *abandoned) => Err(silent()),
            () = sleep_until(deadline) => Err(silent()),
        };
        if answer.as_ref().map_or_else(|error| !is_broken(error), |_| true) {
            self.receive();
        }
        answer
    }
}

/// Counts a call for as long as it waits.
struct Waits<'w>(&'w AtomicUsize);

impl<'w> Waits<'w> {
    fn on(waiting: &'w AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Wire {
    pub(crate) fn new(source: Source, timeout: Duration) -> Self {
        let (live, away) = (Mutex::default(), Mutex::default());
        Wire(Arc::new(Inner { source, timeout, live, turn: tokio::sync::Mutex::new(()), away }))
    }

    /// Makes the connection, so that what is wrong with it is known now.
    pub(crate) async fn open(&self) -> RedisResult<()> {
        self.live(Instant::now() + self.0.timeout).await.map(drop)
    }

    /// Whether no connection could be made when that was last tried.
    pub(crate) fn has_failed(&self) -> bool {
        self.away().is_some()
    }

    /// Whether the server could not be reached for some time.
    pub(crate) fn is_away(&self) -> bool {
        self.away().as_ref().is_some_and(|away| away.since.elapsed() >= AWAY)
    }

    /// Sends commands, and once more where the server refuses them because it is not, or no longer,
    /// the master.
    pub(crate) async fn send(
        &self,
        sent: Sent<'_>,
        deadline: Instant,
    ) -> Result<Vec<Value>, Failed> {
        let mut is_again = false;
        loop {
            let live = self.live(deadline).await.map_err(Failed::not_done)?;
            // A `PING` is not counted: while it is in flight, other calls wait for its answer.
            let waits = Waits::on(&live.waiting);
            let answer = live.call(sent, deadline).await;
            drop(waits);
            let error = match answer {
                Ok(answers) => match refusal(sent, &answers) {
                    Some(error) => error,
                    None => return Ok(answers),
                },
                Err(error) if is_broken(&error) => {
                    // Where answers came lately, the call waits behind a long one.
                    if !error.is_timeout() || live.quiet_for() >= self.0.timeout / 2 {
                        self.leave(&live, &error);
                    }
                    return Err(Failed::lost(error));
                }
                Err(error) => error,
            };
            if is_of_another_server(&error) && live.opened.elapsed() >= LEAST_AGE {
                self.set_aside(&live, &error);
                if !is_again {
                    is_again = true;
                    continue;
                }
            }
            return Err(Failed::not_done(error));
        }
    }

    /// The connection, made or tried first where that is needed.
    async fn live(&self, deadline: Instant) -> RedisResult<Arc<Live>> {
        let asked_at = Instant::now();
        let trusted = || self.current().filter(|live| live.is_trusted(self.0.timeout));
        if let Some(live) = trusted() {
            return Ok(live);
        }
        let turn = match self.0.turn.try_lock() {
            Ok(turn) => turn,
            // Another call tries to reach a server that was away a moment ago.
            Err(_) if let Some(error) = self.failure() => return Err(error),
            Err(_) => timeout_at(deadline, self.0.turn.lock()).await.map_err(|_| silent())?,
        };
        if let Some(live) = trusted() {
            return Ok(live);
        }
        if let Some(live) = self.current() {
            let began = Instant::now();
            let until = deadline.min(began + self.0.timeout / 4);
            // Any answer will do, a refusal among them.
            match live.call(Sent::One(&redis::cmd("PING")), until).await {
                Err(error) if self.is_cut_short(began, deadline) => return Err(error),
                Err(error) if is_broken(&error) => self.leave(&live, &error),
                Ok(_) | Err(_) => return Ok(live),
            }
        }
        let rests =
            |away: &Away| away.failed_at >= asked_at || away.failed_at.elapsed() < away.pause;
        if let Some(away) = self.away().as_ref().filter(|away| rests(away)) {
            return Err(away.error.clone());
        }
        let connected = self.connect(deadline).await;
        drop(turn);
        connected
    }

    /// Whether the caller's deadline ended a try before the server had a fair time to answer.
    fn is_cut_short(&self, began: Instant, deadline: Instant) -> bool {
        Instant::now() >= deadline && began.elapsed() < FAIR.min(self.0.timeout / 4)
    }

    async fn connect(&self, deadline: Instant) -> RedisResult<Arc<Live>> {
        let began = Instant::now();
        let until = deadline.min(began + self.0.timeout / 2);
        let config = AsyncConnectionConfig::new();
        let config = config.set_connection_timeout(None).set_response_timeout(None);
        // Boxed: it is rare, and would make the future of every call large.
        let connect: BoxFuture<'_, RedisResult<_>> = Box::pin(async {
            let client = self.0.source.client().await?;
            let address = client.get_connection_info().addr().clone();
            Ok((client.get_multiplexed_async_connection_with_config(&config).await?, address))
        });
        let connected = timeout_at(until, connect).await.unwrap_or_else(|_| Err(silent()));
        match connected {
            Ok((connection, address)) => {
                let live = Arc::new(Live {
                    connection,
                    address,
                    opened: Instant::now(),
                    received: AtomicU64::new(0),
                    waiting: AtomicUsize::new(0),
                    abandoned: watch::Sender::new(false),
                });
                if self.away().take().is_some() {
                    info!("Redis server is reached again");
                }
                *lock(&self.0.live) = Some(Arc::clone(&live));
                Ok(live)
            }
            Err(error) if self.is_cut_short(began, deadline) => Err(error),
            Err(error) => {
                let now = Instant::now();
                let mut away = self.away();
                let before = away.take();
                let since = before.as_ref().map_or(now, |before| before.since);
                let pause =
                    before.map_or(FIRST_PAUSE, |before| LONGEST_PAUSE.min(before.pause * 2));
                *away = Some(Away { error: error.clone(), since, failed_at: now, pause });
                Err(error)
            }
        }
    }

    /// Lets the next call make another connection; those that wait on this one get their answers.
    fn set_aside(&self, left: &Arc<Live>, why: &RedisError) {
        let mut current = lock(&self.0.live);
        if current.as_ref().is_some_and(|live| Arc::ptr_eq(live, left)) {
            warn!(%why, "connection to Redis is replaced");
            *current = None;
        }
    }

    /// Ends the connection for all calls that wait on it; the next call makes another.
    fn leave(&self, left: &Arc<Live>, why: &RedisError) {
        self.set_aside(left, why);
        left.abandoned.send_replace(true);
    }

    /// Sets the connection aside where it leads to another server than it should.
    pub(crate) fn lead_to(&self, is_right: impl Fn(&ConnectionAddr) -> bool) {
        if let Some(live) = self.current().filter(|live| !is_right(&live.address)) {
            let why = RedisError::from((ErrorKind::Io, "another server is the master"));
            self.set_aside(&live, &why);
        }
    }

    fn current(&self) -> Option<Arc<Live>> {
        lock(&self.0.live).clone()
    }

    fn away(&self) -> MutexGuard<'_, Option<Away>> {
        lock(&self.0.away)
    }

    fn failure(&self) -> Option<RedisError> {
        self.away().as_ref().map(|away| away.error.clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn silent() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// Why the server did not do the first command. Where it did not for want of an `ASKING` that was
/// refused, that is why.
fn refusal(sent: Sent<'_>, answers: &[Value]) -> Option<RedisError> {
    let place = usize::from(matches!(sent, Sent::Asking(_)));
    let Some(Value::ServerError(refused)) = answers.get(place) else { return None };
    let refused = RedisError::from(refused.clone());
    match answers.first() {
        Some(Value::ServerError(asking)) if is_elsewhere(&refused) => Some(asking.clone().into()),
        Some(_) | None => Some(refused),
    }
}

fn is_elsewhere(error: &RedisError) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask))
}

/// Whether the error is of the connection, and no answer of the server.
fn is_broken(error: &RedisError) -> bool {
    !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// Whether a server says by this that the address should lead to another one by now, or that it is
/// not ready: nothing of the call was done.
fn is_of_another_server(error: &RedisError) -> bool {
    const SAID: [&str; 4] = ["READONLY", "MASTERDOWN", "LOADING", "NOREPLICAS"];
    // Before version 7, what a script was answered is wrapped.
    let wrapped = error.detail().is_some_and(|detail| detail.contains("-READONLY "));
    wrapped || error.code().is_some_and(|code| SAID.contains(&code))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
