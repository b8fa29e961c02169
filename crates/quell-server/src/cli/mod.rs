//! The commands of the program, a module each.

pub(crate) mod numbers;
mod recorded;
pub mod replay;
mod screen;
pub mod simulate;
