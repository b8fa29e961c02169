//! Sends a trace as real triggers through a real store, client and worker, and measures.
//!
//! `virtual_time` drives it as fast as the machine goes, with due times that come when the trace
//! has them; `real_time` lets the clock run, sped up. `ledger` counts the store's answers, which
//! the wrapper in `observed` reads. Invariant: every number is from an answer of the store.

mod ledger;
mod observed;
mod one_core;
mod real_time;
mod stage;
mod virtual_time;

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use quell_core::Store;

use crate::error::{Error, Result, without_field};
use crate::rule::Rule;
use crate::summary::{Spread, Summary};
use crate::trace::Trace;
use ledger::Counted;
pub use one_core::OneCore;
use stage::Stage;

/// How fast the time of the trace passes.
///
/// ```
/// use quell_lab::replay::Speed;
///
/// # fn main() -> quell_lab::Result<()> {
/// let speed: Speed = "1000".parse()?;
/// assert_eq!(speed, Speed::times(1_000.0)?);
/// assert_eq!("max".parse::<Speed>()?, Speed::MAX);
/// assert!(Speed::times(0.0).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed(Option<f64>);

impl Speed {
    /// Virtual time: the clock jumps from one event to the next.
    pub const MAX: Speed = Speed(None);

    /// This number of trace seconds in one second of the machine.
    ///
    /// # Errors
    /// A number below 0.001 or above 1e9.
    pub fn times(factor: f64) -> Result<Speed> {
        if (0.001..=1e9).contains(&factor) {
            return Ok(Speed(Some(factor)));
        }
        Err(Speed::refused(factor))
    }

    /// The factor; `None` for virtual time.
    #[must_use]
    pub fn factor(self) -> Option<f64> {
        self.0
    }

    fn refused(value: impl fmt::Debug) -> Error {
        let text = format!("{value:?} is not a speed: give max, or a number from 0.001 to 1e9");
        Error::of("speed", anyhow!(text))
    }
}

impl FromStr for Speed {
    type Err = Error;

    /// Reads `max`, or a factor such as `1000` or `1000x`.
    fn from_str(text: &str) -> Result<Speed> {
        if text == "max" {
            return Ok(Speed::MAX);
        }
        let factor = text.trim_end_matches('x').parse();
        factor.ok().and_then(|it| Speed::times(it).ok()).ok_or_else(|| Speed::refused(text))
    }
}

/// The state of a replay that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of events that were sent.
    pub triggers: usize,
    /// The number of runs that began.
    pub runs: u64,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Replayed {
    /// Triggers that the store accepted, runs, coverage, and delays in the trace's time.
    pub summary: Summary,
    /// From each job's due time to its start, in the machine's time.
    pub lateness: Spread,
    /// Whether the whole trace was sent, and its triggers are covered. It is false after a stop.
    pub complete: bool,
}

/// A replay of one rule.
///
/// ```
/// use std::time::Duration;
///
/// use quell_core::Key;
/// use quell_core::window::Thresholds;
/// use quell_lab::Rule;
/// use quell_lab::replay::Replay;
/// use quell_lab::trace::{Source, Trace};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("events.csv");
/// # std::fs::write(&file, "timestamp,key\n0,k\n3,k\n7,k\n")?;
/// let source = Source::new(&file).key(|row| row["key"].as_str().map(Key::new).transpose());
/// let trace = Trace::read(&source.payloads())?;
/// let rule = Rule::new(Thresholds::new(Duration::from_secs(10), Duration::from_secs(60))?);
///
/// # let url = format!("sqlite://{}", folder.path().join("replay.db").display());
/// let quell = quell::Quell::open(&url).await?;
/// let replayed = Replay::on(quell.store().clone(), rule).run(&trace).await?;
/// assert_eq!((replayed.summary.runs, replayed.summary.covered), (1, 3));
/// # Ok(())
/// # }
/// ```
pub struct Replay {
    rule: Rule,
    speed: Speed,
    /// None for a store in memory.
    store: Option<Arc<dyn Store>>,
    progress: Box<dyn Fn(Progress) + Send + Sync>,
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Replay { rule, speed, store, .. } = self;
        let mut shown = f.debug_struct("Replay");
        shown.field("rule", rule).field("speed", speed).field("store", store);
        shown.finish_non_exhaustive()
    }
}

impl Replay {
    /// A replay on a store in memory, at [`Speed::MAX`].
    #[must_use]
    pub fn in_memory(rule: Rule) -> Replay {
        Replay { rule, speed: Speed::MAX, store: None, progress: Box::new(|_| {}) }
    }

    /// A replay on a store that has no jobs, at [`Speed::MAX`]. The jobs of the replay stay in it.
    #[must_use]
    pub fn on(store: Arc<dyn Store>, rule: Rule) -> Replay {
        Replay { store: Some(store), ..Replay::in_memory(rule) }
    }

    /// How fast the time of the trace passes.
    #[must_use]
    pub fn speed(self, speed: Speed) -> Replay {
        Replay { speed, ..self }
    }

    /// Calls this after each batch of triggers.
    #[must_use]
    pub fn on_progress(self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Replay {
        Replay { progress: Box::new(progress), ..self }
    }

    /// Sends the whole trace, and waits until runs have covered every trigger.
    ///
    /// # Errors
    /// A store that fails or has jobs ([`Error::field`] is `store`), and thresholds that this speed
    /// makes shorter than a microsecond (`speed`).
    pub async fn run(&self, trace: &Trace) -> Result<Replayed> {
        self.run_until(trace, std::future::pending()).await
    }

    /// As [`Replay::run`], but ends early when `stop` completes.
    ///
    /// # Errors
    /// See [`Replay::run`].
    pub async fn run_until(
        &self,
        trace: &Trace,
        stop: impl Future<Output = ()>,
    ) -> Result<Replayed> {
        let stage = Stage::open(self.store.clone(), &self.rule, self.speed, trace).await?;
        let progress = &*self.progress;
        let feed = async {
            match &stage.time {
                stage::Time::Virtual(clock) => {
                    let counts = self.rule.counts();
                    virtual_time::drive(&stage, clock, trace, counts, progress).await
                }
                stage::Time::Real { speed } => {
                    real_time::drive(&stage, *speed, trace, progress).await
                }
            }
        };
        let complete = stage.perform(feed, stop).await.map_err(without_field)?;
        let Counted { accepted, runs, covered, delays, lateness } = stage.ledger().counted();
        let summary = Summary {
            thresholds: self.rule.thresholds,
            triggers: accepted,
            runs,
            covered,
            delay: self.in_trace_time(Spread::of(delays)),
        };
        Ok(Replayed { summary, lateness: Spread::of(lateness), complete })
    }

    fn in_trace_time(&self, spread: Spread) -> Spread {
        let Some(factor) = self.speed.factor() else { return spread };
        let stretched = |duration: Duration| stage::scaled(duration, factor);
        let Spread { p50, p99, max } = spread;
        Spread { p50: stretched(p50), p99: stretched(p99), max: stretched(max) }
    }
}
