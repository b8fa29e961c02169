//! What `quell doctor` reads of a store, and how far its clock may be ahead (R38).
//!
//! A store gathers a [`Checkup`] in bounded work; its `Display` is what the command prints.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result, StoreId, Timestamp};

/// The state of a store, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkup {
    /// The store's id, where it has one.
    pub id: Option<StoreId>,
    /// The store's clock and the clock below it.
    pub clock: ClockReading,
    /// Further facts, in the order in which they are shown.
    pub facts: Vec<Fact>,
}

/// One fact about a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What it is about.
    pub name: String,
    /// How it stands.
    pub value: String,
    /// What is wrong with that and what to do, if anything is.
    pub problem: Option<String>,
    /// What had better be otherwise and what to do, where the store works as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The same as numbers, for monitoring.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gauges: Vec<Gauge>,
}

/// A number that a metrics page shows of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gauge {
    /// The name of the metric, with the unit where it has one.
    pub metric: String,
    /// How much it is.
    pub measure: Measure,
}

/// What the metrics of the stores here are, for a metrics page.
const HELP: &[(&str, &str)] = &[
    (
        "quell_store_clock_ahead_seconds",
        "How far the store's clock is ahead of the clock below it.",
    ),
    ("quell_store_connections", "Connections to the database, of all its users."),
    ("quell_store_connections_max", "The most connections that the database permits."),
    ("quell_store_dead_rows", "Row versions that the database has not removed yet."),
    ("quell_store_inbox_refused", "Triggers of transactions that were set aside."),
    ("quell_store_inbox_waiting", "Triggers of transactions that wait to be taken in."),
    ("quell_store_names_left", "How many more names of queues, tasks or partitions there may be."),
    ("quell_store_wal_bytes", "The size of the write-ahead log."),
    ("quell_store_file_bytes", "The size of the store's file."),
    ("quell_store_oldest_snapshot_seconds", "The age of the oldest open snapshot."),
    ("quell_store_replica_lag_seconds", "How far the slowest replica is behind."),
    ("quell_store_disk_free_bytes", "The free space of the file system below the store."),
];

/// How much a [`Gauge`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// A number of things.
    Count(u64),
    /// A duration; a page shows it in seconds.
    Time(Duration),
}

impl Gauge {
    /// A number of things.
    #[must_use]
    pub fn count(metric: &str, count: u64) -> Self {
        Gauge { metric: metric.to_owned(), measure: Measure::Count(count) }
    }

    /// A time; the metric's name ends in `_seconds`.
    #[must_use]
    pub fn time(metric: &str, time: Duration) -> Self {
        Gauge { metric: metric.to_owned(), measure: Measure::Time(time) }
    }
}

impl fmt::Display for Gauge {
    /// As a metrics page in Prometheus' text format has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metric = &self.metric;
        if let Some((_, help)) = HELP.iter().find(|(known, _)| known == metric) {
            writeln!(f, "# HELP {metric} {help}")?;
        }
        writeln!(f, "# TYPE {metric} gauge")?;
        match self.measure {
            Measure::Count(count) => writeln!(f, "{metric} {count}"),
            Measure::Time(time) => writeln!(f, "{metric} {}", time.as_secs_f64()),
        }
    }
}

impl Fact {
    /// A fact with nothing wrong about it.
    #[must_use]
    pub fn plain(name: &str, value: impl fmt::Display) -> Self {
        let (name, value) = (name.to_owned(), value.to_string());
        Fact { name, value, problem: None, warning: None, gauges: Vec::new() }
    }

    /// The same fact with what is wrong about it, if anything is.
    #[must_use]
    pub fn with_problem(self, problem: Option<String>) -> Self {
        Fact { problem, ..self }
    }

    /// The same fact with what had better be otherwise, if anything had.
    #[must_use]
    pub fn with_warning(self, warning: Option<String>) -> Self {
        Fact { warning, ..self }
    }

    /// The same fact with its numbers.
    #[must_use]
    pub fn with_gauges(self, gauges: Vec<Gauge>) -> Self {
        Fact { gauges, ..self }
    }

    /// How many triggers of callers' transactions were set aside because they cannot be folded;
    /// `most` is where the store stopped counting.
    #[must_use]
    pub fn set_aside(count: u64, most: u64) -> Self {
        let more = if count >= most { " or more" } else { "" };
        let problem = (count > 0).then(|| {
            "triggers of committed transactions were refused and run nothing: read the column \
             `refused` of the inbox, then trigger again or delete the rows"
                .to_owned()
        });
        Fact { problem, ..Fact::plain("inbox", format_args!("{count}{more} set aside")) }
    }
}

/// The store's clock beside the clock that it is read from: the host's (SQLite) or the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// The clock below, now.
    pub host: Timestamp,
    /// The highest store time seen, which holds until the clock below has caught up (R38).
    pub mark: Timestamp,
}

impl ClockReading {
    /// The clock below now, and the highest store time seen.
    #[must_use]
    pub fn new(host: Timestamp, mark: Timestamp) -> Self {
        ClockReading { host, mark }
    }

    /// A mark that is further ahead than this is a problem.
    pub const TOLERANCE: Duration = Duration::from_secs(60);
    /// A mark that is less ahead than this is left to the clock below, which will catch up.
    pub const LEAST_RESET: Duration = Duration::from_secs(3_600);

    /// How far the store's clock is ahead of the clock below; zero where it is behind, as after a
    /// rest.
    #[must_use]
    pub fn ahead(&self) -> Duration {
        self.mark.since(self.host)
    }

