//! What must hold of stores whose jobs have homes: partitions of a table, or shards of a server. Each
//! queue has a home of its own, and one may be spread over several.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{
    Batch, Claim, ErrorKind, JobId, NewTrigger, QueueName, QueueSettings, Receipt, Result,
    ScheduleName, Store, TaskSettings,
};
use tokio::task::JoinSet;

use crate::rig::{Rig, key, keyed, plain, queue, secs, task};

/// How many homes a spread queue has.
pub const HOMES: usize = 4;

async fn take(store: &dyn Store, triggers: Vec<NewTrigger>) -> Result<Vec<Receipt>> {
    let batch = Batch { triggers, dedup: None };
    store.enqueue(Some(Rig::START), vec![batch]).await.and_then(|mut answers| answers.remove(0))
}

/// A schedule of this queue.
#[must_use]
pub fn schedule(queue: QueueName) -> Schedule {
    Schedule {
        name: ScheduleName::new("s").expect("a valid name"),
        spec: Spec::every(secs(10), Rig::START).expect("a valid interval"),
        catch_up: CatchUp::All,
        trigger: NewTrigger { queue, ..plain("1") },
        declared: None,
    }
}

/// Callers at once, each with a store that it opens, take ids of one home, which finds the jobs by them;
/// `home` says where a job is.
pub async fn ids_stay_with_their_home<S: Store, F: Future<Output = S> + Send + 'static>(
    callers: usize,
    open: impl Fn() -> F,
    home: impl Fn(JobId) -> u64,
) {
    const CALLS: usize = 12;
    let mut calls = JoinSet::new();
    for caller in 0..callers {
        let opened = open();
        calls.spawn(async move {
            let store = opened.await;
            let mut jobs = Vec::new();
            for call in 0..CALLS {
                let dedup = Dedup { key: key(&format!("{caller}-{call}")), until: HoldUntil::Done };
                let triggers = vec![plain("1"), NewTrigger { dedup: Some(dedup), ..plain("2") }];
                let taken = take(&store, triggers).await.expect("is accepted");
                jobs.extend(taken.iter().filter_map(Receipt::job));
            }
            jobs
        });
    }
    let jobs: Vec<JobId> = calls.join_all().await.concat();
    let each: BTreeSet<JobId> = jobs.iter().copied().collect();
    assert_eq!(each.len(), callers * CALLS * 2, "each trigger has a job of its own");
    let homes: BTreeSet<u64> = jobs.iter().map(|id| home(*id)).collect();
    assert_eq!(homes.len(), 1, "a queue in one home: {homes:?}");
    let store = open().await;
    for id in each {
        let found = store.job(id).await.expect("reads");
        assert!(found.is_some(), "job {id} is found by its id");
    }
}

/// Triggers of one key of the rig's queue, which is spread, meet in one home, also those of another process, `other`; and claims find the jobs
/// of all homes. Answers with the jobs; `home` says where a job is.
pub async fn keys_keep_their_homes(
    store: &dyn Store,
    other: &dyn Store,
    home: impl Fn(JobId) -> u64,
) -> BTreeSet<JobId> {
    let keys: Vec<String> = (0..64).map(|number| format!("customer-{number}")).collect();
    let mut jobs = BTreeSet::new();
    for name in &keys {
        let opened = take(store, vec![keyed(name)]).await.expect("is accepted");
        let joined = take(other, vec![keyed(name)]).await.expect("is accepted");
        assert!(matches!(joined[0], Receipt::Debounced { triggers: 2, .. }), "{joined:?}");
        assert_eq!(opened[0].job(), joined[0].job());
        jobs.extend(opened[0].job());
    }
    let homes: BTreeSet<u64> = jobs.iter().map(|id| home(*id)).collect();
    assert_eq!(homes.len(), HOMES, "64 keys are in every home");
    let page = store.jobs(&Default::default()).await.expect("lists jobs");
    assert_eq!(page.len(), 50, "one page of all");
    let mut claimed = BTreeSet::new();
    while claimed.len() < keys.len() {
        let later = Some(Rig::START + secs(3_600));
        let claim = Claim { limit: 20, ..Rig::claim_of(20) };
        let found = other.claim(later, &claim).await.expect("hands out jobs").jobs;
        assert!(!found.is_empty(), "only {} were found", claimed.len());
        claimed.extend(found.iter().map(|job| job.id));
    }
    assert_eq!(claimed, jobs);
    jobs
}

/// What would need all jobs of the rig's queue, which is spread, in one home is refused with the remedy, and writes nothing.
pub async fn what_needs_one_home_is_refused(store: &dyn Store) {
    let limited = QueueSettings { concurrency: Some(2), ..QueueSettings::default() };
    let refused =
        store.set_queue(Some(Rig::START), &queue(), &limited).await.expect_err("is refused");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("4 shards"), "{refused}");
    // Of many pairs of keys, some meet in one home and most do not.
    let (mut together, mut apart) = (0, 0);
    for number in 0..40 {
        let dedup = Some(Dedup::new(key(&format!("d{number}"))));
        match take(store, vec![NewTrigger { dedup, ..keyed(&format!("k{number}")) }]).await {
            Ok(_) => together += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.to_string().contains("belong on different ones"), "{error}");
                apart += 1;
            }
        }
    }
    assert!(together > 0 && apart > together, "{together} together, {apart} apart");
    let several: Vec<NewTrigger> = (0..9).map(|number| keyed(&format!("b{number}"))).collect();
    let refused = take(store, several).await.expect_err("is refused");
    assert!(refused.to_string().contains("one batch for each key"), "{refused}");
    let counts = store.counts().await.expect("counts jobs");
    let counted: u64 = counts.iter().map(|counts| counts.jobs).sum();
    assert_eq!(counted, together, "what was refused wrote nothing");
}

