//! Hooks around handlers: their order, the ends that they see, and the harm that they cannot do.

use std::sync::{Arc, Mutex};

use quell::job::AttemptOutcome;
use quell::testing::TestKit;
use quell::{
    Around, Batch, Ctx, Jitter, Job, JobState, Next, Payload, Policy, Result, TaskError, TaskName,
};

use crate::tasks::secs;

type Log = Arc<Mutex<Vec<String>>>;
type Answered = std::result::Result<Option<Payload>, TaskError>;

fn task() -> TaskName {
    TaskName::new("charge").unwrap()
}

fn policy() -> Policy {
    Policy::default().attempts(2).min_backoff(secs(5)).jitter(Jitter::None).timeout(secs(50))
}

/// Panics where it is dropped before its time.
struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("the handler's destructor panics");
    }
}

/// Does what its payload says, in its first attempt.
async fn acts(payload: Payload, ctx: Ctx<Log>) -> std::result::Result<Option<Payload>, TaskError> {
    ctx.state().lock().unwrap().push("handler".to_owned());
    let is_first = ctx.attempt() == 1 && ctx.started_at() < TestKit::START + secs(2);
    match payload.as_str().trim_matches('"') {
        _ if !is_first => Ok(None),
        "works" => Payload::encode(&7).map(Some).map_err(TaskError::from),
        "fails" => Err(std::io::Error::other("no answer"))?,
        "is permanent" => Err(TaskError::permanent("no such customer")),
        "snoozes" => Err(TaskError::snooze(secs(3))),
        "cancels" => Err(TaskError::cancel("not wanted")),
        "panics" => panic!("out of range"),
        "hangs" => {
            ctx.sleep(secs(1_000)).await;
            Ok(None)
        }
        "listens" => {
            let (cancelled, late) = (ctx.cancelled().cancelled(), ctx.sleep(secs(1_000)));
            tokio::select! { () = cancelled => {}, () = late => {} }
            Err(TaskError::retry("stopped"))
        }
        "guards" => {
            let _panics = Panics;
            ctx.sleep(secs(1_000)).await;
            Ok(None)
        }
        other => panic!("{other} is no case"),
    }
}

/// Writes down what it sees; also where it is dropped before the handler has ended.
struct Sees(&'static str);

impl Around<Log> for Sees {
    async fn around(&self, ctx: &Ctx<Log>, next: Next<'_>) -> Answered {
        let log = Arc::clone(ctx.state());
        log.lock().unwrap().push(format!("{} before", self.0));
        let mut dropped = Dropped(self.0, Some(log));
        let answer = next.run().await;
        let saw = match &answer {
            Ok(output) => format!("Ok {:?}", output.as_ref().map(Payload::as_str)),
            Err(error) => format!("{} {}", error.outcome().name(), error.describe()),
        };
        let log = dropped.1.take().unwrap();
        log.lock().unwrap().push(format!("{} saw {}", self.0, saw.lines().next().unwrap()));
        answer
    }
}

struct Dropped(&'static str, Option<Log>);

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some(log) = &self.1 {
            log.lock().unwrap().push(format!("{} dropped", self.0));
        }
    }
}

/// Where a hook of its own mind interferes with the first attempt.
#[derive(Clone, Copy, Debug)]
enum Meddles {
    PanicsBefore,
    PanicsBeside,
    PanicsAfter,
    Hangs,
    HangsAfter,
    ComesLate,
    Snoozes,
    Replaces,
    TooLong,
}

