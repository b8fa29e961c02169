//! Triggers that a message carries, and what becomes of them when it comes.
//!
//! A message may come more than once: its lock may expire, and what its receiver answers may be lost. So
//! its batch is enqueued under a dedup key that is the message's own, taken in the table with the jobs in
//! one step. It is kept for longer than a message may take, whatever becomes of the jobs and their rows.

use std::time::Duration;

use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::{Batch, Error, ErrorKind, Key, Result, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tracing::{error, warn};

use crate::messages::{FOREIGN, Inner, PUT_OFF, pause};
use crate::table::Table;
use crate::timer::{Delivery, Message};

/// After this time no record shows whether a message was acted on: it is put aside.
const MOST_AGE: Duration = Duration::from_secs(14 * 24 * 3_600);
/// How long it is on record that a message was acted on. Its age and the record are measured by clocks
/// that may differ.
const ON_RECORD: Duration = Duration::from_secs(15 * 24 * 3_600);

/// A batch on its way to the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// The form of the message, for builds that come later.
    carried: u8,
    /// The store that it is for, by its random name.
    store: String,
    /// The message's own id, which no other has.
    id: Key,
    /// When it was sent.
    pub(crate) sent: Timestamp,
    /// How often it came to a process of another store.
    #[serde(default)]
    tries: u32,
    batch: Batch,
}

/// What distinguishes these messages from notices.
#[derive(Deserialize)]
struct Form {
    carried: u8,
}

/// What became of a message.
enum Fate {
    /// Its triggers are accepted, now or before.
    Done,
    /// It is for another store.
    Elsewhere,
    /// No process can act on it.
    Refused(String),
}

impl Carried {
    const FORM: u8 = 1;
    /// Bytes by which a message may grow that is sent on.
    pub(crate) const ROOM: usize = 64;

    /// The message of this name with a batch that has no dedup key any more.
    pub(crate) fn new(store: &str, name: &str, sent: Timestamp, batch: Batch) -> Result<Self> {
        let id = Key::new(format!("{name}-{:x}-{:032x}", sent.as_micros(), fastrand::u128(..)))?;
        let store = store.to_owned();
        Ok(Carried { carried: Self::FORM, store, id, sent, tries: 0, batch })
    }

    /// The same message without the trace contexts of its triggers (R42).
    pub(crate) fn without_traces(mut self) -> Self {
        self.batch.triggers.iter_mut().for_each(|trigger| trigger.trace = None);
        self
    }

    pub(crate) fn body(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Internal, "cannot encode a batch as JSON").with_source(error)
        })
    }

    /// What a message carries; none where it is no such message.
    pub(crate) fn read(body: &[u8]) -> Option<Result<Carried>> {
        let Form { carried } = serde_json::from_slice(body).ok()?;
        let read = serde_json::from_slice(body).map_err(|error| error.to_string());
        let read = match carried {
            Self::FORM => read,
            newer => Err(format!("it has form {newer}, this build reads {}", Self::FORM)),
        };
        Some(read.map_err(|wrong| {
            let message = format!("cannot read the triggers of this message: {wrong}");
            Error::new(ErrorKind::Corrupt, message)
        }))
    }

    /// The batch, to be enqueued once.
    fn recorded(&self) -> Batch {
        let until = HoldUntil::Elapsed(ON_RECORD);
        Batch { dedup: Some(Dedup { key: self.id.clone(), until }), ..self.batch.clone() }
    }
}

/// Whether a later try may work.
fn may_pass(error: &Error) -> bool {
    use ErrorKind::{Contention, Full, Unavailable, UnknownOutcome};
    matches!(error.kind(), Contention | Full | Unavailable | UnknownOutcome)
}

/// Whether no later try can work.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported)
}

impl<T: Table> Inner<T> {
    /// Enqueues what a message carries. While the table is unreachable the message is held: if it were
    /// released again and again, the timer would put it aside.
    pub(crate) async fn take_in(&self, carried: Carried, delivery: Delivery) -> Result<()> {
        let (mut delivery, mut renewed) = (delivery, Instant::now());
        let (timer, mut tries) = (&self.notices.timer, 0);
        let beat = timer.lock() / 3;
        loop {
            let error = match self.take_once(&carried).await {
                Ok(Fate::Done) => return timer.complete(&delivery).await,
                Ok(Fate::Elsewhere) => {
                    self.send_on(carried).await?;
                    return timer.complete(&delivery).await;
                }
                Ok(Fate::Refused(reason)) => {
                    error!(%reason, id = %carried.id, "triggers of a message put aside");
                    return timer.dead_letter(&delivery, &reason).await;
                }
                Err(error) if may_pass(&error) => error,
                Err(error) => return Err(error),
            };
            warn!(%error, id = %carried.id, "cannot enqueue the triggers of a message, retrying");
            sleep(pause(PUT_OFF.0, tries).min(beat)).await;
            tries = tries.saturating_add(1);
            if renewed.elapsed() >= beat {
                match timer.renew(&delivery).await {
                    Ok(next) => (delivery, renewed) = (next, Instant::now()),
                    Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
                    Err(error) => warn!(%error, "cannot renew lock, retrying"),
                }
            }
        }
    }

    async fn take_once(&self, carried: &Carried) -> Result<Fate> {
        let age = self.below.first().now().await?.since(carried.sent);
        if age >= MOST_AGE {
            let reason = format!(
                "this message is {} h old, the limit is {} h, and no record shows any more whether its \
                 triggers were enqueued: look for their jobs, and trigger again where there are none",
                age.as_secs() / 3_600,
                MOST_AGE.as_secs() / 3_600,
            );
            return Ok(Fate::Refused(reason));
        }
        if self.store_name().await? != carried.store {
            return Ok(Fate::Elsewhere);
        }
        let enqueued = self.below.enqueue(None, vec![carried.recorded()]).await?;
        match enqueued.into_iter().next() {
            Some(Ok(_)) => Ok(Fate::Done),
            Some(Err(error)) if is_refusal(&error) => Ok(Fate::Refused(error.to_string())),
            Some(Err(error)) => Err(error),
            None => Err(Error::new(ErrorKind::Internal, "the store returned no answer to a batch")),
        }
    }

    /// Sends a message of another store on, without a name: the timer knows that one.
    async fn send_on(&self, carried: Carried) -> Result<()> {
        warn!(store = %carried.store, "{FOREIGN}");
        let now = self.below.first().now().await?;
        let at = now + pause(PUT_OFF.0, carried.tries);
        let again = Carried { tries: carried.tries.saturating_add(1), ..carried };
        self.send_carried(&again, now, at).await
    }

    /// Sends a message once more; its record in the table lets it count once.
    pub(crate) async fn send_carried(
        &self,
        carried: &Carried,
        now: Timestamp,
        at: Timestamp,
    ) -> Result<()> {
        let message = Message { body: carried.body()?, name: None };
        self.notices.timer.schedule(&message, now, at).await.map(drop)
    }
}
