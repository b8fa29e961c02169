//! What each property judged: how many cases, how many it could not, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::{Line, Violation};

/// The properties, in the order of their numbers. `docs/testing.md` says what each demands.
pub const PROPERTIES: [&str; 30] = [
    "P1", "P2", "P3", "P4", "P5", "P6", "P7a", "P7b", "P8", "P8b", "P9", "P10", "P11", "P12",
    "P13", "P14", "P15", "P16", "P17", "P18", "P19", "P21", "P23", "P24", "P25", "P26", "P27",
    "P32", "P33", "P34",
];

/// No more violations of one property than these are reported; one cause has many effects.
const MOST_OF_ONE: usize = 20;

/// What one property had before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cases {
    /// How many cases it judged, those that broke it among them.
    pub judged: u64,
    /// How many it could not judge, by the reason.
    pub unjudged: BTreeMap<String, u64>,
}

/// What the properties have found so far.
#[derive(Debug, Default)]
pub struct Found {
    violations: Vec<Violation>,
    cases: BTreeMap<&'static str, Cases>,
    /// Reported once, however often it is seen.
    seen: BTreeSet<(&'static str, String)>,
}

impl Found {
    /// A case that holds.
    pub fn holds(&mut self, property: &'static str) {
        self.cases.entry(property).or_default().judged += 1;
    }

    /// A case that cannot be judged, and why.
    pub fn cannot(&mut self, property: &'static str, why: impl Into<String>) {
        *self.cases.entry(property).or_default().unjudged.entry(why.into()).or_default() += 1;
    }

    /// A case that breaks the property.
    pub fn broken(
        &mut self,
        property: &'static str,
        lines: impl IntoIterator<Item = usize>,
        message: String,
    ) {
        self.holds(property);
        if !self.seen.insert((property, message.clone())) {
            return;
        }
        let mut lines: Vec<usize> = lines.into_iter().collect();
        lines.sort_unstable();
        lines.dedup();
        self.violations.push(Violation { property, message, lines });
    }

    /// A case that breaks the property, unless an event may be missing that would excuse it.
    pub fn unless(
        &mut self,
        excuse: Option<String>,
        property: &'static str,
        lines: impl IntoIterator<Item = usize>,
        message: String,
    ) {
        match excuse {
            Some(why) => self.cannot(property, why),
            None => self.broken(property, lines, message),
        }
    }

    /// Takes back the violations that a line shows for which `doubtful` holds: they are not judged.
    pub(super) fn excuse(&mut self, why: &str, doubtful: impl Fn(usize) -> bool) {
        for broken in std::mem::take(&mut self.violations) {
            if broken.lines.iter().any(|at| doubtful(*at)) {
                let cases = self.cases.entry(broken.property).or_default();
                cases.judged = cases.judged.saturating_sub(1);
                self.cannot(broken.property, why);
            } else {
                self.violations.push(broken);
            }
        }
    }

    /// The violations in the order of the events, not too many of one kind, and all cases.
    pub(super) fn finish(self) -> (Vec<Violation>, BTreeMap<&'static str, Cases>) {
        let Found { mut violations, mut cases, .. } = self;
        violations.sort_by_key(|violation| violation.lines.last().copied());
        let mut counts = BTreeMap::new();
        violations.retain(|violation| {
            let count = counts.entry(violation.property).or_insert(0_usize);
            *count += 1;
            *count <= MOST_OF_ONE
        });
        for property in PROPERTIES {
            cases.entry(property).or_default();
        }
        (violations, cases)
    }
}

/// The result of checking a history.
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
    /// How many processes wrote the record.
    pub processes: usize,
    /// Those of them that did not write all that they did.
    pub incomplete: Vec<String>,
    /// What each of [`PROPERTIES`] judged.
    pub cases: BTreeMap<&'static str, Cases>,
}

impl Report {
    /// Whether this property was violated.
    #[must_use]
    pub fn broke(&self, property: &str) -> bool {
        self.violations.iter().any(|violation| violation.property == property)
    }

    /// How many cases of a property were judged.
    #[must_use]
    pub fn judged(&self, property: &str) -> u64 {
        self.cases.get(property).map_or(0, |cases| cases.judged)
    }

    /// Says which of these properties judged nothing, and why. For tests that are meant to exercise
    /// them.
    ///
    /// # Errors
    /// The properties without a judged case, each with its reasons.
    pub fn require(&self, properties: &[&str]) -> Result<(), String> {
        let idle = properties.iter().filter(|property| self.judged(property) == 0);
        let lines: Vec<String> = idle.map(|property| self.line(property)).collect();
        if lines.is_empty() { Ok(()) } else { Err(lines.join("\n")) }
    }

    /// Adds what another run judged: for the totals of many runs.
    pub fn add(&mut self, other: &Report) {
        self.events += other.events;
        self.accepted += other.accepted;
        self.attempts += other.attempts;
        self.pending += other.pending;
        self.processes += other.processes;
        self.violations.extend(other.violations.iter().cloned());
        self.incomplete.extend(other.incomplete.iter().cloned());
        for (property, cases) in &other.cases {
            let sum = self.cases.entry(property).or_default();
            sum.judged += cases.judged;
            for (why, count) in &cases.unjudged {
                *sum.unjudged.entry(why.clone()).or_default() += count;
            }
        }
    }

    /// One line for each property: how many cases it judged, and how many it could not, and why.
    #[must_use]
    pub fn table(&self) -> String {
        PROPERTIES.iter().map(|property| self.line(property) + "\n").collect()
    }

    fn line(&self, property: &str) -> String {
        let none = Cases::default();
        let Cases { judged, unjudged } = self.cases.get(property).unwrap_or(&none);
        let mut line = format!("{property:<4} {judged:>8} judged");
        if unjudged.is_empty() {
            return line;
        }
        let total: u64 = unjudged.values().sum();
        let mut reasons: Vec<_> = unjudged.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let reasons = reasons.iter().map(|(why, count)| format!("{count} {why}"));
        // Writing to a string cannot fail.
        let _infallible = write!(line, ", {total} not: {}", reasons.collect::<Vec<_>>().join("; "));
        line
    }

    /// The violations with the events that show each, for a reader.
    #[must_use]
    pub fn text(&self, lines: &[Line]) -> String {
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
