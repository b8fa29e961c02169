//! What a worker elsewhere reports of an attempt, and what becomes of its job (R12, R24, R25).

use std::time::Duration;

use futures_util::StreamExt;
use quell_core::idempotency::checked_output;
use quell_core::retry::Retry;
use quell_core::{AttemptOutcome, JobState, Outcome, Payload, Result, SettledAs, Settlement};

use super::super::attempt::{Spent, permanent};
use super::{MAX_JOBS, PullLease, PullTasks, within};
use crate::handler::task::Wait;
use crate::spans::{self, Label};

/// How many refused settlements are looked up at once.
const READS: usize = 16;

/// The answer to a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PullSettled {
    /// What became of the job.
    pub became: SettledAs,
    /// The same attempt had ended so before: its answer got lost, and this one changed nothing.
    pub is_repeat: bool,
}

/// How an attempt of a worker elsewhere ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullOutcome {
    /// It ended well.
    Succeeded {
        /// What the handler returned, if anything. One that is too large to keep fails the attempt
        /// for good, as that of a handler in this process does.
        output: Option<Payload>,
    },
    /// It failed.
    Failed {
        /// Why.
        error: String,
        /// Whether a retry cannot help.
        permanent: bool,
        /// The delay that the handler wants; the policy's backoff where there is none.
        retry_in: Option<Duration>,
        /// Whether it took too long.
        timed_out: bool,
    },
    /// The handler asked to be run again after a delay; no attempt is spent.
    Snoozed {
        /// How long to wait.
        delay: Duration,
    },
    /// The worker gives the job back unfinished; no attempt is spent (R29).
    Released,
    /// The handler ended the job without success.
    Cancelled {
        /// Why.
        reason: String,
    },
}

impl PullOutcome {
    /// It ended well and returned nothing.
    #[must_use]
    pub const fn succeeded() -> Self {
        PullOutcome::Succeeded { output: None }
    }

    /// Whether it counts as a failure, where failures are counted.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, PullOutcome::Failed { .. })
    }

    /// Whether it counts as a success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, PullOutcome::Succeeded { .. })
    }
}

impl PullTasks {
    /// Ends attempts. The answers are in the order of the settlements. A lease that was lost is
    /// refused, and so is a repeat of a settlement that was taken, unless the job has ended so.
    ///
    /// A settlement that the store can never take has its own error, and fails no other.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a request that is out of bounds; errors
    /// of the store where it takes none of the settlements.
    pub async fn settle(
        &self,
        ended: Vec<(PullLease, PullOutcome)>,
    ) -> Result<Vec<Result<PullSettled>>> {
        within("settlements", ended.len(), MAX_JOBS, "settlements")?;
        let settlement = |(lease, outcome): &(PullLease, PullOutcome)| {
            // A task may have left the configuration since: what was done of it counts all the same.
            let known = self.tasks.get(&lease.task);
            let spent = Spent {
                retry: known.map_or_else(Retry::default, |task| *task.policy.retry()),
                attempt: lease.attempt,
                failures: lease.failures,
                crashes: 0,
                classify: None,
            };
            Settlement { lease: lease.lease, outcome: outcome_of(outcome.clone(), &spent) }
        };
        let settlements: Vec<Settlement> = ended.iter().map(settlement).collect();
        let mut answers = self.settle_apart(&settlements).await?;
        let mut refused = Vec::new();
        for (place, ((lease, _), settlement)) in ended.iter().zip(settlements).enumerate() {
            match answers.get(place).and_then(|answer| answer.as_ref().ok()) {
                Some(PullSettled { became: SettledAs::Refused, .. }) => {
                    refused.push((place, settlement));
                }
                Some(answer) => self.report(lease, &settlement.outcome, answer.became),
                None => {}
            }
        }
        let look = |(place, settlement): (usize, Settlement)| async move {
            (place, self.ended_before(&settlement).await)
        };
        let mut looks = futures_util::stream::iter(refused.into_iter().map(look)).buffered(READS);
        while let Some((place, before)) = looks.next().await {
            if let (Some(became), Some(answer)) = (before, answers.get_mut(place)) {
                *answer = Ok(PullSettled { became, is_repeat: true });
            }
        }
        Ok(answers)
    }

    /// How a job has ended by the same attempt: then the settlement is a repeat whose first answer
    /// got lost. Where the store does not say, it is refused.
    async fn ended_before(&self, settlement: &Settlement) -> Option<SettledAs> {
        let (state, became) = match settlement.outcome {
            Outcome::Succeeded { .. } => (JobState::Succeeded, SettledAs::Succeeded),
            Outcome::Failed(_) => (JobState::Dead, SettledAs::Dead),
            _ => return None,
        };
        let job = self.quell.store().job(settlement.lease.job).await.ok()??;
        (job.token == settlement.lease.token && job.state == state).then_some(became)
    }

    /// Counts the end of an attempt, and reports it as a worker of this process would.
    fn report(&self, lease: &PullLease, outcome: &Outcome, became: SettledAs) {
        let Some(task) = self.tasks.get(&lease.task) else { return };
        task.metrics.ended(outcome.counted(), self.store_now().since(lease.started_at));
        let (task, queue) = (lease.task.clone(), task.policy.queue().clone());
        let label = Label { task, queue, attempt: lease.attempt };
        spans::settled(lease.lease.job, &label, outcome, became);
    }
}

fn outcome_of(reported: PullOutcome, spent: &Spent) -> Outcome {
    match reported {
        PullOutcome::Succeeded { output } => match output.map_or(Ok(None), checked_output) {
            Ok(output) => Outcome::Succeeded { output },
            Err(error) => {
                let error = format!("the worker's output cannot be kept: {error}");
                permanent(AttemptOutcome::Failed, error)
            }
        },
        PullOutcome::Failed { error, permanent: is_permanent, retry_in, timed_out } => {
            let ended = if timed_out { AttemptOutcome::TimedOut } else { AttemptOutcome::Failed };
            if is_permanent {
                return permanent(ended, error);
            }
            let wait = retry_in.map_or(Wait::Backoff, Wait::Exactly);
            spent.failure(ended, error, wait)
        }
        PullOutcome::Snoozed { delay } => Outcome::Snoozed { delay },
        PullOutcome::Released => Outcome::Released,
        PullOutcome::Cancelled { reason } => Outcome::Cancelled { reason },
    }
}
