//! When a worker claims nothing more (R29): at a shutdown, for a successor, or because an operator drains it.

use quell_core::heartbeat::Beaten;
use quell_core::{Result, Timestamp};
use tracing::info;

use super::{Machine, Phase};

impl Machine {
    /// R29: stops claiming at once and releases what has not started.
    pub(super) fn on_shutdown(&mut self, now: Timestamp) {
        match self.phase {
            Phase::Working => self.release(self.waiting.len()),
            Phase::Draining { deadline: None } => {}
            Phase::Draining { deadline: Some(_) } | Phase::Releasing { .. } => return,
        }
        self.phase = Phase::Draining { deadline: Some(now + self.bounds.grace) };
    }

    /// A heartbeat was answered. R29: one that an operator drains claims nothing and releases what has not
    /// started, until a heartbeat says otherwise.
    pub(super) fn on_beaten(&mut self, answer: Result<Beaten>, now: Timestamp) {
        if let Ok(Beaten { drained }) = &answer
            && *drained != self.drained
        {
            self.drained = *drained;
            if self.drained {
                info!("an operator drains this worker, claiming nothing more");
                self.release(self.waiting.len());
            } else {
                info!("this worker is drained no longer, claiming again");
            }
        }
        self.pulse.answered(answer.map(drop), now);
    }

    /// Stops claiming at once and releases what has not started; what runs may go on.
    pub(super) fn on_drain(&mut self) {
        if self.phase == Phase::Working {
            self.phase = Phase::Draining { deadline: None };
            self.release(self.waiting.len());
        }
    }
}
