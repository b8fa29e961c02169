//! Declaring a schedule: what `quell.schedule(…)` returns.
//!
//! An option that cannot be meant is refused when the call is awaited, before anything is written.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;

use futures_util::future::BoxFuture;
use quell_core::schedule::{CatchUp, Schedule, SpecParts};
use quell_core::{NewTrigger, Priority, Result, ScheduleName, Timestamp, When};

use crate::{Quell, Task};

/// A schedule that is set when awaited: made, or changed where its name is known.
///
/// Declare schedules at every start, in every process: setting an equal one changes nothing, and
/// none resumes what an operator paused. Workers need no setting for them.
///
/// ```
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Report { of: String }
/// # impl quell::Task for Report { const NAME: &'static str = "report"; type Output = (); }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> quell::Result<()> {
/// # let quell = quell::Quell::open("memory:").await?;
/// use std::time::Duration;
/// use quell::schedule::CatchUp;
///
/// let report = Report { of: "sales".into() };
/// quell.schedule("sales", report).cron("0 6 * * 1-5").zone("Europe/Berlin").await?;
///
/// let report = Report { of: "stock".into() };
/// quell.schedule("stock", report).every(Duration::from_secs(600)).catch_up(CatchUp::None).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a schedule is set when it is awaited"]
pub struct ScheduleTask<'a, T> {
    quell: &'a Quell,
    name: Result<ScheduleName>,
    trigger: Result<NewTrigger>,
    plan: SpecParts,
    catch_up: CatchUp,
    task: PhantomData<fn() -> T>,
}

impl<'a, T: Task> ScheduleTask<'a, T> {
    pub(crate) fn new(quell: &'a Quell, name: &str, task: T) -> Self {
        let (name, trigger) = (ScheduleName::new(name), quell.prepare(&task));
        let (plan, catch_up) = (SpecParts::default(), CatchUp::default());
        ScheduleTask { quell, name, trigger, plan, catch_up, task: PhantomData }
    }

    /// By the calendar: minute, hour, day of month, month, day of week, with seconds before them
    /// if you like. See [`Cron`](crate::schedule::Cron) for days on which clocks change.
    pub fn cron(mut self, expression: impl Into<String>) -> Self {
        self.plan.cron = Some(expression.into());
        self
    }

    /// The time zone of [`cron`](Self::cron), by its IANA name. UTC by default.
    pub fn zone(mut self, name: impl Into<String>) -> Self {
        self.plan.zone = Some(name.into());
        self
    }

    /// At a fixed interval, counted from the anchor: ticks do not drift, and all processes agree.
    pub fn every(mut self, interval: Duration) -> Self {
        self.plan.every = Some(interval);
        self
    }

    /// The first tick of [`every`](Self::every); the Unix epoch by default, so that ten minutes are
    /// those of the clock.
    pub fn anchor(mut self, at: Timestamp) -> Self {
        self.plan.anchor = Some(at);
        self
    }

    /// What becomes of ticks that were missed. [`CatchUp::Latest`] by default.
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.catch_up = catch_up;
        self
    }

    /// The priority of its triggers, in place of the policy's (R30).
    pub fn priority(mut self, priority: Priority) -> Self {
        if let Ok(trigger) = &mut self.trigger {
            trigger.priority = priority;
        }
        self
    }

    /// Each tick's job waits this long after the tick.
    pub fn delay(mut self, delay: Duration) -> Self {
        if let Ok(trigger) = &mut self.trigger {
            trigger.when = When::After(delay);
        }
        self
    }

    fn schedule(self) -> Result<Schedule> {
        let name = self.name?;
        let spec = self.plan.spec().map_err(|error| error.at(format!("schedule {name}")))?;
        Ok(Schedule { name, spec, catch_up: self.catch_up, trigger: self.trigger?, declared: None })
    }
}

impl<'a, T: Task> IntoFuture for ScheduleTask<'a, T> {
    type Output = Result<()>;
    type IntoFuture = BoxFuture<'a, Result<()>>;

    fn into_future(self) -> Self::IntoFuture {
        let quell = self.quell;
        let schedule = self.schedule();
        Box::pin(async move { quell.set_schedule(schedule?).await })
    }
}
