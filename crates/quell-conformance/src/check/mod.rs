//! The history checker: proves or refutes, from events alone, that a run kept the promises.
//!
//! Reading brings the lines of one or many processes into order, a book keeps
//! what they say about each job so far, and each property looks at the book before every event
//! and once at the end. A violation names the property and the lines that show it. Numbers of
//! properties and rules are those of `docs/testing.md`.
//!
//! How much can be shown depends on the record ([`Event::Record`]): where a process was killed
//! while it wrote, events may be missing, and what only a complete record can show is left out.
//!
//! ```
//! use quell_conformance::check::{check, parse};
//!
//! let lines = parse("caller", r#"{"event":"stamp","op":1,"key":"a","value":1}
//! {"event":"stamp_ok","op":1}
//! {"event":"read","run":1,"key":"a","value":1}
//! {"event":"read_ok","run":1}"#).unwrap();
//! assert!(check(&lines).violations.is_empty());
//! let lost = check(&lines[..3]);
//! assert_eq!(lost.violations[0].property, "P2");
//! ```
//!
//! Invariant: it knows no store and no worker; whatever they are, their events are the input.

mod book;
mod coverage;
mod dedup;
mod idempotency;
mod leases;
mod limits;
mod order;
mod outside;
mod payload;
mod read;
mod stamps;
mod ticks;
mod ties;
mod timing;
mod views;

pub use book::Book;
pub use limits::Starts;
pub use quell_core::history::Event;
pub use read::{Line, MalformedLine, merge, parse};
pub use views::{ClaimView, JobView, Joined, OpId, OpState, OpView, TaskKey};

/// A promise that was broken, and what shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property, such as `P2`.
    pub property: &'static str,
    /// What is wrong, for a reader.
    pub message: String,
    /// The lines that show it, as indexes into the input.
    pub lines: Vec<usize>,
}

/// One property of a history.
pub trait Property {
    /// Looks at an event before the book takes it; `at` is its index.
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Vec<Violation>);

    /// Looks at everything once it is over.
    fn finish(&mut self, _book: &Book, _lines: &[Line], _found: &mut Vec<Violation>) {}
}

/// What came of checking a history.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was broken, in the order of the events that show it.
    pub violations: Vec<Violation>,
    /// How many events there were.
    pub events: usize,
    /// How many triggers were accepted, duplicates not counted.
    pub accepted: usize,
    /// How many attempts started.
    pub attempts: usize,
    /// How many accepted triggers had not run at the end, where the record does not say that
    /// everything was to have run.
    pub pending: usize,
}

/// No more violations of one property than these are reported; one cause has many effects.
const MOST_OF_ONE: usize = 20;

/// Checks a history whose lines are in order; see [`merge`].
#[must_use]
pub fn check(lines: &[Line]) -> Report {
    let mut properties: Vec<Box<dyn Property>> = vec![
        Box::<coverage::Coverage>::default(),
        Box::new(order::Moves),
        Box::new(order::Line),
        Box::<leases::Leases>::default(),
        Box::<limits::Limits>::default(),
        Box::<outside::Outside>::default(),
        Box::new(timing::Windows),
        Box::<timing::Punctual>::default(),
        Box::new(dedup::Dedup),
        Box::<idempotency::Idempotent>::default(),
        Box::new(payload::Payloads),
        Box::<stamps::Stamps>::default(),
        Box::<ticks::Ticks>::default(),
    ];
    let mut book = Book::new(lines);
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        for property in &mut properties {
            property.on(&book, at, line, &mut found);
        }
        book.take(at, line);
    }
    for property in &mut properties {
        property.finish(&book, lines, &mut found);
    }
    let mut report = book.summary();
    report.events = lines.len();
    report.violations = bounded(found);
    report
}

/// In the order of the events, and not too many of one kind.
fn bounded(mut found: Vec<Violation>) -> Vec<Violation> {
    found.sort_by_key(|violation| violation.lines.last().copied());
    let mut seen = std::collections::BTreeMap::new();
    found.retain(|violation| {
        let count = seen.entry(violation.property).or_insert(0_usize);
        *count += 1;
        *count <= MOST_OF_ONE
    });
    found
}

impl Report {
    /// Whether this property was violated.
    #[must_use]
    pub fn broke(&self, property: &str) -> bool {
        self.violations.iter().any(|violation| violation.property == property)
    }

    /// The violations with the events that show each, for a reader.
    #[must_use]
    pub fn text(&self, lines: &[Line]) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for Violation { property, message, lines: shown } in &self.violations {
            // Writing to a string cannot fail.
            let _infallible = writeln!(text, "{property}: {message}");
            for line in shown.iter().filter_map(|at| lines.get(*at)) {
                let _infallible = writeln!(text, "    {line}");
            }
        }
        text
    }
}

/// Adds a violation.
fn broken(
    found: &mut Vec<Violation>,
    property: &'static str,
    lines: impl IntoIterator<Item = usize>,
    message: String,
) {
    let mut lines: Vec<usize> = lines.into_iter().collect();
    lines.sort_unstable();
    lines.dedup();
    found.push(Violation { property, message, lines });
}
