//! Every call of the store, and the rows that it is made on.

use std::pin::Pin;
use std::sync::Arc;

use quell_conformance::Rig;
use quell_conformance::rig::{fails, key, keyed, plain, queue, secs, task};
use quell_core::dedup::Dedup;
use quell_core::schedule::{CatchUp, Schedule, ScheduleState, Spec};
use quell_core::{
    Batch, DeadFilter, DeadLetters, ExplainTarget, JobFilter, JobId, Lease, LeaseToken, NewTrigger,
    Outcome, Payload, QueueSettings, Redrive, Result, Retention, ScheduleName, Settlement, Store,
    TaskSettings, Timestamp, TriggerId,
};
use quell_postgres::PostgresStore;

type Doing<'s> = Pin<Box<dyn Future<Output = Result<()>> + Send + 's>>;
type Step = for<'s> fn(&'s PostgresStore, Timestamp) -> Doing<'s>;

/// One call; `given` is done first, without a cut.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) given: Step,
    pub(super) call: Step,
    /// Whether it changes rows.
    pub(super) writes: bool,
    /// Whether the call connects first.
    pub(super) cold: bool,
    /// Whether the store is opened for the call, and so knows none of the names.
    pub(super) stranger: bool,
}

/// A step from an async block, with what it returns left aside.
macro_rules! step {
    (|$store:ident, $now:ident| $body:expr) => {
        |$store, $now| {
            Box::pin(async move {
                let _ = $now;
                let _told = $body;
                Ok(())
            })
        }
    };
}

async fn take(store: &PostgresStore, now: Timestamp, triggers: &[NewTrigger]) -> Result<()> {
    let batch = Batch { triggers: triggers.to_vec(), dedup: None };
    store.enqueue(Some(now), vec![batch]).await.map(drop)
}

/// Takes these and starts them all, which makes them jobs 1, 2, ….
async fn start(store: &PostgresStore, now: Timestamp, triggers: &[NewTrigger]) -> Result<()> {
    take(store, now, triggers).await?;
    store.claim(Some(now), &Rig::wish(9)).await.map(drop)
}

/// As [`start`], and ends the first of them.
async fn end(store: &PostgresStore, now: Timestamp, outcome: Outcome) -> Result<()> {
    start(store, now, &[plain("1")]).await?;
    settle(store, now, outcome).await
}

async fn settle(store: &PostgresStore, now: Timestamp, outcome: Outcome) -> Result<()> {
    store.settle(Some(now), vec![Settlement { lease: first(), outcome }]).await.map(drop)
}

/// The lease of the first start of job 1.
fn first() -> Lease {
    Lease { job: JobId::new(1), token: LeaseToken::new(1) }
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
    ScheduleName::new("beat").unwrap()
}

fn schedule() -> Schedule {
    let spec = Spec::every(secs(10), Timestamp::from_secs(0)).unwrap();
    Schedule { name: beat(), spec, catch_up: CatchUp::All, trigger: keyed("k") }
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
    let given: Step = step!(|s, t| end(s, t, fails(secs(1), false)).await?);
    Case { name, given, call, writes: false, cold: false, stranger: false }
}

pub(super) fn table() -> Vec<Case> {
    [triggers(), attempts(), operators(), schedules(), looks()].into_iter().flatten().collect()
}

