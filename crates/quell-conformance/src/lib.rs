//! The suite that every Quell store passes.
//!
//! A store author writes one line, [`suite!`], with a function that opens a fresh store; each rule
//! test then runs on it in virtual time. [`oracle`] drives the store and the in-memory model with
//! the same random operations and compares every answer.
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
//! Invariant: the suite sees a store only through the `Store` trait.
#![allow(
    clippy::missing_panics_doc,
    reason = "these are tests: they panic when a promise is broken"
)]
#![expect(clippy::expect_used, clippy::panic, reason = "these are tests")]

pub mod absorb;
pub mod accept;
pub mod capability;
pub mod cut;
pub mod debounce;
pub mod dedup;
pub mod edges;
pub mod history;
pub mod lease;
pub mod lesser;
mod list;
pub mod operate;
pub mod oracle;
pub mod queue;
pub mod refuse;
pub mod registry;
pub mod report;
pub mod retention;
pub mod rig;
pub mod wake;
pub mod window;

pub use capability::Capability;
pub use lesser::Lesser;
pub(crate) use registry::as_data;
pub use report::Report;
pub use rig::{Opened, Rig};

/// Runs the whole suite on a store: `quell_conformance::suite!(open);`, where `open` is
/// `async fn open() -> quell_conformance::Opened`.
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
            $crate::oracle::compare(|| async { $open().await });
        }
    };
    ($open:path, $open_recorded:path) => {
        $crate::suite!($open);
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
