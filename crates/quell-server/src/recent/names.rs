//! The names behind the hashes of keys.

use std::collections::HashMap;

use quell::Key;

/// How many names a generation has, and how many bytes of them. There are two: where the newer one is full, the
/// older one is forgotten. Names in use come again with their next trigger or attempt.
const MOST: usize = 100_000;
const MOST_BYTES: usize = 8 << 20;

#[derive(Debug, Default)]
pub(super) struct Names {
    newer: HashMap<u64, Key>,
    older: HashMap<u64, Key>,
    /// The bytes of the newer ones.
    bytes: usize,
}

impl Names {
    pub(super) fn learn(&mut self, hash: u64, key: &Key) {
        if self.newer.contains_key(&hash) {
            return;
        }
        if self.newer.len() >= MOST || self.bytes >= MOST_BYTES {
            self.older = std::mem::take(&mut self.newer);
            self.bytes = 0;
        }
        self.bytes = self.bytes.saturating_add(key.as_str().len());
        self.newer.insert(hash, key.clone());
    }

    pub(super) fn get(&self, hash: u64) -> Option<&Key> {
        self.newer.get(&hash).or_else(|| self.older.get(&hash))
    }
}
