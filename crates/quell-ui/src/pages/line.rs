//! The one line of time of a job: its triggers, its window, its attempts, its effects, its end.

use minijinja::context;
use minijinja::value::Value as Shown;
use serde_json::Value;

use crate::text;

/// Something that happened, or will.
#[derive(Debug, Default)]
pub(crate) struct Moment {
    at: String,
    /// `trigger`, `window`, `wait`, `attempt`, `failure`, `effect`, `success` or `end`.
    kind: &'static str,
    title: String,
    /// More about it.
    more: Option<String>,
    /// Lines of a log.
    log: Vec<String>,
    /// Where more of it is.
    link: Option<(String, String)>,
}

impl Moment {
    fn new(at: &Value, kind: &'static str, title: impl Into<String>) -> Option<Self> {
        let (at, title) = (at.as_str()?.to_owned(), title.into());
        Some(Moment { at, kind, title, ..Moment::default() })
    }

    fn more(self, more: Option<String>) -> Self {
        Moment { more, ..self }
    }

    /// It, for a template.
    pub(crate) fn shown(&self) -> Shown {
        let Moment { at, kind, title, more, log, link } = self;
        context! {
            at, kind => *kind, title, more, log => log.clone(),
            url => link.as_ref().map(|(url, _)| url), label => link.as_ref().map(|(_, label)| label),
        }
    }
}

/// All of a job, the earliest first. What has no time of its own is left to the page.
pub(crate) fn of(found: &Value, prefix: String) -> Vec<Moment> {
    let mut line = window(&found["job"]);
    line.extend(list(&found["ticks"]).filter_map(|tick| tick_of(tick, &prefix)));
    let dropped = found["attempts_dropped"].as_u64().unwrap_or_default();
    let attempts = list(&found["attempts"]).zip(dropped.saturating_add(1)..);
    line.extend(attempts.flat_map(|(attempt, number)| attempt_of(attempt, number)));
    line.extend(list(&found["effects"]).flat_map(effect_of));
    line.extend(end(&found["job"], &prefix));
    // RFC 3339 in UTC sorts by its moment once its fraction has a fixed length.
    line.sort_by_key(|moment| moment.at.parse::<jiff::Timestamp>().ok());
    line
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn words(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The triggers and the window.
fn window(job: &Value) -> Vec<Moment> {
    let triggers = job["triggers"].as_u64().unwrap_or_default();
    let first = Moment::new(&job["first_at"], "trigger", "First trigger accepted");
    let last = Moment::new(&job["last_at"], "trigger", format!("Last of {triggers} triggers"));
    let not_run = job["not_run"].as_u64().filter(|not_run| *not_run > 0);
    let not_run = not_run.map(|not_run| format!("{not_run} of them did not run on their own"));
    let last = last.filter(|_| triggers > 1).map(|last| last.more(not_run));
    let due = Moment::new(&job["due_at"], "window", "Due");
    let due = due.map(|due| due.more(words(&job["due_because"])));
    let before = Moment::new(&job["not_before"], "wait", "Runs no earlier");
    let before = before.filter(|before| Some(before.at.as_str()) != job["due_at"].as_str());
    [first, last, due, before].into_iter().flatten().collect()
}

fn tick_of(tick: &Value, prefix: &str) -> Option<Moment> {
    let name = tick["schedule"].as_str().unwrap_or_default();
    let title = match tick["by"].as_str() {
        Some("backfill") => "Tick of a schedule, by a backfill",
        _ => "Tick of a schedule",
    };
    let moment = Moment::new(&tick["tick"], "trigger", title)?;
    let url = format!("{prefix}/schedules/{}", text::encode(name));
    Some(Moment { link: Some((url, name.to_owned())), ..moment })
}

/// The start of an attempt, and its end.
fn attempt_of(attempt: &Value, number: u64) -> impl Iterator<Item = Moment> + use<> {
    let worker = attempt["worker"].as_str().unwrap_or_default();
    let started =
        Moment::new(&attempt["started_at"], "attempt", format!("Attempt {number} started"));
    let started = started.map(|started| started.more(Some(format!("by worker {worker}"))));
    let outcome = attempt["outcome"].as_str().unwrap_or("in flight");
    let kind = match outcome {
        "succeeded" => "success",
        "snoozed" | "released" => "wait",
        _ => "failure",
    };
    let took = attempt["seconds"].as_f64().map(text::seconds);
    let took = took.map(|took| format!(" after {took}")).unwrap_or_default();
    let title = format!("Attempt {number} {}{took}", outcome.replace('_', " "));
    let ended = Moment::new(&attempt["ended_at"], kind, title);
    let log = list(&attempt["log"]).filter_map(words).collect();
    let ended = ended.map(|ended| Moment { more: words(&attempt["error"]), log, ..ended });
    [started, ended].into_iter().flatten()
}

fn effect_of(effect: &Value) -> impl Iterator<Item = Moment> + use<> {
    let name = effect["name"].as_str().unwrap_or_default();
    let begun = Moment::new(&effect["begun_at"], "effect", format!("Effect {name} intended"));
    let done = Moment::new(&effect["done_at"], "effect", format!("Effect {name} done"));
    let done = done.map(|done| done.more(words(&effect["result"])));
    [begun, done].into_iter().flatten()
}

/// The end of the job.
fn end(job: &Value, prefix: &str) -> Option<Moment> {
    let state = job["state"].as_str().unwrap_or_default();
    let kind = match state {
        "succeeded" => "success",
        "dead" => "failure",
        _ => "end",
    };
    let moment = Moment::new(&job["ended_at"], kind, format!("Ended: {state}"))?;
    let link = job["absorbed_by"].as_str().map(|successor| {
        (format!("{prefix}/jobs/{}", text::encode(successor)), format!("by job {successor}"))
    });
    Some(Moment { link, ..moment })
}
