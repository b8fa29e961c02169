//! Schedules: triggers that come by the clock (R36).
//!
//! A [`Schedule`] says what to trigger and when; its [`Spec`] is a pure function from a moment to
//! the next tick. `plan` decides which ticks fire, for all stores: a store loads a
//! [`ScheduleInfo`], asks it, hands the triggers to [`accept`](crate::accept::accept) and writes
//! both back in one step, so that a tick fires once however many workers ask.

mod cron;
mod plan;
#[cfg(test)]
mod plan_tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use cron::Cron;
pub use plan::{
    CATCH_UP_STEP, Fired, MAX_BACKFILL, ON_TIME, RECORD, RecordedTick, ScheduleInfo, ScheduleState,
    Tick, Ticked, TickedBy, UNREADABLE_PAUSE, no_such_schedule,
};

use crate::queue::remarks::check_text;
use crate::trigger::{Limits, NewTrigger, When};
use crate::{Error, Result, ScheduleName, Timestamp};

/// What to trigger, and when.
///
/// ```
/// use std::time::Duration;
/// use quell_core::schedule::{CatchUp, Schedule, Spec};
/// use quell_core::{NewTrigger, Payload, QueueName, ScheduleName, TaskName, Timestamp};
///
/// let (task, queue) = (TaskName::new("report")?, QueueName::new("default")?);
/// let schedule = Schedule {
///     name: ScheduleName::new("nightly")?,
///     spec: Spec::every(Duration::from_secs(600), Timestamp::from_secs(0))?,
///     catch_up: CatchUp::Latest,
///     trigger: NewTrigger::new(task, queue, Payload::encode("all")?),
///     declared: None,
/// };
/// assert_eq!(schedule.spec.next(Timestamp::from_secs(600)), Some(Timestamp::from_secs(1_200)));
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schedule {
    /// Its name: setting a schedule of the same name changes it.
    pub name: ScheduleName,
    /// When its ticks are.
    pub spec: Spec,
    /// What happens to ticks that passed while no worker ran.
    #[serde(default)]
    pub catch_up: CatchUp,
    /// What each tick triggers.
    pub trigger: NewTrigger,
    /// Which declaration it was set by last, as
    /// [`QueueSettings::declared`](field@crate::QueueSettings::declared).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<String>,
}

impl Schedule {
    /// Refuses what no store may be given (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self, limits: &Limits) -> Result<()> {
        let about = |error: Error| error.at(format!("schedule {}", self.name));
        if matches!(self.trigger.when, When::At(_)) {
            let message =
                "a fixed time would be the same for every tick: give a delay, or leave it out";
            return Err(about(Error::invalid("run_at", message)));
        }
        if self.trigger.idempotency.is_some() {
            let message = "a tick fires once without it: leave the idempotency key out";
            return Err(about(Error::invalid("idempotency_key", message)));
        }
        if self.trigger.trace.is_some() {
            let message = "a tick has no caller: leave the trace context out (R42)";
            return Err(about(Error::invalid("trace", message)));
        }
        check_text("declared", self.declared.as_deref()).map_err(about)?;
        self.trigger.validate(limits).map_err(about)
    }
}

/// When ticks are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spec {
    /// By the calendar.
    Cron(Box<Cron>),
    /// At a fixed interval.
    Every(Every),
}

impl Spec {
    /// Ticks by the calendar: see [`Cron::new`].
    ///
    /// # Errors
    /// As for [`Cron::new`].
    pub fn cron(expression: impl AsRef<str>, zone: impl AsRef<str>) -> Result<Self> {
        Ok(Spec::Cron(Box::new(Cron::new(expression, zone)?)))
    }

    /// Ticks at a fixed interval: see [`Every::new`].
    ///
    /// # Errors
    /// As for [`Every::new`].
    pub fn every(interval: Duration, anchor: Timestamp) -> Result<Self> {
        Ok(Spec::Every(Every::new(interval, anchor)?))
    }

    /// The first tick after a moment; none where there is none left.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Spec::Cron(cron) => cron.next(after),
            Spec::Every(every) => every.next(after),
        }
    }

    /// The last tick up to a moment; none where none has come.
    #[must_use]
    pub fn latest(&self, until: Timestamp) -> Option<Timestamp> {
        match self {
            Spec::Cron(cron) => cron.latest(until),
            Spec::Every(every) => every.latest(until),
        }
    }

    /// The ticks after a moment, in order.
    pub fn ticks(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next(after), |tick| self.next(*tick))
    }
}