    /// What is wrong and what to do, if the store's clock is ahead.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let ahead = self.ahead();
        if ahead <= Self::TOLERANCE {
            return None;
        }
        let remedy = if ahead < Self::LEAST_RESET {
            "wait until the clock below has caught up"
        } else {
            "set the clock below right, stop all processes of the store, and run \
             `quell doctor --reset-clock`"
        };
        Some(format!(
            "store time stands still until then, so no delay, lease or key ends: {remedy}"
        ))
    }

    /// The times that a reset moves: those later than halfway between both clocks were made by the
    /// clock that was ahead, those before it were not.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the store's clock is not ahead enough.
    pub fn reset(&self) -> Result<ClockReset> {
        let by = self.ahead();
        if by < Self::LEAST_RESET {
            let message = format!(
                "the store's clock ({}) is {by:?} ahead of the clock below ({}): a reset needs at \
                 least {:?}, less passes by itself",
                self.mark,
                self.host,
                Self::LEAST_RESET
            );
            return Err(Error::invalid("reset_clock", message));
        }
        Ok(ClockReset {
            from: self.mark,
            to: self.host,
            by,
            after: self.host + by.checked_div(2).unwrap_or_default(),
        })
    }
}

/// How many ids are left out by `skip_ids`, where a store was restored or lost its newest writes:
/// more than any store gives away between a backup and its loss.
pub const SKIPPED_IDS: u64 = 100_000_000;

/// A store's clock that was set back, with all times that it had made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReset {
    /// Where the clock was.
    pub from: Timestamp,
    /// Where it is now: the clock below.
    pub to: Timestamp,
    /// How far it and the times went back.
    pub by: Duration,
    /// Times later than this went back, others stayed.
    pub after: Timestamp,
}

/// The refusal to set a clock back that other processes would raise again.
#[must_use]
pub fn in_use(who: &str) -> Error {
    let message = format!(
        "the clock cannot be set back while {who}, which would raise it again: stop all processes \
         of the store first"
    );
    Error::new(ErrorKind::Contention, message)
}

impl Checkup {
    /// What a store reports.
    #[must_use]
    pub fn new(id: Option<StoreId>, clock: ClockReading, facts: Vec<Fact>) -> Self {
        Checkup { id, clock, facts }
    }

    /// The numbers to watch: how far the store's clock is ahead, and those of its facts.
    pub fn gauges(&self) -> impl Iterator<Item = Gauge> + '_ {
        let ahead = Gauge::time("quell_store_clock_ahead_seconds", self.clock.ahead());
        std::iter::once(ahead).chain(self.facts.iter().flat_map(|fact| fact.gauges.clone()))
    }

    /// What is wrong, with what to do about it.
    pub fn problems(&self) -> impl Iterator<Item = String> + '_ {
        let facts = self.facts.iter().filter_map(|fact| fact.problem.clone());
        self.clock.problem().into_iter().chain(facts)
    }

    /// What had better be otherwise, with what to do about it; the store works as it is.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        self.facts.iter().filter_map(|fact| fact.warning.clone())
    }
}

impl fmt::Display for Checkup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = &self.id {
            writeln!(f, "{:<14} {id}", "store")?;
        }
        writeln!(f, "{:<14} {}", "clock below", self.clock.host)?;
        writeln!(f, "{:<14} {}", "store clock", self.clock.mark)?;
        writeln!(f, "{:<14} {:?}", "ahead by", self.clock.ahead())?;
        for fact in &self.facts {
            writeln!(f, "{:<14} {}", fact.name, fact.value)?;
        }
        for problem in self.problems() {
            writeln!(f, "problem: {problem}")?;
        }
        for warning in self.warnings() {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(ahead: i64) -> ClockReading {
        let host = Timestamp::from_secs(1_000_000);
        ClockReading { host, mark: Timestamp::from_secs(1_000_000 + ahead) }
    }

    #[test]
    fn r38_a_clock_that_is_ahead_is_a_problem_and_one_after_a_rest_is_none() {
        for (ahead, is_problem, can_reset) in [
            (-7 * 86_400, false, false),
            (60, false, false),
            (61, true, false),
            (3_599, true, false),
            (3_600, true, true),
        ] {
            let clock = reading(ahead);
            assert_eq!(clock.problem().is_some(), is_problem, "{ahead} s");
            assert_eq!(clock.reset().is_ok(), can_reset, "{ahead} s");
        }
        let reset = reading(86_400).reset().unwrap();
        assert_eq!(reset.after, Timestamp::from_secs(1_000_000 + 43_200));
    }

    #[test]
    fn r38_a_checkup_shows_both_clocks_and_each_problem_with_its_remedy() {
        let facts = vec![Fact::plain("journal", "wal"), Fact::set_aside(2, 1_000)];
        let checkup = Checkup { id: None, clock: reading(7_200), facts };
        let (shown, page) = (
            checkup.to_string(),
            checkup.gauges().map(|gauge| gauge.to_string()).collect::<String>(),
        );
        assert_eq!(
            page,
            "# HELP quell_store_clock_ahead_seconds How far the store's clock is ahead of the clock below it.\n\
             # TYPE quell_store_clock_ahead_seconds gauge\nquell_store_clock_ahead_seconds 7200\n"
        );
        assert!(shown.contains("ahead by       7200s"), "{shown}");
        assert!(shown.contains("inbox          2 set aside"), "{shown}");
        assert_eq!(shown.matches("problem: ").count(), 2, "{shown}");
        assert!(shown.contains("quell doctor --reset-clock"), "{shown}");
    }
}
