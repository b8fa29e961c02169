//! Callers of this process that wait for the ends of jobs (R19), for stores that notify other processes.

use std::sync::Arc;
use std::time::Duration;

use quell_core::{EndHub, EndNotification, JobId};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

/// How long a caller waits before other processes learn of it: most ends that come soon need no
/// notification.
const PATIENCE: Duration = Duration::from_millis(20);

/// The callers of this process that wait for the ends of jobs.
#[derive(Debug, Default)]
pub struct EndWaiters {
    hub: Arc<EndHub>,
    begun: Notify,
}

impl EndWaiters {
    /// Waits for the end of a job.
    #[must_use]
    pub fn wait_for(&self, job: JobId) -> EndNotification {
        let ended = self.hub.wait_for(job);
        self.begun.notify_one();
        ended
    }

    /// Notifies the callers of ends.
    #[must_use]
    pub fn hub(&self) -> &Arc<EndHub> {
        &self.hub
    }

    /// Returns a moment after a caller has begun to wait, or after `deadline`, if there is one.
    /// Dropping the future loses nothing.
    pub async fn begun(&self, deadline: Option<Instant>) {
        let begun = self.begun.notified();
        match deadline {
            None => begun.await,
            // Both are a reason to look again.
            Some(deadline) => drop(timeout_at(deadline, begun).await),
        }
        sleep(PATIENCE).await;
    }
}
