//! What was read at one moment, and what a caller sees of it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quell::alert::{AlertName, AlertRow, Overview as Lanes};
use quell::job::Counts;
use quell::queue::{QueueInfo, TaskInfo};
use quell::store::Trouble;
use quell::worker::Workers;
use quell::{JobState, QueueName, TaskName, Timestamp};

use super::marks::seen_by;
use super::{ByState, Windows};
use crate::access::Grant;
use crate::recent::{Activity, Tally};
use crate::view::{self, Issue, Numbers, TaskActivity};

/// The most tasks of an overview.
const MOST_TASKS: usize = 50;
/// A job that is later than this is a trouble.
const LATE: Duration = Duration::from_secs(60);
/// Fewer failures are no trouble yet.
const FAILING: u64 = 5;
/// The most tasks that are named as failing.
const MOST_FAILING: usize = 5;

#[derive(Debug)]
pub(super) struct Moment {
    pub(super) lanes: Lanes,
    pub(super) counts: Vec<Counts>,
    pub(super) queues: Vec<QueueInfo>,
    pub(super) tasks: Vec<TaskInfo>,
    pub(super) workers: Workers,
    pub(super) alerts: Vec<AlertRow>,
    pub(super) trouble: Option<Trouble>,
    pub(super) activities: Vec<Activity>,
    pub(super) since: Timestamp,
    /// When something was last left out of the record.
    pub(super) left_out: Option<Timestamp>,
    pub(super) windows: Windows,
    pub(super) marks: Vec<view::Mark>,
    /// What those see of it who see all.
    pub(super) whole: OnceLock<view::Overview>,
    /// The same as the JSON of a viewer's first event, and of the later ones: made once for all viewers.
    pub(super) events: [OnceLock<Arc<str>>; 2],
}

/// How many minutes of a task are in an event that is not the first.
const MINUTES: usize = 2;

