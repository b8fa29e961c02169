//! Timers that do not cancel the messages of a try that lost: the trigger is accepted all the same, and
//! soon.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use quell_conformance::rig::{keyed, keyed_with};
use quell_conformance::{Opened, Rig};
use quell_core::window::{Debounce, Thresholds};
use quell_core::{Batch, Error, ErrorKind, Fold, Result};
use quell_engine::Engine;
use quell_portable::{MemoryTimer, Partition, Scheduled, Timed, Timer};
use quell_testkit::{Around, Bent, Counted, Sending, WriteFails};
use tokio::time::Instant;

/// How a timer answers when it is to cancel a message.
#[derive(Clone, Copy, Debug)]
enum Cancels {
    Done,
    Refused,
    /// Never.
    Silent,
}

#[derive(Debug)]
struct Stubborn {
    timer: MemoryTimer,
    cancels: Cancels,
    /// The number of the message that it refuses, if any, and of those it was given.
    refuses: Option<u32>,
    given: AtomicU32,
    cancelled: Mutex<u32>,
}

#[async_trait]
impl Around for Stubborn {
    fn timer(&self) -> &MemoryTimer {
        &self.timer
    }

    fn duplicate_window(&self) -> Option<Duration> {
        None
    }

    async fn send(&self, sending: Sending<'_>) -> Result<Option<Scheduled>> {
        if Some(self.given.fetch_add(1, Ordering::SeqCst)) == self.refuses {
            return Err(Error::new(ErrorKind::Unavailable, "the timer is away"));
        }
        sending.to(&self.timer).await
    }

    async fn cancel(&self, scheduled: &Scheduled) -> Result<()> {
        *self.cancelled.lock().unwrap() += 1;
        match self.cancels {
            Cancels::Done => self.timer.cancel(scheduled).await,
            Cancels::Refused => Err(Error::new(ErrorKind::Unavailable, "the timer is away")),
            Cancels::Silent => std::future::pending().await,
        }
    }
}

/// A process on such a timer that has taken ids, with the message of one window.
async fn client(cancels: Cancels, refuses: Option<u32>) -> (Rig, Counted, Arc<Bent<Stubborn>>) {
    let timer = MemoryTimer::new(Rig::START, Duration::from_secs(30));
    let (given, cancelled) = (AtomicU32::new(0), Mutex::new(0));
    let timer = Arc::new(Bent(Stubborn { timer, cancels, refuses, given, cancelled }));
    let table = Counted::new(Rig::START);
    let partition = Partition::new(table.clone(), "p").with_timer(Arc::clone(&timer) as Arc<_>);
    let store = Arc::new(Timed::new(Engine::new(partition)).unwrap());
    let rig = Rig::new(Opened { store, guard: Box::new(()) });
    rig.trigger(keyed("taken")).await;
    (rig, table, timer)
}

#[tokio::test(start_paused = true)]
async fn r34_a_message_that_cannot_be_cancelled_keeps_no_trigger_back() {
    for (cancels, most_ms, left) in
        [(Cancels::Done, 100, 2), (Cancels::Refused, 100, 3), (Cancels::Silent, 300, 3)]
    {
        let (client, table, timer) = client(cancels, None).await;
        table.fails_with([WriteFails::Conflict]);
        let began = Instant::now();
        client.trigger(keyed("k")).await;
        let elapsed = began.elapsed();
        assert!(elapsed < Duration::from_millis(most_ms), "{cancels:?}: {elapsed:?}");
        assert_eq!(*timer.0.cancelled.lock().unwrap(), 1, "{cancels:?}");
        assert_eq!(timer.0.timer.waiting().len(), left, "{cancels:?}");
    }
}

/// Where one of several messages is not taken, nothing is written, and the others go.
#[tokio::test(start_paused = true)]
async fn r34_the_messages_beside_one_that_was_refused_are_cancelled() {
    let (client, _, timer) = client(Cancels::Done, Some(2)).await;
    let due = |secs| {
        let secs = Duration::from_secs(secs);
        keyed_with(
            &format!("{secs:?}"),
            Debounce::new(Thresholds::new(secs, secs).unwrap()),
            Fold::Last,
            "1",
        )
    };
    let batch = Batch { triggers: vec![due(20), due(30), due(40)], dedup: None };
    let refused = client.store.enqueue(Some(client.now()), vec![batch]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(*timer.0.cancelled.lock().unwrap(), 2);
    assert_eq!(timer.0.timer.waiting(), [Rig::START + Duration::from_secs(10)]);
    assert_eq!(client.jobs().await.len(), 1);
}