impl Around<Log> for Meddles {
    async fn around(&self, ctx: &Ctx<Log>, next: Next<'_>) -> Answered {
        if ctx.attempt() > 1 || ctx.started_at() >= TestKit::START + secs(2) {
            return next.run().await;
        }
        match self {
            Meddles::PanicsBefore => panic!("the hook panics"),
            Meddles::PanicsBeside => {
                let panics = async {
                    ctx.sleep(secs(1)).await;
                    panic!("the hook panics")
                };
                tokio::select! { answer = next.run() => answer, () = panics => Ok(None) }
            }
            Meddles::PanicsAfter => {
                let _answer = next.run().await;
                panic!("the hook panics")
            }
            Meddles::Hangs => {
                ctx.sleep(secs(1_000)).await;
                next.run().await
            }
            Meddles::HangsAfter => {
                let _answer = next.run().await;
                ctx.sleep(secs(1_000)).await;
                Ok(None)
            }
            Meddles::ComesLate => {
                ctx.sleep(secs(52)).await;
                next.run().await
            }
            Meddles::Snoozes => Err(TaskError::snooze(secs(9))),
            Meddles::Replaces => {
                let _answer = next.run().await;
                Payload::encode(&8).map(Some).map_err(TaskError::from)
            }
            Meddles::TooLong => Ok(Some(Payload::from_stored("9".repeat(8 << 20)))),
        }
    }
}

/// A hook that panics before it has made its future.
struct AtOnce;

impl Around<Log> for AtOnce {
    fn around(&self, ctx: &Ctx<Log>, next: Next<'_>) -> impl Future<Output = Answered> + Send {
        assert!(ctx.attempt() > 1, "the hook panics at once");
        async move { next.run().await }
    }
}

/// A job with this payload, after a time; and what its attempts did.
async fn ran(what: &str, hook: impl Around<Log>, seconds: u64) -> Result<(TestKit, Job, Log)> {
    let log = Log::default();
    let kit = TestKit::start(|quell| {
        let worker = quell.worker(Arc::clone(&log)).register_raw(task(), &policy(), acts);
        worker.around(hook).around(Sees("inner"))
    })?;
    let trigger = policy().trigger(task(), Payload::encode(&what)?, None)?;
    let id = kit.quell().enqueue(Batch::one(trigger)).await?[0].job().unwrap();
    kit.advance(secs(seconds)).await;
    let job = kit.quell().store().job(id).await?.unwrap();
    Ok((kit, job, log))
}

#[tokio::test]
async fn hooks_run_in_their_order_and_see_how_each_attempt_ends() -> Result<()> {
    let table = [
        ("works", "Ok Some(\"7\")"),
        ("fails", "failed no answer"),
        ("is permanent", "failed no such customer"),
        ("snoozes", "snoozed asked to be run again after 3s"),
        ("cancels", "cancelled not wanted"),
        ("panics", "panicked the handler panicked: out of range"),
        ("hangs", "timed_out the attempt took longer than its timeout of 50s"),
        (
            "guards",
            "panicked the drop of the handler's future panicked: the handler's destructor panics",
        ),
    ];
    for (what, saw) in table {
        let (_kit, _, log) = ran(what, Sees("outer"), 100).await?;
        let expected = [
            "outer before".to_owned(),
            "inner before".to_owned(),
            "handler".to_owned(),
            format!("inner saw {saw}"),
            format!("outer saw {saw}"),
        ];
        assert_eq!(log.lock().unwrap()[..5], expected, "{what}");
    }
    Ok(())
}

#[tokio::test]
async fn r21_hooks_see_what_a_handler_returns_that_lost_its_lease() -> Result<()> {
    let (kit, job, log) = ran("listens", Sees("outer"), 1).await?;
    kit.quell().cancel(job.id, "not wanted").await?;
    kit.advance(secs(40)).await;
    assert_eq!(log.lock().unwrap().last().unwrap(), "outer saw failed stopped");
    Ok(())
}

#[tokio::test]
async fn r29_hooks_of_an_attempt_that_is_given_up_are_dropped() -> Result<()> {
    let log = Log::default();
    let quell = quell::Quell::open("memory:").await?;
    let trigger = policy().trigger(task(), Payload::encode(&"hangs")?, None)?;
    quell.enqueue(Batch::one(trigger)).await?;
    let worker = quell.worker(Arc::clone(&log)).register_raw(task(), &policy(), hangs);
    let worker = worker.around(Sees("outer")).around(Sees("inner"));
    worker.grace(secs(0)).run_until(has_lines(&log, 3)).await?;
    // The runtime drops what was aborted.
    has_lines(&log, 5).await;
    let seen = log.lock().unwrap().clone();
    assert_eq!(seen[..2], ["outer before", "inner before"]);
    assert_eq!(seen[3..], ["inner dropped", "outer dropped"]);
    Ok(())
}

