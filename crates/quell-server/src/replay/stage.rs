//! Everything that a replay needs in place: an empty store, a client and a worker on it, a clock.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quell::clock::{Clock, SystemClock};
use quell::testing::TestClock;
use quell::trigger::TaskPolicy;
use quell::{Quell, WorkerBuilder};
use quell_core::poll::PollSettings;
use quell_core::window::Thresholds;
use quell_core::{Batch, MemoryStore, NewTrigger, Payload, Store, TaskName, Timestamp, WakeHub};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::observed::Observed;
use super::{Ending, Speed};
use crate::rule::RuleArgs;
use crate::trace::{Event, Trace};

/// The task that a replay triggers, and its queue.
const TASK: &str = "replay";
/// Longer than any trace: nothing that a worker does by time alone may come between its events.
const NEVER: Duration = Duration::from_secs(1_000 * 365 * 86_400);
/// How long the worker may take to end once it was told to.
const FAREWELL: Duration = Duration::from_secs(10);

/// A directory with a store that vanishes with it.
#[derive(Debug)]
pub(super) struct Scratch(TempDir);

impl Scratch {
    pub(super) fn new() -> std::io::Result<Scratch> {
        tempfile::Builder::new().prefix("quell-replay-").tempdir().map(Scratch)
    }

    /// Not fully synchronous: a power cut may take a file that nobody will read again.
    pub(super) fn url(&self) -> String {
        format!("sqlite://{}?synchronous=normal", self.0.path().join("replay.db").display())
    }
}

/// Whose time it is.
#[derive(Debug)]
pub(super) enum Time {
    /// The driver's.
    Virtual(Arc<TestClock>),
    /// The machine's; the trace goes so many times faster than it happened.
    Real { speed: f64 },
}

/// What a replay plays on.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) quell: Quell,
    pub(super) clock: Time,
    hub: Arc<WakeHub>,
    ledger: Arc<Ledger>,
    policy: TaskPolicy,
}

impl Stage {
    /// Opens the store behind `url`, which must hold no jobs.
    pub(super) async fn open(
        url: &str,
        speed: Speed,
        thresholds: Thresholds,
        rule: &RuleArgs,
        trace: &Trace,
    ) -> Result<Stage> {
        let start = trace.events().first().map_or(Timestamp::MIN, |event| event.at);
        let in_memory = url.starts_with("memory:");
        let (time, clock): (Time, Arc<dyn Clock>) = match speed {
            Speed::Max => {
                let clock = Arc::new(TestClock::new(start));
                (Time::Virtual(Arc::clone(&clock)), clock)
            }
            Speed::Times(speed) if in_memory => {
                (Time::Real { speed }, Arc::new(SystemClock::for_store()))
            }
            Speed::Times(speed) => (Time::Real { speed }, Arc::new(SystemClock::new())),
        };
        let inner: Arc<dyn Store> = if in_memory {
            Arc::new(MemoryStore::new(clock.now()))
        } else {
            Arc::clone(Quell::open(url).await?.store())
        };
        Stage::on(inner, time, clock, policy(thresholds, rule, speed)?).await
    }

    /// A stage on this store, which must hold no jobs.
    async fn on(
        inner: Arc<dyn Store>,
        time: Time,
        clock: Arc<dyn Clock>,
        policy: TaskPolicy,
    ) -> Result<Stage> {
        let jobs: u64 = inner.counts().await?.iter().map(|counts| counts.jobs).sum();
        ensure!(jobs == 0, "the store already holds {jobs} jobs: a replay needs an empty one");
        let (ledger, hub) = (Arc::new(Ledger::default()), Arc::new(WakeHub::new()));
        let driven = matches!(time, Time::Virtual(_)).then(|| Arc::clone(&hub));
        let store = Observed { inner, ledger: Arc::clone(&ledger), hub: driven };
        let quell = Quell::with_store(Arc::new(store)).clock(clock).build()?;
        Ok(Stage { quell, clock: time, hub, ledger, policy })
    }

    /// What the store said so far.
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

    /// Tells the worker that something is due now.
    pub(super) fn wake(&self) {
        self.hub.wake(Some(self.policy.queue()), Timestamp::MIN);
    }

    /// Runs the worker while `feed` goes on, and ends it then or at an interrupt.
    pub(super) async fn perform(
        &self,
        feed: impl Future<Output = Result<()>>,
        interrupted: impl Future<Output = ()>,
    ) -> Result<Ending> {
        let stop = CancellationToken::new();
        let work = self.worker().run_until(stop.clone().cancelled_owned());
        let ended = stop.clone();
        let work = async {
            tokio::select! {
                worked = work => worked.context("the worker stopped"),
                () = async { ended.cancelled().await; tokio::time::sleep(FAREWELL).await } => Ok(()),
            }
        };
        let fed = async {
            let ending = tokio::select! {
                fed = feed => fed.map(|()| Ending::Complete),
                () = interrupted => Ok(Ending::Interrupted),
            };
            stop.cancel();
            ending
        };
        tokio::try_join!(work, fed).map(|((), ending)| ending)
    }

