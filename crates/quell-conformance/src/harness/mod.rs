//! What tests of stores, clients and workers use: a store in virtual time, and stores that stand before
//! another one.
//!
//! [`rig`] drives a store with one line a call, [`calls`] is the table of every call and [`budget`]
//! counts what each one touches. [`spread`] checks queues that are spread over several homes. [`faulty`] fails one call, and [`Lesser`] claims less than the store
//! inside it.
//!
//! Invariant: it sees a store only through the `Store` trait.

pub mod actors;
pub mod budget;
pub mod calls;
pub mod faulty;
pub mod lesser;
pub mod rig;
pub mod spread;

pub use lesser::Lesser;
pub use rig::{Opened, Rig};
