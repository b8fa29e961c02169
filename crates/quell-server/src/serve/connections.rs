//! The connections of a server: how many there may be, and which one is closed for another.
//!
//! A caller that is slow to send or to read takes a place for as long as it likes to. So a connection whose request
//! has not arrived, or whose response is being read, is closed once all places are taken and another caller waits:
//! the one that has been so for longest. Invariant: a request that has arrived keeps its place until it is answered.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Connections at once; more wait to be accepted.
const MOST: u64 = 1_024;
/// Open files that are left to stores, commands and their pipes.
const RESERVE: u64 = 256;
/// Between two looks for a connection that may be closed.
const LOOK: Duration = Duration::from_millis(50);

/// A request is awaited, arrives, or its response is read.
const WAITS: u8 = 0;
/// A request is answered.
const WORKS: u8 = 1;
/// It is closed for another.
const CLOSED: u8 = 2;

/// How many connections there may be at once. Where the limit of open files is low, the rest of the process keeps
/// a part of it.
pub(crate) fn most() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = files.saturating_sub(RESERVE.min(files / 2)).clamp(1, MOST);
    usize::try_from(most).unwrap_or(1)
}

/// All connections of a server.
#[derive(Debug)]
pub(super) struct Connections {
    places: Arc<Semaphore>,
    open: Mutex<BTreeMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    began: Instant,
}

impl Connections {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Connections {
            places: Arc::new(Semaphore::new(most())),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            began: Instant::now(),
        })
    }

    /// A place for one more, which may close another connection.
    pub(super) async fn place(self: &Arc<Self>) -> Option<Open> {
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return Some(self.open(place));
            }
            self.close_one();
            let place = Arc::clone(&self.places).acquire_owned();
            match tokio::time::timeout(LOOK, place).await {
                Ok(Ok(place)) => return Some(self.open(place)),
                Ok(Err(_)) => return None,
                Err(_) => {}
            }
        }
    }

    fn open(self: &Arc<Self>, place: OwnedSemaphorePermit) -> Open {
        let connection = Arc::new(Connection {
            state: AtomicU8::new(WAITS),
            since: AtomicU64::new(0),
            began: self.began,
            closed: CancellationToken::new(),
        });
        connection.note_the_time();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(number, Arc::clone(&connection));
        drop(open);
        Open { connection, number, all: Arc::clone(self), _place: place }
    }

    /// Closes the connection that has been without work for longest, if there is one.
    pub(super) fn close_one(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = open.values().filter(|one| one.state.load(Ordering::Acquire) == WAITS);
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|one| one.since.load(Ordering::Relaxed));
        // One that began to work just now is passed over.
        let _closed = waiting.into_iter().find(|one| one.close());
    }
}

/// A connection with its place among all.
pub(super) struct Open {
    pub(super) connection: Arc<Connection>,
    number: u64,
    all: Arc<Connections>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = self.all.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&self.number);
    }
}

/// What a connection does.
#[derive(Debug)]
pub(super) struct Connection {
    state: AtomicU8,
    /// Since when, in microseconds after the server's start.
    since: AtomicU64,
    began: Instant,
    closed: CancellationToken,
}

impl Connection {
    fn note_the_time(&self) {
        let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.since.store(micros, Ordering::Relaxed);
    }

    fn moves(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn close(&self) -> bool {
        let closes = self.moves(WAITS, CLOSED);
        if closes {
            self.closed.cancel();
        }
        closes
    }

    /// Completes when it is to end for another one.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// A request's body, whose end begins its work.
    ///
    /// # Errors
    /// Where the connection was closed for another meanwhile.
    pub(super) fn arrives(self: &Arc<Self>, body: Incoming) -> Result<Arriving, io::Error> {
        self.note_the_time();
        let mut arriving = Arriving { body, connection: Arc::clone(self), has_arrived: false };
        arriving.note_its_end()?;
        Ok(arriving)
    }

    /// Its request is answered.
    pub(super) fn answered(&self) {
        self.note_the_time();
        self.moves(WORKS, WAITS);
    }
}

/// The body of a request; with its end, the connection is at work.
#[derive(Debug)]
pub(super) struct Arriving {
    body: Incoming,
    connection: Arc<Connection>,
    has_arrived: bool,
}

impl Arriving {
    fn note_its_end(&mut self) -> Result<(), io::Error> {
        if self.has_arrived || !self.body.is_end_stream() {
            return Ok(());
        }
        self.has_arrived = true;
        if self.connection.moves(WAITS, WORKS) {
            return Ok(());
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match (self.note_its_end(), frame) {
            (Err(closed), _) => Poll::Ready(Some(Err(closed))),
            (Ok(()), Some(Err(error))) => Poll::Ready(Some(Err(io::Error::other(error)))),
            (Ok(()), Some(Ok(frame))) => Poll::Ready(Some(Ok(frame))),
            (Ok(()), None) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