    fn worker(&self) -> WorkerBuilder<()> {
        let name = self.policy.name().clone();
        let worker = self.quell.worker(()).concurrency(1_000).register_raw(
            name,
            &quell::Policy::queue(TASK),
            |_payload, _ctx| std::future::ready(Ok(())),
        );
        match self.clock {
            // The driver wakes the worker; polls and leases would only be steps to take.
            Time::Virtual(_) => {
                worker.poll(PollSettings { base: NEVER, ceiling: NEVER }).lease(NEVER)
            }
            Time::Real { .. } => worker,
        }
    }
}

/// A duration that is so many times as long, saturating.
pub(super) fn scaled(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// The rule as the worker's own clock sees it: sped up, its durations shrink.
fn policy(thresholds: Thresholds, rule: &RuleArgs, speed: Speed) -> Result<TaskPolicy> {
    let shrunk = |duration: Duration| match speed {
        Speed::Max => duration,
        Speed::Times(times) => scaled(duration, 1.0 / times),
    };
    let (min, max) = (shrunk(thresholds.min()), shrunk(thresholds.max()));
    ensure!(min.as_micros() > 0, "--speed: --min would be less than a microsecond: go slower");
    let mut policy = quell::Policy::queue(TASK).debounce(min..=max).fold(rule.payload.clone());
    if let Some(triggers) = rule.max_triggers {
        policy = policy.max_triggers(triggers);
    }
    Ok(TaskPolicy::new(TaskName::new(TASK)?, &policy, Thresholds::DEFAULT)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use clap::Parser;
    use indicatif::ProgressBar;
    use quell_core::{Answer, Capabilities, Ended, JobId, Operation, Wakeups};

    use super::super::{Args, virtual_time};
    use super::*;
    use crate::trace::Keep;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    /// Notes the names of the calls that arrive.
    #[derive(Debug)]
    struct Noting {
        inner: MemoryStore,
        calls: Mutex<BTreeSet<&'static str>>,
    }

    #[async_trait]
    impl Store for Noting {
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }

        async fn call(
            &self,
            now: Option<Timestamp>,
            operation: Operation,
        ) -> quell_core::Result<Answer> {
            self.calls.lock().unwrap().insert(operation.name());
            self.inner.call(now, operation).await
        }

        fn wakeups(&self) -> Wakeups {
            self.inner.wakeups()
        }

        fn ended(&self, job: JobId) -> Ended {
            self.inner.ended(job)
        }
    }

    #[tokio::test]
    async fn r34_at_full_speed_no_upkeep_of_the_worker_reaches_the_store() {
        let files = tempfile::tempdir().unwrap();
        let file = files.path().join("events.csv");
        // An hour apart: heartbeats, looks for expired leases and removals are due at each.
        let rows: String =
            (0..50).map(|hour| format!("{},k\n", 1_000_000 + hour * 3_600)).collect();
        std::fs::write(&file, format!("timestamp,key\n{rows}")).unwrap();
        let rule = ["--key", "{{ key }}", "--min", "10s", "--max", "60s"];
        let cli = [&["replay", file.to_str().unwrap()], &rule[..]].concat();
        let args = Cli::parse_from(cli).args;
        let trace = Trace::read(&args.trace, Keep::Payloads).unwrap();
        let start = trace.events()[0].at;
        let store = Arc::new(Noting { inner: MemoryStore::new(start), calls: Mutex::default() });
        let clock = Arc::new(TestClock::new(start));
        let thresholds = Thresholds::new(args.min, args.max).unwrap();
        let rule = policy(thresholds, &args.rule, Speed::Max).unwrap();
        let (time, inner) = (Time::Virtual(Arc::clone(&clock)), Arc::clone(&store));
        let stage = Stage::on(inner, time, Arc::clone(&clock) as _, rule).await.unwrap();
        let bar = ProgressBar::hidden();
        let feed = virtual_time::drive(&stage, &clock, &trace, false, &bar);
        let ending = stage.perform(feed, std::future::pending()).await.unwrap();
        assert_eq!((ending, stage.ledger().runs()), (Ending::Complete, 50));
        let calls = store.calls.lock().unwrap().clone();
        assert_eq!(
            calls,
            BTreeSet::from(["claim", "counts", "enqueue", "remove_worker", "settle"])
        );
    }
}
