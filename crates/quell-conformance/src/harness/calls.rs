//! Every call of a store, and the rows that it is made on: for tests that cut each of them off.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use quell_core::alert::AlertState;
use quell_core::dedup::Dedup;
use quell_core::heartbeat::Heartbeat;
use quell_core::idempotency::Idempotency;
use quell_core::job::Adjustment;
use quell_core::schedule::{CatchUp, Schedule, ScheduleState, Spec};
use quell_core::{
    AlertName, BacklogOf, Batch, DeadFilter, EffectName, ExplainTarget, JobFilter, JobId, Lease,
    NewTrigger, Outcome, Payload, QueueSettings, Redrive, Result, Retention, ScheduleName,
    Settlement, Store, TaskSettings, Timestamp, TriggerId,
};

use crate::Rig;
use crate::rig::{fails, heartbeat, key, keyed, plain, queue, secs, task};

/// A call in flight.
pub type Doing<'s> = Pin<Box<dyn Future<Output = Result<()>> + Send + 's>>;
/// A call at a time, on a store whose first job has this id.
pub type Step = for<'s> fn(&'s dyn Store, Timestamp, JobId) -> Doing<'s>;

/// One call; `given` is done first, without a cut.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it is called.
    pub name: &'static str,
    /// What is done first.
    pub given: Step,
    /// The call itself.
    pub call: Step,
    /// Whether it changes rows.
    pub writes: bool,
    /// Whether the call connects first.
    pub cold: bool,
    /// Whether the store is opened for the call, and so knows none of the names.
    pub stranger: bool,
}

/// What a caller learns of a call that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reported {
    /// It was done.
    Done,
    /// It was not done.
    Failed,
    /// It may have been done.
    Unknown,
}

impl Case {
    /// Judges what callers learned of the call's cuts, by whether the whole call changes rows: it does if it
    /// is to, and then only may the outcome of a cut be unknown.
    pub fn judge(&self, changes: bool, reported: &BTreeMap<Reported, usize>) {
        assert_eq!(changes, self.writes, "{}: it is to change rows, or not to", self.name);
        let is_unknown = reported.contains_key(&Reported::Unknown);
        assert_eq!(is_unknown, changes, "{}: {reported:?}", self.name);
    }
}

/// A step from an async block, with what it returns left aside.
macro_rules! step {
    (|$store:ident, $now:ident| $body:expr) => {
        step!(|$store, $now, _job| $body)
    };
    (|$store:ident, $now:ident, $first:ident| $body:expr) => {
        |$store, $now, $first| {
            Box::pin(async move {
                let _ = ($now, $first);
                let _told = $body;
                Ok(())
            })
        }
    };
}

async fn take(store: &dyn Store, now: Timestamp, triggers: &[NewTrigger]) -> Result<()> {
    let batch = Batch { triggers: triggers.to_vec(), dedup: None };
    for answer in store.enqueue(Some(now), vec![batch]).await? {
        answer?;
    }
    Ok(())
}

/// Takes these and starts them all.
async fn start(store: &dyn Store, now: Timestamp, triggers: &[NewTrigger]) -> Result<()> {
    take(store, now, triggers).await?;
    store.claim(Some(now), &Rig::claim_of(9)).await.map(drop)
}

/// As [`start`], and ends the first of them.
async fn end(store: &dyn Store, now: Timestamp, job: JobId, outcome: Outcome) -> Result<()> {
    start(store, now, &[plain("1")]).await?;
    settle(store, now, job, outcome).await
}

async fn settle(store: &dyn Store, now: Timestamp, job: JobId, outcome: Outcome) -> Result<()> {
    let end = Settlement { lease: lease(job), outcome };
    store.settle(Some(now), vec![end]).await.map(drop)
}

/// The lease of a job's first start.
fn lease(job: JobId) -> Lease {
    Lease { job, token: Rig::token(1) }
}

/// Due at once, although it has a key.
fn soon(k: &str) -> NewTrigger {
    let mut trigger = keyed(k);
    if let Some(keyed) = &mut trigger.keyed {
        keyed.debounce.edge = quell_core::edge::Edge::Leading;
    }
    trigger
}

fn beat() -> ScheduleName {
    ScheduleName::new("beat").expect("valid")
}

