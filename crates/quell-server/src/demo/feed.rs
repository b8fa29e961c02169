//! The server's event history, collected for drawing.
//!
//! It is a history sink: every trigger, window and run passes here. It keeps the last seconds of each
//! key and totals since the start.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quell::history::{Event, History};
use quell::{JobId, Key};

/// How much of the past is kept for drawing.
pub(super) const PAST: Duration = Duration::from_secs(30);

/// The last seconds of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub(super) triggers: Vec<f64>,
    /// When the open window opened.
    pub(super) opened: Option<f64>,
    /// Windows that ran: opened and ran.
    pub(super) runs: Vec<(f64, f64)>,
    pub(super) total_triggers: u64,
    pub(super) total_runs: u64,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) triggers: u64,
    pub(super) runs: u64,
    pub(super) keys: usize,
    /// Windows that are open now.
    pub(super) open: usize,
}

impl Totals {
    /// The share of runs that debouncing saved.
    pub(super) fn saved(&self) -> f64 {
        if self.triggers == 0 { 0.0 } else { 1.0 - self.runs as f64 / self.triggers as f64 }
    }
}

/// The sink.
#[derive(Debug)]
pub(super) struct Feed {
    began: Instant,
    lanes: Mutex<BTreeMap<Key, Lane>>,
    windows: Mutex<BTreeMap<JobId, u64>>,
    all_sent: AtomicBool,
}

impl Feed {
    pub(super) fn new() -> Self {
        Feed {
            began: Instant::now(),
            lanes: Mutex::default(),
            windows: Mutex::default(),
            all_sent: AtomicBool::new(false),
        }
    }

    /// Seconds since the start.
    pub(super) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// The keys with the most triggers, and their last seconds.
    pub(super) fn lanes(&self, most: usize) -> Vec<(Key, Lane)> {
        let lanes = locked(&self.lanes);
        let mut busiest: Vec<_> =
            lanes.iter().map(|(key, lane)| (key.clone(), lane.clone())).collect();
        drop(lanes);
        busiest.sort_by_key(|(_, lane)| std::cmp::Reverse(lane.total_triggers));
        busiest.truncate(most);
        busiest.sort_by(|(a, _), (b, _)| a.cmp(b));
        busiest
    }

    pub(super) fn totals(&self) -> Totals {
        let lanes = locked(&self.lanes);
        Totals {
            triggers: lanes.values().map(|lane| lane.total_triggers).sum(),
            runs: lanes.values().map(|lane| lane.total_runs).sum(),
            keys: lanes.len(),
            open: lanes.values().filter(|lane| lane.opened.is_some()).count(),
        }
    }

    /// Notes that no trigger will come any more.
    pub(super) fn all_sent(&self) {
        self.all_sent.store(true, Ordering::Relaxed);
    }

    /// Whether the stream has ended and every window has run.
    pub(super) fn is_over(&self) -> bool {
        self.all_sent.load(Ordering::Relaxed) && self.totals().open == 0
    }

    fn on_window(&self, job: JobId, key: &Key, count: u64) {
        // One event has a window's state after a batch: the triggers since the last event are new.
        let before = locked(&self.windows).insert(job, count).unwrap_or(0);
        let (at, came) = (self.now(), count.saturating_sub(before));
        let mut lanes = locked(&self.lanes);
        let lane = lanes.entry(key.clone()).or_default();
        lane.opened.get_or_insert(at);
        lane.total_triggers += came;
        for _ in 0..came {
            lane.triggers.push(at);
        }
        let past = at - PAST.as_secs_f64();
        lane.triggers.retain(|trigger| *trigger > past);
        lane.runs.retain(|(_, ran)| *ran > past);
    }

    fn on_start(&self, job: JobId, key: &Key) {
        locked(&self.windows).remove(&job);
        let at = self.now();
        let mut lanes = locked(&self.lanes);
        let lane = lanes.entry(key.clone()).or_default();
        let opened = lane.opened.take().unwrap_or(at);
        lane.runs.push((opened, at));
        lane.total_runs += 1;
    }
}

impl History for Feed {
    fn record(&self, event: &Event) {
        match event {
            Event::Window { job, key: Some(key), count, .. } => self.on_window(*job, key, *count),
            Event::Start { job, key: Some(key), .. } => self.on_start(*job, key),
            _ => {}
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
