//! What tracing shows of triggers and attempts: the spans `quell.trigger` and `quell.attempt`, and
//! the event at the end of each attempt.
//!
//! Fields that begin with `messaging.`, `error.` and `otel.` are named by OpenTelemetry's semantic
//! conventions for messaging; the others have no name there. Nothing is computed for a span or an
//! event that no subscriber wants. Invariant: no payload and no key is ever a field.

use quell_core::{
    AttemptOutcome, Batch, ClaimedJob, JobId, Key, NewTrigger, Outcome, QueueName, Receipt, Result,
    SettledAs, TaskName,
};
use tracing::field::Empty;
use tracing::{Level, Span, debug_span, event, info_span};

/// The most of an error's text that a field has, in bytes.
const MAX_ERROR_BYTES: usize = 256;

/// The span of one attempt. It is the root of a trace: a worker's own span would hold all attempts
/// of the worker's life together.
pub(crate) fn attempt(job: &ClaimedJob, queue: &QueueName) -> Span {
    let span = attempt_with(job, queue, key_hash);
    #[cfg(feature = "opentelemetry")]
    crate::otel::link(&span, &job.traces);
    span
}

fn attempt_with(job: &ClaimedJob, queue: &QueueName, hash: impl Fn(&Key) -> String) -> Span {
    info_span!(
        target: "quell::attempt",
        parent: None,
        "quell.attempt",
        job = %job.id,
        task = job.task.as_str(),
        attempt = job.attempt,
        triggers = job.triggers,
        key_hash = job.key.as_ref().map(hash),
        otel.kind = "consumer",
        messaging.system = "quell",
        messaging.operation.type = "process",
        messaging.destination.name = queue.as_str(),
        messaging.message.id = %job.id,
        outcome = Empty,
        error.type = Empty,
        otel.status_code = Empty,
        otel.status_description = Empty,
    )
}

/// Notes in the attempt's span how the handler ended.
pub(crate) fn ended(span: &Span, outcome: &Outcome, counted: AttemptOutcome) {
    if span.is_disabled() {
        return;
    }
    span.record("outcome", counted.name());
    // What settled itself went well, as far as is known here (R22).
    if let Outcome::Failed(failure) = outcome {
        span.record("error.type", failure.ended.name());
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", first_line(&failure.error));
    }
}

/// What the event at an attempt's end names.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) task: TaskName,
    pub(crate) queue: QueueName,
    pub(crate) attempt: u32,
}

/// Reports the state of a job after the end of an attempt, once the store has answered: before that
/// it is not known whether it counts, or whether a newer job of the key absorbed this one.
pub(crate) fn settled(job: JobId, label: &Label, outcome: &Outcome, became: SettledAs) {
    let Label { task, queue, attempt } = label;
    // R22: a settlement by the handler itself carries the failure that it would be without its
    // commit.
    let (counted, error) = match became {
        SettledAs::Succeeded => (AttemptOutcome::Succeeded, None),
        _ => (outcome.counted(), why(outcome)),
    };
    let failed = outcome.failure().is_some();
    let outcome = counted.name();
    macro_rules! report {
        ($level:ident, $text:literal $(, $field:ident)*) => {
            event!(
                target: "quell::attempt",
                Level::$level,
                %job, %task, %queue, attempt, outcome, error = error.map(first_line), $(%$field,)*
                $text
            )
        };
    }
    match became {
        SettledAs::Succeeded => report!(DEBUG, "attempt succeeded"),
        SettledAs::Scheduled { due } if failed => {
            report!(INFO, "attempt failed, trying again", due);
        }
        SettledAs::Scheduled { due } => report!(DEBUG, "attempt ended, job waits", due),
        SettledAs::Absorbed { by, due } => {
            report!(INFO, "attempt ended, a newer job of the key absorbed this one", by, due);
        }
        SettledAs::Dead => report!(WARN, "job is dead"),
        SettledAs::Cancelled => report!(INFO, "handler cancelled the job"),
        // The worker warns of a lost lease.
        SettledAs::Refused => {}
        _ => report!(DEBUG, "attempt ended"),
    }
}

/// The error of a failure, or the reason of a cancellation.
fn why(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::Cancelled { reason } => Some(reason),
        _ => outcome.failure().map(|failure| failure.error.as_str()),
    }
}

