//! The windows of tasks that were read in the last seconds, for all who look at their timelines.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell::{Job, JobId, Key, QueueName, TaskName, Timestamp};
use tokio::sync::Mutex;

/// How old windows may be that are shown.
const FRESH: Duration = Duration::from_secs(2);
/// By how many times as long as a read took it is shown: a look that costs much is made rarely.
const TIMES: u32 = 10;
/// The most tasks and keys whose windows are kept.
const MOST: usize = 100;

/// A job with a key that waits.
#[derive(Clone, Debug)]
pub(in crate::http) struct Waits {
    pub(in crate::http) job: JobId,
    pub(in crate::http) queue: QueueName,
    pub(in crate::http) key: Key,
    pub(in crate::http) triggers: u64,
    pub(in crate::http) opened: Timestamp,
    pub(in crate::http) due: Timestamp,
    pub(in crate::http) bound: Option<Timestamp>,
}

impl Waits {
    /// None of a job without a key.
    pub(in crate::http) fn of(job: Job) -> Option<Self> {
        Some(Waits {
            job: job.id,
            queue: job.queue,
            key: job.key?,
            triggers: job.window.triggers,
            opened: job.window.first_at,
            due: job.window.due_at,
            bound: job.window.bound_at,
        })
    }
}

type Of = (TaskName, Option<Key>);

#[derive(Debug)]
struct Read {
    until: Instant,
    found: Arc<Vec<Waits>>,
}

/// What was read of one task or key; none before the first read.
type Place = Arc<Mutex<Option<Read>>>;

/// What was read. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct Waiting(Arc<Mutex<HashMap<Of, Place>>>);

impl Waiting {
    /// The windows of a task, or of one of its keys. Callers of the same wait for one read.
    pub(in crate::http) async fn of<F>(
        &self,
        task: &TaskName,
        key: Option<&Key>,
        read: impl FnOnce() -> F,
    ) -> quell::Result<Arc<Vec<Waits>>>
    where
        F: Future<Output = quell::Result<Vec<Waits>>>,
    {
        let place = self.place(task, key).await;
        let mut kept = place.lock().await;
        if let Some(read) = kept.as_ref().filter(|read| Instant::now() < read.until) {
            return Ok(Arc::clone(&read.found));
        }
        let begun = Instant::now();
        let found = Arc::new(read().await?);
        let lasts = begun.elapsed().saturating_mul(TIMES).max(FRESH);
        *kept = Some(Read { until: begun + lasts, found: Arc::clone(&found) });
        Ok(found)
    }

    async fn place(&self, task: &TaskName, key: Option<&Key>) -> Place {
        let mut all = self.0.lock().await;
        let of = (task.clone(), key.cloned());
        if all.len() >= MOST && !all.contains_key(&of) {
            // Those that no one reads now; what is left is as many as there are callers.
            all.retain(|_, place| Arc::strong_count(place) > 1);
        }
        Arc::clone(all.entry(of).or_default())
    }
}
