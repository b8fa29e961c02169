//! Timers in a queue of Azure Service Bus, over AMQP 1.0.
//!
//! [`ServiceBusOptions`] opens a [`ServiceBus`], which owns one connection (`live`) and replaces it
//! when it fails. `requests` sends requests to the nodes `$cbs` and `$management`; `wire` knows how
//! messages are laid out, `token` how a connection is authorized, and `failure` what an error means.
//!
//! Invariants: every call ends by its deadline; a send without an acknowledgement is never repeated,
//! for it may have been stored; no key and no token is printed, logged or part of an error.

mod failure;
mod live;
mod options;
mod requests;
mod token;
mod wire;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fe2o3_amqp::types::primitives::Value;
use quell_core::{Error, ErrorKind, Result, Timestamp};
use quell_portable::{Delivery, Message, Received, ScheduleResult, Scheduled, Timer};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::credentials::Service;
use crate::error::{check_length, in_doubt};
use failure::Failure;
use live::Live;
pub use options::ServiceBusOptions;
use wire::Operation;

use crate::transport::Deadline;

/// The longest body: a message of the tier Standard has 256 KiB, and 64 KiB of that are for headers.
const MOST_BYTES: usize = 192 * 1024;

/// A timer in one queue.
pub struct ServiceBus {
    options: ServiceBusOptions,
    /// Locked while a connection is opened, so that concurrent calls share one.
    current: Mutex<Option<Arc<Live>>>,
}

impl fmt::Debug for ServiceBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceBus").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ServiceBus {
    fn new(options: ServiceBusOptions) -> Self {
        ServiceBus { options, current: Mutex::default() }
    }

    async fn connect(&self) -> Result<()> {
        self.live("open the queue", self.deadline()).await.map(drop)
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.options.timeout)
    }

    /// The connection with a token that is valid for a while, and how long that is. A busy service is
    /// asked again until the deadline.
    async fn live(&self, what: &str, mut deadline: Deadline) -> Result<(Arc<Live>, Duration)> {
        let (ends, mut busy) = (deadline.ends(), None);
        let ready = async {
            loop {
                match self.ready().await {
                    Err(Failure::Rejected(rejection))
                        if rejection.is_busy() && deadline.back_off(None).await =>
                    {
                        busy = Some(rejection);
                    }
                    ready => return ready,
                }
            }
        };
        let ready = timeout_at(ends, ready).await;
        let ready = ready.unwrap_or_else(|_| {
            let silence = || Failure::not_sent(self.silence());
            Err(busy.map_or_else(silence, Failure::Rejected))
        });
        ready.map_err(|failure| self.undone(what, failure))
    }

    async fn ready(&self) -> Result<(Arc<Live>, Duration), Failure> {
        // A connection that does not answer a renewal is dropped. So it is stored again only after it has.
        let mut current = self.current.lock().await;
        if let Some(live) = current.take().filter(|live| !live.has_ended()) {
            let renewed = live.renew(&self.options).await;
            // A token that is rejected is rejected on the next connection as well.
            if let Ok(_) | Err(Failure::Rejected(_)) = renewed {
                *current = Some(Arc::clone(&live));
                return renewed.map(|left| (live, left));
            }
        }
        let live = Arc::new(Box::pin(Live::connect(&self.options)).await?);
        let left = live.renew(&self.options).await?;
        *current = Some(Arc::clone(&live));
        Ok((live, left))
    }

    fn silence(&self) -> String {
        format!("no answer within {:?}", self.options.timeout)
    }

    /// The error of a call that has done nothing.
    fn undone(&self, what: &str, failure: Failure) -> Error {
        let place = format!("{}:{}", self.options.host, self.options.port);
        match failure {
            Failure::Rejected(rejection) => {
                let remedy = self.options.credentials.remedy(Service::Bus);
                rejection.error(what, &self.options.queue, &remedy)
            }
            Failure::NoToken(error) => error,
            Failure::NotSent(source) | Failure::InDoubt(source) => {
                let message = format!("cannot {what}: the connection to {place} failed: {source}");
                Error::new(ErrorKind::Unavailable, message).with_source(source)
            }
        }
    }

    /// Makes a write. A busy service has done nothing, and is asked again until the deadline. Where the
    /// connection failed before the write was sent, as after a long silence, it is sent once more on
    /// another; where it may have been sent, its outcome is unknown.
    async fn write<R, F>(
        &self,
        what: &'static str,
        act: impl Fn(Arc<Live>) -> F + Send,
    ) -> Result<R>
    where
        R: Send,
        F: Future<Output = Result<R, Failure>> + Send,
    {
        let mut deadline = self.deadline();
        let mut is_second = false;
        loop {
            let (live, _) = self.live(what, deadline).await?;
            let failure = match timeout_at(deadline.ends(), act(Arc::clone(&live))).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::in_doubt(self.silence()),
            };
            if !matches!(failure, Failure::Rejected(_)) {
                live.fail();
            }
            let source = match failure {
                Failure::NotSent(_) if !is_second => {
                    is_second = true;
                    continue;
                }
                Failure::Rejected(rejection) if rejection.is_in_doubt() => {
                    rejection.to_string().into()
                }
                Failure::Rejected(ref rejection)
                    if rejection.is_busy() && deadline.back_off(None).await =>
                {
                    continue;
                }
                Failure::InDoubt(source) => source,
                failure => return Err(self.undone(what, failure)),
            };
            return Err(in_doubt(what, source));
        }
    }

    async fn manage(&self, operation: Operation) -> Result<Value> {
        let (what, operation, timeout) = (operation.what, &operation, self.options.timeout);
        let act = move |live: Arc<Live>| async move { live.manage(operation, timeout).await };
        self.write(what, act).await
    }
}