fn schedule() -> Schedule {
    let spec = Spec::every(secs(10), Timestamp::from_secs(0)).expect("valid");
    Schedule { name: beat(), spec, catch_up: CatchUp::All, trigger: keyed("k"), declared: None }
}

fn alive() -> Heartbeat {
    heartbeat(&Rig::claim_of(1).worker, 1)
}

fn limited() -> QueueSettings {
    let (concurrency, partition_concurrency) = (Some(2), Some(1));
    QueueSettings { concurrency, partition_concurrency, ..QueueSettings::default() }
}

fn of_two_priorities() -> [NewTrigger; 2] {
    [plain("1"), NewTrigger { priority: 3, ..plain("2") }]
}

fn writes(name: &'static str, given: Step, call: Step) -> Case {
    Case { name, given, call, writes: true, cold: false, stranger: false }
}

fn reads(name: &'static str, call: Step) -> Case {
    let given: Step = step!(|s, t, j| end(s, t, j, fails(secs(1), false)).await?);
    Case { name, given, call, writes: false, cold: false, stranger: false }
}

/// Every call.
#[must_use]
pub fn table() -> Vec<Case> {
    let groups = [
        triggers(),
        attempts(),
        effects(),
        operators(),
        settings(),
        alerts(),
        schedules(),
        looks(),
    ];
    groups.into_iter().flatten().collect()
}

fn triggers() -> Vec<Case> {
    let nothing: Step = step!(|_s, t| ());
    let three: Step = step!(|s, t| take(s, t, &[plain("1"), plain("2"), plain("3")]).await?);
    let held: Step = step!(|s, t| {
        let dedup = Some(Dedup::new(key("d")));
        take(s, t, &[NewTrigger { dedup, ..plain("1") }]).await?
    });
    let keyed_too: Step = step!(|s, t| take(s, t, &[plain("1"), keyed("k"), keyed("l")]).await?);
    let repeatable: Step = step!(|s, t| {
        let idempotency = Some(Idempotency::new(key("i")));
        take(s, t, &[NewTrigger { idempotency, ..plain("1") }]).await?
    });
    vec![
        writes("enqueue", nothing, three),
        Case { cold: true, ..writes("enqueue, and connect", nothing, three) },
        writes("enqueue with a dedup key", nothing, held),
        writes("enqueue with an idempotency key", nothing, repeatable),
        writes("enqueue that opens windows", nothing, keyed_too),
        writes("enqueue that joins", step!(|s, t| take(s, t, &[keyed("k")]).await?), keyed_too),
        writes("flush", keyed_too, step!(|s, t| s.flush(Some(t), &task("t"), &key("k")).await?)),
        writes(
            "cancel_key",
            keyed_too,
            step!(|s, t| s.cancel_key(Some(t), &task("t"), &key("k")).await?),
        ),
    ]
}

fn attempts() -> Vec<Case> {
    let claim: Step = step!(|s, t| s.claim(Some(t), &Rig::claim_of(2)).await?);
    let runs: Step = step!(|s, t| start(s, t, &[plain("1")]).await?);
    let with_successor: Step = step!(|s, t| {
        start(s, t, &[soon("k")]).await?;
        take(s, t, &[keyed("k")]).await?
    });
    vec![
        writes(
            "claim",
            step!(|s, t| take(s, t, &[plain("1"), plain("2"), plain("3")]).await?),
            claim,
        ),
        Case {
            stranger: true,
            ..writes("claim by a stranger", step!(|s, t| take(s, t, &[plain("1")]).await?), claim)
        },
        Case {
            stranger: true,
            ..writes(
                "settle well by a stranger",
                with_successor,
                step!(|s, t, j| settle(s, t, j, Outcome::succeeded()).await?),
            )
        },
        writes(
            "claim of several lanes",
            step!(|s, t| take(s, t, &of_two_priorities()).await?),
            claim,
        ),
        writes(
            "claim under limits",
            step!(|s, t| {
                s.set_queue(Some(t), &queue(), &limited()).await?;
                let partition = Some(key("p"));
                take(s, t, &[plain("1"), NewTrigger { partition, ..plain("2") }]).await?
            }),
            claim,
        ),
        writes(
            "renew",
            runs,
            step!(|s, t, j| s.renew(Some(t + secs(9)), &[lease(j)], Rig::LEASE).await?),
        ),
        writes("settle well", runs, step!(|s, t, j| settle(s, t, j, Outcome::succeeded()).await?)),
        writes(
            "settle with a failure",
            runs,
            step!(|s, t, j| settle(s, t, j, fails(secs(9), false)).await?),
        ),
        writes(
            "settle with a failure that is absorbed",
            with_successor,
            step!(|s, t, j| settle(s, t, j, fails(secs(9), false)).await?),
        ),
        writes(
            "settle with the last failure",
            runs,
            step!(|s, t, j| settle(s, t, j, fails(secs(9), true)).await?),
        ),
        writes("reap", runs, step!(|s, t| s.reap(Some(t + secs(99)), 9).await?)),
    ]
}

