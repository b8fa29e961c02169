//! How an accepted trigger becomes a job or part of one (R6, R7, R9).
//!
//! Stores that keep rows decide with [`land`](crate::edge::land) and then call one of these.

use crate::edge::Edge;
use crate::job::Shape;
use crate::trigger::Keyed;
use crate::window::Window;
use crate::{Job, JobId, JobState, NewTrigger, Timestamp};

impl Job {
    /// The job of a trigger without a debounce key (R9).
    #[must_use]
    pub fn unkeyed(id: JobId, trigger: &NewTrigger, now: Timestamp) -> Job {
        Job {
            id,
            task: trigger.task.clone(),
            queue: trigger.queue.clone(),
            key: None,
            priority: trigger.priority,
            state: JobState::Scheduled,
            payload: trigger.payload.clone(),
            window: Window::unkeyed(now, trigger.when.earliest(now)),
            shape: Shape::default(),
            waits: false,
            suppressed: 0,
            attempt: 0,
            failures: 0,
            starts: 0,
            lapses: 0,
            worker: None,
            lease_until: None,
            started_at: None,
            ended_at: None,
            absorbed_by: None,
            error: None,
        }
    }

    /// The job of a trigger that opens `window`; `waits` where an attempt of its key runs (R11).
    #[must_use]
    pub fn opened(
        id: JobId,
        trigger: &NewTrigger,
        keyed: &Keyed,
        window: Window,
        waits: bool,
    ) -> Job {
        Job {
            key: Some(keyed.key.clone()),
            payload: keyed.fold.open(&trigger.payload),
            shape: Shape::of(keyed),
            window,
            waits,
            ..Job::unkeyed(id, trigger, window.first_at)
        }
    }

    /// Takes a trigger into the open window, which becomes `window` (R7). A join gives fresh
    /// attempts (R12) and moves the window to the trigger's queue.
    pub fn joined(&mut self, trigger: &NewTrigger, keyed: &Keyed, window: Window) {
        self.window = window;
        self.payload = keyed.fold.join(&self.payload, &trigger.payload);
        self.priority = self.priority.max(trigger.priority);
        self.queue = trigger.queue.clone();
        self.shape = Shape::of(keyed);
        self.attempt = 0;
    }

    /// Counts a trigger that a leading edge does not run (R13).
    pub fn suppressed(&mut self) {
        self.window.triggers = self.window.triggers.saturating_add(1);
        self.suppressed = self.suppressed.saturating_add(1);
    }
}

impl Shape {
    /// What a job keeps of the policy that its trigger brought.
    #[must_use]
    pub fn of(keyed: &Keyed) -> Shape {
        let throttled = keyed.debounce.edge == Edge::Throttle;
        Shape {
            fold: keyed.fold.clone(),
            edge: keyed.debounce.edge,
            period: throttled.then(|| keyed.debounce.thresholds.min()),
            overlap: keyed.debounce.overlap,
        }
    }
}
