//! What keeps a window of a key back: attempts that run (R11), and older windows that are closed
//! (R10).
//!
//! The closed windows of a key are a sorted set, which exists only while there are any. The key's
//! field of `runs` holds the ids of the running jobs, and before them the id of the first closed
//! window after a `c`: one look at it says all that a trigger, a claim and the end of an attempt
//! need, however many windows are closed. `lua/settle.lua`, `lua/start.lua` and `lua/enqueue.lua`
//! read the field, and `lua/commit.lua` writes it where the set changes.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::part::{Part, TaskKey};
use quell_core::{Job, JobId, JobState, Result, Timestamp};

use crate::keys::{Keys, member, task_key};
use crate::load::TaskKeys;
use crate::look::{Read, job_of};
use crate::tx::{Cell, Tx};
use crate::write::{MESSAGE_ID, number};
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

/// The fields of `runs` that a step changes.
#[derive(Debug, Default)]
pub(crate) struct Changes(BTreeMap<TaskKey, Change>);

#[derive(Debug)]
struct Change {
    busy: Busy,
    /// Whether the set of closed windows changes, too.
    closes: bool,
}

impl Changes {
    /// Notes that a job of a key begins or ends to run, or to be a closed window.
    pub(crate) fn note(
        &mut self,
        writes: &mut Writes,
        tx: &Tx<'_>,
        (was, is): (Option<&Job>, Option<&Job>),
    ) {
        let Some((job, key)) = was.or(is).and_then(|job| Some((job, job.key.as_ref()?))) else {
            return;
        };
        let runs = |job: Option<&Job>| job.is_some_and(|job| job.state == JobState::Running);
        let closed = |job: Option<&Job>| job.is_some_and(Job::is_closed_window);
        let closes = closed(was) != closed(is);
        if runs(was) == runs(is) && !closes {
            return;
        }
        let task_key = (job.task.clone(), key.clone());
        let before = || Change { busy: tx.busy(&task_key), closes: false };
        let change = self.0.entry(task_key.clone()).or_insert_with(before);
        change.closes |= closes;
        if runs(is) {
            change.busy.running.insert(job.id);
        } else {
            change.busy.running.remove(&job.id);
        }
        if closes {
            let set = tx.shard.keys.closed(&task_key.0, &task_key.1);
            writes.note_closed(set, job.id, closed(is));
        }
    }

    /// Writes the fields, after the sets.
    pub(crate) fn write(self, writes: &mut Writes, keys: &Keys) {
        for (task_key, Change { busy, closes }) in self.0 {
            writes.set_busy(keys, &task_key, &busy, closes);
        }
    }
}

impl Writes {
    /// Takes a job into the closed windows of its key, or out of them.
    pub(crate) fn note_closed(&mut self, set: String, id: JobId, is_closed: bool) {
        if is_closed {
            // Of one score, the members are in the order of their ids.
            self.place(set, member(id), Timestamp::from_micros(0));
        } else {
            self.unplace(set, member(id));
        }
    }

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

impl Tx<'_> {
    /// What is busy of a key whose cells were fetched.
    pub(crate) fn busy(&self, (task, key): &TaskKey) -> Busy {
        let field = self.cell(self.shard.keys.runs(), &task_key(task, key));
        field.map(Busy::parse).unwrap_or_default()
    }

    /// Loads the windows that triggers of these keys may join. Of the other jobs of a key, what its
    /// field of `runs` says is enough.
    pub(crate) async fn load_open_windows(&mut self, task_keys: &TaskKeys) -> Result<()> {
        self.load_waiting(task_keys, |tx, task_key| tx.shown(task_key).into_iter().collect()).await
    }

    /// Loads the windows of these keys that come next: the first closed one, and where `moving` jobs
    /// are closed windows that may leave, the first one after them; and the open one if it is older.
    pub(crate) async fn load_next_windows(
        &mut self,
        task_keys: &TaskKeys,
        moving: &[JobId],
    ) -> Result<()> {
        let moving: BTreeSet<JobId> = moving.iter().copied().collect();
        let leaves = |tx: &Self, task_key: &TaskKey| {
            tx.busy(task_key).closed.is_some_and(|first| moving.contains(&first))
        };
        let sets: Vec<String> = task_keys
            .iter()
            .filter(|task_key| leaves(self, task_key))
            .map(|(task, key)| self.shard.keys.closed(task, key))
            .collect();
        self.fetch_firsts(sets, moving.len().saturating_add(1)).await?;
        self.load_waiting(task_keys, |tx, task_key| tx.next_windows(task_key, &moving)).await
    }

    /// The window that a key's hash shows, which may have ended.
    fn shown(&self, (task, key): &TaskKey) -> Option<JobId> {
        let hash = self.shard.keys.debounce(task, key);
        self.cell(hash, MESSAGE_ID).and_then(number).map(JobId::new)
    }

    fn next_windows(&self, task_key: &TaskKey, moving: &BTreeSet<JobId>) -> Vec<JobId> {
        let closed = match self.firsts.get(&self.shard.keys.closed(&task_key.0, &task_key.1)) {
            Some((_, first)) => first.iter().find(|id| !moving.contains(id)).copied(),
            None => self.busy(task_key).closed,
        };
        let is_next = |id: &JobId| !moving.contains(id) && closed.is_none_or(|closed| *id < closed);
        closed.into_iter().chain(self.shown(task_key).filter(is_next)).collect()
    }

    /// Loads windows of keys, beside the jobs that are loaded: those stay as they are.
    async fn load_waiting(
        &mut self,
        task_keys: &TaskKeys,
        windows: impl Fn(&Self, &TaskKey) -> Vec<JobId>,
    ) -> Result<()> {
        let mut others = BTreeSet::new();
        for task_key in task_keys {
            let running = self.busy(task_key).running;
            let waits = |id: &JobId| !running.contains(id) && !self.rows.jobs.contains_key(id);
            others.extend(windows(self, task_key).into_iter().filter(waits));
        }
        self.busy_keys.extend(task_keys.iter().cloned());
        self.load_jobs(others.iter().copied()).await?;
        // What has ended holds nothing back.
        for id in others {
            if self.rows.jobs.get(&id).is_some_and(|job| job.state.is_ended()) {
                self.rows.jobs.remove(&id);
            }
        }
        Ok(())
    }

    /// Reads the first members of sets of closed windows, which must be so when the step commits.
    async fn fetch_firsts(&mut self, sets: Vec<String>, count: usize) -> Result<()> {
        if sets.is_empty() {
            return Ok(());
        }
        let reads = sets.iter().map(|set| Read::lowest(set.clone(), count)).collect();
        let mut looked = self.look(reads).await?;
        for set in sets {
            let members = looked.scored()?;
            let first = members.iter().map(|(member, _)| job_of(member)).collect::<Result<_>>()?;
            self.firsts.entry(set).or_insert((count, first));
        }
        Ok(())
    }

    /// Tells the step of jobs of its keys whose rows it did not need to read.
    pub(crate) fn tell_busy(&self, part: &mut Part) {
        let jobs = self.shard.keys.jobs();
        let unread =
            |id: &JobId| !self.cells.contains_key(&Cell::new(jobs.clone(), id.to_string()));
        for task_key in &self.busy_keys {
            let Busy { running, closed } = self.busy(task_key);
            part.note_key(task_key, running.iter().any(unread), closed.filter(unread));
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
