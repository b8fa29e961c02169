//! The parts of a replay: an empty store, a client and a worker on it, a clock.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use quell::clock::{Clock, SystemClock};
use quell::testing::TestClock;
use quell::trigger::TaskPolicy;
use quell::{Quell, WorkerBuilder};
use quell_core::poll::PollSettings;
use quell_core::window::Thresholds;
use quell_core::{Batch, MemoryStore, NewTrigger, Payload, Store, TaskName, Timestamp, WakeHub};
use tokio_util::sync::CancellationToken;

use super::Speed;
use super::ledger::Ledger;
use super::observed::Observed;
use crate::error::{Error, without_field};
use crate::rule::Rule;
use crate::trace::{Event, Trace};

/// The task that a replay triggers, and its queue.
const TASK: &str = "replay";
/// Longer than any trace: nothing that a worker does by time alone may come between its events.
const NEVER: Duration = Duration::from_secs(1_000 * 365 * 86_400);
/// How long the worker may take to end after the stop.
const LONGEST_END: Duration = Duration::from_secs(10);

/// The clock of a replay.
#[derive(Debug)]
pub(super) enum Time {
    /// The driver sets it.
    Virtual(Arc<TestClock>),
    /// The machine's clock; the trace is this much faster than it happened.
    Real { speed: f64 },
}

/// A store with a client, ready for the trace.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) quell: Quell,
    pub(super) time: Time,
    hub: Arc<WakeHub>,
    ledger: Arc<Ledger>,
    policy: TaskPolicy,
}

impl Stage {
    /// A stage on a store without jobs; on one in memory where there is none.
    pub(super) async fn open(
        store: Option<Arc<dyn Store>>,
        rule: &Rule,
        speed: Speed,
        trace: &Trace,
    ) -> crate::Result<Stage> {
        let start = trace.events().first().map_or(Timestamp::MIN, |event| event.at);
        let (time, clock): (Time, Arc<dyn Clock>) = match speed.factor() {
            None => {
                let clock = Arc::new(TestClock::new(start));
                (Time::Virtual(Arc::clone(&clock)), clock)
            }
            Some(speed) if store.is_none() => {
                (Time::Real { speed }, Arc::new(SystemClock::for_store()))
            }
            Some(speed) => (Time::Real { speed }, Arc::new(SystemClock::new())),
        };
        let store = store.unwrap_or_else(|| Arc::new(MemoryStore::new(clock.now())));
        Stage::on(store, time, clock, policy(rule, speed)?).await
    }

    /// A stage on this store, which must have no jobs.
    async fn on(
        inner: Arc<dyn Store>,
        time: Time,
        clock: Arc<dyn Clock>,
        policy: TaskPolicy,
    ) -> crate::Result<Stage> {
        let counts = inner.counts().await.map_err(|error| Error::of("store", error.into()))?;
        let jobs: u64 = counts.iter().map(|counts| counts.jobs).sum();
        if jobs > 0 {
            let error = anyhow!("the store already holds {jobs} jobs: a replay needs an empty one");
            return Err(Error::of("store", error));
        }
        let (ledger, hub) = (Arc::new(Ledger::default()), Arc::new(WakeHub::new()));
        let driven = matches!(time, Time::Virtual(_)).then(|| Arc::clone(&hub));
        let store = Observed { inner, ledger: Arc::clone(&ledger), hub: driven };
        let quell = Quell::with_store(Arc::new(store)).clock(clock).build();
        let quell = quell.map_err(|error| without_field(error.into()))?;
        Ok(Stage { quell, time, hub, ledger, policy })
    }

    /// The store's answers so far.
    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Triggers once per event, in one atomic batch.
    pub(super) async fn trigger(&self, trace: &Trace, events: &[Event]) -> Result<()> {
        let triggers = events.iter().map(|event| self.prepare(trace, event)).collect();
        self.quell.enqueue(Batch { triggers, dedup: None }).await?;
        Ok(())
    }

    fn prepare(&self, trace: &Trace, event: &Event) -> NewTrigger {
        let payload = trace.payload(event).cloned();
        let payload = payload.unwrap_or_else(|| Payload::from_stored("null"));
        self.policy.trigger(payload, trace.key(event).cloned())
    }

    /// Wakes the worker: something is due now.
    pub(super) fn wake(&self) {
        self.hub.wake(Some(self.policy.queue()), Timestamp::MIN);
    }