/// The span of a call that sends triggers, for as long as the caller waits.
///
/// Triggers without a trace context get that of the span (R42).
pub(crate) fn trigger(batch: &mut Batch) -> Span {
    let span = trigger_span(batch);
    #[cfg(feature = "opentelemetry")]
    if let Some(context) = crate::otel::context_of(&span) {
        for trigger in batch.triggers.iter_mut().filter(|trigger| trigger.trace.is_none()) {
            trigger.trace = Some(context.clone());
        }
    }
    span
}

fn trigger_span(batch: &Batch) -> Span {
    let all = &batch.triggers;
    debug_span!(
        target: "quell::trigger",
        "quell.trigger",
        task = same(all, |trigger| trigger.task.as_str()),
        otel.kind = "producer",
        messaging.system = "quell",
        messaging.operation.type = "send",
        messaging.destination.name = same(all, |trigger| trigger.queue.as_str()),
        messaging.batch.message_count = (all.len() > 1).then_some(all.len()),
        messaging.message.id = Empty,
        outcome = Empty,
        error.type = Empty,
        otel.status_code = Empty,
        otel.status_description = Empty,
    )
}

/// Notes the store's answer in the span of a call.
pub(crate) fn triggered(span: &Span, answer: &Result<Vec<Receipt>>) {
    if span.is_disabled() {
        return;
    }
    match answer.as_deref() {
        Ok([receipt]) => {
            span.record("outcome", receipt.outcome());
            if let Some(job) = receipt.job() {
                span.record("messaging.message.id", tracing::field::display(job));
            }
        }
        Ok(_) => {}
        Err(error) => {
            span.record("error.type", tracing::field::debug(error.kind()));
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", first_line(&error.to_string()));
        }
    }
}

/// What all triggers of a call have in common; none where they differ.
fn same<'b>(all: &'b [NewTrigger], of: impl Fn(&'b NewTrigger) -> &'b str) -> Option<&'b str> {
    let first = of(all.first()?);
    all.iter().all(|trigger| of(trigger) == first).then_some(first)
}

/// The same key gives the same hash in every process, so that its lines can be found. A reader
/// who knows all possible keys can try them.
fn key_hash(key: &Key) -> String {
    let mut hash = blake3::hash(key.as_str().as_bytes()).to_hex();
    hash.truncate(16);
    hash.to_string()
}

fn first_line(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    line.get(..line.floor_char_boundary(MAX_ERROR_BYTES)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use quell_core::trace::Traces;
    use quell_core::{LeaseToken, Payload, Timestamp};
    use tracing::subscriber::{NoSubscriber, with_default};

    use super::*;

    fn claimed() -> Result<ClaimedJob> {
        let at = Timestamp::from_secs(1);
        Ok(ClaimedJob {
            id: JobId::new(7),
            token: LeaseToken::new(1),
            task: TaskName::new("t")?,
            key: Some(Key::new("secret")?),
            payload: Payload::from_stored("1"),
            attempt: 1,
            failures: 0,
            crashes: 0,
            triggers: 1,
            first_at: at,
            due_at: at,
            lease_until: at,
            traces: Traces::default(),
        })
    }

    #[test]
    fn a_span_that_is_not_wanted_computes_nothing() -> Result<()> {
        let (job, queue) = (claimed()?, QueueName::new("q")?);
        let span = with_default(NoSubscriber::default(), || {
            attempt_with(&job, &queue, |_| panic!("a key was hashed for no one"))
        });
        assert!(span.is_disabled());
        Ok(())
    }

    #[test]
    fn a_key_has_one_hash_of_sixteen_digits() -> Result<()> {
        let hash = |text| Key::new(text).map(|key| key_hash(&key));
        assert_eq!(hash("7")?, hash("7")?);
        assert_ne!(hash("7")?, hash("8")?);
        assert!(
            hash("7")?.len() == 16 && hash("7")?.chars().all(|digit| digit.is_ascii_hexdigit())
        );
        Ok(())
    }

    #[test]
    fn an_error_in_a_field_is_one_bounded_line() {
        assert_eq!(first_line("broken\nat src/app.rs"), "broken");
        assert_eq!(first_line(""), "");
        assert_eq!(first_line(&format!("x{}", "é".repeat(400))).len(), MAX_ERROR_BYTES - 1);
    }
}
