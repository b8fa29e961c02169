//! The parts of the `quell` binary; `main.rs` only reads the command line.
//!
//! `cli` has a module for each command, `serve` the server, `http` its routes, `handlers` what tasks
//! run, `config` the file that declares them.
//!
//! It is a library so that tests drive commands without a process. Nothing here is a public API:
//! depend on the crate `quell` instead.

pub mod access;
pub mod actions;
pub mod alerts;
pub mod audit;
pub mod cli;
pub mod config;
pub mod declare;
pub mod demo;
pub mod encryption;
pub mod filter;
pub mod handlers;
pub mod history;
pub mod http;
mod https;
pub mod log;
mod otel;
mod private_file;
mod progress;
pub mod recent;
pub mod redact;
pub mod secrets;
pub mod serve;
pub mod signal;
pub mod sources;
pub mod tls;
pub mod view;
