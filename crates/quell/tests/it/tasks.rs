//! The tasks that the tests run, and a log of their runs.

use std::sync::Mutex;
use std::time::Duration;

use quell::{Collected, Ctx, Fold, Jitter, Policy, Task, TaskError, Timestamp};
use serde::{Deserialize, Serialize};

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// One run, as its handler saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) what: String,
    pub(crate) at: Timestamp,
    pub(crate) triggers: u64,
    pub(crate) attempt: u32,
}

/// What the handlers share.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Vec<Run>>);

impl Log {
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.0.lock().unwrap().clone()
    }

    fn add(&self, what: impl Into<String>, at: Timestamp, triggers: u64, attempt: u32) {
        self.0.lock().unwrap().push(Run { what: what.into(), at, triggers, attempt });
    }
}

pub(crate) type App = std::sync::Arc<Log>;

fn note(ctx: &Ctx<App>, what: impl Into<String>) {
    ctx.state().add(what, ctx.quell().clock().now(), ctx.triggers(), ctx.attempt());
}

/// Debounced by its page, 10 s to 60 s.
#[derive(Serialize, Deserialize)]
pub(crate) struct Reindex {
    pub(crate) page: String,
}

impl Reindex {
    pub(crate) fn page(page: &str) -> Self {
        Reindex { page: page.to_owned() }
    }
}

impl Task for Reindex {
    const NAME: &'static str = "reindex";
    type Output = ();

    fn policy() -> Policy {
        Policy::default().debounce(secs(10)..=secs(60))
    }

    fn debounce_key(&self) -> Option<String> {
        Some(self.page.clone())
    }
}

pub(crate) async fn reindex(task: Reindex, ctx: Ctx<App>) -> Result<(), TaskError> {
    note(&ctx, task.page);
    Ok(())
}

/// Takes its time: sleeps before it ends. Debounced by a fixed key.
#[derive(Serialize, Deserialize)]
pub(crate) struct Slow {
    pub(crate) takes_secs: u64,
}

impl Task for Slow {
    const NAME: &'static str = "slow";
    type Output = ();

    fn policy() -> Policy {
        Policy::default().debounce(secs(10)..=secs(60)).timeout(secs(100))
    }

    fn debounce_key(&self) -> Option<String> {
        Some("only".to_owned())
    }
}

pub(crate) async fn slow(task: Slow, ctx: Ctx<App>) -> Result<(), TaskError> {
    note(&ctx, "slow begins");
    ctx.sleep(secs(task.takes_secs)).await;
    note(&ctx, "slow ends");
    Ok(())
}

/// Answers as its script says, one word per attempt.
#[derive(Serialize, Deserialize)]
pub(crate) struct Script(pub(crate) Vec<String>);

impl Script {
    pub(crate) fn new(words: &[&str]) -> Self {
        Script(words.iter().map(|word| (*word).to_owned()).collect())
    }
}

impl Task for Script {
    const NAME: &'static str = "script";
    type Output = u32;

    fn policy() -> Policy {
        Policy::queue("scripts")
            .attempts(3)
            .min_backoff(secs(30))
            .max_backoff(secs(50))
            .jitter(Jitter::None)
            .timeout(secs(20))
    }
}

pub(crate) async fn script(task: Script, ctx: Ctx<App>) -> Result<u32, TaskError> {
    let turn = ctx.state().runs().len();
    let word = task.0.get(turn).cloned().unwrap_or_default();
    note(&ctx, word.clone());
    match word.as_str() {
        "fail" => Err(TaskError::retry("scripted failure")),
        "later" => Err(TaskError::retry_after(secs(7), "scripted delay")),
        "permanent" => Err(TaskError::permanent("scripted permanent failure")),
        "snooze" => Err(TaskError::snooze(secs(5))),
        "cancel" => Err(TaskError::cancel("scripted cancellation")),
        "hang" => {
            ctx.cancelled().cancelled().await;
            Err(TaskError::retry("never gets here"))
        }
        "panic" => panic!("scripted panic"),
        _ => Ok(ctx.attempt()),
    }
}

/// Collects every payload.
#[derive(Serialize, Deserialize)]
pub(crate) struct Mail {
    pub(crate) to: String,
}

impl Task for Mail {
    const NAME: &'static str = "mail";
    type Output = ();

    fn policy() -> Policy {
        Policy::default().debounce(secs(10)..=secs(60)).fold(Fold::Collect { cap: 3 })
    }

    fn debounce_key(&self) -> Option<String> {
        Some("digest".to_owned())
    }
}

pub(crate) async fn mail(mails: Collected<Mail>, ctx: Ctx<App>) -> Result<(), TaskError> {
    let to: Vec<&str> = mails.iter().map(|mail| mail.to.as_str()).collect();
    note(&ctx, to.join("+"));
    Ok(())
}