fn effect() -> EffectName {
    EffectName::new("charge").expect("valid")
}

fn paid() -> Payload {
    Payload::from_stored("\"paid\"")
}

async fn begin_effect(store: &dyn Store, now: Timestamp, job: JobId) -> Result<()> {
    store.begin_effect(Some(now), &lease(job), &effect(), &key("e")).await.map(drop)
}

fn effects() -> Vec<Case> {
    let runs: Step = step!(|s, t| start(s, t, &[plain("1")]).await?);
    let begun: Step = step!(|s, t, j| {
        start(s, t, &[plain("1")]).await?;
        begin_effect(s, t, j).await?
    });
    let end: Step = step!(|s, t, j| s.end_effect(Some(t), &lease(j), &effect(), &paid()).await?);
    vec![
        writes("begin_effect", runs, step!(|s, t, j| begin_effect(s, t, j).await?)),
        writes("end_effect", begun, end),
        Case { given: begun, ..reads("effects", step!(|s, t, j| s.effects(j).await?)) },
    ]
}

async fn set_alert(store: &dyn Store, version: u64, value: Option<u64>) -> Result<()> {
    let name = AlertName::new("too-many-dead").expect("valid");
    let state = value.map(|value| AlertState { raised: true, value, ..AlertState::default() });
    store.set_alert(&name, version, state.as_ref()).await.map(drop)
}

fn alerts() -> Vec<Case> {
    let nothing: Step = step!(|_s, t| ());
    let set: Step = step!(|s, t| set_alert(s, 0, Some(4)).await?);
    vec![
        writes("set_alert", nothing, set),
        writes("set_alert again", set, step!(|s, t| set_alert(s, 1, Some(5)).await?)),
        writes("set_alert to nothing", set, step!(|s, t| set_alert(s, 1, None).await?)),
        Case { given: set, ..reads("alerts", step!(|s, t| s.alerts().await?)) },
        reads("overview", step!(|s, t| s.overview(Some(t)).await?)),
    ]
}

fn operators() -> Vec<Case> {
    let nothing: Step = step!(|_s, t| ());
    let again: Step = step!(|s, t| s.heartbeat(Some(t + secs(10)), &alive()).await?);
    vec![
        writes(
            "cancel",
            step!(|s, t| start(s, t, &[plain("1")]).await?),
            step!(|s, t, j| s.cancel(Some(t), j, "no more").await?),
        ),
        writes(
            "adjust",
            step!(|s, t, j| end(s, t, j, fails(secs(9), false)).await?),
            step!(|s, t, j| {
                let adjustment = Adjustment::default().run_now(true).priority(3);
                s.adjust(Some(t), j, adjustment).await?
            }),
        ),
        writes(
            "redrive",
            step!(|s, t, j| end(s, t, j, fails(secs(1), true)).await?),
            step!(|s, t, j| s.redrive(Some(t), &j.into()).await?),
        ),
        writes(
            "redrive with another payload",
            step!(|s, t, j| end(s, t, j, fails(secs(1), true)).await?),
            step!(|s, t, j| {
                let payload = Some(Payload::from_stored("2"));
                s.redrive(Some(t), &Redrive { id: j, payload }).await?
            }),
        ),
        writes(
            "discard",
            step!(|s, t, j| end(s, t, j, fails(secs(1), true)).await?),
            step!(|s, t, j| s.discard(Some(t), &[j], "no use").await?),
        ),
        writes(
            "import_dead",
            step!(|s, t, j| end(s, t, j, fails(secs(1), true)).await?),
            step!(|s, t, j| {
                let mut exports = s.exports(&[j]).await?;
                exports.iter_mut().for_each(|export| export.job.id = JobId::new(999));
                s.import_dead(Some(t), &exports).await?
            }),
        ),
        writes("heartbeat", nothing, step!(|s, t| s.heartbeat(Some(t), &alive()).await?)),
        writes("heartbeat again", step!(|s, t| s.heartbeat(Some(t), &alive()).await?), again),
        writes(
            "remove_worker",
            step!(|s, t| s.heartbeat(Some(t), &alive()).await?),
            step!(|s, t| s.remove_worker(&alive().worker, 1).await?),
        ),
        writes(
            "prune",
            step!(|s, t, j| end(s, t, j, Outcome::succeeded()).await?),
            step!(|s, t| s.prune(Some(t + secs(5_000)), &Retention::default(), 9).await?),
        ),
    ]
}

