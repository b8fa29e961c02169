//! Schedules (R36).

use quell::schedule::{
    CatchUp, RecordedTick, ScheduleInfo, ScheduleName, ScheduleState, Spec, TickedBy,
};
use quell::{JobId, JobState, Key, Quell, QueueName, TaskName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Document, MissedTicks, State, TickCause, there};
use crate::config::duration::exact;

/// How many ticks to come are shown.
const UPCOMING: usize = 5;

/// A schedule; `plan` is when it ticks, for people.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// Its name.
    #[schema(value_type = String)]
    pub name: ScheduleName,
    /// What it triggers.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// The queue of its jobs.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// The debounce key of its triggers.
    #[schema(value_type = Option<String>)]
    pub key: Option<Key>,
    /// Of its triggers.
    pub priority: i16,
    /// Of its triggers; left out for a token without the scope `payload`.
    #[serde(default, deserialize_with = "there", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Document, required = false)]
    pub payload: Option<Document>,
    /// What becomes of missed ticks.
    #[schema(value_type = MissedTicks)]
    pub catch_up: CatchUp,
    /// `active` or `paused`.
    pub state: String,
    /// The newest tick that fired.
    pub last: Option<String>,
    /// The next tick.
    pub next: Option<String>,
    /// When it ticks, for people.
    pub plan: String,
    /// Its cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The time zone of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// Where its intervals begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<String>,
    /// The next ticks in the time zone of the plan, where one schedule is asked for; none of a paused one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub upcoming: Vec<String>,
}

/// The newest ticks of a schedule.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FiredTicks {
    /// The schedule.
    #[schema(value_type = String)]
    pub schedule: ScheduleName,
    /// The newest first.
    pub ticks: Vec<FiredTick>,
}

/// A tick that fired.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FiredTick {
    /// The planned time.
    pub tick: String,
    /// Why it fired; null where the store does not keep it, as Redis.
    #[schema(value_type = Option<TickCause>)]
    pub by: Option<TickedBy>,
    /// The job that took its trigger; null where a dedup key refused it, and where the store does not keep it.
    #[schema(value_type = Option<String>)]
    pub job: Option<JobId>,
    /// The job's state; null where its row was removed.
    #[schema(value_type = Option<State>)]
    pub state: Option<JobState>,
}

impl FiredTicks {
    /// Reads the newest ticks of a schedule, and the state of each one's job.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](quell::ErrorKind::NotFound) for an unknown schedule, and what the store answers.
    pub async fn read(quell: &Quell, schedule: &ScheduleName, limit: usize) -> quell::Result<Self> {
        let mut ticks = Vec::new();
        for RecordedTick { tick, job, by } in quell.fired(schedule, limit).await? {
            let found = match job {
                Some(id) => quell.job(id).await?,
                None => None,
            };
            let state = found.map(|job| job.state);
            ticks.push(FiredTick { tick: tick.to_string(), by, job, state });
        }
        Ok(FiredTicks { schedule: schedule.clone(), ticks })
    }
}

/// All schedules.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Schedules {
    /// By name.
    pub schedules: Vec<Schedule>,
}

impl From<&ScheduleInfo> for Schedule {
    fn from(info: &ScheduleInfo) -> Self {
        let schedule = &info.schedule;
        let trigger = &schedule.trigger;
        let mut shown = Schedule {
            name: schedule.name.clone(),
            task: trigger.task.clone(),
            queue: trigger.queue.clone(),
            key: trigger.keyed.as_ref().map(|keyed| keyed.key.clone()),
            priority: trigger.priority,
            payload: Some(Document::from(&trigger.payload)),
            catch_up: schedule.catch_up,
            state: if info.state == ScheduleState::Paused { "paused" } else { "active" }.to_owned(),
            last: info.last.map(|tick| tick.to_string()),
            next: info.next.map(|tick| tick.to_string()),
            plan: String::new(),
            cron: None,
            zone: None,
            every: None,
            anchor: None,
            upcoming: Vec::new(),
        };
        match &schedule.spec {
            Spec::Cron(cron) => {
                shown.plan = format!("{} {}", cron.expression(), cron.zone());
                shown.cron = Some(cron.expression().to_owned());
                shown.zone = Some(cron.zone().to_owned());
            }
            Spec::Every(every) => {
                let interval = exact(every.interval());
                shown.plan = format!("every {interval}");
                shown.every = Some(interval);
                shown.anchor = Some(every.anchor().to_string());
            }
        }
        shown
    }
}

impl Schedule {
    /// The same with its next ticks.
    #[must_use]
    pub fn with_upcoming(mut self, info: &ScheduleInfo) -> Self {
        let Some(next) = info.next.filter(|_| info.state == ScheduleState::Active) else {
            return self;
        };
        let zone = self.zone.as_deref().unwrap_or("UTC").to_owned();
        let shown = |tick: Timestamp| {
            let moment = jiff::Timestamp::from_microsecond(tick.as_micros()).ok()?;
            Some(moment.in_tz(&zone).ok()?.to_string())
        };
        let later = info.schedule.spec.ticks(next);
        self.upcoming =
            std::iter::once(next).chain(later).take(UPCOMING).filter_map(shown).collect();
        self
    }
}

impl From<&[ScheduleInfo]> for Schedules {
    fn from(known: &[ScheduleInfo]) -> Self {
        Schedules { schedules: known.iter().map(Schedule::from).collect() }
    }
}
