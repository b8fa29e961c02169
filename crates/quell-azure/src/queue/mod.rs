//! Timers in a queue of Azure Storage, over HTTP.
//!
//! [`StorageQueueOptions`] opens a [`StorageQueue`], which sends its requests by the `transport` of
//! tables; `wire` encodes messages and requests.
//!
//! Invariant: no call delivers a message that is certainly before its time.

mod options;
mod wire;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use quell_core::{Error, ErrorKind, Result, Timestamp};
use quell_portable::{Delivery, Message, Received, ScheduleResult, Scheduled, Timer};
use tokio::time::{Instant, sleep};

use crate::error::{check_length, error_code, in_doubt};
use crate::transport::{Answer, Deadline, Request, Sent, Transport};
pub use options::StorageQueueOptions;
use wire::{Envelope, Held, MOST_BYTES};

/// The most messages of one answer.
const MOST_MESSAGES: usize = 32;
/// The pause after the first request that finds nothing; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// What the service's date is rounded down by, at the most.
const DATE_ERROR: Duration = Duration::from_secs(1);
/// How long an abandoned message is invisible, so that a receiver which fails does not spin.
const ABANDONED_SECS: u64 = 1;

/// A timer in one queue of Azure Storage; [`StorageQueueOptions`] opens it.
///
/// # Times
/// The service counts in seconds: a message may be late by a second, and by one more pause of the
/// receiver. It keeps a message invisible for seven days at most. One that is due later is received
/// after that time, and put off again without being delivered; that counts as no delivery.
///
/// # Requests
/// The service does not notify receivers. One that finds nothing asks again after 100 ms, and then
/// after pauses that double up to [`longest_pause`](StorageQueueOptions::longest_pause). An idle
/// receiver sends one request for each call of `receive` and 3,600 s / `longest_pause` an hour: 3,600
/// by default, 360 with a pause of ten seconds.
///
/// # Lost answers
/// Every request is sent again, until its call ends, where the service is busy, cannot be reached or
/// does not answer:
///
/// - A message whose answer was lost may be stored twice, and is delivered twice then. Where no
///   attempt is acknowledged in time, `schedule` fails with an unknown outcome.
/// - Messages that were received by an answer that was lost are delivered again when their locks end.
/// - The first attempt to renew, complete, abandon or cancel a message ends its receipt. Where a lost answer
///   is followed by one that the receipt is not valid, the outcome is unknown: that may be the work
///   of the first attempt, or the lock ended.
///
/// # Dead-letter queue
/// A dead-lettered message is put into the queue `NAME-dead`, its reason in the first line before its
/// body, and deleted from its own queue after that. A crash between the two leaves it in both: it is
/// delivered again, and may be dead-lettered twice. Where the lock turns out to be lost, the first step
/// is undone. The service dead-letters no message by itself: a reader checks `deliveries`.
#[derive(Debug)]
pub struct StorageQueue {
    transport: Transport,
    name: String,
    dead: String,
    timeout: Duration,
    lock_secs: u64,
    longest_pause: Duration,
    /// How many requests since the last message found none.
    found_none: AtomicU32,
}

impl StorageQueue {
    async fn prepare(&self, create: bool) -> Result<()> {
        let deadline = Deadline::after(self.timeout);
        for name in [&self.name, &self.dead] {
            let request = wire::peek(name, 1);
            let answer = self.transport.answer(&request, deadline).await?;
            match answer.status {
                404 if create => {
                    self.transport.create(&wire::create(name), name, deadline).await?;
                }
                _ if answer.is_success() => {}
                _ => return Err(self.transport.rejected(request.what, name, &answer)),
            }
        }
        Ok(())
    }

    /// Takes messages whose time has come, and puts those off whose time has not.
    async fn poll(&self, most: usize) -> Result<Vec<Received>> {
        let request = wire::receive(&self.name, most, self.lock_secs);
        let deadline = Deadline::after(self.timeout);
        let answer = self.transport.send(&request, &self.name, deadline).await?;
        let now = answer.date().ok_or_else(wire::unreadable)?;
        let now = Timestamp::from_micros(now.as_microsecond());
        let (mut due, mut early) = (Vec::new(), Vec::new());
        for (held, count) in wire::messages(&answer)? {
            match Envelope::decode(&held.text) {
                Some(envelope) if now + DATE_ERROR <= envelope.at => {
                    early.push(wire::put_off(&self.name, &held, envelope, now));
                }
                envelope => due.push(held.received(count, envelope)),
            }
        }
        let deadline = Deadline::after(self.timeout);
        // Where this fails, the message comes again when its lock ends.
        join_all(early.iter().map(|request| self.transport.attempt(request, &deadline))).await;
        Ok(due)
    }

