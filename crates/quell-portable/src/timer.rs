//! A timer: it delivers a small message at a time, to one receiver, under a lock.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::{Result, Timestamp};

/// A message to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it says; at most [`Timer::most_bytes`].
    pub body: Vec<u8>,
    /// Names it where the timer deduplicates: of messages with one name that come within its
    /// [window](Timer::duplicate_window), it keeps the first.
    pub name: Option<String>,
}

/// A message that was delivered, under a lock that only this receiver holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// What it says.
    pub body: Vec<u8>,
    /// How often it was delivered, this time included.
    pub deliveries: u32,
    /// What the timer calls this delivery.
    pub delivery: Delivery,
}

/// What a timer calls one delivery of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delivery(String);

impl Delivery {
    /// What the timer calls it.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Delivery(text.into())
    }

    /// What the timer calls it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a timer calls a message that it keeps for a later time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scheduled(String);

impl Scheduled {
    /// What the timer calls it.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Scheduled(text.into())
    }

    /// What the timer calls it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The answer to a message that is scheduled: what [`Timer::cancel`] takes, where the timer can still
/// cancel the message.
pub type ScheduleResult = Result<Option<Scheduled>>;

/// Delivers messages at a time, at least once each, in no order.
///
/// A receiver holds a lock on what it was given; where the lock ends before the message is
/// completed, the message is delivered again. A receiver that no longer holds the lock gets an
/// error of kind [`NotFound`](quell_core::ErrorKind::NotFound), and changes nothing. Other errors are
/// as those of a [`Table`](crate::Table).
#[async_trait]
pub trait Timer: Send + Sync + fmt::Debug + 'static {
    /// For how long it remembers names of messages: of those with one name that come within this time
    /// after the first, it keeps the first. None where messages of one name all come.
    fn duplicate_window(&self) -> Option<Duration>;

    /// The longest message, in bytes.
    fn most_bytes(&self) -> usize;

    /// How long a receiver holds a message that it does not renew.
    fn lock(&self) -> Duration;

    /// Delivers `message` at `at` or soon after, never more than a clock's error before. `now` is the
    /// table's time; `at` may lie before it. Returns what [`cancel`](Timer::cancel) takes; none where
    /// the timer cannot cancel the message, as one that is due now or a duplicate.
    async fn schedule(&self, message: &Message, now: Timestamp, at: Timestamp) -> ScheduleResult;

    /// Removes a message that was not delivered yet. An error of kind
    /// [`NotFound`](quell_core::ErrorKind::NotFound) where it was delivered, is due, or is gone: then
    /// nothing changes.
    async fn cancel(&self, scheduled: &Scheduled) -> Result<()>;

    /// Takes at most `most` messages whose time has come; waits for the first for at most `wait`.
    /// None after that time is no error.
    async fn receive(&self, most: usize, wait: Duration) -> Result<Vec<Received>>;

    /// The bodies of at most `most` messages that wait, as far as the timer shows them without delivering
    /// them, perhaps with what a service wraps around them; none by default.
    async fn peek(&self, most: usize) -> Result<Vec<Vec<u8>>> {
        let _unused = most;
        Ok(Vec::new())
    }

    /// Extends the lock; the delivery that is returned takes the place of the one given.
    async fn renew(&self, delivery: &Delivery) -> Result<Delivery>;

    /// Removes the message: what it asked for is done.
    async fn complete(&self, delivery: &Delivery) -> Result<()>;

    /// Gives the message back, to be delivered again soon.
    async fn abandon(&self, delivery: &Delivery) -> Result<()>;

    /// Puts the message aside, where an operator finds it.
    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<()>;
}
