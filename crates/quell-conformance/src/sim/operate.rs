//! What operators do from outside: on a handle of their own, past the network, at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_core::history::Event;
use quell_core::job::Adjustment;
use quell_core::schedule::ScheduleState;
use quell_core::{
    JobFilter, JobId, JobState, Key, QueueName, QueueSettings, Result, Retention, Store,
    TaskSettings,
};

use super::load;
use super::plan::{Plan, Step};
use super::run::START;
use super::world::World;

/// The operators of a world.
pub(super) struct Operators<'p> {
    pub(super) plan: &'p Plan,
    pub(super) world: Arc<World>,
}

impl Operators<'_> {
    /// Makes the schedules of the plan.
    pub(super) fn begin(&self) {
        for (index, planned) in self.plan.schedules.iter().enumerate() {
            let schedule = load::schedule(self.plan, planned, index);
            self.ask(async |store| store.set_schedule(Some(START), &schedule).await);
        }
    }

    /// Performs a step that is an operator's.
    pub(super) fn perform(&self, step: &Step) {
        let now = Some(self.world.store_time());
        match step {
            Step::Flush { task, key } => {
                let key = Key::new(format!("k{key}")).expect("a valid key");
                let task = load::name(*task).0;
                self.world.record(Event::FlushInvoke { task: task.clone(), key: key.clone() });
                self.ask(async |store| store.flush(now, &task, &key).await);
            }
            Step::Cancel { back } => self.cancel(*back),
            Step::Adjust { back, adjustment } => self.adjust(*back, *adjustment),
            Step::Redrive => self.redrive(),
            Step::Prune { keep } => {
                let keep = Retention { succeeded: Some(*keep), dead: None };
                self.ask(async |store| store.prune(now, &keep, 10).await);
            }
            Step::Queue { queue, settings } => self.set_queue(&load::queue_name(*queue), settings),
            Step::DeleteQueue { queue } => {
                let queue = load::queue_name(*queue);
                self.ask(async |store| store.delete_queue(now, &queue).await);
            }
            Step::Task { task, paused } => self.set_task(*task, *paused),
            Step::SwitchSchedule { schedule, state } => {
                let (name, state) = (load::schedule_name(*schedule), *state);
                self.ask(async |store| store.set_schedule_state(now, &name, state).await);
            }
            Step::RunSchedule { schedule } => {
                let name = load::schedule_name(*schedule);
                self.ask(async |store| store.run_schedule(now, &name).await);
            }
            Step::Backfill { schedule, back } => {
                // The store's own time may be later.
                let to = self.world.store_time();
                let name = load::schedule_name(*schedule);
                let from = to.before(*back);
                self.ask(async |store| store.backfill(now, &name, from, to).await);
            }
            Step::Trigger { .. } | Step::Deploy { .. } | Step::Harm(_) => {}
        }
    }

    /// One of the newest jobs.
    fn newest(&self, back: u64, state: Option<JobState>) -> Option<JobId> {
        let newest = JobFilter { limit: 10, state, ..JobFilter::default() };
        let newest = self.ask(async |store| store.jobs(&newest).await);
        let mut jobs = newest.into_iter().flatten().map(|job| job.id);
        jobs.nth(usize::try_from(back).unwrap_or(0))
    }

    fn adjust(&self, back: u64, adjustment: Adjustment) {
        let now = Some(self.world.store_time());
        if let Some(id) = self.newest(back, Some(JobState::Scheduled)) {
            self.ask(async |store| store.adjust(now, id, adjustment).await);
        }
    }

    fn cancel(&self, back: u64) {
        let now = Some(self.world.store_time());
        if let Some(id) = self.newest(back, None) {
            self.ask(async |store| store.cancel(now, id, "an operator said so").await);
        }
    }

    fn redrive(&self) {
        let now = Some(self.world.store_time());
        let dead = JobFilter { state: Some(JobState::Dead), ..JobFilter::default() };
        let dead = self.ask(async |store| store.jobs(&dead).await);
        if let Some(id) = dead.into_iter().flatten().map(|job| job.id).next() {
            self.ask(async |store| store.redrive(now, &id.into()).await);
        }
    }

    /// Takes back what holds work: pauses and deletions, of queues, tasks and schedules. Limits
    /// stay.
    pub(super) fn resume(&self) {
        let known = self.ask(async |store| store.queues().await).unwrap_or_default();
        for queue in (0..self.plan.queues.max(1)).map(load::queue_name) {
            let mut infos = known.iter();
            let settings = infos.find(|info| info.name == queue).map(|info| info.settings.clone());
            let settings = QueueSettings { paused: false, ..settings.unwrap_or_default() };
            self.set_queue(&queue, &settings);
        }
        let paused = self.plan.steps.iter().filter_map(|(_, step)| match step {
            Step::Task { task, .. } => Some(*task),
            _ => None,
        });
        let paused: BTreeSet<usize> = paused.collect();
        paused.into_iter().for_each(|task| self.set_task(task, false));
        self.resume_schedules();
    }

    /// Resumes what is paused, and sends the time of the next tick to every process, as hints may be lost.
    fn resume_schedules(&self) {
        let now = Some(self.world.store_time());
        for (index, planned) in self.plan.schedules.iter().enumerate() {
            let mut schedule = load::schedule(self.plan, planned, index);
            schedule.trigger.priority += 1;
            let active = ScheduleState::Active;
            self.ask(async |store| store.set_schedule_state(now, &schedule.name, active).await);
            self.ask(async |store| store.set_schedule(now, &schedule).await);
        }
    }

    pub(super) fn pause_schedules(&self) {
        let now = Some(self.world.store_time());
        for index in 0..self.plan.schedules.len() {
            let name = load::schedule_name(index);
            let paused = ScheduleState::Paused;
            self.ask(async |store| store.set_schedule_state(now, &name, paused).await);
        }
        self.world.stir(World::ALL);
    }

    fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) {
        let now = Some(self.world.store_time());
        self.ask(async |store| store.set_queue(now, queue, settings).await);
    }

    fn set_task(&self, task: usize, paused: bool) {
        let now = Some(self.world.store_time());
        let (task, settings) = (load::name(task).0, TaskSettings::default().paused(paused));
        self.ask(async |store| store.set_task(now, &task, &settings).await);
    }

    /// Whether every job has ended.
    pub(super) fn all_ended(&self) -> bool {
        let counts = self.ask(async |store| store.counts().await);
        counts.is_some_and(|counts| counts.iter().all(|count| count.state.is_ended()))
    }

    /// Records every job's row.
    pub(super) fn record_rows(&self) {
        let mut before = None;
        loop {
            let filter = JobFilter { before, limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
            let page = self.ask(async |store| store.jobs(&filter).await).unwrap_or_default();
            let Some(last) = page.last() else { return };
            before = Some(last.id);
            page.iter().for_each(|job| self.world.record(Event::row(job)));
        }
    }

    /// What the store answers; none for a refusal.
    fn ask<R>(&self, call: impl AsyncFnOnce(Arc<dyn Store>) -> Result<R>) -> Option<R> {
        self.world.perform(call(self.world.store())).ok()
    }
}
