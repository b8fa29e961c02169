//! What keeps a window of a key back: attempts that run (R11), and older windows that are closed
//! (R10).
//!
//! The closed windows of a key are a sorted set, which exists only while there are any. The key's
//! field of `runs` holds the ids of the running jobs, and before them the id of the first closed
//! window after a `c`: one look at it says all that a trigger, a claim and the end of an attempt
//! need, however many windows are closed. `lua/settle.lua`, `lua/start.lua` and `lua/enqueue.lua`
//! read the field, and `lua/commit.lua` writes it where the set changes.

use std::collections::BTreeSet;

use quell_core::JobId;
use quell_core::part::TaskKey;

use crate::keys::{Keys, task_key};
use crate::writes::{Write, Writes};

/// The jobs of a key that its field of `runs` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Busy {
    /// Jobs that run.
    pub(crate) running: BTreeSet<JobId>,
    /// The closed window with the smallest id.
    pub(crate) closed: Option<JobId>,
}

impl Busy {
    /// Reads the field.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut busy = Busy::default();
        for word in std::str::from_utf8(bytes).unwrap_or_default().split(' ') {
            match word.strip_prefix('c') {
                Some(id) => busy.closed = id.parse().ok().map(JobId::new),
                None => busy.running.extend(word.parse().ok().map(JobId::new)),
            }
        }
        busy
    }

    /// The running jobs as the field names them.
    fn running(&self) -> String {
        self.running.iter().map(JobId::to_string).collect::<Vec<_>>().join(" ")
    }
}

impl Writes {
    /// Writes a key's field of `runs`; with `closes`, the script finds the first closed window.
    pub(crate) fn set_busy(
        &mut self,
        keys: &Keys,
        (task, key): &TaskKey,
        busy: &Busy,
        closes: bool,
    ) {
        let (field, running) = (task_key(task, key), busy.running());
        if closes || busy.closed.is_some() {
            let closed = keys.closed(task, key);
            self.push(Write::Busy { key: keys.runs(), closed, field, running });
        } else if running.is_empty() {
            self.hash_delete(keys.runs(), field);
        } else {
            self.hash_set(keys.runs(), field, running.into_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_r11_a_field_names_running_jobs_and_the_first_closed_window() {
        let jobs = |ids: &[u64]| ids.iter().copied().map(JobId::new).collect::<BTreeSet<_>>();
        let table: [(&str, &[u64], Option<u64>); 5] = [
            ("", &[], None),
            ("7", &[7], None),
            ("18446744073709551615 7", &[7, u64::MAX], None),
            ("c7", &[], Some(7)),
            ("c18446744073709551615 9 10", &[9, 10], Some(u64::MAX)),
        ];
        for (field, running, closed) in table {
            let expected = Busy { running: jobs(running), closed: closed.map(JobId::new) };
            assert_eq!(Busy::parse(field.as_bytes()), expected, "{field:?}");
        }
    }
}
