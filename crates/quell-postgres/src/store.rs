//! The store: the engine on the tables of one schema, with operations that statements of their own make.
//!
//! Invariant: a row that cannot be decoded harms itself only, whichever way an operation goes (R25).

use async_trait::async_trait;
use quell_core::history::{Event, History, Sink};
use quell_core::{
    Answer, Capabilities, EndNotification, Error, JobId, Location, Now, Operation, Result, Store,
    Timestamp, Wakeups, unreadable,
};
use quell_engine::Engine;
use std::sync::Arc;
use tracing::warn;

use crate::PostgresOptions;
use crate::backend::PostgresBackend;
use crate::connections::Connections;
use crate::drafts::numbered;
use crate::listen::Listener;
use crate::sql::Sql;

/// A store in one schema of a PostgreSQL database.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// let store = quell_postgres::PostgresStore::open("postgres://app@localhost/app").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PostgresStore {
    engine: Engine<PostgresBackend>,
}

/// Has the engine note events: the backend passes them on itself, in the order of commits.
#[derive(Debug)]
struct Noted;

impl History for Noted {
    fn record(&self, _: &Event) {}
}

impl PostgresStore {
    /// Opens the store behind `postgres://…`, with the defaults of [`PostgresOptions`].
    ///
    /// # Errors
    /// As for [`PostgresOptions::from_url`] and [`PostgresOptions::open`].
    pub async fn open(url: &str) -> Result<Self> {
        PostgresOptions::from_url(url)?.open().await
    }

    pub(crate) fn start(
        pools: (Connections, Connections),
        sql: Sql,
        location: Location,
        listener: Option<Listener>,
        history: Option<Sink>,
    ) -> Self {
        let is_noted = history.is_some();
        let backend = PostgresBackend::start(pools, sql, location, listener, history);
        let engine = Engine::new(backend);
        let engine = if is_noted { engine.with_history(Arc::new(Noted)) } else { engine };
        PostgresStore { engine }
    }

    pub(crate) fn backend(&self) -> &PostgresBackend {
        self.engine.backend()
    }

    /// Sets the job aside that an error names; fails with the error where that is no reason to call
    /// again, or was so too often.
    async fn set_aside(&self, error: Error, tries: &mut usize) -> Result<()> {
        *tries = tries.saturating_add(1);
        let may_try = *tries <= unreadable::MAX_PER_CALL;
        if may_try && self.engine.set_aside(&error).await? { Ok(()) } else { Err(error) }
    }

    /// Sets jobs aside that a claim has started and that cannot be decoded.
    async fn set_started_aside(&self) {
        let unreadable = std::mem::take(&mut *self.backend().unreadable.lock().await);
        for error in unreadable {
            // Where this fails, the reaper sets the job aside.
            if let Err(failed) = self.engine.set_aside(&error).await {
                warn!(error = %failed, "an unreadable job could not be set aside");
            }
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.backend().location)
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        let claims = matches!(operation, Operation::Claim { .. });
        let mut tries = 0;
        loop {
            match self.backend().take(now, &operation).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => break,
                Err(error) => self.set_aside(error, &mut tries).await?,
            }
        }
        let answer = numbered(self.engine.call(now, operation)).await;
        if claims {
            self.set_started_aside().await;
        }
        answer
    }

    fn wakeups(&self) -> Wakeups {
        let wakeups = self.backend().hub.subscribe();
        self.backend().watch.look();
        wakeups
    }

    fn transaction_committed(&self) {
        self.backend().hub.wake(None, Timestamp::MIN);
        self.backend().outbox.put([(None, Timestamp::MIN)]);
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.backend().ends.wait_for(job)
    }
}
