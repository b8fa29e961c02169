//! A timer in memory whose calls a test changes, one by one.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::{Result, Timestamp};
use quell_portable::{Delivery, MemoryTimer, Message, Received, ScheduleResult, Scheduled, Timer};

/// A message on its way to the timer.
#[derive(Clone, Copy, Debug)]
pub struct Sending<'m> {
    /// The message.
    pub message: &'m Message,
    /// The time at which it is sent.
    pub now: Timestamp,
    /// When the timer delivers it.
    pub at: Timestamp,
}

impl Sending<'_> {
    /// Sends it.
    ///
    /// # Errors
    /// As the timer.
    pub async fn to(self, timer: &MemoryTimer) -> ScheduleResult {
        timer.schedule(self.message, self.now, self.at).await
    }
}

/// The calls of a timer around one in memory. Each is passed on unless a test overrides it.
#[async_trait]
pub trait Around: Debug + Send + Sync + 'static {
    /// The timer inside.
    fn timer(&self) -> &MemoryTimer;

    /// As [`Timer::duplicate_window`].
    fn duplicate_window(&self) -> Option<Duration> {
        self.timer().duplicate_window()
    }

    /// As [`Timer::schedule`].
    async fn send(&self, sending: Sending<'_>) -> ScheduleResult {
        sending.to(self.timer()).await
    }

    /// As [`Timer::cancel`].
    async fn cancel(&self, scheduled: &Scheduled) -> Result<()> {
        self.timer().cancel(scheduled).await
    }

    /// As [`Timer::receive`].
    async fn receive(&self, most: usize, wait: Duration) -> Result<Vec<Received>> {
        self.timer().receive(most, wait).await
    }

    /// As [`Timer::renew`].
    async fn renew(&self, delivery: &Delivery) -> Result<Delivery> {
        self.timer().renew(delivery).await
    }

    /// As [`Timer::complete`].
    async fn complete(&self, delivery: &Delivery) -> Result<()> {
        self.timer().complete(delivery).await
    }

    /// As [`Timer::abandon`].
    async fn abandon(&self, delivery: &Delivery) -> Result<()> {
        self.timer().abandon(delivery).await
    }

    /// As [`Timer::dead_letter`].
    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<()> {
        self.timer().dead_letter(delivery, reason).await
    }
}

/// The timer that such calls make.
#[derive(Clone, Debug)]
pub struct Bent<A>(pub A);

#[async_trait]
impl<A: Around> Timer for Bent<A> {
    fn duplicate_window(&self) -> Option<Duration> {
        self.0.duplicate_window()
    }

    fn most_bytes(&self) -> usize {
        self.0.timer().most_bytes()
    }

    fn lock(&self) -> Duration {
        self.0.timer().lock()
    }

    async fn schedule(&self, message: &Message, now: Timestamp, at: Timestamp) -> ScheduleResult {
        self.0.send(Sending { message, now, at }).await
    }

    async fn cancel(&self, scheduled: &Scheduled) -> Result<()> {
        self.0.cancel(scheduled).await
    }

    async fn receive(&self, most: usize, wait: Duration) -> Result<Vec<Received>> {
        self.0.receive(most, wait).await
    }

    async fn renew(&self, delivery: &Delivery) -> Result<Delivery> {
        self.0.renew(delivery).await
    }

    async fn complete(&self, delivery: &Delivery) -> Result<()> {
        self.0.complete(delivery).await
    }

    async fn abandon(&self, delivery: &Delivery) -> Result<()> {
        self.0.abandon(delivery).await
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<()> {
        self.0.dead_letter(delivery, reason).await
    }
}
