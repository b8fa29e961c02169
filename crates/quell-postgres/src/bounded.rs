//! A connection on which every statement has a deadline.
//!
//! A server whose machine lost power, or a network that drops packets, closes nothing: without a
//! deadline a call would wait for ever. sqlx sets no keepalive on its sockets and takes none that
//! were opened elsewhere, so the deadline is here, under every statement, and the connection is of
//! no use afterwards: dropped, its socket is closed at once.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, Stream, StreamExt};
use sqlx::postgres::{PgQueryResult, PgRow};
use sqlx::{Connection, Either, Error, Execute, Executor, PgConnection, Postgres};
use tokio::time::Sleep;

use crate::error::{is_lost, is_standby, is_undone, silent};

/// What a pool's connections have in common: once one of them failed, those made before are not
/// trusted any more.
#[derive(Debug, Default)]
pub(crate) struct Era(AtomicU64);

impl Era {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection whose statements end in time.
#[derive(Debug)]
pub(crate) struct Bounded {
    db: PgConnection,
    /// How long one statement may take.
    limit: Duration,
    state: State,
}

/// The state of a connection.
#[derive(Debug)]
struct State {
    era: Arc<Era>,
    made_in: u64,
    is_sound: bool,
    /// Whether the statement was answered, and only its commit was not.
    is_answered: bool,
}

impl State {
    fn note(&mut self, step: &Result<Either<PgQueryResult, PgRow>, Error>) {
        match step {
            Ok(Either::Left(_)) => self.is_answered = true,
            Ok(Either::Right(_)) => {}
            // One whose server has become a standby is of no more use than one that broke: another
            // one may lead to the primary.
            Err(error) if is_lost(error) || is_standby(error) => self.fail(),
            Err(_) => {}
        }
    }

    fn fail(&mut self) {
        self.is_sound = false;
        // Of several connections that break together, the first one ends the era.
        let next = self.made_in.saturating_add(1);
        self.era.0.fetch_max(next, Ordering::Relaxed);
    }
}

impl Bounded {
    pub(crate) fn new(db: PgConnection, limit: Duration, era: Arc<Era>) -> Self {
        let made_in = era.now();
        let state = State { era, made_in, is_sound: true, is_answered: false };
        Bounded { db, limit, state }
    }

    /// How long one statement may take from now on.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Multiplies the time limit of its next statements by `times`, until the connection is released.
    pub(crate) fn lengthen(&mut self, times: u32) {
        self.limit = self.limit.saturating_mul(times);
    }

    /// Whether statements may follow on it.
    pub(crate) fn is_sound(&self) -> bool {
        self.state.is_sound
    }

    /// Whether another call may have it: it is sound, and so were all that were made with it.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_sound() && self.state.made_in == self.state.era.now()
    }

    /// Whether the last statement, which was a transaction of its own, surely did not commit: the
    /// server ended the session instead of answering.
    pub(crate) fn was_undone(&self, error: &Error) -> bool {
        !self.state.is_answered && is_undone(error)
    }

    /// Whether the server answers within `limit`.
    pub(crate) async fn answers(&mut self, limit: Duration) -> bool {
        let answered = tokio::time::timeout(limit, self.db.ping()).await;
        let answers = answered.is_ok_and(|answer| answer.is_ok());
        if !answers {
            self.state.fail();
        }
        answers
    }

    /// The connection, without deadlines: for what may take any time.
    pub(crate) fn into_inner(self) -> PgConnection {
        self.db
    }

    /// Closes the connection; waits no longer than a statement may take.
    pub(crate) async fn close(self) {
        // It ends with its socket in any case.
        let _ended = tokio::time::timeout(self.limit, self.db.close()).await;
    }
}

/// The steps of a statement, until it is too late.
struct Steps<'e> {
    inner: BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>,
    deadline: Pin<Box<Sleep>>,
    limit: Duration,
    state: &'e mut State,
}

impl fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Stream for Steps<'_> {
    type Item = Result<Either<PgQueryResult, PgRow>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // A pooler that loses its server in the middle of a message goes on with one of its own, and
        // the driver panics over some of what that makes. The connection is given up either way.
        let inner = AssertUnwindSafe(|| self.inner.poll_next_unpin(cx));
        let step = std::panic::catch_unwind(inner).unwrap_or_else(|_| {
            let garbled = "the server's messages are garbled".to_owned();
            Poll::Ready(Some(Err(Error::Protocol(garbled))))
        });
        if let Poll::Ready(step) = step {
            if let Some(step) = &step {
                self.state.note(step);
            }
            return Poll::Ready(step);
        }
        match self.deadline.poll_unpin(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                self.state.fail();
                Poll::Ready(Some(Err(silent(self.limit))))
            }
        }
    }
}

/// As the driver's executor has them; to be one, this would have to know which features of the driver
/// other crates turn on.
impl Bounded {
    /// Every row of a statement, or of several in one text.
    pub(crate) async fn fetch_all<'q, E>(&mut self, query: E) -> Result<Vec<PgRow>, Error>
    where
        E: 'q + Execute<'q, Postgres>,
    {
        let mut rows = Vec::new();
        let mut steps = self.steps(query);
        while let Some(step) = steps.next().await {
            if let Either::Right(row) = step? {
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// The first row of a statement.
    pub(crate) async fn fetch_one<'q, E>(&mut self, query: E) -> Result<PgRow, Error>
    where
        E: 'q + Execute<'q, Postgres>,
    {
        // To the end: an error may follow the row.
        self.fetch_all(query).await?.into_iter().next().ok_or(Error::RowNotFound)
    }

    /// Runs a statement, or several in one text; returns how many rows they affected.
    pub(crate) async fn execute<'q, E>(&mut self, query: E) -> Result<u64, Error>
    where
        E: 'q + Execute<'q, Postgres>,
    {
        let mut affected = 0_u64;
        let mut steps = self.steps(query);
        while let Some(step) = steps.next().await {
            if let Either::Left(done) = step? {
                affected = affected.saturating_add(done.rows_affected());
            }
        }
        Ok(affected)
    }

    fn steps<'e, 'q: 'e, E>(&'e mut self, query: E) -> Steps<'e>
    where
        E: 'q + Execute<'q, Postgres>,
    {
        let Bounded { db, limit, state } = self;
        state.is_answered = false;
        let deadline = Box::pin(tokio::time::sleep(*limit));
        Steps { inner: db.fetch_many(query), deadline, limit: *limit, state }
    }
}