/// A plan as people ask for it, one field at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecParts {
    /// A cron expression.
    pub cron: Option<String>,
    /// Its time zone, by IANA name; UTC where none is given.
    pub zone: Option<String>,
    /// A fixed interval.
    pub every: Option<Duration>,
    /// Its first tick; the Unix epoch where none is given, so that ten minutes are the clock's.
    pub anchor: Option<Timestamp>,
}

impl SpecParts {
    /// The plan, if the parts go together.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the part (R40).
    pub fn spec(&self) -> Result<Spec> {
        let SpecParts { cron, zone, every, anchor } = self;
        match (cron, every) {
            (Some(_), None) if anchor.is_some() => {
                Err(Error::invalid("anchor", "anchor belongs to every, not to cron"))
            }
            (Some(expression), None) => Spec::cron(expression, zone.as_deref().unwrap_or("UTC")),
            (None, Some(_)) if zone.is_some() => {
                Err(Error::invalid("zone", "zone belongs to cron, not to every"))
            }
            (None, Some(interval)) => Spec::every(*interval, anchor.unwrap_or_default()),
            (Some(_), Some(_)) => {
                Err(Error::invalid("cron", "cron and every exclude each other: choose one"))
            }
            (None, None) => Err(Error::invalid("cron", "no plan: give cron or every")),
        }
    }
}

/// Ticks at `anchor`, `anchor + interval`, `anchor + 2 · interval` and so on: they do not drift,
/// however late each is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "WrittenEvery")]
pub struct Every {
    interval: Duration,
    anchor: Timestamp,
}

/// An [`Every`] as it is stored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEvery {
    interval: Duration,
    #[serde(default)]
    anchor: Timestamp,
}

impl TryFrom<WrittenEvery> for Every {
    type Error = Error;

    fn try_from(written: WrittenEvery) -> Result<Self> {
        Every::new(written.interval, written.anchor)
    }
}

impl Every {
    /// Ticks from `anchor` on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the interval is shorter than a
    /// microsecond, the resolution of store time, or no number of them (R40).
    pub fn new(interval: Duration, anchor: Timestamp) -> Result<Self> {
        if interval.as_micros() == 0 {
            let message = "interval is zero: give at least one microsecond";
            return Err(Error::invalid("interval", message));
        }
        if !interval.subsec_nanos().is_multiple_of(1_000) {
            let message = format!("interval of {interval:?} is not whole microseconds: round it");
            return Err(Error::invalid("interval", message));
        }
        Ok(Every { interval, anchor })
    }

    /// The time between two ticks.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The first tick.
    #[must_use]
    pub fn anchor(&self) -> Timestamp {
        self.anchor
    }

    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match self.ticks_until(after) {
            None => Some(self.anchor),
            Some(ticks) => self.at(ticks.checked_add(1)?),
        }
    }

    fn latest(&self, until: Timestamp) -> Option<Timestamp> {
        self.at(self.ticks_until(until)?)
    }

    /// How many intervals lie between the anchor and a moment; none before the anchor.
    fn ticks_until(&self, moment: Timestamp) -> Option<u128> {
        let since = i128::from(moment.as_micros()).checked_sub(self.anchor.as_micros().into())?;
        u128::try_from(since).ok()?.checked_div(self.interval.as_micros())
    }

    fn at(&self, ticks: u128) -> Option<Timestamp> {
        let since = i128::try_from(ticks.checked_mul(self.interval.as_micros())?).ok()?;
        let micros = i128::from(self.anchor.as_micros()).checked_add(since)?;
        i64::try_from(micros).ok().map(Timestamp::from_micros)
    }
}

/// What becomes of ticks that were missed, because no worker was there or the store was away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatchUp {
    /// They are let go: a tick fires within [`ON_TIME`] of its time, or not at all.
    None,
    /// The newest of them fires, however late.
    #[default]
    Latest,
    /// Each of them fires, in order.
    All,
}

impl CatchUp {
    /// Every setting.
    pub const ALL: [CatchUp; 3] = [CatchUp::None, CatchUp::Latest, CatchUp::All];

    /// The setting's name, as it is written in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CatchUp::None => "none",
            CatchUp::Latest => "latest",
            CatchUp::All => "all",
        }
    }
}
