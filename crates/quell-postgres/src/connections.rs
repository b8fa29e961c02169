//! Connections to the server: a bounded number, and of those that are free the one that was used
//! last. Its process is warm, and has planned what calls ask for; in turns, calls that are rare would
//! each meet a cold one. Upkeep takes the free connections from the other end and returns them there,
//! so that a job that arrives meanwhile still gets the warm one. (Pools that know this order release in
//! `Drop` a connection that a call left halfway; here it is closed, which rolls the call back at once.)
//!
//! Where one breaks, or falls silent, those that were made before it failed are not used again: they
//! most likely lead to the same place.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quell_core::Result;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Error};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::bounded::{Bounded, Era};
use crate::error::{explain, is_lost_soon, is_starting};
use crate::hosts::Hosts;

/// A connection that idled this long is asked whether it still lives before it is used.
const TRUSTED: Duration = Duration::from_secs(1);
/// How long it may take to say so: a new one costs less than waiting longer.
const PROBE: Duration = Duration::from_secs(1);
/// Between two tries to connect to a server that starts, at first.
const PAUSE: Duration = Duration::from_millis(10);
/// A statement that reads every row, such as a count, has this many times the limit of others.
pub(crate) const LONG: u32 = 6;
/// How often a call that was surely not made is made again.
pub(crate) const AGAIN: usize = 2;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Until a call has a connection.
    pub(crate) acquire: Duration,
    /// Until a statement is answered.
    pub(crate) call: Duration,
}

/// All connections of a store.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    home: Arc<Home>,
    end: End,
}

/// The end of the free connections from which a call takes one, and where it returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The connection that was used last.
    Warm,
    /// The connection that no job has used for longest.
    Cold,
}

#[derive(Debug)]
struct Home {
    hosts: Hosts,
    /// What each session begins with.
    greeting: Option<String>,
    limits: Limits,
    era: Arc<Era>,
    /// One for each connection that there may be; who waits is served in turn.
    places: Arc<Semaphore>,
    /// Those that are free, and since when; the last is the warm one.
    free: Mutex<VecDeque<(Bounded, Instant)>>,
}

impl Connections {
    /// At most `most` connections; each session begins with `greeting`.
    pub(crate) fn new(hosts: Hosts, greeting: Option<String>, most: u32, limits: Limits) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let (places, free) = (Arc::new(Semaphore::new(most)), Mutex::default());
        let era = Arc::<Era>::default();
        let home = Arc::new(Home { hosts, greeting, limits, era, places, free });
        Connections { home, end: End::Warm }
    }

    /// The same connections for calls that no job waits for.
    pub(crate) fn for_upkeep(&self) -> Self {
        Connections { home: Arc::clone(&self.home), end: End::Cold }
    }

    /// A free connection, or a new one. Waits for its place, and for a server that starts.
    pub(crate) async fn acquire(&self) -> Result<Held> {
        let found = tokio::time::timeout(self.home.limits.acquire, self.find()).await;
        found.unwrap_or(Err(Error::PoolTimedOut)).map_err(|e| explain("connect to PostgreSQL", e))
    }

    /// A connection on which `text`, which begins a transaction, was run, with its rows. Where the
    /// connection breaks nothing was done, and another one is taken.
    pub(crate) async fn begin(&self, what: &'static str, text: &str) -> Result<(Held, Vec<PgRow>)> {
        let mut tries = 0;
        loop {
            let mut held = self.acquire().await?;
            // Settings, numbers, quoted keys and the schema's checked name are all that callers put
            // into the text.
            match held.fetch_all(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await {
                Ok(rows) => return Ok((held, rows)),
                Err(error) if tries < AGAIN && is_lost_soon(&error) => tries += 1,
                Err(error) => return Err(explain(what, error)),
            }
        }
    }

    /// As [`Connections::begin`], for statements that read every row.
    pub(crate) async fn begin_long(
        &self,
        what: &'static str,
        text: &str,
    ) -> Result<(Held, Vec<PgRow>)> {
        let (mut held, rows) = self.begin(what, text).await?;
        held.set_limit(self.home.limits.call.saturating_mul(LONG));
        Ok((held, rows))
    }

    async fn find(&self) -> std::result::Result<Held, Error> {
        let (home, end) = (&self.home, self.end);
        let place = Arc::clone(&home.places).acquire_owned().await;
        let place = place.map_err(|_| Error::PoolClosed)?;
        while let Some((mut db, since)) = home.free_at(end) {
            // A connection that broke while it was idle fails this probe.
            let probe = PROBE.min(home.limits.acquire / 4);
            if db.is_trusted() && (since.elapsed() < TRUSTED || db.answers(probe).await) {
                db.set_limit(home.limits.call);
                return Ok(Held { db, home: Arc::clone(home), end, place });
            }
        }
        let db = home.connect().await?;
        Ok(Held { db, home: Arc::clone(home), end, place })
    }
}

impl Home {
    fn free_at(&self, end: End) -> Option<(Bounded, Instant)> {
        match end {
            End::Warm => self.free().pop_back(),
            End::Cold => self.free().pop_front(),
        }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, VecDeque<(Bounded, Instant)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> std::result::Result<Bounded, Error> {
        let mut pause = PAUSE;
        // Several servers have to share the time.
        let limit = self.limits.acquire / self.hosts.count();
        let db = loop {
            match self.hosts.connect(limit).await {
                Ok(db) => break db,
                Err(error) if is_starting(&error) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(self.limits.acquire / 5);
                }
                Err(error) => return Err(error),
            }
        };
        let mut db = Bounded::new(db, self.limits.call, Arc::clone(&self.era));
        if let Some(greeting) = &self.greeting {
            // Only the schema's checked name comes from outside.
            db.execute(sqlx::raw_sql(AssertSqlSafe(greeting.clone()))).await?;
        }
        Ok(db)
    }
}

/// A connection that one call holds. Dropped, it is closed.
#[derive(Debug)]
pub(crate) struct Held {
    db: Bounded,
    home: Arc<Home>,
    end: End,
    place: OwnedSemaphorePermit,
}

impl Held {
    /// Returns the connection, on which nothing is in flight, to the pool if it is still sound.
    pub(crate) fn release(self) {
        let Held { db, home, end, place } = self;
        if db.is_trusted() {
            let (mut free, db) = (home.free(), (db, Instant::now()));
            match end {
                End::Warm => free.push_back(db),
                End::Cold => free.push_front(db),
            }
        }
        drop(place);
    }
}

impl Deref for Held {
    type Target = Bounded;

    fn deref(&self) -> &Bounded {
        &self.db
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Bounded {
        &mut self.db
    }
}
