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

#[cfg(feature = "sim")]
pub mod bugs;
#[cfg(any(feature = "sim", feature = "suite"))]
pub mod effort;
#[cfg(feature = "suite")]
pub mod harness;
#[cfg(feature = "suite")]
pub mod oracle;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "suite")]
pub mod suite;

#[cfg(feature = "suite")]
pub use harness::{Lesser, Opened, Rig, budget, calls, faulty, rig, spread};
pub use quell_check as check;
#[cfg(feature = "suite")]
pub(crate) use suite::registry::as_data;
#[cfg(feature = "suite")]
pub use suite::{Capability, Report, history, registry, report, unreadable};

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

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
