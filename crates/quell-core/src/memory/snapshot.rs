//! The whole state of a memory store, to compare, to hash and to return to: the states of a model
//! checker.

use std::hash::{Hash, Hasher};

use super::state::State;

/// A copy of everything that a [`MemoryStore`](super::MemoryStore) keeps.
///
/// Two are equal where no call could ever answer differently.
///
/// ```
/// use quell_core::{MemoryStore, Timestamp};
///
/// let store = MemoryStore::new(Timestamp::from_secs(0));
/// let before = store.snapshot();
/// assert_eq!(MemoryStore::restored(&before).snapshot(), before);
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot(State);

impl Snapshot {
    pub(super) fn of(state: &State) -> Self {
        Snapshot(state.without_history())
    }

    pub(super) fn state(&self) -> State {
        self.0.clone()
    }
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.0.rows() == other.0.rows()
    }
}

impl Eq for Snapshot {}

impl Hash for Snapshot {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.rows().hash(hasher);
    }
}