impl Moment {
    /// What a caller sees of it.
    pub(super) fn shown(&self, grant: &Grant) -> Cow<'_, view::Overview> {
        if grant.is_limited() {
            return Cow::Owned(self.seen(grant));
        }
        Cow::Borrowed(self.whole.get_or_init(|| self.seen(grant)))
    }

    /// The JSON of an event for a caller.
    ///
    /// # Errors
    /// None that are known: all members have a form in JSON.
    pub(super) fn event(&self, grant: &Grant, is_first: bool) -> serde_json::Result<Arc<str>> {
        let kept = self.events.get(usize::from(!is_first)).filter(|_| !grant.is_limited());
        if let Some(made) = kept.and_then(OnceLock::get) {
            return Ok(Arc::clone(made));
        }
        let mut overview = self.shown(grant).into_owned();
        for task in overview.tasks.iter_mut().filter(|_| !is_first) {
            let older = task.minutes.len().saturating_sub(MINUTES);
            task.minutes.drain(..older);
        }
        let made: Arc<str> = serde_json::to_string(&overview)?.into();
        Ok(kept.map_or_else(
            || Arc::clone(&made),
            |kept| Arc::clone(kept.get_or_init(|| made.clone())),
        ))
    }

    fn seen(&self, grant: &Grant) -> view::Overview {
        let (mut hour, mut week) = (Tally::default(), Tally::default());
        for activity in self.activities.iter().filter(|one| grant.sees(&one.queue, &one.task)) {
            hour.add(&activity.hour);
            week.add(&activity.week);
        }
        let mut tasks = self.tasks_of(grant);
        let now = self.present(grant, &tasks);
        let more_tasks = tasks.len().saturating_sub(MOST_TASKS);
        tasks.truncate(MOST_TASKS);
        view::Overview {
            at: self.lanes.now.to_string(),
            since: self.since.to_string(),
            left_out: self.left_out.map(|at| at.to_string()),
            troubles: self.troubles(grant, &now),
            hour: Numbers::from(&hour),
            week: Numbers::from(&week),
            now,
            tasks,
            more_tasks,
            marks: seen_by(grant, self.marks.clone()),
        }
    }

    fn present(&self, grant: &Grant, tasks: &[TaskActivity]) -> view::Present {
        let sum = |of: fn(&TaskActivity) -> u64| tasks.iter().map(of).sum();
        let sees_all = !grant.is_limited();
        let at = self.workers.now;
        let seen: Vec<_> = self.workers.rows.iter().filter(|row| !row.is_unseen(at)).collect();
        let windows = self.windows.0.iter().filter(|(queue, task)| grant.sees(queue, task));
        let raised = self.alerts.iter().filter(|row| row.state.raised);
        let alerts: Vec<AlertName> = raised.map(|row| row.name.clone()).collect();
        view::Present {
            waiting: sum(|task| task.waiting),
            running: sum(|task| task.running),
            dead: sum(|task| task.dead),
            windows: windows.count() as u64,
            windows_complete: self.windows.1,
            first_due: self.first_due(grant).map(|due| due.to_string()),
            unreadable: sees_all.then_some(self.lanes.unreadable),
            workers: sees_all.then_some(seen.len() as u64),
            drained: sees_all
                .then(|| seen.iter().filter(|one| one.drained.is_some()).count() as u64),
            slots: sees_all.then(|| seen.iter().map(|one| u64::from(one.slots)).sum()),
            alerts: sees_all.then_some(alerts),
        }
    }

    fn first_due(&self, grant: &Grant) -> Option<Timestamp> {
        let seen = self.lanes.lanes.iter().filter(|lane| grant.sees(&lane.queue, &lane.task));
        seen.filter_map(|lane| lane.first_due).min()
    }

    /// The same of what no pause holds back: a pause is a trouble of its own.
    fn first_due_unpaused(&self, grant: &Grant) -> Option<Timestamp> {
        let paused_queues: BTreeSet<&QueueName> =
            self.queues.iter().filter(|one| one.settings.paused).map(|one| &one.name).collect();
        let paused_tasks: BTreeSet<&TaskName> =
            self.tasks.iter().filter(|one| one.settings.paused).map(|one| &one.name).collect();
        let goes_on = |queue: &QueueName, task: &TaskName| {
            !paused_queues.contains(queue) && !paused_tasks.contains(task)
        };
        let lanes = self.lanes.lanes.iter();
        let seen = lanes.filter(|lane| grant.sees(&lane.queue, &lane.task));
        let open = seen.filter(|lane| goes_on(&lane.queue, &lane.task));
        open.filter_map(|lane| lane.first_due).min()
    }

    /// Tasks whose attempts all failed in the last hour, as far as this server saw.
    fn failing(&self, grant: &Grant) -> Vec<Issue> {
        let fails = |one: &&Activity| one.hour.failed >= FAILING && one.hour.succeeded == 0;
        let seen = self.activities.iter().filter(|one| grant.sees(&one.queue, &one.task));
        let mut found: Vec<&Activity> = seen.filter(fails).collect();
        found.sort_by_key(|one| std::cmp::Reverse(one.hour.failed));
        let issue = |one: &Activity| {
            let (task, failed) = (&one.task, one.hour.failed);
            let text = format!(
                "task {task}: all {failed} attempts of the last hour failed that this server saw"
            );
            Issue {
                task: Some(task.clone()),
                queue: Some(one.queue.clone()),
                ..Issue::new("failing", text)
            }
        };
        found.into_iter().take(MOST_FAILING).map(issue).collect()
    }

    fn troubles(&self, grant: &Grant, now: &view::Present) -> Vec<Issue> {
        let mut found = Vec::new();
        let mut say = |kind: &str, text: String| found.push(Issue::new(kind, text));
        if let Some(trouble) = &self.trouble {
            say("store", format!("the store accepts no triggers: {trouble}"));
        }
        for alert in now.alerts.iter().flatten() {
            say("alert", format!("alert {alert} is raised"));
        }
        match (now.workers, now.drained) {
            (Some(0), _) if now.waiting > 0 => {
                say("workers", "jobs wait and no worker was seen".to_owned());
            }
            (Some(workers), Some(drained)) if now.waiting > 0 && workers == drained => {
                let all = if drained == 1 { "the one worker" } else { "every worker" };
                say("workers", format!("jobs wait and {all} is drained"));
            }
            _ => {}
        }
        let late = self.first_due_unpaused(grant).map(|due| self.lanes.now.since(due));
        if let Some(late) = late.filter(|late| *late > LATE) {
            let late = crate::config::duration::rough(late);
            say("late", format!("a job has been due for {late}"));
        }
        if now.dead > 0 {
            say(
                "dead",
                format!("{} dead {}", now.dead, if now.dead == 1 { "job" } else { "jobs" }),
            );
        }
        found.extend(self.failing(grant));
        if let Some(count) = now.unreadable.filter(|count| *count > 0) {
            let text = format!("{count} jobs were set aside, as their rows cannot be read");
            found.push(Issue::new("unreadable", text));
        }
        for queue in
            self.queues.iter().filter(|one| one.settings.paused && grant.sees_queue(&one.name))
        {
            let text = paused(format!("queue {} is paused", queue.name), &queue.settings.paused_by);
            found.push(Issue { queue: Some(queue.name.clone()), ..Issue::new("paused", text) });
        }
        for task in
            self.tasks.iter().filter(|one| one.settings.paused && grant.sees_task(&one.name))
        {
            let text = paused(format!("task {} is paused", task.name), &task.settings.paused_by);
            found.push(Issue { task: Some(task.name.clone()), ..Issue::new("paused", text) });
        }
        found
    }

    /// All tasks that did something or have jobs, the busiest first.
    fn tasks_of(&self, grant: &Grant) -> Vec<TaskActivity> {
        let mut found: BTreeMap<(&QueueName, &TaskName), (ByState, Option<&Activity>)> =
            BTreeMap::new();
        for count in &self.counts {
            let (states, _) = found.entry((&count.queue, &count.task)).or_default();
            let sum = states.entry(count.state).or_default();
            *sum = sum.saturating_add(count.jobs);
        }
        for activity in &self.activities {
            found.entry((&activity.queue, &activity.task)).or_default().1 = Some(activity);
        }
        let due: BTreeMap<_, _> = self
            .lanes
            .lanes
            .iter()
            .map(|lane| ((&lane.queue, &lane.task), lane.first_due))
            .collect();
        let shown = found.into_iter().filter(|((queue, task), _)| grant.sees(queue, task)).map(
            |((queue, task), (states, activity))| {
                let of = |state| states.get(&state).copied().unwrap_or_default();
                let numbers = |of: fn(&Activity) -> &Tally| {
                    activity.map(|one| Numbers::from(of(one))).unwrap_or_default()
                };
                TaskActivity {
                    task: task.clone(),
                    queue: queue.clone(),
                    waiting: of(JobState::Scheduled),
                    running: of(JobState::Running),
                    dead: of(JobState::Dead),
                    first_due: due.get(&(queue, task)).copied().flatten().map(|at| at.to_string()),
                    hour: numbers(|one| &one.hour),
                    week: numbers(|one| &one.week),
                    minutes: activity.map(|one| one.minutes.clone()).unwrap_or_default(),
                }
            },
        );
        let mut shown: Vec<TaskActivity> = shown.collect();
        shown.sort_by_key(|task| {
            let ran = task.hour.starts.saturating_add(task.running);
            std::cmp::Reverse((ran, task.hour.triggers, task.waiting, task.dead))
        });
        shown
    }
}

/// What is paused, and by whom where that is known.
fn paused(what: String, by: &Option<String>) -> String {
    by.as_ref().map_or_else(|| what.clone(), |by| format!("{what} by {by}"))
}
