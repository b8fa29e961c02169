//! The policies that a job's triggers brought, as their calls say.

use quell_core::trigger::When;
use quell_core::window::Debounce;
use quell_core::{Fold, JobId, Timestamp, TriggerId};

use super::Book;
use super::views::JobView;

/// One trigger of a job.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) seq: u64,
    pub(super) t: Timestamp,
    pub(super) debounce: Debounce,
    pub(super) when: When,
    pub(super) fold: Option<Fold>,
}

/// What calls asked for, of the triggers that joined a job and are of a known call, in their order.
#[derive(Clone, Debug)]
pub(super) struct Policies(pub(super) Vec<Step>);

impl Policies {
    pub(super) fn of(book: &Book, id: JobId, job: &JobView) -> Self {
        let of_job = TriggerId { job: id, seq: 0 }..=TriggerId { job: id, seq: u64::MAX };
        let known = book.triggers.range(of_job).filter_map(|(trigger, op)| {
            let op = book.ops.get(op)?;
            // A queue's own thresholds may have taken the place of a default.
            let debounce = op.debounce.filter(|debounce| !debounce.from_default)?;
            let t = job.joined_at(trigger.seq)?.t;
            Some(Step { seq: trigger.seq, t, debounce, when: op.when, fold: op.fold.clone() })
        });
        Policies(known.collect())
    }

    /// Those up to a place, if each trigger up to there is known; absorbed ones are of other jobs.
    pub(super) fn upto(&self, job: &JobView, place: u64) -> Option<&[Step]> {
        let upto = self.0.partition_point(|step| step.seq <= place);
        let known = self.0.get(..upto)?;
        let joined = job.joins.iter().filter(|joined| joined.after < place);
        let count: u64 = joined.map(|joined| joined.upto.min(place) - joined.after).sum();
        (u64::try_from(known.len()) == Ok(count)).then_some(known)
    }
}

impl Step {
    /// The moment before which its call asked not to run, if it did.
    pub(super) fn asked(&self) -> Option<Timestamp> {
        match self.when {
            When::Now => None,
            When::After(delay) => Some(self.t + delay),
            When::At(at) => Some(at),
        }
    }

    /// Whether the window was as full as the call of this trigger asked for.
    pub(super) fn is_full(&self) -> bool {
        let most = self.debounce.max_triggers.map(u64::from);
        let cap = match self.fold {
            Some(Fold::Collect { cap }) => Some(u64::from(cap)),
            _ => None,
        };
        most.into_iter().chain(cap).any(|limit| self.seq >= limit)
    }
}
