//! The rule tests, one file for each group of rules, and what runs them.
//!
//! [`suite!`](macro@crate::suite) makes tests of the one list (`list`) in a store author's crate; [`registry`]
//! has the same list as data, and [`report`] runs it on a store and answers with a table.
//!
//! Invariant: a test sees a store only through the `Store` trait, and has a fresh one.

pub mod absorb;
pub mod accept;
pub mod adjust;
pub mod alerts;
pub mod backlog;
pub mod capability;
pub mod closed;
pub mod closed_crowd;
pub mod cut;
pub mod dead;
pub mod debounce;
pub mod dedup;
pub mod edges;
pub mod effects;
pub mod failures;
pub mod history;
pub mod idempotency;
pub mod leads;
pub mod lease;
pub mod limits;
mod list;
pub mod operate;
pub mod queue;
pub mod refuse;
pub mod registry;
pub mod report;
pub mod retention;
pub mod schedule;
pub mod traces;
pub mod transactions;
pub mod turns;
pub mod unreadable;
pub mod wake;
pub mod window;

pub use capability::Capability;
pub use report::Report;

/// Runs the whole suite on a store: `quell_conformance::suite!(open);`, where `open` is
/// `async fn open() -> quell_conformance::Opened`.
///
/// A store whose ids are not 1, 2, 3 names, after both functions, those that its first queue's jobs
/// get, as [`Ids`](quell_core::part::Ids).
///
/// One whose calls take long names, after those, how many random scripts it is compared by.
///
/// A store that can write an event history names a second function after a comma,
/// `async fn open_recorded(sink: quell_core::history::Sink) -> quell_conformance::Opened`, and has
/// its events checked too.
#[macro_export]
macro_rules! suite {
    ($open:path) => {
        $crate::rule_tests!(as_tests[$open]);

        #[test]
        fn the_store_answers_like_the_model() {
            $crate::oracle::compare(|| async { $open().await }, $crate::oracle::COUNTED);
        }
    };
    ($open:path, $open_recorded:path) => {
        $crate::suite!($open);
        $crate::rule_tests!(as_recorded_tests[$open_recorded]);
    };
    ($open:path, $open_recorded:path, $ids:expr) => {
        $crate::rule_tests!(as_tests[$open]);

        #[test]
        fn the_store_answers_like_the_model() {
            $crate::oracle::compare(|| async { $open().await }, $ids);
        }

        $crate::rule_tests!(as_recorded_tests[$open_recorded]);
    };
    ($open:path, $open_recorded:path, $ids:expr, $cases:expr) => {
        $crate::rule_tests!(as_tests[$open]);

        #[test]
        fn the_store_answers_like_the_model() {
            $crate::oracle::compare_some(|| async { $open().await }, $ids, $cases);
        }

        $crate::rule_tests!(as_recorded_tests[$open_recorded]);
    };
}

/// One `#[tokio::test]` per test of the list that needs no history.
#[doc(hidden)]
#[macro_export]
macro_rules! as_tests {
    ([$open:path]
        plain: { $($module:ident: [$($test:ident $(needs $($capability:ident)+)?,)*])* }
        recorded: $recorded:tt
    ) => {
        $(mod $module {
            use super::*;
            $(
                #[tokio::test]
                async fn $test() {
                    let (module, test) = (stringify!($module), stringify!($test));
                    $crate::suite::registry::prove(module, test, || $open()).await;
                }
            )*
        })*
    };
}

/// One `#[tokio::test]` per test of the event history.
#[doc(hidden)]
#[macro_export]
macro_rules! as_recorded_tests {
    ([$open:path]
        plain: $plain:tt
        recorded: { $($module:ident: [$($test:ident,)*])* }
    ) => {
        $(mod $module {
            use super::*;
            $(
                #[tokio::test]
                async fn $test() {
                    let (module, test) = (stringify!($module), stringify!($test));
                    $crate::suite::registry::prove_recorded(module, test, |sink| $open(sink)).await;
                }
            )*
        })*
    };
}
