//! The history checker: proves or refutes, from events alone, that a run kept the promises.
//!
//! Reading brings the lines of one or many processes into order, a book keeps
//! what they say about each job so far, and each property looks at the book before every event
//! and once at the end. A violation names the property and the lines that show it. Numbers of
//! properties and rules are those of `docs/testing.md`.
//!
//! What was asked for comes from the calls and from what workers say that they run, never from
//! what the store says of its own reasons. Completeness is known per process ([`Processes`]): a
//! case counts as not judged where an event may be missing that would excuse it, and the report
//! says for each property how many cases it judged, how many it could not, and why. Where several
//! recorders wrote, store time orders their lines; what breaks a promise only in one of several
//! possible orders, because two processes committed within one microsecond, counts as not judged.
//!
//! ```
//! use quell_check::{check, parse};
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
mod calls;
mod cases;
mod coverage;
mod dedup;
mod doubts;
mod edges;
mod failures;
mod idempotency;
mod leases;
mod limits;
mod order;
mod outside;
mod payload;
mod policy;
mod processes;
mod promises;
mod punctual;
mod read;
mod rows;
mod stamps;
mod ticks;
mod ties;
mod timing;
mod traces;
mod turns;
mod views;

pub use book::Book;
pub use cases::{Cases, Found, PROPERTIES, Report};
pub use limits::Starts;
pub use processes::{AFTER_DEATH, Act, Processes, elsewhere};
pub use promises::promise;
pub use quell_core::history::Event;
pub use read::{Line, MalformedLine, merge, parse, whole};
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

/// One property of a history, or several that look at the same things.
pub trait Property {
    /// Looks at an event before the book takes it; `at` is its index.
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found);

    /// Looks at everything once it is over.
    fn finish(&mut self, _book: &Book, _lines: &[Line], _found: &mut Found) {}
}

/// Why a violation of a job whose events have no known order is none.
const SAME_MOMENT: &str = "two processes changed the job, its key or its queue at one moment";

/// How processes know the time of their store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clocks {
    /// They read one clock: what was committed before a claim has an earlier time.
    #[default]
    One,
    /// Each estimates it, as on Azure Table Storage: of what happened in one moment in two processes, the
    /// later may have the earlier time.
    Estimated,
}

/// Checks a history whose lines are in order, of a store with one clock; see [`merge`].
#[must_use]
pub fn check(lines: &[Line]) -> Report {
    check_by(Clocks::One, lines)
}

/// The same of a store with such clocks.
///
/// ```
/// use quell_check::{Clocks, check_by, parse};
///
/// let lines = parse("caller", r#"{"event":"stamp","op":1,"key":"a","value":1}"#).unwrap();
/// assert!(check_by(Clocks::Estimated, &lines).violations.is_empty());
/// ```
#[must_use]
pub fn check_by(clocks: Clocks, lines: &[Line]) -> Report {
    let mut properties: Vec<Box<dyn Property>> = vec![
        Box::<coverage::Coverage>::default(),
        Box::new(rows::Rows),
        Box::new(order::Moves),
        Box::<order::Line>::default(),
        Box::new(turns::Turns),
        Box::<leases::Leases>::default(),
        Box::<failures::Failures>::default(),
        Box::<limits::Limits>::default(),
        Box::<outside::Outside>::default(),
        Box::new(timing::Windows),
        Box::new(edges::Edges),
        Box::<punctual::Punctual>::default(),
        Box::new(dedup::Dedup),
        Box::<idempotency::Idempotent>::default(),
        Box::new(payload::Payloads),
        Box::new(traces::Contexts),
        Box::<stamps::Stamps>::default(),
        Box::<ticks::Ticks>::default(),
    ];
    let mut book = Book::new(lines);
    book.estimated = clocks == Clocks::Estimated;
    let mut found = Found::default();
    for (at, line) in lines.iter().enumerate() {
        for property in &mut properties {
            property.on(&book, at, line, &mut found);
        }
        book.take(at, line);
    }
    for property in &mut properties {
        property.finish(&book, lines, &mut found);
    }
    if !book.slack.is_zero() {
        let tied = ties::tied(lines);
        let reported = |at: usize| lines.get(at).and_then(|line| read::job_of(&line.event));
        found.excuse(SAME_MOMENT, |at| reported(at).is_some_and(|job| tied.contains(&job)));
    }
    let (violations, cases) = found.finish();
    Report { events: lines.len(), violations, cases, ..book.summary() }
}

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
