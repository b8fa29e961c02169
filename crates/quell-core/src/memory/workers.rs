//! Worker rows (R25): one for each worker process, by name and incarnation.

use super::state::State;
use crate::WorkerId;
use crate::heartbeat::{Beaten, Drained, Heartbeat, WorkerDrain, WorkerRow, Workers, outdated};

impl State {
    pub(super) fn heartbeat(&mut self, beat: &Heartbeat) -> Beaten {
        self.beat(beat);
        let place = self.place_of(&beat.worker, beat.incarnation).ok();
        let row = place.and_then(|place| self.workers.get(place));
        Beaten { drained: row.is_some_and(|row| row.drained.is_some()) }
    }

    /// Drains the processes of a worker, or resumes them.
    pub(super) fn drain_worker(&mut self, drain: &WorkerDrain) -> u64 {
        let now = self.now();
        let of_worker = |row: &&mut WorkerRow| row.worker == drain.worker && row.is_kept(now);
        let mut count = 0_u64;
        for row in self.workers.iter_mut().filter(of_worker) {
            let drained = Drained { since: now, by: drain.by.clone() };
            row.drained = drain.drains.then(|| row.drained.take().unwrap_or(drained));
            count = count.saturating_add(1);
        }
        count
    }

    fn beat(&mut self, beat: &Heartbeat) {
        let now = self.now();
        match self.place_of(&beat.worker, beat.incarnation) {
            Ok(place) => {
                if let Some(row) = self.workers.get_mut(place) {
                    *row = row.again(now, beat);
                }
            }
            Err(place) => {
                self.workers.insert(place, WorkerRow::first(now, beat));
                for (worker, incarnation) in outdated(now, &self.workers) {
                    self.remove_worker(&worker, incarnation);
                }
            }
        }
    }

    pub(super) fn remove_worker(&mut self, worker: &WorkerId, incarnation: u32) {
        if let Ok(place) = self.place_of(worker, incarnation) {
            self.workers.remove(place);
        }
    }

    pub(super) fn workers(&self) -> Workers {
        let now = self.now();
        let rows = self.workers.iter().filter(|row| row.is_kept(now)).cloned().collect();
        Workers { now, rows }
    }

    fn place_of(&self, worker: &WorkerId, incarnation: u32) -> Result<usize, usize> {
        self.workers
            .binary_search_by(|row| (&row.worker, row.incarnation).cmp(&(worker, incarnation)))
    }
}
