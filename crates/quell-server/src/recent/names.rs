//! The names behind the hashes of keys.

use std::collections::HashMap;

use quell::Key;

/// How many names are kept, and how many bytes of them. Then all are forgotten: those in use come again with
/// their next trigger.
const MOST: usize = 100_000;
const MOST_BYTES: usize = 8 << 20;

#[derive(Debug, Default)]
pub(super) struct Names {
    names: HashMap<u64, Key>,
    bytes: usize,
}

impl Names {
    pub(super) fn learn(&mut self, hash: u64, key: &Key) {
        if self.names.contains_key(&hash) {
            return;
        }
        if self.names.len() >= MOST || self.bytes >= MOST_BYTES {
            *self = Names::default();
        }
        self.bytes = self.bytes.saturating_add(key.as_str().len());
        self.names.insert(hash, key.clone());
    }

    pub(super) fn get(&self, hash: u64) -> Option<&Key> {
        self.names.get(&hash)
    }
}
