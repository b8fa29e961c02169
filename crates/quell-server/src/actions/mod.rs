//! Bulk actions on the jobs of a filter: this process runs a few at once, and keeps a list of them.
//!
//! `run` does the work of one action. Nothing of an action is in the store: when the server ends, it
//! ends, and the same request begins again with the jobs that still match. Invariant: at most
//! [`MAX_RUNNING`] actions run and [`MAX_KEPT`] are kept.

mod run;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quell::dead::RedriveRate;
use quell::job::JobSearch;
use quell::{JobId, JobState, Quell, Timestamp};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::audit::Audit;
use crate::view::{Action, ActionState, AfterRedrive, AuditEntry};

/// The most actions that run at once.
pub const MAX_RUNNING: usize = 4;
/// The most actions that are kept; of those that have ended, the oldest go first.
pub const MAX_KEPT: usize = 100;
/// How many redriven jobs an action keeps, to show where they are.
const MAX_REDRIVEN: usize = 100;
/// How long a look at them holds.
const LOOK_HOLDS: Duration = Duration::from_secs(1);

/// What an action is to do, checked.
#[derive(Clone, Debug)]
pub struct Order {
    /// Which jobs.
    pub search: JobSearch,
    /// The states in which they are, one pass for each.
    pub states: Vec<JobState>,
    /// How fast.
    pub rate: Option<RedriveRate>,
    /// How it is shown, at its beginning.
    pub shown: Action,
}

/// Why an action is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// An action of this name is kept.
    NameTaken,
    /// As many run as may.
    Busy,
    /// The server stops.
    Stopping,
}

/// The actions of this process.
#[derive(Clone, Debug)]
pub struct Actions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    quell: Quell,
    audit: Audit,
    stopping: CancellationToken,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    actions: BTreeMap<String, Entry>,
    runs: JoinSet<()>,
    /// How many there ever were.
    count: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    shown: Action,
    stop: CancellationToken,
    /// The jobs that it redrove last, the newest at the end.
    redriven: VecDeque<JobId>,
    /// Where those were, and when that was looked at.
    looked: Option<(Instant, AfterRedrive)>,
}

impl Entry {
    fn runs(&self) -> bool {
        self.shown.state == ActionState::Running
    }
}

impl Actions {
    /// No actions yet. Those that run stop when `stopping` fires, and a task of `owner` waits for them.
    pub fn start(
        quell: Quell,
        audit: Audit,
        stopping: CancellationToken,
        owner: &mut JoinSet<()>,
    ) -> Self {
        let shared = Arc::new(Shared { quell, audit, stopping, kept: Mutex::default() });
        owner.spawn(join(Arc::clone(&shared)));
        Actions(shared)
    }

    /// Begins an action, and answers how it is shown.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn begin(&self, order: Order) -> Result<Action, NotTaken> {
        if self.0.stopping.is_cancelled() {
            return Err(NotTaken::Stopping);
        }
        let mut kept = self.0.kept();
        if kept.actions.contains_key(&order.shown.name) {
            return Err(NotTaken::NameTaken);
        }
        if kept.actions.values().filter(|entry| entry.runs()).count() >= MAX_RUNNING {
            return Err(NotTaken::Busy);
        }
        kept.make_room();
        kept.count += 1;
        let (number, shown) = (kept.count, order.shown.clone());
        let stop = self.0.stopping.child_token();
        let entry = Entry {
            number,
            shown: shown.clone(),
            stop: stop.clone(),
            redriven: VecDeque::new(),
            looked: None,
        };
        log_begin(&shown);
        kept.actions.insert(shown.name.clone(), entry);
        kept.runs.spawn(run::run(Arc::clone(&self.0), order, stop));
        Ok(shown)
    }

    /// All that are kept, the newest first.
    #[must_use]
    pub fn list(&self) -> Vec<Action> {
        let kept = self.0.kept();
        let mut entries: Vec<&Entry> = kept.actions.values().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.number));
        entries.into_iter().map(|entry| entry.shown.clone()).collect()
    }

    /// One by its name.
    #[must_use]
    pub fn show(&self, name: &str) -> Option<Action> {
        self.0.kept().actions.get(name).map(|entry| entry.shown.clone())
    }

    /// The jobs that an action redrove last.
    #[must_use]
    pub fn redriven(&self, name: &str) -> Vec<JobId> {
        let kept = self.0.kept();
        kept.actions
            .get(name)
            .map_or_else(Vec::new, |entry| entry.redriven.iter().copied().collect())
    }

    /// Where they were lately.
    #[must_use]
    pub fn looked(&self, name: &str) -> Option<AfterRedrive> {
        let (at, then) = self.0.kept().actions.get(name)?.looked?;
        (at.elapsed() < LOOK_HOLDS).then_some(then)
    }

    /// Notes where they are.
    pub fn note_look(&self, name: &str, then: AfterRedrive) {
        if let Some(entry) = self.0.kept().actions.get_mut(name) {
            entry.looked = Some((Instant::now(), then));
        }
    }

    /// Stops an action that runs, after the job that it is at; forgets one that has ended.
    #[must_use]
    pub fn stop(&self, name: &str) -> Option<Action> {
        let mut kept = self.0.kept();
        let entry = kept.actions.get(name)?;
        let shown = entry.shown.clone();
        if entry.runs() {
            entry.stop.cancel();
        } else {
            kept.actions.remove(name);
        }
        Some(shown)
    }
}