    /// Runs the worker until `feed` or `stopped` completes; returns whether `feed` did.
    pub(super) async fn perform(
        &self,
        feed: impl Future<Output = Result<()>>,
        stopped: impl Future<Output = ()>,
    ) -> Result<bool> {
        let stop = CancellationToken::new();
        let work = self.worker().run_until(stop.clone().cancelled_owned());
        let ended = stop.clone();
        let work = async {
            tokio::select! {
                worked = work => worked.context("the worker stopped"),
                () = async { ended.cancelled().await; tokio::time::sleep(LONGEST_END).await } => Ok(()),
            }
        };
        let fed = async {
            let complete = tokio::select! {
                fed = feed => fed.map(|()| true),
                () = stopped => Ok(false),
            };
            stop.cancel();
            complete
        };
        tokio::try_join!(work, fed).map(|((), complete)| complete)
    }

    fn worker(&self) -> WorkerBuilder<()> {
        let name = self.policy.name().clone();
        let worker = self.quell.worker(()).concurrency(1_000).register_raw(
            name,
            &quell::Policy::queue(TASK),
            |_payload, _ctx| std::future::ready(Ok(())),
        );
        match self.time {
            // The driver wakes the worker; polls and leases would only be steps to take.
            Time::Virtual(_) => {
                worker.poll(PollSettings { base: NEVER, ceiling: NEVER }).lease(NEVER)
            }
            Time::Real { .. } => worker,
        }
    }
}

/// A duration multiplied by a factor, saturating.
pub(super) fn scaled(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// The rule in the time of the worker's clock: at a speed, its durations are shorter.
fn policy(rule: &Rule, speed: Speed) -> crate::Result<TaskPolicy> {
    let shrunk = |duration: Duration| match speed.factor() {
        None => duration,
        Some(factor) => scaled(duration, 1.0 / factor),
    };
    let (min, max) = (shrunk(rule.thresholds.min()), shrunk(rule.thresholds.max()));
    if min.as_micros() == 0 {
        let text = "min would be less than a microsecond at this speed: go slower";
        return Err(Error::of("speed", anyhow!(text)));
    }
    let mut policy = quell::Policy::queue(TASK).debounce(min..=max).fold(rule.fold.clone());
    if let Some(triggers) = rule.max_triggers {
        policy = policy.max_triggers(triggers);
    }
    let name = TaskName::new(TASK);
    let policy = name.and_then(|name| TaskPolicy::new(name, &policy, Thresholds::DEFAULT));
    policy.map_err(|error| without_field(error.into()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use quell_core::{Answer, Capabilities, EndNotification, JobId, Key, Now, Operation, Wakeups};

    use super::super::virtual_time;
    use super::*;
    use crate::trace::Source;

    /// Records the names of its calls.
    #[derive(Debug)]
    struct Recording {
        inner: MemoryStore,
        calls: Mutex<BTreeSet<&'static str>>,
    }

    #[async_trait]
    impl Store for Recording {
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }

        async fn call(&self, now: Now, operation: Operation) -> quell_core::Result<Answer> {
            self.calls.lock().unwrap().insert(operation.name());
            self.inner.call(now, operation).await
        }

        fn wakeups(&self) -> Wakeups {
            self.inner.wakeups()
        }

        fn ended(&self, job: JobId) -> EndNotification {
            self.inner.ended(job)
        }
    }

    #[tokio::test]
    async fn r34_at_full_speed_no_upkeep_of_the_worker_reaches_the_store() {
        let files = tempfile::tempdir().unwrap();
        let file = files.path().join("events.csv");
        // An hour apart: heartbeats, searches for expired leases and removals are due at each.
        let rows: String =
            (0..50).map(|hour| format!("{},k\n", 1_000_000 + hour * 3_600)).collect();
        std::fs::write(&file, format!("timestamp,key\n{rows}")).unwrap();
        let source = Source::new(file).key(|row| row["key"].as_str().map(Key::new).transpose());
        let trace = Trace::read(&source.payloads()).unwrap();
        let start = trace.events()[0].at;
        let store = Arc::new(Recording { inner: MemoryStore::new(start), calls: Mutex::default() });
        let clock = Arc::new(TestClock::new(start));
        let seconds = Duration::from_secs;
        let rule = Rule::new(Thresholds::new(seconds(10), seconds(60)).unwrap());
        let rule = policy(&rule, Speed::MAX).unwrap();
        let (time, inner) = (Time::Virtual(Arc::clone(&clock)), Arc::clone(&store));
        let stage = Stage::on(inner, time, Arc::clone(&clock) as _, rule).await.unwrap();
        let feed = virtual_time::drive(&stage, &clock, &trace, false, &|_| {});
        let complete = stage.perform(feed, std::future::pending()).await.unwrap();
        assert_eq!((complete, stage.ledger().runs()), (true, 50));
        let calls = store.calls.lock().unwrap().clone();
        assert_eq!(
            calls,
            BTreeSet::from(["claim", "counts", "enqueue", "remove_worker", "settle"])
        );
    }
}
