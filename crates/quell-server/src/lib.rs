//! What the `quell` binary is made of; `main.rs` only reads the command line.
//!
//! It is a library so that tests drive commands without a process. Nothing here is a public API:
//! depend on the crate `quell` instead.

pub mod alert_command;
pub mod alerts;
pub mod api;
pub mod check;
pub mod cli;
pub mod client;
pub mod config;
pub mod dead;
pub mod demo;
pub mod doctor;
pub mod duration;
pub mod fold;
pub mod handler;
pub mod history;
pub mod key_template;
pub mod log;
pub mod metrics;
pub mod operator;
mod queue_text;
pub mod result;
pub mod schedule;
pub mod serve;
pub mod signal;
pub mod view;
pub mod workers;
