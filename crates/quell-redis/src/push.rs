//! Hearing of other processes (R34), by `SUBSCRIBE` on a connection of its own.
//!
//! Hints go out with the script that they are about. One that is lost only delays (R39).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use quell_core::{Cancelled, JobId, QueueName, Timestamp, WakeHub};
use redis::aio::PubSub;
use redis::{Client, RedisResult};
use tracing::warn;

use crate::ends::Ends;
use crate::writes::{ANY, CANCELLED, ENDED};

/// Between two tries to listen again.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// A connection that hears hints.
pub(crate) async fn listen(client: &Client, channel: &str) -> RedisResult<PubSub> {
    let mut heard = client.get_async_pubsub().await?;
    heard.subscribe(channel).await?;
    Ok(heard)
}

/// Hands what it hears to the workers of this process, until the task that runs it is dropped.
/// Where a node is lost, the next one is asked: in a Cluster, each hears what any is told.
pub(crate) async fn hear(
    first: PubSub,
    clients: Vec<Client>,
    channel: String,
    origin: String,
    (hub, ends): (Arc<WakeHub>, Arc<Ends>),
) {
    let mut heard = Some(first);
    let mut turn = 0_usize;
    loop {
        if let Some(mut connection) = heard.take() {
            let mut hints = connection.on_message();
            while let Some(message) = hints.next().await {
                let hint: String = message.get_payload().unwrap_or_default();
                match read(&hint, &origin) {
                    Some(Hint::Due(queue, due)) => hub.wake(queue.as_ref(), due),
                    Some(Hint::Ended(job)) => ends.here.tell([job]),
                    Some(Hint::Cancelled(job)) => hub.cancelled(Cancelled::Job(job)),
                    None => {}
                }
            }
        }
        // Nobody knows what was told meanwhile.
        hub.wake(None, Timestamp::MIN);
        hub.cancelled(Cancelled::Any);
        ends.here.tell_all();
        turn = turn.wrapping_add(1);
        let Some(client) = turn.checked_rem(clients.len()).and_then(|turn| clients.get(turn))
        else {
            return;
        };
        match listen(client, &channel).await {
            Ok(connection) => {
                hub.wake(None, Timestamp::MIN);
                hub.cancelled(Cancelled::Any);
                heard = Some(connection);
            }
            Err(error) => {
                warn!(%error, "cannot hear the hints of other processes, polling instead");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

/// What another process tells.
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
