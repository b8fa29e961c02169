//! The whole suite on one store as an answer instead of a test run: which rule was tried how, and
//! with which result.
//!
//! Each test has a task of its own, so one that panics fails its row and nothing else.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use quell_core::Capabilities;
use quell_core::history::Sink;
use tokio::task::JoinSet;

use super::history::Recorder;
use super::registry::{RuleTest, all};
use crate::{Capability, Opened};

/// A test that takes longer hangs: all of them work in virtual time.
const DEADLINE: Duration = Duration::from_secs(120);

/// What the suite says of one store.
#[derive(Clone, Debug)]
pub struct Report {
    /// The store's name.
    pub store: String,
    /// One per test, in the list's order.
    pub rows: Vec<Row>,
}

/// The result of one test.
#[derive(Clone, Debug)]
pub struct Row {
    /// The test: its rules, its name, what it tried.
    pub test: &'static RuleTest,
    /// Its result.
    pub verdict: Verdict,
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rule held.
    Passed,
    /// The store does not claim this, and refuses it or falls back as documented.
    Refused(Capability),
    /// The rule was broken, or the refusal was not as promised.
    Failed(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Passed => f.write_str("pass"),
            Verdict::Refused(capability) => write!(f, "no `{}`, as it says", capability.name()),
            Verdict::Failed(message) => {
                let first = message.lines().find(|line| !line.trim().is_empty());
                write!(f, "FAIL: {}", first.unwrap_or("without a message"))
            }
        }
    }
}

impl Report {
    /// The report of a store with these capabilities that keeps every rule. It runs no test.
    #[must_use]
    pub fn expected(store: &str, claims: &Capabilities) -> Report {
        let row = |test: &'static RuleTest| {
            let verdict = test.lacks(claims).map_or(Verdict::Passed, Verdict::Refused);
            Row { test, verdict }
        };
        Report { store: store.to_owned(), rows: all().iter().map(row).collect() }
    }

    /// The rows that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| matches!(row.verdict, Verdict::Failed(_)))
    }

    /// The rules that are broken, each once.
    #[must_use]
    pub fn broken_rules(&self) -> Vec<u8> {
        let mut rules: Vec<u8> = self.failures().flat_map(|row| row.test.rules()).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }

    /// The result of one test of the list, by its name.
    #[must_use]
    pub fn verdict(&self, test: &str) -> Option<&Verdict> {
        self.rows.iter().find(|row| row.test.name == test).map(|row| &row.verdict)
    }
}

impl fmt::Display for Report {
    /// One line per test, and below it the whole message of each that failed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failures().count();
        writeln!(f, "{}: {} tests, {failed} failed", self.store, self.rows.len())?;
        for row in &self.rows {
            let rules: Vec<_> = row.test.rules().iter().map(|rule| format!("R{rule}")).collect();
            writeln!(f, "  {:8} {:?}: {}", rules.join(" "), row.test, row.verdict)?;
        }
        for row in self.failures() {
            if let Verdict::Failed(message) = &row.verdict {
                writeln!(f, "\n{:?}: {}\n{message}", row.test, row.test.tried())?;
            }
        }
        Ok(())
    }
}

type Opening = Pin<Box<dyn Future<Output = Opened> + Send>>;

/// Runs every test that needs no history on a store of its own.
pub async fn run<F>(store: &str, open: impl Fn() -> F) -> Report
where
    F: Future<Output = Opened> + Send + 'static,
{
    let tests = all().iter().filter(|test| !test.is_recorded());
    run_with(store, tests, |_| Box::pin(open())).await
}

/// Runs the tests of these names that need no history, each on a store of its own.
pub async fn run_some<F>(store: &str, names: &[&str], open: impl Fn() -> F) -> Report
where
    F: Future<Output = Opened> + Send + 'static,
{
    let tests = all().iter().filter(|test| !test.is_recorded() && names.contains(&test.name));
    run_with(store, tests, |_| Box::pin(open())).await
}

/// Runs every test, those of the event history on stores that write one.
pub async fn run_recorded<F, G>(
    store: &str,
    open: impl Fn() -> F,
    open_recorded: impl Fn(Sink) -> G,
) -> Report
where
    F: Future<Output = Opened> + Send + 'static,
    G: Future<Output = Opened> + Send + 'static,
{
    let opening = |sink: Option<Sink>| -> Opening {
        match sink {
            None => Box::pin(open()),
            Some(sink) => Box::pin(open_recorded(sink)),
        }
    };
    run_with(store, all().iter(), opening).await
}

async fn run_with(
    store: &str,
    tests: impl Iterator<Item = &'static RuleTest>,
    open: impl Fn(Option<Sink>) -> Opening,
) -> Report {
    let mut rows = Vec::new();
    for test in tests {
        let recorder = Recorder::default();
        let opening = open(test.is_recorded().then(|| recorder.sink()));
        rows.push(Row { test, verdict: judge(test, opening, recorder).await });
    }
    Report { store: store.to_owned(), rows }
}

/// Runs one test to its end, which may be a panic.
async fn judge(test: &'static RuleTest, opening: Opening, recorder: Recorder) -> Verdict {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let run = async { test.prove(opening.await, recorder).await };
        tokio::time::timeout(DEADLINE, run).await
    });
    match tasks.join_next().await {
        Some(Ok(Ok(None))) => Verdict::Passed,
        Some(Ok(Ok(Some(lacking)))) => Verdict::Refused(lacking),
        Some(Ok(Err(_))) => Verdict::Failed(format!("it did not end within {DEADLINE:?}")),
        Some(Err(error)) => Verdict::Failed(match error.try_into_panic() {
            Ok(panic) => message(panic.as_ref()),
            Err(error) => error.to_string(),
        }),
        None => Verdict::Failed("its task is gone".to_owned()),
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}
