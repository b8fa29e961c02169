//! Which rows a step has loaded, whether they were there or not.

use std::collections::BTreeSet;

use crate::rows::RowName;

/// The names of rows that were loaded. A step loads a few times, some rows or hundreds at a time: so the
/// names of each time stay a set of their own.
#[derive(Debug, Default)]
pub(crate) struct Loaded(Vec<BTreeSet<RowName>>);

impl Loaded {
    pub(crate) fn has(&self, name: &RowName) -> bool {
        self.0.iter().any(|names| names.contains(name))
    }

    pub(crate) fn add_all(&mut self, names: BTreeSet<RowName>) {
        self.0.push(names);
    }

    /// Lets a row be loaded again.
    pub(crate) fn forget(&mut self, name: &RowName) {
        for names in &mut self.0 {
            names.remove(name);
        }
    }

    pub(crate) fn add(&mut self, name: RowName) {
        match self.0.first_mut() {
            Some(names) => drop(names.insert(name)),
            None => self.0.push(BTreeSet::from([name])),
        }
    }
}
