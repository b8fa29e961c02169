//! One attempt: calls the handler within its hooks, and names how it ended.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quell_core::failure::Class;
use quell_core::idempotency::checked_output;
use quell_core::retry::Retry;
use quell_core::{
    AttemptOutcome, ClaimedJob, Failure, FailureKind, Lease, Outcome, Payload, Settlement,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::contain::{HANDLER, HOOK, Limit, contained};
use super::panic::{Panic, caught};
use crate::clock::Clock;
use crate::failure::Classifier;
use crate::handler::around::{Answered, Hooks};
use crate::handler::task::{Answer, Wait, chain};
use crate::handler::{AnyHandler, Output};
use crate::trigger::TaskPolicy;
use crate::{Ctx, TaskError, spans};

/// What an attempt needs besides its context.
#[derive(Debug)]
pub(crate) struct Attempt<S> {
    pub(crate) lease: Lease,
    pub(crate) handler: AnyHandler<S>,
    pub(crate) hooks: Hooks<S>,
    pub(crate) payload: Payload,
    pub(crate) timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) cancelled: CancellationToken,
    /// Whether the handler settled the job in a transaction of its own.
    pub(crate) settled: Arc<AtomicBool>,
    pub(crate) spent: Spent,
    pub(crate) span: Span,
}

/// What decides on a retry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    pub(crate) retry: Retry,
    pub(crate) attempt: u32,
    pub(crate) failures: u32,
    /// How often in a row the job's attempts ended without a word.
    pub(crate) crashes: u32,
    pub(crate) classify: Option<Classifier>,
}

/// An attempt's end and how it is counted.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) settlement: Settlement,
    pub(crate) counted: AttemptOutcome,
    /// The attempt has not ended but goes on elsewhere, for so long at most.
    pub(crate) goes_on: Option<Duration>,
}

impl<S: Send + Sync + 'static> Attempt<S> {
    /// Runs the attempt to its end, in its span.
    pub(crate) async fn run(self, ctx: Ctx<S>) -> Ended {
        let span = self.span.clone();
        let ended = self.run_in_span(ctx).instrument(span.clone()).await;
        spans::ended(&span, &ended.settlement.outcome, ended.counted);
        ended
    }

    async fn run_in_span(self, ctx: Ctx<S>) -> Ended {
        let Attempt { lease, handler, hooks, payload, timeout, clock, cancelled, settled, .. } =
            self;
        if let Some(outcome) = self.spent.poison() {
            let counted = outcome.counted();
            return Ended { settlement: Settlement { lease, outcome }, counted, goes_on: None };
        }
        let limit = Limit::new(clock, timeout, cancelled);
        let answer = if hooks.is_empty() {
            handled(&handler, payload, ctx, &limit, &settled).await
        } else {
            let inner = handled(&handler, payload, ctx.clone(), &limit, &settled);
            hooked(&hooks, &ctx, Box::pin(inner), &limit, &settled).await
        };
        let goes_on = match &answer {
            Err(TaskError(Answer::HandOver { within })) => Some(*within),
            Ok(_) | Err(_) => None,
        };
        let is_settled = settled.load(Ordering::SeqCst);
        let outcome = self.spent.outcome(answer, is_settled);
        // What a committed transaction settled went well; the store knows whether it did commit.
        let counted = match &outcome {
            Outcome::InTransaction(_) => AttemptOutcome::Succeeded,
            outcome => outcome.counted(),
        };
        let goes_on = goes_on.filter(|_| !is_settled);
        Ended { settlement: Settlement { lease, outcome }, counted, goes_on }
    }
}

/// Calls the handler.
async fn handled<S: Send + Sync + 'static>(
    handler: &AnyHandler<S>,
    payload: Payload,
    ctx: Ctx<S>,
    limit: &Limit,
    settled: &AtomicBool,
) -> Answered {
    let timed_out = || limit.text();
    if limit.is_over() {
        let (ended, error) = (AttemptOutcome::TimedOut, timed_out());
        return Err(TaskError(Answer::Broke { ended, error }));
    }
    let call = async move { handler.call(payload, ctx).await };
    let answer = contained(call, limit.of_handler(), &HANDLER, timed_out).await??;
    kept(answer, settled, "the handler's output")
}

/// Calls the hooks, within which the handler is called.
async fn hooked<'a, S: Send + Sync + 'static>(
    hooks: &'a Hooks<S>,
    ctx: &'a Ctx<S>,
    handler: BoxFuture<'a, Answered>,
    limit: &Limit,
    settled: &AtomicBool,
) -> Answered {
    let (call, timed_out) = (hooks.around(ctx, handler), || format!("{}, in a hook", limit.text()));
    let answer = contained(call, limit.of_hooks(), &HOOK, timed_out).await??;
    kept(answer.map_or(Ok(None), checked_output), settled, "the output that a hook returned")
}

/// An output that can be kept. After a settlement none is (R22); else nothing is lost silently, and
/// it will not fit next time either.
fn kept(output: Output, settled: &AtomicBool, what: &str) -> Answered {
    output.or_else(|error| {
        if settled.load(Ordering::SeqCst) {
            return Ok(None);
        }
        Err(TaskError::permanent(format!("{what} cannot be kept: {error}")))
    })
}

impl Spent {
    /// What decides on a retry of a job that was claimed.
    pub(crate) fn of(policy: &TaskPolicy, job: &ClaimedJob) -> Self {
        Spent {
            retry: *policy.retry(),
            attempt: job.attempt,
            failures: job.failures,
            crashes: job.crashes,
            classify: policy.classify(),
        }
    }

