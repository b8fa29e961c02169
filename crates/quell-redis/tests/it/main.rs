//! The store on real servers.

mod conformance;
mod cost;
mod scripts;
