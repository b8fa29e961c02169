//! Workers that stop while the store is slow.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quell::clock::{Clock, SystemClock};
use quell::store::{MemoryStore, Store};
use quell::{Quell, Result};
use quell_core::{Answer, Capabilities, EndNotification, JobId, Now, Operation, Wakeups};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::tasks::{App, script};

/// Heartbeats are written once the row's removal was asked for, or after a while where it is not: what a
/// server has received it does, whether or not anybody waits for the answer.
#[derive(Debug)]
struct SlowBeats {
    inner: MemoryStore,
    beats: Notify,
    removes: Notify,
}

#[async_trait]
impl Store for SlowBeats {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        match &operation {
            Operation::Heartbeat { .. } => {
                self.beats.notify_one();
                let _late = timeout(Duration::from_millis(300), self.removes.notified()).await;
            }
            Operation::RemoveWorker { .. } => {
                let removed = self.inner.call(now, operation).await;
                self.removes.notify_one();
                return removed;
            }
            _ => {}
        }
        self.inner.call(now, operation).await
    }

    fn wakeups(&self) -> Wakeups {
        self.inner.wakeups()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.inner.ended(job)
    }
}

/// Does what it was asked, also where the caller has gone.
#[derive(Debug)]
struct Server(Arc<SlowBeats>);

#[async_trait]
impl Store for Server {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    #[expect(clippy::disallowed_methods, reason = "a server does not ask who still waits")]
    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        let store = Arc::clone(&self.0);
        tokio::spawn(async move { store.call(now, operation).await }).await.unwrap()
    }

    fn wakeups(&self) -> Wakeups {
        self.0.wakeups()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.0.ended(job)
    }
}

#[tokio::test]
async fn r25_a_heartbeat_in_flight_brings_no_row_back() -> Result<()> {
    let clock = Arc::new(SystemClock::for_store());
    let inner = MemoryStore::new(clock.now());
    let slow = Arc::new(SlowBeats { inner, beats: Notify::new(), removes: Notify::new() });
    let server: Arc<dyn Store> = Arc::new(Server(Arc::clone(&slow)));
    let quell = Quell::with_store(server).clock(clock).build()?;
    let worker = quell.worker(App::default()).register(script);
    worker.run_until(slow.beats.notified()).await?;
    // Everything in flight is done by then.
    let settled = async {
        while Arc::strong_count(&slow) > 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), settled).await.expect("all calls end");
    assert!(quell.workers().await?.rows.is_empty());
    Ok(())
}
