//! Ends that committed although their call failed in another part.
//!
//! A call that ends several attempts may take several steps, or go to several shards. Where one of them
//! fails, the caller retries the whole call. The retry must not refuse the caller's own ends as
//! another caller's.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Lease, Settled, SettledAs, Settlement};

/// The most ends that are remembered: a caller that retries too late finds its lease lost.
const MOST: usize = 10_000;

/// The ends that have not been returned to their callers yet.
#[derive(Debug, Default)]
pub struct SettledAnswers(Mutex<BTreeMap<Lease, Settled>>);

impl SettledAnswers {
    /// Remembers what was done.
    pub fn keep<'s>(&self, settled: impl IntoIterator<Item = &'s Settled>) {
        let done = settled.into_iter().filter(|one| one.became != SettledAs::Refused);
        let mut kept = self.locked();
        kept.extend(done.map(|settled| (settled.lease, *settled)));
        while kept.len() > MOST {
            // The oldest jobs have waited longest.
            kept.pop_first();
        }
    }

    /// The results of those that are done already, by place; each is returned once.
    #[must_use]
    pub fn take(&self, settlements: &[Settlement]) -> Vec<Option<Settled>> {
        let mut kept = self.locked();
        settlements.iter().map(|one| kept.remove(&one.lease)).collect()
    }

    /// The settlements that have no answer yet, in their order.
    #[must_use]
    pub fn unanswered(
        settlements: Vec<Settlement>,
        answers: &[Option<Settled>],
    ) -> Vec<Settlement> {
        if answers.iter().all(Option::is_none) {
            return settlements;
        }
        let all = settlements.into_iter().zip(answers);
        all.filter(|(_, answer)| answer.is_none()).map(|(one, _)| one).collect()
    }

    /// Writes these answers where none is yet, in their order.
    pub fn fill(answers: &mut [Option<Settled>], new: impl IntoIterator<Item = Settled>) {
        let missing = answers.iter_mut().filter(|answer| answer.is_none());
        missing.zip(new).for_each(|(place, answer)| *place = Some(answer));
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<Lease, Settled>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use crate::{JobId, LeaseToken, Outcome};

    use super::*;

    #[test]
    fn r21_what_was_done_is_told_once_to_who_asks_again() {
        let answers = SettledAnswers::default();
        let lease = |job| Lease { job: JobId::new(job), token: LeaseToken::new(1) };
        let settled = |job, became| Settled { lease: lease(job), became };
        answers.keep(&[settled(1, SettledAs::Succeeded), settled(2, SettledAs::Refused)]);
        let ends =
            [1, 2, 3].map(|job| Settlement { lease: lease(job), outcome: Outcome::succeeded() });
        let known = settled(1, SettledAs::Succeeded);
        let mut taken = answers.take(&ends);
        assert_eq!(taken, [Some(known), None, None]);
        assert_eq!(answers.take(&ends), [None, None, None]);

        let left = SettledAnswers::unanswered(ends.to_vec(), &taken);
        assert_eq!(left.iter().map(|one| one.lease).collect::<Vec<_>>(), [lease(2), lease(3)]);
        let others = [2, 3].map(|job| settled(job, SettledAs::Refused));
        SettledAnswers::fill(&mut taken, others);
        assert_eq!(taken, [Some(known), Some(others[0]), Some(others[1])]);
    }
}
