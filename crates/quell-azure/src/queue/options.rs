//! Which queue, with which credentials, and how.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use quell_core::{Error, Result};

use super::wire::MOST_SECS;
use super::{FIRST_PAUSE, StorageQueue};
use crate::connection::{Connection, endpoint};
use crate::credentials::Service;
use crate::options::TIMEOUT;
use crate::transport::Transport;

/// How to open a queue of Azure Storage.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// use quell_azure::{Connection, StorageQueueOptions};
///
/// let text = std::env::var("AZURE_STORAGE_CONNECTION_STRING").unwrap_or_default();
/// let connection = Connection::from_string(&text)?;
/// let timer = StorageQueueOptions::new(connection, "timers")?.create(true).open().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct StorageQueueOptions {
    connection: Connection,
    queue: String,
    create: bool,
    timeout: Duration,
    lock: Duration,
    longest_pause: Duration,
}

impl StorageQueueOptions {
    /// The queue of this name, on the account of `connection`. Its dead-letter queue is the queue
    /// `NAME-dead`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for a name that no queue can have.
    pub fn new(connection: Connection, queue: impl Into<String>) -> Result<Self> {
        let queue = queue.into();
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let has_dashes = queue.starts_with('-') || queue.ends_with('-') || queue.contains("--");
        if !(3..=58).contains(&queue.len()) || has_dashes || !queue.chars().all(is_name) {
            let message = format!(
                "queue {queue:?}: give 3 to 58 characters of a-z and 0-9, with single dashes between \
                 them"
            );
            return Err(Error::invalid("queue", message));
        }
        Ok(StorageQueueOptions {
            connection,
            queue,
            create: false,
            timeout: TIMEOUT,
            lock: Duration::from_secs(60),
            longest_pause: Duration::from_secs(1),
        })
    }

    /// Whether to create the queue and its dead-letter queue where they are missing. Not by default.
    pub fn create(self, create: bool) -> Self {
        StorageQueueOptions { create, ..self }
    }

    /// How long a call may take, retries included;
    /// [`receive`](quell_portable::Timer::receive) waits on top of it. 10 s by default.
    pub fn timeout(self, timeout: Duration) -> Self {
        StorageQueueOptions { timeout, ..self }
    }

    /// How long a receiver holds a message unless it renews the lock: one second to seven days, in
    /// whole seconds. A minute by default.
    pub fn lock(self, lock: Duration) -> Self {
        StorageQueueOptions { lock, ..self }
    }

    /// The longest pause between two requests of a receiver that finds nothing, at least 100 ms. A
    /// second by default: 3,600 requests an hour.
    pub fn longest_pause(self, longest_pause: Duration) -> Self {
        StorageQueueOptions { longest_pause, ..self }
    }

    /// Where the queue service is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for what is not a plain URL of HTTP.
    pub fn endpoint(mut self, url: &str) -> Result<Self> {
        self.connection.queues = Some(endpoint(url)?);
        Ok(self)
    }

    /// Opens the queue, after checking that it and its dead-letter queue exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for a lock that no queue has, and where
    /// the connection has no endpoint for queues;
    /// [`ErrorKind::Unavailable`](quell_core::ErrorKind::Unavailable) where the service cannot be
    /// reached, rejects the credentials, or has no such queue.
    pub async fn open(self) -> Result<StorageQueue> {
        let lock = self.lock;
        let lock_secs = lock.as_secs() + u64::from(lock.subsec_nanos() > 0);
        if !(1..=MOST_SECS).contains(&lock_secs) {
            let message = format!("a lock of {lock:?}: give one second to seven days");
            return Err(Error::invalid("lock", message));
        }
        let url = self.connection.queues.ok_or_else(|| {
            Error::invalid("connection", "the connection string has no QueueEndpoint")
        })?;
        let credentials = self.connection.credentials;
        let timer = StorageQueue {
            transport: Transport::new(Service::Queue, url, credentials, self.timeout)?,
            dead: format!("{}-dead", self.queue),
            name: self.queue,
            timeout: self.timeout,
            lock_secs,
            longest_pause: self.longest_pause.max(FIRST_PAUSE),
            found_none: AtomicU32::new(0),
        };
        timer.prepare(self.create).await?;
        Ok(timer)
    }
}
