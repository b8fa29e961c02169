//! The calls of a history, read before anything else: what was asked for is known at every event,
//! however late an answer was written.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::history::Event;
use quell_core::window::Debounce;
use quell_core::{Key, Now, Payload, Receipt, ScheduleName, TaskName, Timestamp, TriggerId, When};

use super::Line;
use super::views::{OpId, OpState, OpView, TaskKey};

/// Every call, with what became of it.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) ops: BTreeMap<OpId, OpView>,
    /// Which call a trigger came from.
    pub(super) triggers: BTreeMap<TriggerId, OpId>,
    /// Whether any call allowed attempts of a key to overlap.
    pub(super) overlaps: BTreeMap<TaskKey, bool>,
    /// The keys for which a caller asked for a flush.
    pub(super) flushes: BTreeSet<TaskKey>,
    schedules: BTreeMap<ScheduleName, OpView>,
    now: Now,
}

impl Calls {
    pub(super) fn of(lines: &[Line]) -> Self {
        let mut calls = Calls::default();
        for (at, line) in lines.iter().enumerate() {
            if !matches!(line.event, Event::Fault { .. } | Event::Heal { .. } | Event::Begin { .. })
            {
                calls.now = calls.now.max(line.event.at());
            }
            calls.take(at, line);
        }
        calls
    }

    fn take(&mut self, at: usize, line: &Line) {
        let id = |op: u64| (line.p.clone(), op);
        match &line.event {
            Event::TriggerInvoke { op, .. } => {
                if let Some(view) = self.invoked(at, &line.event) {
                    self.ops.insert(id(*op), view);
                }
            }
            Event::TriggerOk { op, receipt } => {
                if let Some(view) = self.ops.get_mut(&id(*op)) {
                    view.state = OpState::Answered(receipt.clone(), at);
                    view.answered = line.w;
                }
                if let Some(trigger) = receipt.trigger() {
                    self.triggers.entry(trigger).or_insert(id(*op));
                }
            }
            Event::TriggerFail { op, .. } => {
                if let Some(view) = self.ops.get_mut(&id(*op)) {
                    view.state = OpState::Failed;
                }
            }
            Event::FlushInvoke { task, key } => {
                self.flushes.insert((task.clone(), key.clone()));
            }
            Event::Schedule { schedule, .. } => {
                if let Some(view) = self.schedule(at, &line.event) {
                    self.schedules.insert(schedule.clone(), view);
                }
            }
            Event::Ticked { schedule, receipt, .. }
            | Event::ScheduleRun { schedule, receipt, .. } => {
                self.triggered(at, line, schedule, receipt);
            }
            _ => {}
        }
    }

    fn since(&self) -> Timestamp {
        self.now.unwrap_or(Timestamp::MIN)
    }

    fn invoked(&mut self, at: usize, event: &Event) -> Option<OpView> {
        let Event::TriggerInvoke {
            task,
            queue,
            priority,
            key,
            dedup,
            hold,
            idempotency,
            fingerprint,
            debounce,
            when,
            fold,
            payload,
            trace,
            ..
        } = event
        else {
            return None;
        };
        self.allow(task, key.as_ref(), debounce.as_ref());
        Some(OpView {
            queue: queue.clone(),
            priority: Some(*priority),
            key: key.clone(),
            dedup: dedup.clone(),
            hold: *hold,
            idempotency: idempotency.clone().zip(fingerprint.clone()),
            debounce: *debounce,
            when: *when,
            fold: fold.clone(),
            payload: payload.as_deref().and_then(|text| Payload::from_text(text).ok()),
            trace: trace.clone(),
            ..self.of_task(at, task)
        })
    }

    fn schedule(&mut self, at: usize, event: &Event) -> Option<OpView> {
        let Event::Schedule { task, key, dedup, debounce, when, fold, .. } = event else {
            return None;
        };
        self.allow(task, key.as_ref(), debounce.as_ref());
        Some(OpView {
            key: key.clone(),
            dedup: dedup.as_ref().map(|dedup| dedup.key.clone()),
            hold: dedup.as_ref().map(|dedup| dedup.until),
            debounce: *debounce,
            when: *when,
            fold: fold.clone(),
            ..self.of_task(at, task)
        })
    }

    /// A call about this task; the rest of it is not known yet.
    fn of_task(&self, at: usize, task: &TaskName) -> OpView {
        OpView {
            at,
            since: self.since(),
            task: task.clone(),
            queue: None,
            priority: None,
            key: None,
            dedup: None,
            hold: None,
            idempotency: None,
            debounce: None,
            when: When::Now,
            fold: None,
            payload: None,
            trace: None,
            state: OpState::Unknown,
            answered: None,
        }
    }

    fn allow(&mut self, task: &TaskName, key: Option<&Key>, debounce: Option<&Debounce>) {
        if let (Some(key), Some(debounce)) = (key, debounce) {
            *self.overlaps.entry((task.clone(), key.clone())).or_default() |= debounce.overlap;
        }
    }

    /// A trigger that a schedule made is a call of the store's own, which was answered at once.
    fn triggered(&mut self, at: usize, line: &Line, schedule: &ScheduleName, receipt: &Receipt) {
        let Some(made) = self.schedules.get(schedule).cloned() else { return };
        // Callers count from one.
        let id = (line.p.clone(), u64::MAX - at as u64);
        if let Some(trigger) = receipt.trigger() {
            self.triggers.entry(trigger).or_insert(id.clone());
        }
        let state = OpState::Answered(receipt.clone(), at);
        self.ops.insert(id, OpView { at, since: self.since(), state, answered: line.w, ..made });
    }
}