#[async_trait]
impl Timer for ServiceBus {
    fn duplicate_window(&self) -> Option<Duration> {
        self.options.duplicate_window
    }

    fn most_bytes(&self) -> usize {
        MOST_BYTES
    }

    fn lock(&self) -> Duration {
        self.options.lock
    }

    async fn schedule(&self, message: &Message, now: Timestamp, at: Timestamp) -> ScheduleResult {
        check_length(message, MOST_BYTES)?;
        if at > now {
            let answer = self.manage(Operation::schedule(message, at)?).await?;
            return Ok(wire::scheduled(&answer));
        }
        let message = &wire::encode(message);
        let act = move |live: Arc<Live>| async move { live.send(message.clone()).await };
        self.write("send a message", act).await.map(|()| None)
    }

    async fn cancel(&self, scheduled: &Scheduled) -> Result<()> {
        self.manage(Operation::cancel(scheduled)?).await.map(drop)
    }

    /// Dropping the future loses no message: those that it has taken are delivered again when their
    /// locks end. Calls at one time take turns. Where the connection fails, it waits on one more.
    async fn receive(&self, most: usize, wait: Duration) -> Result<Vec<Received>> {
        let what = "receive messages";
        let ends = Instant::now() + wait;
        let deadline = ends + self.options.timeout;
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        if most == 0 {
            return Ok(Vec::new());
        }
        let mut is_second = false;
        loop {
            let limit = deadline.saturating_duration_since(Instant::now());
            let limit = Deadline::after(limit.min(self.options.timeout));
            let (live, left) = self.live(what, limit).await?;
            // A longer wait goes on with another token.
            let slice = left.min(ends.saturating_duration_since(Instant::now()));
            let failure = match timeout_at(deadline, live.receive(most, slice)).await {
                Ok(Ok(found)) if found.is_empty() && Instant::now() < ends => continue,
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::not_sent(self.silence()),
            };
            live.fail();
            if is_second || Instant::now() >= deadline {
                return Err(self.undone(what, failure));
            }
            is_second = true;
        }
    }

    /// The messages as they are encoded, with what the service knows of them.
    async fn peek(&self, most: usize) -> Result<Vec<Vec<u8>>> {
        Ok(wire::peeked(&self.manage(Operation::peek(most)).await?))
    }

    async fn renew(&self, delivery: &Delivery) -> Result<Delivery> {
        self.manage(Operation::renew(delivery)?).await.map(|_| delivery.clone())
    }

    async fn complete(&self, delivery: &Delivery) -> Result<()> {
        let settle = Operation::settle("complete a message", delivery, "completed", None)?;
        self.manage(settle).await.map(drop)
    }

    async fn abandon(&self, delivery: &Delivery) -> Result<()> {
        let settle = Operation::settle("abandon a message", delivery, "abandoned", None)?;
        self.manage(settle).await.map(drop)
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<()> {
        let what = "dead-letter a message";
        let settle = Operation::settle(what, delivery, "suspended", Some(reason))?;
        self.manage(settle).await.map(drop)
    }
}