    /// Sends a request that changes a message, as often as it takes.
    async fn write(&self, queue: &str, request: Request, deadline: Deadline) -> Result<Answer> {
        let what = request.what;
        let (sent, is_lost) = self.transport.repeat(&request, deadline).await;
        let error = match sent {
            Sent::Answered(answer) if answer.is_success() => return Ok(answer),
            Sent::Answered(answer) => match error_code(&answer).as_str() {
                "MessageNotFound" | "PopReceiptMismatch" => gone(what),
                _ => self.transport.rejected(what, queue, &answer),
            },
            Sent::Failed(failure) => failure.error,
        };
        Err(if is_lost { in_doubt(what, error.into()) } else { error })
    }

    async fn update(&self, what: &'static str, delivery: &Delivery, secs: u64) -> Result<Delivery> {
        let held = Held::of(delivery.as_str()).ok_or_else(|| gone(what))?;
        let request = wire::update(what, &self.name, &held, secs);
        let answer = self.write(&self.name, request, Deadline::after(self.timeout)).await?;
        Ok(held.updated(&answer)?.delivery())
    }

    async fn delete(&self, what: &'static str, handle: &str) -> Result<()> {
        let held = Held::of(handle).ok_or_else(|| gone(what))?;
        let request = wire::delete(what, &self.name, &held);
        self.write(&self.name, request, Deadline::after(self.timeout)).await.map(drop)
    }
}

#[async_trait]
impl Timer for StorageQueue {
    fn duplicate_window(&self) -> Option<Duration> {
        None
    }

    fn most_bytes(&self) -> usize {
        MOST_BYTES
    }

    fn lock(&self) -> Duration {
        Duration::from_secs(self.lock_secs)
    }

    async fn schedule(&self, message: &Message, now: Timestamp, at: Timestamp) -> ScheduleResult {
        check_length(message, MOST_BYTES)?;
        let text = Envelope { at, put_offs: 0, body: message.body.clone() }.encode();
        let secs = wire::seconds_until(now, at);
        let request = wire::put("send a message", &self.name, secs, &text);
        let answer = self.write(&self.name, request, Deadline::after(self.timeout)).await?;
        // One that is visible may be received at any time. Where the answer cannot be read, the message
        // is stored all the same.
        let stored =
            wire::messages(&answer).ok().filter(|_| secs > 0).and_then(|mut all| all.pop());
        Ok(stored.map(|(stored, _)| Scheduled::new(stored.handle())))
    }

    async fn cancel(&self, scheduled: &Scheduled) -> Result<()> {
        self.delete("cancel a message", scheduled.as_str()).await
    }

    /// Takes at most 32 messages. Dropping the future loses none: those that it has taken are
    /// delivered again when their locks end.
    async fn receive(&self, most: usize, wait: Duration) -> Result<Vec<Received>> {
        let began = Instant::now();
        if most == 0 {
            return Ok(Vec::new());
        }
        loop {
            let found = self.poll(most.min(MOST_MESSAGES)).await?;
            if !found.is_empty() {
                self.found_none.store(0, Ordering::Relaxed);
                return Ok(found);
            }
            let doublings = self.found_none.fetch_add(1, Ordering::Relaxed).min(20);
            let pause = (FIRST_PAUSE * 2_u32.saturating_pow(doublings)).min(self.longest_pause);
            let left = wait.saturating_sub(began.elapsed());
            sleep(pause.min(left)).await;
            if pause >= left {
                return Ok(found);
            }
        }
    }

    async fn peek(&self, most: usize) -> Result<Vec<Vec<u8>>> {
        let request = wire::peek(&self.name, most.clamp(1, MOST_MESSAGES));
        let deadline = Deadline::after(self.timeout);
        wire::bodies(&self.transport.send(&request, &self.name, deadline).await?)
    }

    async fn renew(&self, delivery: &Delivery) -> Result<Delivery> {
        self.update("renew the lock of a message", delivery, self.lock_secs).await
    }

    async fn complete(&self, delivery: &Delivery) -> Result<()> {
        self.delete("complete a message", delivery.as_str()).await
    }

    async fn abandon(&self, delivery: &Delivery) -> Result<()> {
        self.update("abandon a message", delivery, ABANDONED_SECS).await.map(drop)
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<()> {
        let what = "dead-letter a message";
        let held = Held::of(delivery.as_str()).ok_or_else(|| gone(what))?;
        let deadline = Deadline::after(self.timeout);
        let copy = wire::put(what, &self.dead, 0, &wire::dead(reason, &held.text));
        let copy = self.write(&self.dead, copy, deadline).await?;
        let request = wire::delete(what, &self.name, &held);
        let Err(error) = self.write(&self.name, request, deadline).await else { return Ok(()) };
        if error.kind() == ErrorKind::NotFound {
            for (copy, _) in wire::messages(&copy)? {
                let undo = wire::delete(what, &self.dead, &copy);
                // Where this fails, an operator finds a message that is not dead.
                let _failed = self.write(&self.dead, undo, deadline).await;
            }
        }
        Err(error)
    }
}

fn gone(what: &str) -> Error {
    let message =
        format!("cannot {what}: its lock was lost, or it is gone, or it belongs to another timer");
    Error::new(ErrorKind::NotFound, message)
}
