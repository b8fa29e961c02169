//! What alerts look at and keep, in the memory store (R27).

use std::collections::BTreeMap;

use super::state::State;
use crate::alert::{AlertRow, AlertState, LaneOverview, Overview};
use crate::{AlertName, Job, JobState};

impl State {
    pub(super) fn overview(&self) -> Overview {
        let mut lanes = BTreeMap::new();
        let mut lane = |job: &Job, change: &dyn Fn(&mut LaneOverview)| {
            let (queue, task) = (job.queue.clone(), job.task.clone());
            let names = (queue.clone(), task.clone());
            let empty = LaneOverview { queue, task, dead: 0, unreadable: 0, first_due: None };
            change(lanes.entry(names).or_insert(empty));
        };
        for job in self.all_jobs().filter(|job| job.state == JobState::Dead) {
            lane(job, &|lane| lane.dead = lane.dead.saturating_add(1));
        }
        for job in self.all_jobs().filter(|job| job.state == JobState::Scheduled) {
            let due = job.window.due_at;
            lane(job, &|lane| {
                lane.first_due = Some(lane.first_due.map_or(due, |first| first.min(due)));
            });
        }
        // Rows in memory are values: none is ever unreadable.
        Overview { now: self.now(), lanes: lanes.into_values().collect(), unreadable: 0 }
    }

    pub(super) fn alerts(&self) -> Vec<AlertRow> {
        let row = |(name, (version, state)): (&AlertName, &(u64, AlertState))| AlertRow {
            name: name.clone(),
            version: *version,
            state: state.clone(),
        };
        self.alerts.iter().map(row).collect()
    }

    pub(super) fn set_alert(
        &mut self,
        name: &AlertName,
        version: u64,
        to: Option<&AlertState>,
    ) -> bool {
        let known = self.alerts.get(name).map_or(0, |(version, _)| *version);
        if known != version {
            return false;
        }
        match to {
            Some(state) => {
                let row = (version.saturating_add(1), state.clone());
                self.alerts.insert(name.clone(), row);
            }
            None => drop(self.alerts.remove(name)),
        }
        true
    }
}
