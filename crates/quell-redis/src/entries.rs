//! Moving rows in indexes, for a commit: most are sorted sets, and what names a job is sets of its own.

use std::collections::BTreeMap;

use quell_core::part::TaskKey;
use quell_core::{JobId, JobState, Key, Timestamp};
use quell_engine::{Entry, Index, Note, Place, RowName};

use crate::commit::{absorbed_by, lane_member, starts_field};
use crate::keys::{Keys, member, task_key};
use crate::known::Lane;
use crate::open::Open;
use crate::scan::{Sorted, id_of, member_of, score_of};
use crate::turns::begun_member;
use crate::writes::Writes;

/// The scores of members of sorted sets; none for those that are removed.
type Scores = BTreeMap<(String, String), Option<Timestamp>>;

impl Writes {
    /// Moves rows in indexes.
    pub(crate) fn entries(
        &mut self,
        open: &Open,
        enter: &[(Index, Entry)],
        leave: &[(Index, Place, RowName)],
    ) {
        let mut scores = Scores::new();
        for (index, place, name) in leave {
            if let Index::Of(job) = index {
                self.unname(open.keys(), *job, name);
            } else if let Some(at) = self.at(open, (index, *place, name), None) {
                scores.insert(at, None);
            }
        }
        for (index, Entry { place, name, note }) in enter {
            if let Index::Of(job) = index {
                self.name(open.keys(), *job, name);
            } else if let Some(at) = self.at(open, (index, *place, name), note.as_ref()) {
                // An entry of the same place is replaced, though the partition is another one.
                if let Some(was) = self.replaced(open, (index, *place, name)) {
                    scores.entry(was).or_insert(None);
                }
                scores.insert(at, Some(score(index, *place, name)));
            }
        }
        for ((key, member), score) in scores {
            match score {
                Some(score) => self.place(key, member, score),
                None => self.unplace(key, member),
            }
        }
        for (heads, line, lane) in std::mem::take(&mut self.lines) {
            self.head(heads, line, lane);
        }
    }

    /// The sorted set of an entry, and its member. The head of a line may change with it.
    fn at(
        &mut self,
        open: &Open,
        (index, place, name): (&Index, Place, &RowName),
        note: Option<&Note>,
    ) -> Option<(String, String)> {
        let keys = open.keys();
        if let Index::Begun(queue) = index {
            let (id, priority) = (id_of(name)?, place.rank.0);
            let line = match note {
                Some(Note { task, partition, .. }) => {
                    let lane = Lane { queue: queue.clone(), task: task.clone(), priority };
                    line_of(open, &lane, partition.as_ref())
                }
                None => line_before(open, id),
            };
            return Some((keys.begun(queue), begun_member(id, &line?)));
        }
        let Index::Line(queue, task) = index else {
            return Sorted::of(keys, index).map(|set| set.key).zip(member_of(name));
        };
        let id = id_of(name)?;
        let lane = Lane { queue: queue.clone(), task: task.clone(), priority: place.rank.0 };
        let line = match note {
            Some(note) => line_of(open, &lane, note.partition.as_ref()),
            None => line_before(open, id),
        };
        let line = line?;
        self.lines.insert((keys.heads(queue), keys.line(&line), line.clone()));
        Some((keys.line(&line), member(id)))
    }

    /// Where an entry of a line is that another one of the same lane replaces.
    fn replaced(
        &mut self,
        open: &Open,
        (index, place, name): (&Index, Place, &RowName),
    ) -> Option<(String, String)> {
        let was = open.jobs.get(&id_of(name)?)?;
        let is_same = match index {
            Index::Line(queue, task) => was.queue == *queue && was.task == *task,
            Index::Begun(queue) => was.queue == *queue && was.has_begun(),
            _ => return None,
        };
        let is_same = is_same && was.priority == place.rank.0;
        let is_in_line = was.state == JobState::Scheduled && !was.waits;
        if is_same && is_in_line { self.at(open, (index, place, name), None) } else { None }
    }

    /// A key or a job names another job.
    fn name(&mut self, keys: &Keys, job: JobId, name: &RowName) {
        match (name, expiry_name(name)) {
            (RowName::Job(absorbed), _) => {
                self.include(absorbed_by(keys, job), absorbed.to_string());
            }
            (_, Some(name)) => self.include(keys.names(job), name),
            // Ticks are shown with their spans.
            (_, None) => {}
        }
    }

    fn unname(&mut self, keys: &Keys, job: JobId, name: &RowName) {
        match (name, expiry_name(name)) {
            (RowName::Job(absorbed), _) => {
                self.exclude(absorbed_by(keys, job), absorbed.to_string());
            }
            (_, Some(name)) => self.exclude(keys.names(job), name),
            (_, None) => {}
        }
    }
}

/// The score of a row in the sorted set of an index.
fn score(index: &Index, place: Place, name: &RowName) -> Timestamp {
    match (index, id_of(name)) {
        (Index::Unreadable, Some(id)) => score_of(id),
        // Of one score, the members are in the order of their ids.
        (Index::Closed(_), _) => Timestamp::from_micros(0),
        _ => place.at,
    }
}

/// The line in which a job was, as its row or the line itself said when it was read.
fn line_before(open: &Open, id: JobId) -> Option<String> {
    let job = open.jobs.get(&id);
    let line = job.and_then(|job| line_of(open, &Lane::of(job), job.partition.as_ref()));
    line.or_else(|| open.lines.get(&id).cloned())
}

/// What a line of a lane is called; none where the lane has no number.
fn line_of(open: &Open, lane: &Lane, partition: Option<&Key>) -> Option<String> {
    open.known.lane_number(lane).map(|number| lane_member(number, partition))
}

/// What a row is called among those that expire, and a key among those that name a job.
pub(crate) fn expiry_name(name: &RowName) -> Option<String> {
    let of_key = |kind: &str, (task, key): &TaskKey| format!("{kind} {}", task_key(task, key));
    match name {
        RowName::Hold(key) => Some(of_key("h", key)),
        RowName::Record(key) => Some(of_key("r", key)),
        RowName::Memory(key) => Some(of_key("m", key)),
        RowName::Starts(queue, partition) => {
            Some(format!("s {}", starts_field(queue, partition.as_ref())))
        }
        _ => None,
    }
}
