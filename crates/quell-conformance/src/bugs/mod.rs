//! The table of bugs: stores that break one rule each, and what must catch them.
//!
//! A bug is a few functions that change operations on their way to the model store, or its answers and
//! events. Two tests walk the table: `tests/it/broken` runs the suite on each store, and
//! `tests/it/check` simulates each one and judges the history. A bug that neither catches is a gap in
//! them, not in the table. The bugs are those that real queues had; see `docs/testing.md`.
//!
//! Invariant: events are those that a real store with the bug would have recorded, whatever the model
//! inside did.

mod absorb;
mod adjust;
mod claims;
mod dead;
mod effects;
mod keys;
mod leases;
mod limits;
mod reads;
mod receipts;
mod schedules;
mod store;
mod triggers;
mod windows;

use std::fmt;

use futures_util::future::BoxFuture;
use quell_core::history::Event;
use quell_core::{
    Answer, Batch, Capabilities, NewTrigger, Operation, Receipt, Result, Settled, Settlement,
    Timestamp,
};

pub use store::Buggy;

/// One bug: what a store does wrong, and what must catch it.
#[derive(Clone, Copy)]
pub struct Bug {
    /// Its name.
    pub name: &'static str,
    /// What the store does wrong.
    pub what: &'static str,
    /// The number of the rule that it breaks.
    pub rule: u8,
    /// The tests of the suite that must fail; none where the suite cannot see it.
    pub suite: &'static [&'static str],
    /// The properties that may catch it in a simulation, the foremost first; none where simulations
    /// are not run on it.
    pub checker: &'static [&'static str],
    /// Whether the first property is the only one that ever catches it.
    pub alone: bool,
    bends: &'static [Bend],
}

/// What a batch is answered in place of the model; none where the model answers.
type Answered = Option<Result<Vec<Receipt>>>;

/// A function that changes one part of what the model store does.
#[derive(Clone, Copy)]
enum Bend {
    /// Claims other capabilities.
    Claims(fn(Capabilities) -> Capabilities),
    /// Changes an operation and its time, before anything else.
    Ask(fn(&Buggy, &mut Option<Timestamp>, &mut Operation)),
    /// Performs operations in place of the model; none where the model does.
    Perform(fn(&Buggy, Option<Timestamp>, &Operation) -> Option<Result<Answer>>),
    /// Performs triggers in place of the model, and lets other calls run meanwhile.
    Interleave(for<'a> fn(&'a Buggy, Option<Timestamp>, Vec<Batch>) -> Accepting<'a>),
    /// Changes each trigger of a batch.
    Trigger(fn(&Buggy, &mut NewTrigger)),
    /// Changes a batch, or answers it in place of the model.
    Batch(fn(&Buggy, Option<Timestamp>, &mut Batch) -> Answered),
    /// Changes the answer to a batch.
    Receipts(fn(&Buggy, Option<Timestamp>, &Batch, &mut Result<Vec<Receipt>>)),
    /// Changes a settlement.
    Settlement(fn(&Buggy, Option<Timestamp>, &mut Settlement) -> Result<()>),
    /// Acts after a settlement, whose events are recorded by then.
    Settled(fn(&Buggy, Option<Timestamp>, &Settlement, &mut Settled) -> Result<()>),
    /// Changes the answer to an operation, before its events are recorded.
    Answer(fn(&Buggy, Option<Timestamp>, &Operation, Result<Answer>) -> Result<Answer>),
    /// Changes an event.
    Event(fn(&Buggy, &mut Event)),
    /// Sends no wake-ups.
    NoWakeups,
    /// Never notifies callers that wait for the end of a job.
    NoEnds,
}

/// The answers to batches, once they are there.
type Accepting<'a> = BoxFuture<'a, Result<Vec<Result<Vec<Receipt>>>>>;

impl Bug {
    /// No bug: no test may fail on it, and no property may be broken.
    pub const NONE: Bug = Bug::new("None", 0, "nothing");

    /// A bug by its name, its rule, and what the store does wrong.
    const fn new(name: &'static str, rule: u8, what: &'static str) -> Bug {
        Bug { name, what, rule, suite: &[], checker: &[], alone: false, bends: &[] }
    }

    /// Every bug.
    pub fn all() -> impl Iterator<Item = &'static Bug> {
        let tables = [
            triggers::BUGS,
            receipts::BUGS,
            windows::BUGS,
            absorb::BUGS,
            adjust::BUGS,
            keys::BUGS,
            claims::BUGS,
            limits::BUGS,
            leases::BUGS,
            effects::BUGS,
            dead::BUGS,
            reads::BUGS,
            schedules::BUGS,
        ];
        tables.into_iter().flatten()
    }

    /// A bug by its name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Bug> {
        Bug::all().find(|bug| bug.name == name)
    }
}

impl fmt::Debug for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
