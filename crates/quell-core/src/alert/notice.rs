//! Notices: changes of an alert that a sink has not received yet, and which server delivers them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Alert, AlertState};
use crate::Timestamp;
use crate::retry::{Jitter, Retry};

/// How long a server may take to deliver a notice before another one tries.
pub const NOTICE_LEASE: Duration = Duration::from_secs(60);
/// The most notices that one sink has waiting; the oldest give way.
const MOST_WAITING: usize = 20;
/// How a delivery that failed is tried again: for ever, each time later.
const RETRY: Retry = Retry {
    max_attempts: u32::MAX,
    min_backoff: Duration::from_secs(5),
    max_backoff: Duration::from_secs(600),
    jitter: Jitter::None,
    max_crashes: u32::MAX,
};

/// A change of an alert to deliver to one sink.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Notice {
    /// The sink.
    pub sink: String,
    /// The number of the change of the alert, from 1. With the alert's name it is the notice's id,
    /// by which a receiver knows one that comes twice.
    pub change: u64,
    /// Whether the alert was raised, or cleared.
    pub raised: bool,
    /// When.
    pub at: Timestamp,
    /// What was measured.
    pub value: u64,
    /// How often its delivery was begun.
    pub tries: u32,
    /// When it may be delivered, or tried again.
    pub due: Timestamp,
}

impl AlertState {
    /// A notice of the last change for each of the alert's sinks.
    pub(super) fn notify(&mut self, alert: &Alert, now: Timestamp) {
        self.notices.retain(|notice| alert.sinks.contains(&notice.sink));
        for sink in &alert.sinks {
            let waiting = |notice: &Notice| notice.sink == *sink;
            if self.notices.iter().filter(|notice| waiting(notice)).count() >= MOST_WAITING
                && let Some(oldest) = self.notices.iter().position(waiting)
            {
                self.notices.remove(oldest);
            }
            self.notices.push(Notice {
                sink: sink.clone(),
                change: self.changes,
                raised: self.raised,
                at: now,
                value: self.value,
                tries: 0,
                due: now,
            });
        }
    }

    /// The notices that may be delivered now: of each sink the oldest, so that it receives changes
    /// in their order. They are the caller's for [`NOTICE_LEASE`], once the state is written.
    pub fn take(&mut self, now: Timestamp) -> Vec<Notice> {
        let (mut seen, mut taken): (Vec<String>, Vec<Notice>) = (Vec::new(), Vec::new());
        for notice in &mut self.notices {
            if seen.contains(&notice.sink) {
                continue;
            }
            seen.push(notice.sink.clone());
            if notice.due <= now {
                notice.tries = notice.tries.saturating_add(1);
                notice.due = now + NOTICE_LEASE;
                taken.push(notice.clone());
            }
        }
        taken
    }

    /// The notice has been delivered.
    pub fn delivered(&mut self, notice: &Notice) {
        self.notices.retain(|one| (&one.sink, one.change) != (&notice.sink, notice.change));
    }

    /// The notice could not be delivered: it is tried again after a backoff.
    pub fn undelivered(&mut self, notice: &Notice, now: Timestamp) {
        let same = |one: &&mut Notice| (&one.sink, one.change) == (&notice.sink, notice.change);
        if let Some(one) = self.notices.iter_mut().find(same) {
            one.due = now + RETRY.backoff(notice.tries, 0.0);
        }
    }
}