/// A home that is made after a task was paused starts no job of it until the task is resumed.
pub async fn a_later_home_knows_which_tasks_are_paused(store: &dyn Store) {
    let (now, claim) = (Some(Rig::START), Rig::claim_of(1));
    store
        .set_task(Some(Rig::START), &task("t"), &TaskSettings::default().paused(true))
        .await
        .expect("pauses");
    take(store, vec![plain("1")]).await.expect("is accepted");
    let claimed = store.claim(now, &claim).await.expect("hands out jobs");
    assert!(claimed.jobs.is_empty() && claimed.next.due.is_none(), "{claimed:?}");
    store
        .set_task(Some(Rig::START), &task("t"), &TaskSettings::default().paused(false))
        .await
        .expect("resumes");
    assert_eq!(store.claim(now, &claim).await.expect("hands out jobs").jobs.len(), 1);
}

/// A schedule whose queue is another one now is in the home of that one alone.
pub async fn a_schedule_moves_to_the_home_of_its_queue(store: &dyn Store) {
    let now = Some(Rig::START);
    store.set_schedule(now, &schedule(queue())).await.expect("sets schedules");
    let other = QueueName::new("other").expect("a valid name");
    store.set_schedule(now, &schedule(other.clone())).await.expect("sets schedules");
    let known = store.schedules().await.expect("lists schedules");
    assert_eq!(known.len(), 1);
    assert_eq!(known[0].schedule.trigger.queue, other);
    let ticked = store.tick(Some(Rig::START + secs(10)), 9).await.expect("ticks");
    assert_eq!(ticked.fired.len(), 1, "{ticked:?}");
    store.delete_schedule(now, &known[0].schedule.name).await.expect("deletes schedules");
    assert!(store.schedules().await.expect("lists schedules").is_empty());
}

/// Homes share the limit of a call: each has some of its ticks fired, in order, and each tick fires once.
pub async fn homes_share_the_limit_of_a_tick(store: &dyn Store) {
    let mut wanted = BTreeSet::new();
    for number in 0..3 {
        let queue = QueueName::new(format!("q{number}")).expect("a valid name");
        let name = ScheduleName::new(format!("s{number}")).expect("a valid name");
        let schedule = Schedule { name: name.clone(), ..schedule(queue) };
        store.set_schedule(Some(Rig::START), &schedule).await.expect("sets schedules");
        wanted.extend((1..=4).map(|tick| (name.clone(), Rig::START + secs(10 * tick))));
    }
    let now = Rig::START + secs(45);
    let mut known = BTreeSet::new();
    for (limit, left) in [(0, 12), (5, 7), (1, 6), (20, 0)] {
        let ticked = store.tick(Some(now), limit).await.expect("ticks");
        assert!(ticked.fired.len() <= limit, "at most {limit}: {ticked:?}");
        for one in ticked.fired {
            let earlier = one.tick.before(secs(10));
            let is_next = earlier == Rig::START || known.contains(&(one.schedule.clone(), earlier));
            assert!(is_next, "{} of {} before an earlier one", one.tick, one.schedule);
            assert!(known.insert((one.schedule, one.tick)), "{} fired twice", one.tick);
        }
        assert_eq!(wanted.len() - known.len(), left, "after a call of at most {limit}");
        let is_due = ticked.next.is_some_and(|next| next <= now);
        assert_eq!(is_due, left > 0, "{:?}, and {left} are due", ticked.next);
    }
    assert_eq!(known, wanted);
}

/// Queues that have no home yet, `typo` and the spread `wide`, are empty whatever is asked about them.
pub async fn queues_without_a_home_are_empty(store: &dyn Store) {
    let mut before = store.next_due(None, &queue(), &[]).await.expect("looks").now;
    for name in ["typo", "wide"] {
        let queue = QueueName::new(name).expect("a valid name");
        let claim = Claim { queue: queue.clone(), ..Rig::claim_of(9) };
        let claimed = store.claim(None, &claim).await.expect("hands out jobs");
        assert!(claimed.jobs.is_empty() && claimed.next.due.is_none());
        assert!(claimed.now >= before, "an empty answer has the time");
        before = claimed.now;
        let tasks: Arc<[_]> = Arc::from([task("t")]);
        let next = store.next_due(None, &queue, &tasks).await.expect("looks");
        let peeked = store.peek(None, &[(queue.clone(), tasks)]).await.expect("peeks");
        assert_eq!((next.due, peeked[0].due), (None, None));
        assert!(!store.delete_queue(Some(Rig::START), &queue).await.expect("deletes queues"));
        let cancelled = store.cancel_key(None, &task("t"), &key("k")).await;
        assert_eq!(cancelled.expect("cancels"), None);
    }
}
