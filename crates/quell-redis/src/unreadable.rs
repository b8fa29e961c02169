//! Jobs of whose rows nothing can be decoded (R25): what they keep busy is found in the indexes.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::part::TaskKey;
use quell_core::{JobId, Result};

use crate::busy::Busy;
use crate::commit::MESSAGE_ID;
use crate::keys::{member, split_task_key};
use crate::look::Read;
use crate::open::Open;
use crate::row::number;

/// Keys whose windows are read in one trip.
const MOST_KEYS: usize = 200;

impl Open {
    /// The key that a job keeps busy, and whether the job is one of its closed windows. A job that neither
    /// runs nor has closed windows beside it keeps nothing back.
    pub(crate) async fn held_key(&mut self, id: JobId) -> Result<Option<(TaskKey, bool)>> {
        let mut looked = self.look(vec![Read::All(self.keys().runs())]).await?;
        let mut busy_keys = BTreeMap::new();
        for (field, value) in looked.pairs()? {
            if let Some(task_key) = split_task_key(&field) {
                busy_keys.insert(task_key, Busy::parse(&value));
            }
        }
        let runs = busy_keys.iter().find(|(_, busy)| busy.running.contains(&id));
        if let Some((task_key, _)) = runs {
            return Ok(Some((task_key.clone(), false)));
        }
        let closed = busy_keys.iter().filter(|(_, busy)| busy.closed.is_some());
        let closed: Vec<&TaskKey> = closed.map(|(task_key, _)| task_key).collect();
        for closed in closed.chunks(MOST_KEYS) {
            let reads = closed.iter().flat_map(|(task, key)| {
                let (set, hash) = (self.keys().closed(task, key), self.keys().debounce(task, key));
                [
                    Read::Scores(set, vec![member(id)]),
                    Read::Fields(hash, vec![MESSAGE_ID.to_owned()]),
                ]
            });
            let mut looked = self.look(reads.collect()).await?;
            for task_key in closed {
                let is_closed = looked.present()?.contains(&true);
                let shown = looked.text()?.as_deref().and_then(number);
                if is_closed || shown == Some(id.get()) {
                    return Ok(Some(((*task_key).clone(), is_closed)));
                }
            }
        }
        Ok(None)
    }

    /// Which of these jobs have not ended: their rows are not read. What has ended, or is set aside, is
    /// not in the table of jobs, or in an index of ended ones.
    pub(crate) async fn waiting(&mut self, ids: &BTreeSet<JobId>) -> Result<BTreeSet<JobId>> {
        if ids.is_empty() {
            return Ok(BTreeSet::new());
        }
        let keys = self.keys();
        let members: Vec<String> = ids.iter().copied().map(member).collect();
        let fields = ids.iter().map(ToString::to_string).collect();
        let reads = vec![
            Read::Lengths(keys.jobs(), fields),
            Read::Scores(keys.ended(), members.clone()),
            Read::Scores(keys.dead(), members),
        ];
        let mut looked = self.look(reads).await?;
        let (rows, ended, dead) = (looked.numbers()?, looked.present()?, looked.present()?);
        let states = rows.into_iter().zip(ended.into_iter().zip(dead));
        let waits = |(id, (bytes, (ended, dead))): (&JobId, (u64, (bool, bool)))| {
            (bytes > 0 && !ended && !dead).then_some(*id)
        };
        Ok(ids.iter().zip(states).filter_map(waits).collect())
    }
}
