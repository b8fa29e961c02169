//! The history of a process in the order of the store's time.
//!
//! Scripts of several calls run at a time, and their answers come in another order than they were made.
//! An event is held until every call has ended that was in flight when it was recorded: later calls are
//! later in the store's time. What is held goes on in that order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_core::Timestamp;
use quell_core::history::{Event, History, Sink};

/// A sink that puts the events of calls in order.
#[derive(Debug)]
pub(crate) struct Recorded {
    sink: Sink,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    /// The number of the next call.
    next: u64,
    in_flight: BTreeSet<u64>,
    /// What is held by its time and the number of its record, with the number of the first call that
    /// began after it was recorded.
    held: BTreeMap<(Option<Timestamp>, u64), (Event, u64)>,
    records: u64,
}

/// A call in flight.
#[derive(Debug)]
pub(crate) struct InFlight<'r> {
    recorded: &'r Recorded,
    number: u64,
}

impl Recorded {
    pub(crate) fn new(sink: Sink) -> Arc<Self> {
        Arc::new(Recorded { sink, calls: Mutex::default() })
    }

    /// A call begins; it ends when this is dropped.
    pub(crate) fn begin(&self) -> InFlight<'_> {
        let mut calls = self.calls();
        let number = calls.next;
        calls.next = number.saturating_add(1);
        calls.in_flight.insert(number);
        InFlight { recorded: self, number }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on what no call in flight may come before.
    fn pass_on(&self, mut calls: MutexGuard<'_, Calls>) {
        let first = calls.in_flight.first().copied().unwrap_or(u64::MAX);
        while let Some(entry) = calls.held.first_entry()
            && entry.get().1 <= first
        {
            self.sink.record(&entry.remove().0);
        }
    }
}

impl History for Recorded {
    fn record(&self, event: &Event) {
        let mut calls = self.calls();
        let (record, next) = (calls.records, calls.next);
        calls.records = record.saturating_add(1);
        calls.held.insert((event.at(), record), (event.clone(), next));
        self.pass_on(calls);
    }

    fn wants_payloads(&self) -> bool {
        self.sink.wants_payloads()
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut calls = self.recorded.calls();
        calls.in_flight.remove(&self.number);
        self.recorded.pass_on(calls);
    }
}

#[cfg(test)]
mod tests {
    use quell_core::JobId;

    use super::*;

    #[derive(Debug, Default)]
    struct Kept(Mutex<Vec<i64>>);

    impl History for Kept {
        fn record(&self, event: &Event) {
            let t = event.at().unwrap();
            self.0.lock().unwrap().push(t.as_micros());
        }
    }

    fn event(t: i64) -> Event {
        Event::Prune { t: Timestamp::from_micros(t), job: JobId::new(1) }
    }

    #[test]
    fn r39_events_are_recorded_in_the_order_of_commits() {
        let kept = Arc::new(Kept::default());
        let recorded = Recorded::new(kept.clone());
        let seen = || std::mem::take(&mut *kept.0.lock().unwrap());
        let (slow, quick) = (recorded.begin(), recorded.begin());
        recorded.record(&event(5));
        recorded.record(&event(3));
        drop(quick);
        assert_eq!(seen(), [0; 0], "the slow call may have been made before");
        let later = recorded.begin();
        drop(slow);
        assert_eq!(seen(), [3, 5], "the later call holds nothing of theirs");
        recorded.record(&event(9));
        assert_eq!(seen(), [0; 0], "a call's own events come once it has ended");
        drop(later);
        assert_eq!(seen(), [9]);
        recorded.record(&event(10));
        assert_eq!(seen(), [10], "outside of calls");
    }
}
