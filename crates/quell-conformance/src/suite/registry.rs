//! The rule tests as data: rules, name, what is tried, what it needs, and how to run it.
//!
//! All of it comes from the one list in `list` and from the tests themselves: a test's name begins
//! with its rules, and the first sentence of its documentation says what it tries. So the table,
//! the suite and the tests cannot differ.

use std::fmt;

use futures_util::future::BoxFuture;
use quell_core::Capabilities;
use quell_core::history::Sink;

use super::history::Recorder;
use crate::{Capability, Opened, Rig};

/// One test of the suite.
#[derive(Clone, Copy)]
pub struct RuleTest {
    /// The module it stands in.
    pub module: &'static str,
    /// Its name, which begins with the rules that it proves.
    pub name: &'static str,
    /// What a store must claim to be asked.
    pub needs: &'static [Capability],
    source: &'static str,
    body: Body,
}

/// How a test runs.
#[derive(Clone, Copy)]
enum Body {
    /// On a store.
    Plain(fn(Rig) -> BoxFuture<'static, ()>),
    /// On a store that writes its history.
    Recorded(fn(Rig, Recorder) -> BoxFuture<'static, ()>),
}

impl fmt::Debug for RuleTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.module, self.name)
    }
}

impl RuleTest {
    /// The rules that it proves, by number; none for what the rules build on.
    #[must_use]
    pub fn rules(&self) -> Vec<u8> {
        let words = self.name.split('_');
        words.map_while(|word| word.strip_prefix('r')?.parse().ok()).collect()
    }

    /// What it tries, in one sentence: the first of its documentation.
    #[must_use]
    pub fn tried(&self) -> String {
        let start = format!("\npub async fn {}(", self.name);
        let before = self.source.split(&start).next().unwrap_or_default();
        let mut lines: Vec<&str> =
            before.lines().rev().map_while(|line| line.strip_prefix("/// ")).collect();
        lines.reverse();
        let text = lines.join(" ");
        text.split_inclusive(". ").next().unwrap_or_default().trim_end().to_owned()
    }

    /// Whether it reads the history that a store writes.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        matches!(self.body, Body::Recorded(_))
    }

    /// The first thing that it needs and a store with these capabilities does not claim.
    #[must_use]
    pub fn lacks(&self, claims: &Capabilities) -> Option<Capability> {
        self.needs.iter().copied().find(|needed| !needed.is_claimed(claims))
    }

    /// Runs it on a fresh store, whatever that store claims; panics where the rule is broken. A
    /// test of the history needs a store that was opened with `recorder`'s sink.
    pub async fn run(&self, opened: Opened, recorder: Recorder) {
        match self.body {
            Body::Plain(test) => test(Rig::new(opened)).await,
            Body::Recorded(test) => test(Rig::new(opened), recorder).await,
        }
    }

    /// Runs it on a fresh store that claims what it needs, or else the test of what a store
    /// without that does; says which one was missing.
    pub async fn prove(&self, opened: Opened, recorder: Recorder) -> Option<Capability> {
        let lacks = self.lacks(&opened.store.capabilities());
        let test = match lacks {
            None => *self,
            Some(lacking) => {
                let name = lacking.test().expect("no test needs a capability without a test");
                *find("capability", name)
            }
        };
        test.run(opened, recorder).await;
        lacks
    }
}

/// A test by its module and name.
#[must_use]
pub fn find(module: &str, name: &str) -> &'static RuleTest {
    let found = all().iter().find(|test| test.module == module && test.name == name);
    found.unwrap_or_else(|| panic!("the list has no test {module}::{name}"))
}

/// What [`suite!`](macro@crate::suite) runs for one test of the list.
pub async fn prove<F>(module: &str, name: &str, open: impl Fn() -> F)
where
    F: Future<Output = Opened>,
{
    find(module, name).prove(open().await, Recorder::default()).await;
}

/// What [`suite!`](macro@crate::suite) runs for one test of the history.
pub async fn prove_recorded<F>(module: &str, name: &str, open: impl Fn(Sink) -> F)
where
    F: Future<Output = Opened>,
{
    let recorder = Recorder::default();
    find(module, name).prove(open(recorder.sink()).await, recorder).await;
}

/// Every test of the suite, in the list's order.
#[must_use]
pub fn all() -> &'static [RuleTest] {
    TESTS
}

/// Turns the list into data.
macro_rules! as_data {
    ([]
        plain: { $($module:ident: [$($test:ident $(needs $($capability:ident)+)?,)*])* }
        recorded: { $($recorded:ident: [$($event_test:ident,)*])* }
    ) => {
        static TESTS: &[RuleTest] = &[
            $($(RuleTest {
                module: stringify!($module),
                name: stringify!($test),
                needs: &[$($(Capability::$capability),+)?],
                source: include_str!(concat!(stringify!($module), ".rs")),
                body: Body::Plain(|rig| Box::pin(crate::suite::$module::$test(rig))),
            },)*)*
            $($(RuleTest {
                module: stringify!($recorded),
                name: stringify!($event_test),
                needs: &[],
                source: include_str!(concat!(stringify!($recorded), ".rs")),
                body: Body::Recorded(|rig, recorder| {
                    Box::pin(crate::suite::$recorded::$event_test(rig, recorder))
                }),
            },)*)*
        ];
    };
}
pub(crate) use as_data;

crate::rule_tests!(as_data []);
