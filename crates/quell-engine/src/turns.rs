//! Whose turn it is in the partitions of a queue of strict order (R41).
//!
//! A job holds up those behind it in its partition whether or not a worker may run it: also one of a
//! task that is paused or that no worker knows. So the first jobs of partitions are read of all tasks
//! and priorities, in the order in which they are due, until enough of them may start. Jobs that have
//! started before come first in their partitions. They are read all: there is one for each partition
//! that waits for a retry.
//!
//! What runs is read before what has started before, so that an attempt that fails meanwhile is seen as one
//! of both. Claims meet each other by the queue's turn.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use quell_core::turn::Turn;
use quell_core::{JobId, JobState, Key, QueueName, Result, TaskName};

use crate::backend::{Backend, Entry, Index, Lanes, Note, Place, Scan};
use crate::changes::{entries_of, key_of};
use crate::claim::{Found, Line, View, found};
use crate::rows::{Row, RowName};
use crate::step::Step;

/// Jobs that have started before and are read at a time: mostly that is all of them.
const MOST_BEGUN: usize = 10_000;
/// Entries of a line that are read at a time at least.
const LEAST_PAGE: usize = 16;

impl<B: Backend> Step<'_, B> {
    /// Reads whose turn it is, as far as `limit` jobs of the tasks `mine` need it: the lines of jobs without
    /// a partition, and of each priority one of the jobs that are next in their partitions.
    pub(crate) async fn read_turns(
        &mut self,
        view: &mut View,
        mine: &BTreeSet<TaskName>,
        limit: usize,
    ) -> Result<()> {
        let (queue, page) =
            (view.queue.clone(), self.page().min(limit.saturating_add(1).max(LEAST_PAGE)));
        let begun = self.begun_of(&queue).await?;
        let mut waiting = self.waiting_tasks(&queue).await?;
        waiting.extend(mine.iter().cloned());
        let mut lanes = Lanes::All;
        if self.finds_lanes() {
            view.lines = self.lines_of(&queue, mine.clone(), (Lanes::Plain, page)).await?;
            lanes = Lanes::Heads;
        }
        let mut heads = self.lines_of(&queue, waiting, (lanes, page)).await?;
        let is_one_priority = heads.windows(2).all(|two| match two {
            [one, other] => one.priority == other.priority,
            _ => true,
        });
        let mut turns: Vec<Found> =
            begun.values().filter(|found| mine.contains(&found.task)).cloned().collect();
        let (mut met, mut held, mut open) = (BTreeSet::new(), BTreeSet::new(), 0_usize);
        while let Some(head) = self.next_head(&queue, &mut heads, page).await? {
            let is_due = head.due <= self.now;
            // Of several priorities, one that is due later may start first.
            if open > limit && (is_one_priority || !is_due) {
                break;
            }
            if let Some(partition) = &head.partition {
                if begun.contains_key(partition) {
                    held.insert(partition.clone());
                    continue;
                }
                if !met.insert(partition.clone()) {
                    continue;
                }
            }
            if !mine.contains(&head.task) {
                continue;
            }
            let has_room = view.has_room(&head);
            turns.push(head);
            open = open.saturating_add(usize::from(has_room));
            if has_room && !is_due {
                break;
            }
        }
        view.begun = begun.values().map(|found| found.id).collect();
        view.suspects = begun
            .into_iter()
            .filter(|(name, _)| held.contains(name))
            .map(|(_, found)| found)
            .collect();
        view.lines.extend(lines_of_turns(turns));
        Ok(())
    }

    /// Looks at some of the jobs that hold up others because they have started before: where their rows say
    /// otherwise, as after a build that does not know this index, or where a row is gone, their entries
    /// are put right. Says whether any was.
    pub(crate) async fn mend_begun(&mut self, queue: &QueueName, some: Vec<Found>) -> Result<bool> {
        let ids: Vec<JobId> = some.iter().map(|found| found.id).collect();
        self.load_jobs(ids).await?;
        let mut places = Vec::with_capacity(some.len());
        for found in &some {
            places.push((Index::Begun(queue.clone()), found.place, found.id));
        }
        if self.sweep(places).await? {
            return Ok(true);
        }
        let mut is_mended = false;
        for found in some {
            let Some(job) = self.rows.jobs.get(&found.id).cloned() else { continue };
            let is_begun =
                |(index, ..): &(Index, Place, Option<Note>)| matches!(index, Index::Begun(_));
            let right = entries_of(&job).into_iter().find(is_begun);
            let is_right = right.as_ref().is_some_and(|(index, place, note)| {
                *index == Index::Begun(queue.clone())
                    && *place == found.place
                    && note.as_ref().is_some_and(|note| note.partition == found.partition)
            });
            if is_right {
                continue;
            }
            let name = RowName::Job(found.id);
            self.beside.leave.push((Index::Begun(queue.clone()), found.place, name.clone()));
            if let Some((index, place, note)) = right {
                self.beside.enter.push((index, Entry { place, name: name.clone(), note }));
            }
            // A step that moves the job meanwhile meets this.
            if let Some(key) = key_of(&job) {
                self.load([RowName::Key(key.clone())]).await?;
                let row = self.keys.get(&key).cloned().map(Row::Key);
                self.beside.set(RowName::Key(key), row);
            }
            self.beside.put(name, Row::Job(job));
            is_mended = true;
        }
        Ok(is_mended)
    }

    /// The next one in each partition in which a job has started before and waits to start again.
    async fn begun_of(&mut self, queue: &QueueName) -> Result<BTreeMap<Key, Found>> {
        let mut begun: BTreeMap<Key, Found> = BTreeMap::new();
        for entry in self.scan_all(Scan::first(Index::Begun(queue.clone()), MOST_BEGUN)).await? {
            let Some(task) = entry.note.as_ref().map(|note| note.task.clone()) else { continue };
            let Some(found) = found(&task, entry) else { continue };
            let Some(partition) = found.partition.clone() else { continue };
            let turn = |found: &Found| Turn::of(true, found.due, found.id);
            let is_first = begun.get(&partition).is_none_or(|first| turn(&found) < turn(first));
            if is_first {
                begun.insert(partition, found);
            }
        }
        Ok(begun)
    }

    /// The tasks that have jobs waiting in a queue.
    async fn waiting_tasks(&mut self, queue: &QueueName) -> Result<BTreeSet<TaskName>> {
        let counts = self.counts().await?.into_iter();
        let waiting = counts.filter(|one| one.queue == *queue && one.state == JobState::Scheduled);
        Ok(waiting.map(|one| one.task).collect())
    }

    /// Takes the first of these lines' jobs, by when they are due, then by id.
    async fn next_head(
        &mut self,
        queue: &QueueName,
        heads: &mut [Line],
        page: usize,
    ) -> Result<Option<Found>> {
        let mut first = None;
        for (number, line) in heads.iter_mut().enumerate() {
            self.refill(queue, line, page).await?;
            let Some(head) = line.entries.front() else { continue };
            let place = (head.due, head.id, number);
            first = Some(first.map_or(place, |first| place.min(first)));
        }
        let line = first.and_then(|(_, _, number)| heads.get_mut(number));
        Ok(line.and_then(|line| line.entries.pop_front()))
    }
}

/// A line of these jobs for each priority.
fn lines_of_turns(mut turns: Vec<Found>) -> Vec<Line> {
    turns.sort_unstable_by_key(|found| (found.place.rank, found.due, found.id));
    let mut lines: Vec<Line> = Vec::new();
    for found in turns {
        let Reverse(priority) = found.place.rank;
        match lines.last_mut().filter(|line| line.priority == priority) {
            Some(line) => line.entries.push_back(found),
            None => lines.push(Line {
                task: found.task.clone(),
                priority,
                lanes: Lanes::Heads,
                entries: [found].into(),
                more: None,
            }),
        }
    }
    lines
}