fn settings() -> Vec<Case> {
    let nothing: Step = step!(|_s, t| ());
    vec![
        writes(
            "set_queue",
            nothing,
            step!(|s, t| s.set_queue(Some(t), &queue(), &limited()).await?),
        ),
        writes(
            "delete_queue",
            step!(|s, t| s.set_queue(Some(t), &queue(), &limited()).await?),
            step!(|s, t| s.delete_queue(Some(t), &queue()).await?),
        ),
        writes(
            "set_task",
            nothing,
            step!(|s, t| s
                .set_task(Some(t), &task("t"), &TaskSettings::default().paused(true))
                .await?),
        ),
    ]
}

fn schedules() -> Vec<Case> {
    let set: Step = step!(|s, t| s.set_schedule(Some(t), &schedule()).await?);
    vec![
        writes("set_schedule", step!(|_s, t| ()), set),
        writes(
            "set_schedule_state",
            set,
            step!(|s, t| s.set_schedule_state(Some(t), &beat(), ScheduleState::Paused).await?),
        ),
        writes("delete_schedule", set, step!(|s, t| s.delete_schedule(Some(t), &beat()).await?)),
        writes("tick", set, step!(|s, t| s.tick(Some(t + secs(25)), 9).await?)),
        writes("run_schedule", set, step!(|s, t| s.run_schedule(Some(t), &beat()).await?)),
        writes(
            "backfill",
            set,
            step!(|s, t| s.backfill(Some(t + secs(60)), &beat(), t, t + secs(40)).await?),
        ),
    ]
}

fn looks() -> Vec<Case> {
    vec![
        reads("next_due", step!(|s, t| s.next_due(Some(t), &queue(), &[task("t")]).await?)),
        reads("peek", step!(|s, t| s.peek(Some(t), &[(queue(), Arc::from([task("t")]))]).await?)),
        reads("backlog", step!(|s, t| s.backlog(Some(t), &BacklogOf::new(queue())).await?)),
        reads("queues", step!(|s, t| s.queues().await?)),
        reads("tasks", step!(|s, t| s.tasks().await?)),
        reads("result", step!(|s, t, j| s.result(j).await?)),
        reads("job", step!(|s, t, j| s.job(j).await?)),
        reads("jobs", step!(|s, t| s.jobs(&JobFilter::default()).await?)),
        reads("counts", step!(|s, t| s.counts().await?)),
        reads("attempts", step!(|s, t, j| s.attempts(j).await?)),
        reads(
            "explain",
            step!(|s, t, j| {
                let trigger = TriggerId { job: j, seq: 1 };
                s.explain(Some(t), &ExplainTarget::Trigger(trigger)).await?
            }),
        ),
        reads("workers", step!(|s, t| s.workers(Some(t)).await?)),
        reads("dead", step!(|s, t| s.dead(&DeadFilter::default()).await?)),
        reads("count_dead", step!(|s, t| s.count_dead(&DeadFilter::default()).await?)),
        reads("export_dead", step!(|s, t, j| s.exports(&[j]).await?)),
        reads("schedules", step!(|s, t| s.schedules().await?)),
    ]
}
