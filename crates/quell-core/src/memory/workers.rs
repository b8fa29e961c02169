//! Worker rows (R25): one for each worker process, by name and incarnation.

use super::state::State;
use crate::WorkerId;
use crate::heartbeat::{Heartbeat, WorkerRow, Workers, outdated};

impl State {
    pub(super) fn heartbeat(&mut self, beat: &Heartbeat) {
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
