//! One attempt: calls the handler, bounds its time, catches its panic, names what came of it.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_core::failure::Class;
use quell_core::retry::Retry;
use quell_core::{AttemptOutcome, Failure, FailureKind, Lease, Outcome, Payload, Settlement};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::panic::{Caught, Panic, caught, dropped};
use crate::clock::Clock;
use crate::failure::Classifier;
use crate::handler::{AnyHandler, Output, answer};
use crate::task::{Answer, Wait, chain};
use crate::{Ctx, spans};

/// What panicked where a handler's future was dropped.
const DROPPED: &str = "the drop of the handler's future";

/// What an attempt needs besides its context.
#[derive(Debug)]
pub(crate) struct Attempt<S> {
    pub(crate) lease: Lease,
    pub(crate) handler: AnyHandler<S>,
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
    pub(crate) lapses: u32,
    pub(crate) classify: Option<Classifier>,
}

/// An attempt's end and how it is counted.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) settlement: Settlement,
    pub(crate) counted: AttemptOutcome,
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
        let Attempt { lease, handler, payload, timeout, clock, cancelled, settled, spent, .. } =
            self;
        if let Some(outcome) = spent.poison() {
            let counted = outcome.counted();
            return Ended { settlement: Settlement { lease, outcome }, counted };
        }
        let deadline = clock.sleep_until(clock.now() + timeout);
        // The handler's answer is judged where its panics end: an error is a user's code, too.
        let mut body = std::pin::pin!(Some(async move {
            let result = handler.call(payload, ctx).await;
            let settled = settled.load(Ordering::SeqCst);
            match spent.outcome(answer(result), settled) {
                // R22: an error after the settlement counts only if the transaction did not commit.
                Outcome::Failed(failure) if settled => Outcome::InTransaction(failure),
                outcome => outcome,
            }
        }));
        let ended = tokio::select! {
            biased;
            ended = Caught(body.as_mut()) => Some(ended),
            () = deadline => {
                cancelled.cancel();
                None
            }
        };
        let outcome = match (ended, dropped(body)) {
            (Some(Ok(outcome)), Ok(())) => outcome,
            (Some(Err(panic)), _) => spent.panicked(&panic, "the handler", None),
            (Some(Ok(_)), Err(panic)) => spent.panicked(&panic, DROPPED, None),
            (None, dropped) => spent.timed_out(timeout, dropped.err()),
        };
        // What a committed transaction settled went well; the store knows whether it did commit.
        let counted = match &outcome {
            Outcome::InTransaction(_) => AttemptOutcome::Succeeded,
            outcome => outcome.counted(),
        };
        Ended { settlement: Settlement { lease, outcome }, counted }
    }
}

impl Spent {
    /// `settled` is whether the handler settled the job in a transaction of its own.
    fn outcome(&self, answer: Result<Output, Answer>, settled: bool) -> Outcome {
        match answer {
            // R22: the transaction decides.
            Ok(_) if settled => {
                let error = "the transaction that settled the job did not commit".to_owned();
                Outcome::InTransaction(self.failed(AttemptOutcome::Failed, error, Wait::Backoff))
            }
            Ok(Ok(output)) => Outcome::Succeeded { output },
            // Nothing is lost silently, and it will not fit next time either.
            Ok(Err(error)) => permanent(format!("the handler's output cannot be kept: {error}")),
            Err(Answer::Failed { error }) => self.judged(error),
            Err(Answer::Retry { wait, error }) => self.failure(AttemptOutcome::Failed, error, wait),
            Err(Answer::TimedOut { error }) => {
                self.failure(AttemptOutcome::TimedOut, error, Wait::Backoff)
            }
            Err(Answer::Permanent { error }) => permanent(error),
            Err(Answer::Snooze { delay }) => Outcome::Snoozed { delay },
            Err(Answer::Cancel { reason }) => Outcome::Cancelled { reason },
        }
    }

    /// What follows an error that the handler did not judge: what the task's classifier says.
    ///
    /// `Display` and `source` of the error, the classifier and the error's drop are a user's code. A
    /// panic in one of them is a panic of the attempt.
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
            Class::Permanent => permanent(error),
            Class::Snooze(delay) => Outcome::Snoozed { delay },
            Class::Cancel => Outcome::Cancelled { reason: error },
        }
    }

    /// R25: a job whose attempts ended without a word too often is not run again.
    fn poison(&self) -> Option<Outcome> {
        let max = self.retry.max_crashes;
        (self.lapses >= max).then(|| {
            permanent(format!(
                "not run again: its worker died or hung {} times in a row, and max_crashes is {max}",
                self.lapses
            ))
        })
    }

    fn panicked(&self, panic: &Panic, what: &str, before: Option<&str>) -> Outcome {
        self.failure(AttemptOutcome::Panicked, panic.describe(what, before), Wait::Backoff)
    }

    fn timed_out(&self, timeout: Duration, dropped: Option<Panic>) -> Outcome {
        let error = format!("the attempt took longer than its timeout of {timeout:?}");
        match dropped {
            None => self.failure(AttemptOutcome::TimedOut, error, Wait::Backoff),
            Some(panic) => self.panicked(&panic, DROPPED, Some(&error)),
        }
    }

    /// The end of an attempt whose task broke outside of the handler.
    pub(crate) fn broken(&self, lease: Lease, error: String) -> Ended {
        let outcome = self.failure(AttemptOutcome::Panicked, error, Wait::Backoff);
        Ended { settlement: Settlement { lease, outcome }, counted: AttemptOutcome::Panicked }
    }

    /// A transient failure (R24).
    fn failure(&self, ended: AttemptOutcome, error: String, wait: Wait) -> Outcome {
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

fn permanent(error: String) -> Outcome {
    let kind = FailureKind::Permanent;
    Outcome::Failed(Failure { error, ended: AttemptOutcome::Failed, kind })
}
