//! The thresholds that operators set for tasks, as this process knows them (R14).
//!
//! Every debounced trigger asks here, so an answer comes from memory. What is read counts for
//! [`FRESH`]; the first caller after that reads again, and the others get the old answer meanwhile. Only
//! tasks that are triggered are read, so an idle process reads nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use quell_core::window::Thresholds;
use quell_core::{ErrorKind, Result, Store, TaskInfo, TaskName, Timestamp};
use tracing::warn;

/// How long settings count once they are read.
const FRESH: Duration = Duration::from_secs(5);
/// The most tasks of one read.
const MOST: usize = 1_000;

type Entries = BTreeMap<TaskName, Entry>;

#[derive(Debug, Default)]
pub(crate) struct TaskThresholds {
    known: RwLock<Entries>,
    /// Held by the caller that reads.
    reading: tokio::sync::Mutex<()>,
    /// Whether the last read failed.
    failing: AtomicBool,
}

#[derive(Debug)]
struct Entry {
    thresholds: Option<Thresholds>,
    /// The process's time before the read.
    read_at: Timestamp,
    /// Whether a caller asked for it since.
    used: AtomicBool,
}

impl Entry {
    fn new(thresholds: Option<Thresholds>, read_at: Timestamp) -> Self {
        Entry { thresholds, read_at, used: AtomicBool::new(false) }
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        now < self.read_at + FRESH
    }
}

/// What is known of a task.
enum Known {
    Fresh(Option<Thresholds>),
    Old(Option<Thresholds>),
    Never,
}

impl TaskThresholds {
    /// What an operator set for the task, as it was at most [`FRESH`] before `now`, the process's time.
    /// While the store cannot be read, what was known before goes on.
    pub(crate) async fn of(
        &self,
        store: &dyn Store,
        now: Timestamp,
        task: &TaskName,
    ) -> Option<Thresholds> {
        let _one = match self.known(task, now) {
            Known::Fresh(thresholds) => return thresholds,
            Known::Old(thresholds) => match self.reading.try_lock() {
                Ok(one) => one,
                Err(_) => return thresholds,
            },
            Known::Never => self.reading.lock().await,
        };
        // Another caller may have read it meanwhile.
        if let Known::Fresh(thresholds) = self.known(task, now) {
            return thresholds;
        }
        self.read(store, now, task).await;
        self.locked().get(task).and_then(|entry| entry.thresholds)
    }

    /// Forgets a task that this process has just set: its next trigger reads it.
    pub(crate) fn forget(&self, task: &TaskName) {
        self.locked_to_write().remove(task);
    }

    fn known(&self, task: &TaskName, now: Timestamp) -> Known {
        match self.locked().get(task) {
            None => Known::Never,
            Some(entry) => {
                entry.used.store(true, Ordering::Relaxed);
                let thresholds = entry.thresholds;
                if entry.is_fresh(now) { Known::Fresh(thresholds) } else { Known::Old(thresholds) }
            }
        }
    }

    /// Reads the task, and with it the others that are old and were used since they were read.
    async fn read(&self, store: &dyn Store, now: Timestamp, task: &TaskName) {
        let names = self.due(now, task);
        let mut answer = store.task_settings(&names).await;
        let is_corrupt =
            |answer: &Result<_>| matches!(answer, Err(e) if e.kind() == ErrorKind::Corrupt);
        if is_corrupt(&answer) && names.len() > 1 {
            // The row of one task is no reason to know nothing of the others.
            answer = store.task_settings(std::slice::from_ref(task)).await;
        }
        self.keep(now, task, answer);
    }

    fn keep(&self, now: Timestamp, task: &TaskName, answer: Result<Vec<TaskInfo>>) {
        let was_failing = self.failing.swap(answer.is_err(), Ordering::Relaxed);
        let mut known = self.locked_to_write();
        match answer {
            Ok(read) => known.extend(
                read.into_iter().map(|info| (info.name, Entry::new(info.settings.debounce, now))),
            ),
            Err(error) => {
                if !was_failing {
                    warn!(%error, "thresholds of tasks cannot be read, keeping those that were known");
                }
                // Not again before it is due: each trigger would wait for the store.
                let only = error.kind() == ErrorKind::Corrupt;
                let old = known.iter_mut().filter(|(_, entry)| !entry.is_fresh(now));
                let failed = old.filter(|(name, _)| !only || *name == task);
                failed.for_each(|(_, entry)| entry.read_at = now);
                known.entry(task.clone()).or_insert_with(|| Entry::new(None, now));
            }
        }
    }

    /// The tasks to read. Those that are old and were not used since they were read are forgotten.
    fn due(&self, now: Timestamp, task: &TaskName) -> Vec<TaskName> {
        let mut known = self.locked_to_write();
        known.retain(|name, entry| name == task || entry.is_fresh(now) || *entry.used.get_mut());
        let others = known.iter().filter(|(name, entry)| *name != task && !entry.is_fresh(now));
        let others = others.map(|(name, _)| name.clone());
        std::iter::once(task.clone()).chain(others).take(MOST).collect()
    }

    fn locked(&self) -> RwLockReadGuard<'_, Entries> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked_to_write(&self) -> RwLockWriteGuard<'_, Entries> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}
