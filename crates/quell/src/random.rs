//! Random numbers that no two processes share.

use std::hash::{BuildHasher, RandomState};

/// 64 bits of the system's randomness. A generator of one's own would go on from the same state in
/// each copy of a machine that was paused and restored.
pub(crate) fn drawn() -> u64 {
    // Where the system has none to give, what the process began with must do.
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(std::time::Instant::now()))
}
