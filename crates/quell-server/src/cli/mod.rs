//! The commands of the program, a module each, apart from `serve` and `demo`.
//!
//! `program` has the command line as a whole and `exit` its statuses. `source` reaches a server or a store, `page` reads a list from one, `text`, `screen` and `numbers`
//! write for people, `recorded` has the arguments that `simulate` and `replay` share.

pub mod actions;
pub mod alerts;
pub mod audit;
pub mod backup;
pub mod cancel;
pub mod check;
pub mod completions;
pub mod dead;
pub mod doctor;
pub mod exit;
pub mod health;
pub mod jobs;
pub mod keys;
mod live;
pub mod man;
pub(crate) mod numbers;
pub mod openapi;
mod page;
mod pause;
pub mod program;
pub mod queue;
mod recorded;
pub mod replay;
pub mod result;
pub mod schedule;
mod screen;
pub mod settings;
pub mod simulate;
pub(crate) mod source;
pub mod sources;
pub mod tail;
pub mod task;
mod text;
pub mod tokens;
pub mod top;
pub mod trigger;
pub mod workers;
