//! Tables and timers on Azurite, and on a proxy before it that loses answers; timers on a stand-in for
//! Service Bus.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod bill;
mod bounds;
mod conditions;
mod cost;
mod crowd;
mod faults;
mod opening;
mod pages;
mod partitions;
mod proxy;
mod queue;
mod queue_faults;
mod quick;
mod server;
mod servicebus;
mod servicebus_faults;
mod store;
mod throttled;
mod time;
mod timed;
mod timers;
mod zero;
