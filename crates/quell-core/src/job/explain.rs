//! What happened and why, for people (R15).
//!
//! A store gathers an [`Explanation`]; its `Display` is what `quell explain` prints.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::dropped;
use crate::schedule::{Tick, TickedBy};
use crate::setters::setters;
use crate::window::DueReason;
use crate::{Attempt, Effect, Job, JobId, JobState, Origin, Past, TriggerId};

/// Everything known of one job: which triggers it took, why it was due when it was, which attempts
/// ran and what they did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The trigger that was asked about, if it was one.
    pub trigger: Option<TriggerId>,
    /// The job that took it.
    pub job: Job,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// Jobs of its key that failed and joined it (R12).
    pub absorbed: Vec<JobId>,
    /// The open window of its key, if that is another job.
    pub open_window: Option<JobId>,
    /// What the keys of its task look like.
    pub keys: Option<KeyAdvice>,
    /// The newest ticks of schedules among its triggers (R36), oldest first.
    #[serde(default)]
    pub ticks: Vec<Tick>,
    /// Its payload and origin before an operator edited or imported it.
    #[serde(default)]
    pub past: Past,
    /// Its recorded effects, by name (R23).
    #[serde(default)]
    pub effects: Vec<Effect>,
}

impl Explanation {
    /// What is known of a job from its row and its attempts alone.
    #[must_use]
    pub fn new(job: Job, attempts: Vec<Attempt>) -> Self {
        Explanation {
            trigger: None,
            job,
            attempts,
            absorbed: Vec::new(),
            open_window: None,
            keys: None,
            ticks: Vec::new(),
            past: Past::default(),
            effects: Vec::new(),
        }
    }
}

setters!(Explanation {
    trigger? TriggerId,
    absorbed: Vec<JobId>,
    open_window? JobId,
    keys? KeyAdvice,
    ticks: Vec<Tick>,
    past: Past,
    effects: Vec<Effect>,
});

/// How well the debounce of a task gathers, over its newest keyed jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyAdvice {
    /// How many jobs were looked at.
    pub jobs: u64,
    /// How many triggers they took.
    pub triggers: u64,
}

impl KeyAdvice {
    /// This number of jobs, with their triggers.
    #[must_use]
    pub fn new(jobs: u64, triggers: u64) -> Self {
        KeyAdvice { jobs, triggers }
    }

    /// The most jobs that a store looks at.
    pub const SAMPLE: u64 = 1_000;

    /// Whether keys differ on almost every trigger, so that the debounce does nothing.
    #[must_use]
    pub fn is_useless(&self) -> bool {
        self.jobs >= 50 && self.triggers.saturating_mul(20) < self.jobs.saturating_mul(21)
    }
}

/// Why a job is due when it is, in words.
#[must_use]
pub fn describe_reason(reason: DueReason) -> &'static str {
    match reason {
        DueReason::Immediate => "at once: nothing asked it to wait",
        DueReason::Delayed => "the delay that a trigger asked for",
        DueReason::Quiet => "the quiet period (min) after the last trigger",
        DueReason::Max => "the longest delay (max) after the first trigger",
        DueReason::MaxTriggers => "the number of triggers reached max_triggers",
        DueReason::CollectFull => "collect reached its cap",
        DueReason::Flushed => "an operator made it due: a flush, or run now",
        DueReason::Leading => "the leading edge: the key was quiet before",
        DueReason::Throttled => "the throttle: one period after the start before it",
        DueReason::Backoff => "the backoff after a failed attempt",
        DueReason::Snoozed => "the handler asked to be run later",
        DueReason::Released => "a worker gave it back when it shut down",
        DueReason::LeaseExpired => "its lease expired and it was taken back",
        DueReason::Redriven => "an operator redrove the dead job",
        DueReason::Full => "the next trigger did not fit into the window",
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = &self.job;
        if let Some(trigger) = self.trigger {
            writeln!(f, "trigger {trigger} was taken by job {}", job.id)?;
        }
        writeln!(f, "job {} of task {} in queue {}: {}", job.id, job.task, job.queue, job.state)?;
        match &job.key {
            Some(key) => writeln!(f, "  key        {key}")?,
            None => writeln!(f, "  key        none, so the task's debounce does not apply to it")?,
        }
        if let Some(Origin { job, first_at }) = self.past.origin {
            writeln!(f, "  imported   it was job {job} where it was accepted, {first_at}")?;
        }
        self.fmt_triggers(f)?;
        if let Some(original) = &self.past.original {
            writeln!(f, "  edited     its payload; before it was {}", original.as_str())?;
        }
        let (due, reason) = (job.window.due_at, describe_reason(job.window.reason));
        writeln!(f, "  due        {due}: {reason}")?;
        if job.is_closed_window() {
            writeln!(f, "  closed     it is full: newer triggers of the key are in other windows")?;
        }
        if job.waits {
            writeln!(f, "  waits      an attempt of its key is running, or an older window waits")?;
        }
        self.fmt_attempts(f)?;
        for effect in &self.effects {
            writeln!(f, "  effect     {effect}")?;
        }
        for absorbed in &self.absorbed {
            writeln!(f, "  absorbed   job {absorbed}, which failed")?;
        }
        if let Some(successor) = job.absorbed_by {
            writeln!(f, "  absorbed   by job {successor}: see it for what happened next")?;
        }
        if let Some(window) = self.open_window {
            writeln!(f, "  window     job {window} gathers newer triggers of the key")?;
        }
        self.fmt_end(f)
    }
}

