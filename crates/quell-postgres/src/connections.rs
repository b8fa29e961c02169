//! Connections to the server: a bounded number, and of those that are free the one that was used
//! last. Its process is warm, and has planned what calls ask for; in turns, calls that are rare would
//! each meet a cold one. (Pools that know this order give back by `Drop` what a call left halfway;
//! here that is closed, which rolls it back at once.)

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quell_core::Result;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Error, Executor, PgConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{explain, is_starting};

/// A connection that idled this long is asked whether it still lives before it is used.
const TRUSTED: Duration = Duration::from_secs(1);
/// Between two tries to connect to a server that starts, at first.
const PAUSE: Duration = Duration::from_millis(10);

/// All connections of a store.
#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Home>);

#[derive(Debug)]
struct Home {
    options: PgConnectOptions,
    /// What each session begins with.
    greeting: Option<String>,
    /// How long a call waits for a connection.
    patience: Duration,
    /// One for each connection that there may be; who waits is served in turn.
    places: Arc<Semaphore>,
    /// Those that are free, and since when; the last was used last.
    free: Mutex<Vec<(PgConnection, Instant)>>,
}

impl Connections {
    /// At most `most`, each of which begins with `greeting`.
    pub(crate) fn new(
        options: PgConnectOptions,
        greeting: Option<String>,
        most: u32,
        patience: Duration,
    ) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let (places, free) = (Arc::new(Semaphore::new(most)), Mutex::default());
        Connections(Arc::new(Home { options, greeting, patience, places, free }))
    }

    /// A free connection, or a new one. Waits for its place, and for a server that starts.
    pub(crate) async fn acquire(&self) -> Result<Held> {
        let found = tokio::time::timeout(self.0.patience, self.find()).await;
        found.unwrap_or(Err(Error::PoolTimedOut)).map_err(|e| explain("connect to PostgreSQL", e))
    }

    async fn find(&self) -> std::result::Result<Held, Error> {
        let place = Arc::clone(&self.0.places).acquire_owned().await;
        let place = place.map_err(|_| Error::PoolClosed)?;
        while let Some((mut db, since)) = self.0.last_used() {
            // One that broke while nobody used it says so here.
            if since.elapsed() < TRUSTED || db.ping().await.is_ok() {
                return Ok(Held { db, home: Arc::clone(&self.0), place });
            }
        }
        let db = self.0.connect().await?;
        Ok(Held { db, home: Arc::clone(&self.0), place })
    }
}

impl Home {
    fn last_used(&self) -> Option<(PgConnection, Instant)> {
        self.free().pop()
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<(PgConnection, Instant)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> std::result::Result<PgConnection, Error> {
        let mut pause = PAUSE;
        let mut db = loop {
            match self.options.connect().await {
                Ok(db) => break db,
                Err(error) if is_starting(&error) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(self.patience / 5);
                }
                Err(error) => return Err(error),
            }
        };
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
    db: PgConnection,
    home: Arc<Home>,
    place: OwnedSemaphorePermit,
}

impl Held {
    /// Nothing is under way on it: the next call may have it.
    pub(crate) fn release(self) {
        let Held { db, home, place } = self;
        home.free().push((db, Instant::now()));
        drop(place);
    }
}

impl Deref for Held {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.db
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.db
    }
}
