//! The suite that every Quell store passes.
//!
//! A store author writes one line, [`suite!`], with a function that opens a fresh store; each rule
//! test then runs on it in virtual time. [`oracle`] drives the store and the in-memory model with
//! the same random operations and compares every answer. [`check`](mod@check) judges event
//! histories, of these tests or of real processes; the feature `sim` runs many clients and workers
//! on a simulated network, one seed after the other, and judges each history so.
//!
//! ```
//! use std::sync::Arc;
//! use quell_conformance::{Opened, Rig};
//! use quell_core::MemoryStore;
//!
//! async fn open() -> Opened {
//!     let store = MemoryStore::new(Rig::START);
//!     Opened { store: Arc::new(store), guard: Box::new(()) }
//! }
//!
//! quell_conformance::suite!(open);
//! # fn main() {}
//! ```
//!
//! With the feature `sim`, a second line simulates clients and workers on the store, with `place` as
//! a function that makes a fresh place which each simulated process opens (see
//! `sim::Place`): `quell_conformance::simulation!("mine", place);`. [`prove!`] is both in one line.
//!
//! Invariant: the suite sees a store only through the `Store` trait.
#![allow(
    clippy::missing_panics_doc,
    reason = "these are tests: they panic when a promise is broken"
)]
#![cfg_attr(
    feature = "suite",
    expect(clippy::expect_used, clippy::panic, reason = "these are tests")
)]
#![cfg_attr(
    all(feature = "sim", not(feature = "suite")),
    expect(clippy::expect_used, clippy::panic, reason = "these are tests")
)]

#[cfg(feature = "suite")]
pub mod absorb;
#[cfg(feature = "suite")]
pub mod accept;
#[cfg(feature = "suite")]
pub mod alerts;
#[cfg(feature = "suite")]
pub mod budget;
#[cfg(feature = "suite")]
pub mod calls;
#[cfg(feature = "suite")]
pub mod capability;
pub mod check;
#[cfg(feature = "suite")]
pub mod closed;
#[cfg(feature = "suite")]
pub mod closed_crowd;
#[cfg(feature = "suite")]
pub mod cut;
#[cfg(feature = "suite")]
pub mod dead;
#[cfg(feature = "suite")]
pub mod debounce;
#[cfg(feature = "suite")]
pub mod dedup;
#[cfg(feature = "suite")]
pub mod edges;
#[cfg(feature = "suite")]
pub mod effects;
#[cfg(feature = "suite")]
pub mod failures;
#[cfg(feature = "suite")]
pub mod faulty;
#[cfg(feature = "suite")]
pub mod history;
#[cfg(feature = "suite")]
pub mod idempotency;
#[cfg(feature = "suite")]
pub mod lease;
#[cfg(feature = "suite")]
pub mod lesser;
#[cfg(feature = "suite")]
pub mod limits;
#[cfg(feature = "suite")]
mod list;
#[cfg(feature = "suite")]
pub mod operate;
#[cfg(feature = "suite")]
pub mod oracle;
#[cfg(feature = "suite")]
pub mod queue;
#[cfg(feature = "suite")]
pub mod refuse;
#[cfg(feature = "suite")]
pub mod registry;
#[cfg(feature = "suite")]
pub mod report;
#[cfg(feature = "suite")]
pub mod retention;
#[cfg(feature = "suite")]
pub mod rig;
#[cfg(feature = "suite")]
pub mod schedule;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "suite")]
pub mod unreadable;
#[cfg(feature = "suite")]
pub mod wake;
#[cfg(feature = "suite")]
pub mod window;

#[cfg(feature = "suite")]
pub use capability::Capability;
#[cfg(feature = "suite")]
pub use lesser::Lesser;
#[cfg(feature = "suite")]
pub(crate) use registry::as_data;
#[cfg(feature = "suite")]
pub use report::Report;
#[cfg(feature = "suite")]
pub use rig::{Opened, Rig};

/// All that proves a store: [`suite!`] with its comparison and its histories, and the simulation of many
/// processes. It needs both features, `suite` and `sim`.
///
/// `quell_conformance::prove!("mine", open, open_recorded, place);`, where `open` and `open_recorded` are as
/// for [`suite!`], and `fn place() -> sim::Place` makes a fresh place that each simulated process opens.
#[macro_export]
macro_rules! prove {
    ($store:literal, $open:path, $open_recorded:path, $place:path) => {
        $crate::suite!($open, $open_recorded);
        $crate::simulation!($store, $place);
    };
}

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
                    $crate::registry::prove(module, test, || $open()).await;
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
                    $crate::registry::prove_recorded(module, test, |sink| $open(sink)).await;
                }
            )*
        })*
    };
}

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