/// Waits for this number of lines, for a while.
async fn has_lines(log: &Log, count: usize) {
    let has_them = async {
        while log.lock().unwrap().len() < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(secs(60), has_them).await.unwrap();
}

async fn hangs(_: Payload, ctx: Ctx<Log>) -> std::result::Result<(), TaskError> {
    ctx.state().lock().unwrap().push("handler".to_owned());
    std::future::pending().await
}

#[tokio::test]
async fn r25_a_hook_harms_its_own_attempt_only() -> Result<()> {
    use AttemptOutcome::{Failed, Panicked, Snoozed, TimedOut};
    let panicked = "a hook around the handler panicked: the hook panics";
    let late = "the attempt took longer than its timeout of 50s";
    let in_hook = "the attempt took longer than its timeout of 50s, in a hook";
    let table = [
        (Meddles::PanicsBefore, "works", Panicked, panicked),
        (Meddles::PanicsBeside, "hangs", Panicked, panicked),
        // The handler's destructor panics while the hook does: the process goes on.
        (Meddles::PanicsBeside, "guards", Panicked, panicked),
        (Meddles::PanicsAfter, "works", Panicked, panicked),
        (Meddles::Hangs, "works", TimedOut, in_hook),
        (Meddles::HangsAfter, "works", TimedOut, in_hook),
        (Meddles::ComesLate, "works", TimedOut, late),
        (Meddles::Snoozes, "works", Snoozed, ""),
        (Meddles::TooLong, "works", Failed, "the output that a hook returned cannot be kept: "),
    ];
    for (meddles, what, outcome, error) in table {
        let (kit, job, _) = ran(what, meddles, 100).await?;
        let attempts = kit.quell().store().attempts(job.id).await?;
        let found = attempts[0].error.clone().unwrap_or_default();
        assert_eq!(attempts[0].outcome, Some(outcome), "{meddles:?}: {attempts:?}");
        assert!(found.starts_with(error), "{meddles:?}: {found}");
        let state = if outcome == Failed { JobState::Dead } else { JobState::Succeeded };
        assert_eq!(job.state, state, "{meddles:?}: {job:?}");
        // Neither are other jobs harmed.
        let trigger = policy().trigger(task(), Payload::encode(&"works")?, None)?;
        let other = kit.quell().enqueue(Batch::one(trigger)).await?[0].job().unwrap();
        kit.advance(secs(1)).await;
        let other = kit.quell().store().job(other).await?.unwrap();
        assert_eq!(other.state, JobState::Succeeded, "{meddles:?}: {other:?}");
    }
    let (kit, job, _) = ran("works", AtOnce, 100).await?;
    let attempts = kit.quell().store().attempts(job.id).await?;
    assert_eq!((attempts[0].outcome, job.state), (Some(Panicked), JobState::Succeeded));
    Ok(())
}

#[tokio::test]
async fn a_handler_whose_hook_comes_after_the_timeout_is_not_called() -> Result<()> {
    let (_kit, _, log) = ran("works", Meddles::ComesLate, 54).await?;
    assert!(!log.lock().unwrap().contains(&"handler".to_owned()), "{log:?}");
    Ok(())
}

#[tokio::test]
async fn what_a_hook_returns_is_what_counts() -> Result<()> {
    let (_kit, job, _) = ran("works", Meddles::Replaces, 1).await?;
    assert_eq!(job.output.as_ref().map(Payload::as_str), Some("8"), "{job:?}");
    let (_kit, job, log) = ran("works", Meddles::Snoozes, 1).await?;
    assert_eq!((job.state, log.lock().unwrap().len()), (JobState::Scheduled, 0), "{job:?}");
    Ok(())
}
