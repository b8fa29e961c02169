//! Log lines that strangers can cause: one now and then, with the number of those between.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far lines are apart at least.
const APART: Duration = Duration::from_secs(60);

/// The lines of one cause.
#[derive(Debug, Default)]
pub(super) struct Quiet(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    last: Option<Instant>,
    held_back: u64,
}

impl Quiet {
    /// The number of lines that were held back before one that is due now; none where that is held back,
    /// too.
    pub(super) fn pass(&self, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.last.is_some_and(|last| now.saturating_duration_since(last) < APART) {
            lines.held_back = lines.held_back.saturating_add(1);
            return None;
        }
        lines.last = Some(now);
        Some(std::mem::take(&mut lines.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_once_a_minute_and_has_the_number_of_those_held_back() {
        let (quiet, begin) = (Quiet::default(), Instant::now());
        let at = |secs| quiet.pass(begin + Duration::from_secs(secs));
        let passed = [0, 1, 30, 59, 60, 61, 200].map(at);
        assert_eq!(passed, [Some(0), None, None, None, Some(3), None, Some(1)]);
    }
}