impl Explanation {
    fn fmt_triggers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = &self.job;
        let window = &job.window;
        match window.triggers {
            1 => {
                writeln!(f, "  trigger    {}, accepted {}", job.newest_trigger(), window.first_at)?
            }
            count => writeln!(
                f,
                "  triggers   {count} ({}.1 to {}), first {}, last {}",
                job.id,
                job.newest_trigger(),
                window.first_at,
                window.last_at
            )?,
        }
        let mut traces: Vec<String> = Vec::new();
        for context in job.traces.iter() {
            let trace = context.trace_id().to_owned();
            traces.extend((!traces.contains(&trace)).then_some(trace));
        }
        if !traces.is_empty() {
            writeln!(f, "  traces     {}", traces.join("\n             "))?;
        }
        for Tick { schedule, tick, by, .. } in &self.ticks {
            let by = match by {
                TickedBy::Plan => "",
                TickedBy::Backfill => ", by a backfill",
            };
            writeln!(f, "  schedule   {schedule}, its tick of {tick}{by}")?;
        }
        if job.suppressed > 0 {
            writeln!(f, "  not run    {} of them, by the leading edge's choice", job.suppressed)?;
        }
        Ok(())
    }

    /// How many of the job's attempts are not on record any more (R25).
    #[must_use]
    pub fn dropped_attempts(&self) -> u64 {
        dropped(&self.job, &self.attempts)
    }

    fn fmt_attempts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gap, after) = (self.dropped_attempts(), Attempt::FIRST_KEPT.saturating_add(1));
        let gap_at = self.attempts.iter().position(|attempt| attempt.token.starts() > after);
        for (index, attempt) in self.attempts.iter().enumerate() {
            if gap > 0 && gap_at == Some(index) {
                writeln!(f, "  ...        {gap} attempts more, which are not kept")?;
            }
            let (token, worker, start) =
                (attempt.token.starts(), &attempt.worker, attempt.started_at);
            write!(f, "  attempt {token:<2} {start} on {worker}: ")?;
            match (attempt.outcome, attempt.ended_at) {
                (Some(outcome), Some(end)) => {
                    write!(f, "{} after {:?}", outcome.name(), end.since(start))?;
                }
                (Some(outcome), None) => f.write_str(outcome.name())?,
                (None, _) => f.write_str("running")?,
            }
            match &attempt.error {
                Some(error) => writeln!(f, ": {}", error.replace('\n', "\n             "))?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }

    fn fmt_end(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (JobState::Cancelled, Some(reason)) = (self.job.state, &self.job.error) {
            writeln!(f, "  cancelled  {reason}")?;
        }
        match self.keys {
            Some(keys) if keys.is_useless() => writeln!(
                f,
                "  note       the keys of this task differ on almost every trigger ({} triggers in \
                 {} jobs): its debounce does nothing. Look at the key function.",
                keys.triggers, keys.jobs
            ),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceContext;

    fn explained(advice: Option<KeyAdvice>, suppressed: u64) -> String {
        let trigger = crate::NewTrigger::new(
            crate::TaskName::new("t").unwrap(),
            crate::QueueName::new("q").unwrap(),
            crate::Payload::from_stored("1"),
        );
        let parent = |span: u32| format!("00-{:032x}-{span:016x}-01", if span < 3 { 1 } else { 2 });
        let contexts = [1, 2, 3].map(|span| TraceContext::new(&parent(span), None).unwrap());
        let job = Job::unkeyed(JobId::new(3), &trigger, crate::Timestamp::from_secs(0));
        let job = Job { traces: contexts.iter().collect(), ..job };
        Explanation {
            trigger: None,
            job: Job { suppressed, ..job },
            attempts: Vec::new(),
            absorbed: Vec::new(),
            open_window: None,
            keys: advice,
            ticks: Vec::new(),
            past: Past::default(),
            effects: Vec::new(),
        }
        .to_string()
    }

    #[test]
    fn r15_keys_are_useless_from_fifty_jobs_on_with_hardly_more_triggers() {
        let useless = |jobs, triggers| KeyAdvice { jobs, triggers }.is_useless();
        assert!(useless(50, 50) && useless(1_000, 1_049));
        assert!(!useless(49, 49) && !useless(1_000, 1_050) && !useless(20, 90));
    }

    #[test]
    fn r15_notes_are_there_when_there_is_something_to_note() {
        let note = "differ on almost every trigger";
        assert!(explained(Some(KeyAdvice { jobs: 60, triggers: 60 }), 0).contains(note));
        assert!(!explained(Some(KeyAdvice { jobs: 60, triggers: 600 }), 0).contains(note));
        assert!(!explained(None, 0).contains("not run"));
        assert!(explained(None, 2).contains("not run    2 of them"));
        let traces = format!("  traces     {:032x}\n             {:032x}\n", 1, 2);
        assert!(explained(None, 0).contains(&traces), "{}", explained(None, 0));
        assert!(explained(None, 0).contains("key        none, so the task's debounce does not"));
    }
}