fn triggers() -> Vec<Case> {
    let nothing: Step = step!(|_s, t| ());
    let three: Step = step!(|s, t| take(s, t, &[plain("1"), plain("2"), plain("3")]).await?);
    let held: Step = step!(|s, t| {
        let dedup = Some(Dedup::new(key("d")));
        take(s, t, &[NewTrigger { dedup, ..plain("1") }]).await?
    });
    let keyed_too: Step = step!(|s, t| take(s, t, &[plain("1"), keyed("k"), keyed("l")]).await?);
    vec![
        writes("enqueue", nothing, three),
        Case { cold: true, ..writes("enqueue, and connect", nothing, three) },
        writes("enqueue with a dedup key", nothing, held),
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
    let claim: Step = step!(|s, t| s.claim(Some(t), &Rig::wish(2)).await?);
    let runs: Step = step!(|s, t| start(s, t, &[plain("1")]).await?);
    let with_heir: Step = step!(|s, t| {
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
                with_heir,
                step!(|s, t| settle(s, t, Outcome::succeeded()).await?),
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
                s.set_queue(&queue(), &limited()).await?;
                let partition = Some(key("p"));
                take(s, t, &[plain("1"), NewTrigger { partition, ..plain("2") }]).await?
            }),
            claim,
        ),
        writes(
            "renew",
            runs,
            step!(|s, t| s.renew(Some(t + secs(9)), &[first()], Rig::LEASE).await?),
        ),
        writes("settle well", runs, step!(|s, t| settle(s, t, Outcome::succeeded()).await?)),
        writes(
            "settle with a failure",
            runs,
            step!(|s, t| settle(s, t, fails(secs(9), false)).await?),
        ),
        writes(
            "settle with a failure that is absorbed",
            with_heir,
            step!(|s, t| settle(s, t, fails(secs(9), false)).await?),
        ),
        writes(
            "settle with the last failure",
            runs,
            step!(|s, t| settle(s, t, fails(secs(9), true)).await?),
        ),
        writes("reap", runs, step!(|s, t| s.reap(Some(t + secs(99)), 9).await?)),
    ]
}

fn operators() -> Vec<Case> {
    let nothing: Step = step!(|_s, t| ());
    vec![
        writes(
            "cancel",
            step!(|s, t| start(s, t, &[plain("1")]).await?),
            step!(|s, t| s.cancel(Some(t), JobId::new(1), "no more").await?),
        ),
        writes(
            "redrive",
            step!(|s, t| end(s, t, fails(secs(1), true)).await?),
            step!(|s, t| s.redrive(Some(t), &JobId::new(1).into()).await?),
        ),
        writes(
            "redrive with another payload",
            step!(|s, t| end(s, t, fails(secs(1), true)).await?),
            step!(|s, t| {
                let payload = Some(Payload::from_stored("2"));
                s.redrive(Some(t), &Redrive { id: JobId::new(1), payload }).await?
            }),
        ),
        writes(
            "discard",
            step!(|s, t| end(s, t, fails(secs(1), true)).await?),
            step!(|s, t| s.discard(Some(t), &[JobId::new(1)], "no use").await?),
        ),
        writes(
            "import_dead",
            step!(|s, t| end(s, t, fails(secs(1), true)).await?),
            step!(|s, t| {
                let mut letters = s.letters(&[JobId::new(1)]).await?;
                letters.iter_mut().for_each(|letter| letter.job.id = JobId::new(999));
                s.import_dead(Some(t), &letters).await?
            }),
        ),
        writes(
            "prune",
            step!(|s, t| end(s, t, Outcome::succeeded()).await?),
            step!(|s, t| s.prune(Some(t + secs(5_000)), &Retention::default(), 9).await?),
        ),
        writes("set_queue", nothing, step!(|s, t| s.set_queue(&queue(), &limited()).await?)),
        writes(
            "delete_queue",
            step!(|s, t| s.set_queue(&queue(), &limited()).await?),
            step!(|s, t| s.delete_queue(&queue()).await?),
        ),
        writes(
            "set_task",
            nothing,
            step!(|s, t| s.set_task(&task("t"), &TaskSettings { paused: true }).await?),
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
        reads("queues", step!(|s, t| s.queues().await?)),
        reads("tasks", step!(|s, t| s.tasks().await?)),
        reads("job", step!(|s, t| s.job(JobId::new(1)).await?)),
        reads("jobs", step!(|s, t| s.jobs(&JobFilter::default()).await?)),
        reads("counts", step!(|s, t| s.counts().await?)),
        reads("attempts", step!(|s, t| s.attempts(JobId::new(1)).await?)),
        reads(
            "explain",
            step!(|s, t| {
                let trigger = TriggerId { job: JobId::new(1), seq: 1 };
                s.explain(&ExplainTarget::Trigger(trigger)).await?
            }),
        ),
        reads("dead", step!(|s, t| s.dead(&DeadFilter::default()).await?)),
        reads("count_dead", step!(|s, t| s.count_dead(&DeadFilter::default()).await?)),
        reads("letters", step!(|s, t| s.letters(&[JobId::new(1)]).await?)),
        reads("schedules", step!(|s, t| s.schedules().await?)),
    ]
}
