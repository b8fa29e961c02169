//! Tables on Azurite, and on a proxy before it that loses answers.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod bounds;
mod conditions;
mod faults;
mod opening;
mod pages;
mod proxy;
mod server;
mod store;
mod time;