    /// `settled` is whether the handler settled the job in a transaction of its own.
    fn outcome(&self, answer: Answered, settled: bool) -> Outcome {
        match answer {
            // R22: the transaction decides.
            Ok(_) if settled => {
                let error = "the transaction that settled the job did not commit".to_owned();
                Outcome::InTransaction(self.failed(AttemptOutcome::Failed, error, Wait::Backoff))
            }
            Ok(output) => Outcome::Succeeded { output },
            Err(TaskError(Answer::Broke { ended, error })) => {
                self.failure(ended, error, Wait::Backoff)
            }
            // R22: an error after the settlement counts only if the transaction did not commit.
            Err(TaskError(answer)) => match self.answered(answer) {
                Outcome::Failed(failure) if settled => Outcome::InTransaction(failure),
                outcome => outcome,
            },
        }
    }

    fn answered(&self, answer: Answer) -> Outcome {
        match answer {
            Answer::Failed { error } => self.judged(error),
            Answer::Retry { wait, error } => self.failure(AttemptOutcome::Failed, error, wait),
            Answer::TimedOut { error } => {
                self.failure(AttemptOutcome::TimedOut, error, Wait::Backoff)
            }
            Answer::Broke { ended, error } => self.failure(ended, error, Wait::Backoff),
            Answer::Permanent { error } => permanent(AttemptOutcome::Failed, error),
            Answer::Snooze { delay } => Outcome::Snoozed { delay },
            Answer::Cancel { reason } => Outcome::Cancelled { reason },
            // It is not settled, unless by its own transaction.
            Answer::HandOver { .. } => Outcome::Released,
        }
    }

    /// The outcome of an error that the handler did not classify: the task's classifier decides.
    ///
    /// `Display` and `source` of the error, the classifier and the error's drop are a user's code.
    /// A panic in one of them is a panic of the attempt.
    fn judged(&self, error: Box<dyn StdError + Send + Sync>) -> Outcome {
        let text = match caught(|| chain(&*error)) {
            Ok(text) => text,
            Err(panic) => {
                let dropped = caught(|| drop(error));
                let again = dropped.err().map(|again| again.describe("the error's drop", None));
                let what = "the text of the handler's error";
                return self.panicked(&panic, what, again.as_deref());
            }
        };
        let class = self.classify.map(|classify| caught(|| classify(&*error)));
        match (class.unwrap_or(Ok(Class::default())), caught(|| drop(error))) {
            (Ok(class), Ok(())) => self.classified(text, class),
            (Err(panic), _) => self.panicked(&panic, "the task's classifier", Some(&text)),
            (Ok(_), Err(panic)) => {
                self.panicked(&panic, "the drop of the handler's error", Some(&text))
            }
        }
    }

    fn classified(&self, error: String, class: Class) -> Outcome {
        match class {
            Class::Transient => self.failure(AttemptOutcome::Failed, error, Wait::Backoff),
            Class::RetryAfter(delay) => {
                self.failure(AttemptOutcome::Failed, error, Wait::AtLeast(delay))
            }
            Class::Permanent => permanent(AttemptOutcome::Failed, error),
            Class::Snooze(delay) => Outcome::Snoozed { delay },
            Class::Cancel => Outcome::Cancelled { reason: error },
        }
    }

    /// R25: a job whose attempts ended without a word too often is not run again.
    pub(crate) fn poison(&self) -> Option<Outcome> {
        let max = self.retry.max_crashes;
        (self.crashes >= max).then(|| {
            let error = format!(
                "not run again: its worker died or hung {} times in a row, and max_crashes is {max}",
                self.crashes
            );
            permanent(AttemptOutcome::Failed, error)
        })
    }

    fn panicked(&self, panic: &Panic, what: &str, before: Option<&str>) -> Outcome {
        self.failure(AttemptOutcome::Panicked, panic.describe(what, before), Wait::Backoff)
    }

    /// The end of an attempt whose task broke outside of the handler.
    pub(crate) fn broken(&self, lease: Lease, error: String) -> Ended {
        let outcome = self.failure(AttemptOutcome::Panicked, error, Wait::Backoff);
        let counted = AttemptOutcome::Panicked;
        Ended { settlement: Settlement { lease, outcome }, counted, goes_on: None }
    }

    /// A transient failure (R24).
    pub(crate) fn failure(&self, ended: AttemptOutcome, error: String, wait: Wait) -> Outcome {
        Outcome::Failed(self.failed(ended, error, wait))
    }

    fn failed(&self, ended: AttemptOutcome, error: String, wait: Wait) -> Failure {
        let failures = self.failures.saturating_add(1);
        let asked = !matches!(wait, Wait::Backoff);
        let backoff = || self.retry.backoff(failures, fastrand::f64());
        let backoff = match wait {
            Wait::Backoff => backoff(),
            Wait::Exactly(delay) => delay,
            Wait::AtLeast(delay) => delay.max(backoff()),
        };
        let last = self.attempt >= self.retry.max_attempts;
        Failure { error, ended, kind: FailureKind::Transient { backoff, last, asked } }
    }
}

/// A failure that no retry can help (R25).
pub(crate) fn permanent(ended: AttemptOutcome, error: String) -> Outcome {
    Outcome::Failed(Failure { error, ended, kind: FailureKind::Permanent })
}
