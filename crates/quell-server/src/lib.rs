//! What the `quell` binary is made of; `main.rs` only reads the command line.
//!
//! It is a library so that tests drive commands without a process. Nothing here is a public API:
//! depend on the crate `quell` instead.

pub mod alerts;
pub mod cli;
pub mod config;
pub mod demo;
pub mod handlers;
pub mod history;
pub mod http;
pub mod log;
pub mod serve;
pub mod signal;
pub mod view;
