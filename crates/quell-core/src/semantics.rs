//! The rules that Quell keeps, R1 to R43: the page `docs/semantics.md` of the repository. Items of
//! this documentation name them by number, and so do tests.
//!
//! Links to `postgres.md`, `redis.md`, `azure.md` and `server.md` lead to pages beside that one, which
//! are not part of this documentation.
//!
#![doc = include_str!("../docs/semantics.md")]
