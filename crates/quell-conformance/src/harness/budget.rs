//! A budget for each call: what it touches does not grow with what the store holds.
//!
//! A store author writes a [`Ledger`] that counts what calls touch (blocks, pages, commands), and
//! calls [`judge`]: each call of [`calls`](crate::calls) is made on a store that holds little, and on one
//! that holds twenty times as much of everything.

use std::sync::Arc;
use std::time::Duration;

use quell_core::dedup::Dedup;
use quell_core::idempotency::Idempotency;
use quell_core::schedule::{CatchUp, Schedule, ScheduleState, Spec};
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    Batch, Claim, Draw, Fold, JobId, NewTrigger, Outcome, QueueName, QueueSettings, Receipt,
    Result, ScheduleName, Settlement, Store, TaskSettings, Timestamp, When,
};

use crate::Rig;
use crate::calls::{Case, table};
use crate::rig::{fails, key, keyed_with, lease, plain, queue, secs, task};

/// How many of everything a store holds.
pub const SIZES: [u64; 2] = [100, 2_000];
/// Jobs that are triggered, started or ended in one call while a store is filled.
const AT_ONCE: usize = 500;
/// Jobs that one claim starts and that go on.
const RUN: usize = 10;
/// Far enough that no call of the table gets there.
const LATER: Duration = secs(1_000_000_000);
/// Between two calls, as some look ahead.
const APART: Duration = secs(20_000);

/// A store whose calls are counted.
pub trait Ledger {
    /// Opens the store; it is the same one each time.
    fn open(&self) -> impl Future<Output = Arc<dyn Store>>;

    /// Closes it.
    fn close(&self, store: Arc<dyn Store>) -> impl Future<Output = ()>;

    /// What `call` touches on the store, which is opened for it.
    fn count(
        &self,
        call: impl AsyncFnOnce(&dyn Store) -> Result<()>,
    ) -> impl Future<Output = Result<u64>>;
}

/// Makes each call of [`table`] on stores of both [`SIZES`], and fails where one costs more than half as
/// much again on the larger one and `slack` on top: an index has one more level there, and a page of
/// rows lies further apart. `growing` names those that may, each with its bound, as far as they grow with
/// what is held; it fails, too, where one of these does not grow by more than `slack` any more. Returns what
/// each call costs.
///
/// # Errors
/// What a call answers that should succeed.
pub async fn judge<L: Ledger>(
    fresh: impl AsyncFn() -> L,
    slack: u64,
    growing: &[(&str, &str)],
) -> Result<Vec<String>> {
    let [few, many] = SIZES.map(|size| costs(&fresh, size));
    let (few, many) = (few.await?, many.await?);
    let (mut wrong, mut lines) = (Vec::new(), Vec::new());
    for ((name, few), (_, many)) in few.iter().zip(&many) {
        let may_grow = growing.iter().any(|(growing, _)| growing == name);
        let line = format!("{name}: {few} beside {}, {many} beside {}", SIZES[0], SIZES[1]);
        let (grows, is_flat) = (*many > few + few / 2 + slack, *many <= few + slack);
        let is_bounded = *many <= 2 * few * (SIZES[1] / SIZES[0]) + slack;
        if (if may_grow { is_flat } else { grows }) || !is_bounded {
            wrong.push(line.clone());
        }
        lines.push(line);
    }
    for (name, _) in growing {
        assert!(few.iter().any(|(known, _)| known == name), "there is no call {name:?}");
    }
    assert!(
        wrong.is_empty(),
        "calls that grow, or too fast, or that are said to and do not: {wrong:#?}"
    );
    Ok(lines)
}

/// The cost of each call on a store that holds `size` of everything.
async fn costs<L: Ledger>(fresh: &impl AsyncFn() -> L, size: u64) -> Result<Vec<(&str, u64)>> {
    let (ledger, mut now) = (fresh().await, Rig::START);
    let store = ledger.open().await;
    fill(&*store, now, size).await?;
    ledger.close(store).await;
    let mut costs = Vec::new();
    for Case { name, given, call, .. } in table().into_iter().filter(|case| !case.cold) {
        let store = ledger.open().await;
        clear(&*store, now).await?;
        now = now + APART;
        let last = NewTrigger { queue: crowd(), ..plain("1") };
        let last = store.enqueue(Some(now), vec![Batch::one(last)]).await?.remove(0)?;
        let last = last.first().and_then(Receipt::job).expect("a job was made");
        let first = JobId::new(last.get() + 1);
        given(&*store, now, first).await?;
        ledger.close(store).await;
        let call = async |store: &dyn Store| call(store, now, first).await;
        costs.push((name, ledger.count(call).await?));
    }
    Ok(costs)
}

