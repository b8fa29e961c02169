//! Quell on Azure: tables in Table Storage, and timers in Service Bus ([`servicebus`]) or in a queue
//! of Azure Storage ([`StorageQueue`]).
//!
//! [`AzureOptions`] opens an [`AzureStore`]: the engine on one partition of a [`TableStorage`], which keeps
//! rows as entities of one table. Tables and queues send their requests by a `transport`, which signs
//! them with the [`Credentials`] of a [`Connection`], retries and keeps deadlines. `timer` says which timer a store
//! has. `queue` knows the
//! messages, and `table` the entities: `entity` and `request` encode them, `commit` finds out whether a batch was made whose answer was
//! lost, and `open` refuses tables of others.
//!
//! Invariant: no key, SAS token or bearer token is printed, logged or part of an error.

mod clock;
mod connection;
mod credentials;
#[cfg(feature = "entra")]
mod entra;
mod error;
mod options;
mod over;
mod parameters;
mod queue;
pub mod servicebus;
mod table;
mod timer;
mod transport;

pub use clock::Monotonic;
pub use connection::Connection;
pub use credentials::{Credentials, Secret, SharedKey, TokenSource};
#[cfg(feature = "entra")]
pub use entra::{Entra, Identity};
pub use options::{AzureOptions, AzureStore};
pub use quell_portable::Layout;
pub use queue::{StorageQueue, StorageQueueOptions};
pub use table::TableStorage;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
