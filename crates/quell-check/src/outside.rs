//! The outside: wherever attempts broke off, it did once at most what an effect of a job asked for
//! (P19).

use std::collections::BTreeMap;

use quell_core::JobId;
use quell_core::history::Event;

use super::{Book, Found, Line, Property};

/// P19.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// Where each effect of a job was performed.
    performed: BTreeMap<(JobId, String), Vec<usize>>,
}

impl Property for Outside {
    fn on(&mut self, _: &Book, at: usize, line: &Line, _: &mut Found) {
        if let Event::Performed { job, name } = &line.event {
            self.performed.entry((*job, name.clone())).or_default().push(at);
        }
    }

    fn finish(&mut self, _: &Book, _: &[Line], found: &mut Found) {
        for ((job, name), places) in &self.performed {
            if places.len() == 1 {
                found.holds("P19");
            } else {
                let twice = format!("effect {name} of job {job} was performed more than once");
                found.broken("P19", places.iter().copied(), twice);
            }
        }
    }
}