/// Takes away what the call before has left.
async fn clear(store: &dyn Store, now: Timestamp) -> Result<()> {
    let now = now + APART / 2;
    store.delete_queue(Some(now), &queue()).await?;
    store.set_queue(Some(now), &queue(), &QueueSettings::default()).await?;
    store.set_task(Some(now), &task("t"), &TaskSettings::default()).await?;
    for schedule in store.schedules().await?.iter().map(|info| &info.schedule.name) {
        if schedule.as_str() != OLD {
            store.delete_schedule(Some(now), schedule).await?;
        }
    }
    for alert in store.alerts().await? {
        store.set_alert(&alert.name, alert.version, None).await?;
    }
    for text in ["k", "l"] {
        store.cancel_key(Some(now), &task("t"), &key(text)).await?;
    }
    store.reap(Some(now), AT_ONCE).await?;
    end(store, now, Outcome::succeeded()).await
}

fn crowd() -> QueueName {
    QueueName::new("crowd").expect("valid")
}

/// The schedule whose ticks have fired.
const OLD: &str = "old";

fn later(trigger: NewTrigger) -> NewTrigger {
    NewTrigger { when: When::After(LATER), ..trigger }
}

/// Fills a store with `size` jobs that wait, that are due in another queue or run there, and that have
/// ended well or badly, windows, partitions, dedup and idempotency keys, and ticks that fired.
async fn fill(store: &dyn Store, now: Timestamp, size: u64) -> Result<()> {
    let spec = Spec::every(secs(10), Rig::START).expect("valid");
    let long = Debounce::new(Thresholds::new(LATER, LATER).expect("valid"));
    let window = |text: &str| keyed_with(text, long, Fold::Last, "1");
    let name = ScheduleName::new(OLD).expect("valid");
    let trigger = NewTrigger { queue: crowd(), ..window("ticks") };
    let schedule =
        Schedule { name: name.clone(), spec, catch_up: CatchUp::All, trigger, declared: None };
    store.set_schedule(Some(now.before(secs(10 * size))), &schedule).await?;
    while store.tick(Some(now), 1_000).await?.next.is_some_and(|next| next <= now) {}
    store.set_schedule_state(Some(now), &name, ScheduleState::Paused).await?;

    let all = (0..size).map(|n| n.to_string());
    take(store, now, all.clone().map(|_| plain("1"))).await?;
    end(store, now, Outcome::succeeded()).await?;
    take(store, now, all.clone().map(|_| plain("1"))).await?;
    end(store, now, fails(secs(1), true)).await?;
    take(store, now, all.clone().map(|n| window(&format!("window {n}")))).await?;
    take(store, now, all.clone().map(|_| later(plain("1")))).await?;
    let with_partition = |n: String| NewTrigger { partition: Some(key(&n)), ..later(plain("1")) };
    take(store, now, all.clone().map(with_partition)).await?;
    let with_dedup =
        |n: String| NewTrigger { dedup: Some(Dedup::new(key(&n))), ..later(plain("1")) };
    take(store, now, all.clone().map(with_dedup)).await?;
    let with_idempotency = |n: String| {
        let idempotency = Some(Idempotency::new(key(&n)));
        NewTrigger { idempotency, ..later(plain("1")) }
    };
    take(store, now, all.clone().map(with_idempotency)).await?;
    let due_elsewhere = NewTrigger { queue: crowd(), ..plain("1") };
    take(store, now, all.map(|_| due_elsewhere.clone())).await?;
    for draw in 1..=size / 4 / RUN as u64 {
        let lease = LATER + secs(draw);
        let claim = Claim { queue: crowd(), draw: Draw::new(draw), lease, ..Rig::claim_of(RUN) };
        store.claim(Some(now), &claim).await?;
    }
    Ok(())
}

async fn take(
    store: &dyn Store,
    now: Timestamp,
    triggers: impl Iterator<Item = NewTrigger>,
) -> Result<()> {
    let batches: Vec<Batch> = triggers.map(Batch::one).collect();
    for batches in batches.chunks(AT_ONCE) {
        for answer in store.enqueue(Some(now), batches.to_vec()).await? {
            answer?;
        }
    }
    Ok(())
}

/// Starts all that is due, and ends it so.
async fn end(store: &dyn Store, now: Timestamp, outcome: Outcome) -> Result<()> {
    loop {
        let claimed = store.claim(Some(now), &Rig::claim_of(AT_ONCE)).await?;
        if claimed.jobs.is_empty() {
            return Ok(());
        }
        let end = |job| Settlement { lease: lease(job), outcome: outcome.clone() };
        store.settle(Some(now), claimed.jobs.iter().map(end).collect()).await?;
    }
}
