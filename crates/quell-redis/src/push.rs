//! Notifications from other processes (R34), by `SUBSCRIBE` on a connection of its own.
//!
//! Each script publishes the notifications of its own changes. A lost one only delays (R39). A
//! connection may be lost without an error, so the process also publishes to a channel of its own and
//! subscribes again where it does not receive that.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use quell_core::{Cancelled, JobId, QueueName, Timestamp, WakeHub};
use quell_engine::EndWaiters;
use redis::RedisResult;
use redis::aio::PubSub;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::link::Link;
use crate::source::Source;
use crate::wire::silent;
use crate::writes::{ANY, CANCELLED, ENDED};

/// Between two tries to listen again.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
/// Between two probes, at most.
const PROBE: Duration = Duration::from_secs(5);
/// How long a probe that was published may take to come, at most.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is listened to, and where.
#[derive(Debug)]
pub(crate) struct Listener {
    /// In a Cluster any node will do: each delivers the messages published at any other.
    pub(crate) sources: Vec<Source>,
    pub(crate) channel: String,
    /// Identifies the notifications that this process sent.
    pub(crate) origin: String,
    /// How long a server may take to answer.
    pub(crate) timeout: Duration,
    /// By which probes go out.
    pub(crate) link: Link,
}

impl Listener {
    /// The channel that only this process subscribes to.
    fn own_channel(&self) -> String {
        format!("{}:{}", self.channel, self.origin)
    }

    /// A connection that receives notifications, of the first source that has one.
    pub(crate) async fn listen(&self) -> RedisResult<PubSub> {
        let mut failed = silent();
        for source in &self.sources {
            match self.listen_to(source).await {
                Ok(received) => return Ok(received),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn listen_to(&self, source: &Source) -> RedisResult<PubSub> {
        let listen = async {
            let mut received = source.client().await?.get_async_pubsub().await?;
            received.subscribe(&self.channel).await?;
            received.subscribe(self.own_channel()).await?;
            Ok(received)
        };
        timeout(self.timeout / 2, listen).await.unwrap_or_else(|_| Err(silent()))
    }

    /// Forwards notifications to the workers of this process, until the task that runs it is dropped.
    pub(crate) async fn receive(
        mut self,
        first: PubSub,
        (hub, ends): (Arc<WakeHub>, Arc<EndWaiters>),
    ) {
        let mut received = Some(first);
        loop {
            let began = Instant::now();
            let was_connected = received.is_some();
            if let Some(connection) = received.take() {
                self.receive_by(connection, (&hub, &ends)).await;
            }
            look(&hub);
            ends.hub().tell_all();
            if was_connected && began.elapsed() < PAUSE_AFTER_ERROR {
                sleep(PAUSE_AFTER_ERROR).await;
            }
            // The next node is asked first.
            let sources = self.sources.len();
            self.sources.rotate_left(1.min(sources));
            match self.listen().await {
                Ok(connection) => {
                    look(&hub);
                    received = Some(connection);
                }
                Err(error) => {
                    warn!(%error, "cannot receive wake-ups of other processes, polling instead");
                    sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    }

    /// Receives notifications on one connection, until it ends or a probe does not come.
    async fn receive_by(&self, mut connection: PubSub, (hub, ends): (&WakeHub, &EndWaiters)) {
        let (own, came) = (self.own_channel(), Notify::new());
        let mut hints = connection.on_message();
        let probes = self.probe(&own, &came);
        tokio::pin!(probes);
        loop {
            let message = tokio::select! {
                message = hints.next() => message,
                () = &mut probes => {
                    warn!("the subscription is silent, subscribing again");
                    return;
                }
            };
            let Some(message) = message else { return };
            if message.get_channel_name() == own {
                came.notify_one();
                continue;
            }
            let hint: String = message.get_payload().unwrap_or_default();
            match read(&hint, &self.origin) {
                Some(Hint::Due(queue, due)) => hub.wake(queue.as_ref(), due),
                Some(Hint::Ended(job)) => ends.hub().notify([job]),
                Some(Hint::Cancelled(job)) => hub.cancelled(Cancelled::Job(job)),
                None => {}
            }
        }
    }

    /// Publishes probes; returns once one does not come. One that cannot be published proves nothing,
    /// and in a Cluster the next one goes out by another node: any of them will do.
    async fn probe(&self, own: &str, came: &Notify) {
        loop {
            sleep(PROBE.min(self.timeout / 2)).await;
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(own).arg("probe");
            let way = fastrand::u32(..).to_string();
            if self.link.command("probe the subscription", &way, &publish).await.is_err() {
                continue;
            }
            if timeout(PATIENCE.min(self.timeout / 2), came.notified()).await.is_err() {
                return;
            }
        }
    }
}

/// Makes up for hints that were missed.
fn look(hub: &WakeHub) {
    hub.wake(None, Timestamp::MIN);
    hub.cancelled(Cancelled::Any);
}

/// A notification from another process.
#[derive(Debug, PartialEq, Eq)]
enum Hint {
    /// Something is due, in this queue or in any.
    Due(Option<QueueName>, Timestamp),
    /// A job has ended.
    Ended(JobId),
    /// A job ran and was cancelled.
    Cancelled(JobId),
}

/// A hint of another store; none for one's own and for what is no hint.
fn read(hint: &str, own: &str) -> Option<Hint> {
    let mut words = hint.splitn(3, ' ');
    let _origin = words.next().filter(|origin| *origin != own)?;
    let (due, about) = (words.next()?, words.next()?);
    if due == ENDED {
        return about.parse().ok().map(Hint::Ended);
    }
    if due == CANCELLED {
        return about.parse().ok().map(Hint::Cancelled);
    }
    let due = due.parse().ok().map(Timestamp::from_micros)?;
    let queue = if about == ANY { None } else { Some(QueueName::new(about).ok()?) };
    Some(Hint::Due(queue, due))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r34_hints_of_others_are_read_and_ones_own_are_not() {
        let queue = QueueName::new("q:1").unwrap();
        let due = Timestamp::from_secs(3);
        assert_eq!(read("b 3000000 q:1", "a"), Some(Hint::Due(Some(queue), due)));
        assert_eq!(read("b -5 *", "a"), Some(Hint::Due(None, Timestamp::from_micros(-5))));
        assert_eq!(read("b ended 7", "a"), Some(Hint::Ended(JobId::new(7))));
        assert_eq!(read("b cancelled 7", "a"), Some(Hint::Cancelled(JobId::new(7))));
        for other in ["a 3000000 q:1", "a ended 7", "", "b", "b x *", "b 1", "b 1 <q>", "b ended x"]
        {
            assert_eq!(read(other, "a"), None, "{other}");
        }
    }
}