/// Waits for the end of the server, and then for that of its actions.
async fn join(shared: Arc<Shared>) {
    shared.stopping.cancelled().await;
    let mut runs = std::mem::take(&mut shared.kept().runs);
    while runs.join_next().await.is_some() {}
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes how an action is shown.
    fn update(&self, name: &str, change: impl FnOnce(&mut Action)) {
        if let Some(entry) = self.kept().actions.get_mut(name) {
            change(&mut entry.shown);
        }
    }

    fn note_redriven(&self, name: &str, job: JobId) {
        if let Some(entry) = self.kept().actions.get_mut(name) {
            if entry.redriven.len() >= MAX_REDRIVEN {
                entry.redriven.pop_front();
            }
            entry.redriven.push_back(job);
        }
    }

    fn end(&self, name: &str, state: ActionState) {
        self.update(name, |shown| {
            shown.state = state;
            shown.ended_at = Some(now());
            log_end(shown);
            self.audit.record(end_of(shown));
        });
    }
}

impl Kept {
    fn make_room(&mut self) {
        while self.runs.try_join_next().is_some() {}
        while self.actions.len() >= MAX_KEPT {
            let ended = self.actions.iter().filter(|(_, entry)| !entry.runs());
            let oldest = ended.min_by_key(|(_, entry)| entry.number);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else { return };
            self.actions.remove(&name);
        }
    }
}

/// The server's own time, as text.
#[must_use]
pub fn now() -> String {
    Timestamp::from_micros(jiff::Timestamp::now().as_microsecond()).to_string()
}

/// No key and no text of a job is logged: of the filter, the names of tasks and queues, and what else
/// it goes by.
fn log_begin(shown: &Action) {
    let Action { name, action, filter, rate, priority, reason, dry_run, by, .. } = shown;
    let members = filter.pairs().iter().map(|(name, _)| *name).collect::<Vec<_>>().join(",");
    info!(
        name,
        action = action.name(),
        task = filter.task.as_deref(),
        queue = filter.queue.as_deref(),
        state = filter.state.as_deref(),
        members,
        rate,
        priority,
        reason = reason.as_deref(),
        dry_run,
        peer = by.peer.as_deref(),
        token = by.token,
        "action began"
    );
}

fn log_end(shown: &Action) {
    let Action { name, action, state, matched, done, skipped, failed, by, .. } = shown;
    info!(
        name,
        action = action.name(),
        state = state.name(),
        matched,
        done,
        skipped,
        failed,
        peer = by.peer.as_deref(),
        token = by.token,
        "action ended"
    );
}

/// The end of an action in the audit: with how many jobs it has changed.
fn end_of(shown: &Action) -> AuditEntry {
    AuditEntry {
        at: now(),
        by: shown.by.clone(),
        operation: "actions_end".to_owned(),
        method: "POST".to_owned(),
        path: shown.url.clone(),
        status: 200,
        count: Some(shown.done),
        before: None,
        after: None,
        suppressed: None,
    }
}

/// What an action does to a job, as its record says where it asks for no reason of its own.
fn reason_of(shown: &Action) -> String {
    let own = || format!("{} by action {}", shown.action.name(), shown.name);
    shown.reason.clone().unwrap_or_else(own)
}
