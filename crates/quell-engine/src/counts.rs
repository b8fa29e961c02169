//! How many jobs there are: what steps pass to the backend, and what it is compared with.
//!
//! Invariant: the counts are those of the entries that have a note. So each step counts the entries that
//! it moves. As an entry stands where the row says, a step knows it without a look, unless a row cannot
//! be decoded.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::{Counts, ErrorKind, JobId, Result};
use tracing::error;

use crate::backend::{Backend, Changes, Index, Note, Place, Scan, Tally, Time, add_to};
use crate::engine::Engine;
use crate::load::PAGE;
use crate::rows::RowName;
use crate::step::Step;

/// The place of a job in an index.
type At = (Index, Place, JobId);

impl Changes {
    /// Whether it sets jobs aside, or is about such.
    fn touches_asides(&self) -> bool {
        let is_aside = |name: &RowName| matches!(name, RowName::Aside(_));
        !self.aside.is_empty() || self.rows.keys().any(is_aside)
    }
}

impl<B: Backend> Engine<B> {
    /// How many jobs there are, counted from the indexes: it costs as much as there are jobs, and is what
    /// [`Steps::counts`](quell_core::Steps::counts) is compared with.
    ///
    /// # Errors
    /// What the backend answers.
    pub async fn recount(&self) -> Result<Vec<Counts>> {
        let step = &mut self.reading(Time::Last).await?;
        Ok(rows_of(step.recount().await?))
    }
}

impl<B: Backend> Step<'_, B> {
    /// How many jobs there are of each queue and task in each state.
    pub(crate) async fn counts(&mut self) -> Result<Vec<Counts>> {
        let kept = self.kept_counts().await;
        let tally = match kept {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                error!(%error, "cannot read the counts that are kept: all entries are counted");
                self.recount().await?
            }
            // As where a build that keeps no counts has moved jobs.
            Ok(kept) if kept.values().any(|jobs| *jobs < 0) => {
                error!("the counts that are kept are wrong: all entries are counted");
                self.recount().await?
            }
            kept => kept?,
        };
        Ok(rows_of(tally))
    }

    /// The same from the indexes.
    async fn recount(&mut self) -> Result<Tally> {
        let mut indexes =
            vec![Index::Waiting, Index::Leases, Index::Ended, Index::Dead, Index::Unreadable];
        indexes.extend(self.all_lines().await?);
        let mut tally = Tally::new();
        for index in indexes {
            for entry in self.scan_all(Scan::first(index, PAGE)).await? {
                let Some(Note { queue, task, state, .. }) = entry.note else { continue };
                add_to(&mut tally, (queue, task, state), 1);
            }
        }
        Ok(tally)
    }

    /// Counts by how many the jobs become more or fewer, where the changes are about jobs that are set
    /// aside: their entries may stand where no row says, or be gone. No other step
    /// moves them meanwhile, as both change the row of the job, or that of the job set aside.
    pub(crate) async fn count_asides(&mut self, changes: &mut Changes) -> Result<()> {
        if !changes.touches_asides() {
            return Ok(());
        }
        let mut after: BTreeMap<At, Option<Note>> = BTreeMap::new();
        for (index, place, name) in &changes.leave {
            after.extend(at(index, *place, name).map(|at| (at, None)));
        }
        for (index, entry) in &changes.enter {
            let at = at(index, entry.place, &entry.name);
            after.extend(at.map(|at| (at, entry.note.clone())));
        }
        let before = match self.notes_at(after.keys().cloned().collect()).await {
            // What stands there cannot be read: they are counted where their rows say.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(()),
            before => before?,
        };
        changes.counts.clear();
        before.iter().for_each(|note| changes.count(note, -1));
        after.values().flatten().for_each(|note| changes.count(note, 1));
        Ok(())
    }

    /// The notes of the entries that are there, of these.
    async fn notes_at(&mut self, places: BTreeSet<At>) -> Result<Vec<Note>> {
        let scans = places.iter().map(|(index, place, id)| {
            let before = match index.is_descending() {
                true => id.get().saturating_add(1),
                false => id.get().saturating_sub(1),
            };
            let after = Some((*place, RowName::Job(JobId::new(before))));
            Scan { after, ..Scan::first(index.clone(), 1) }
        });
        let scans: Vec<Scan> = scans.collect();
        let seen = self.scan(&scans).await?;
        let notes = places.into_iter().zip(seen).filter_map(|((_, place, id), seen)| {
            let entry = seen.entries.into_iter().next()?;
            entry.note.filter(|_| entry.place == place && entry.name == RowName::Job(id))
        });
        Ok(notes.collect())
    }
}

/// The place of a job in an index that says how many jobs there are.
fn at(index: &Index, place: Place, name: &RowName) -> Option<At> {
    let counts = match index {
        Index::Line(..)
        | Index::Leases
        | Index::Waiting
        | Index::Ended
        | Index::Dead
        | Index::Unreadable => true,
        Index::Begun(_)
        | Index::Closed(_)
        | Index::Of(_)
        | Index::Expiry
        | Index::Plan
        | Index::Ticks
        | Index::Fired(_)
        | Index::Jobs
        | Index::Rows(_) => false,
    };
    match name {
        RowName::Job(id) if counts => Some((index.clone(), place, *id)),
        _ => None,
    }
}

fn rows_of(tally: Tally) -> Vec<Counts> {
    let rows = tally.into_iter().filter_map(|((queue, task, state), jobs)| {
        let jobs = u64::try_from(jobs).ok().filter(|jobs| *jobs > 0)?;
        Some(Counts { queue, task, state, jobs })
    });
    rows.collect()
}
