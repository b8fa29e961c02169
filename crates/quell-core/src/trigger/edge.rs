//! The edges of a burst: which triggers of a key run (R13).
//!
//! A trailing debounce needs nothing but the open window. The other edges must remember a key for
//! a while after its job started: [`KeyMemory`]. It expires by itself, and an expired memory and
//! none at all mean the same, so removing old ones is only tidying.

use serde::{Deserialize, Serialize};

use crate::window::{Debounce, DueReason, Step, Window};
use crate::{JobId, Timestamp, TriggerId};

/// Which end of a burst runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Edge {
    /// Run once the key is quiet or the bound is reached.
    #[default]
    Trailing,
    /// Run the first trigger of a quiet key at once; later ones inside `min` are recorded, not run.
    Leading,
    /// Run the first at once, and the later ones of the burst once more at its end.
    Both,
    /// Run at once, but never start twice within `min` (which is the period).
    Throttle,
}

impl Edge {
    /// Whether the edge needs a [`KeyMemory`].
    #[must_use]
    pub fn remembers(self) -> bool {
        !matches!(self, Edge::Trailing)
    }
}

/// What must be remembered of a key whose burst may still go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyMemory {
    /// The first trigger of the burst.
    pub burst_at: Timestamp,
    /// The last trigger of the burst.
    pub last_at: Timestamp,
    /// The last start of a job of the key; [`Timestamp::MIN`] for none.
    pub started_at: Timestamp,
    /// The job that the burst's first trigger opened.
    pub leader: JobId,
    /// How many triggers the leader has counted, of a leading edge: the count goes on where the
    /// leader's row is gone. 0 where it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub triggers: u64,
    /// From here on the memory has no effect and may be forgotten.
    pub expires_at: Timestamp,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Where a keyed trigger lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// It opens this window.
    Opens(Window),
    /// It joins the open window, which becomes this one.
    Joins(Window),
    /// It is debounced and, by the leading edge's choice, not run: counted on this job.
    Suppressed(JobId),
}

/// Decides where a keyed trigger lands; `memory` is the key's, `open` its open window (R6, R7, R13).
#[must_use]
pub fn land(
    step: &Step,
    debounce: &Debounce,
    open: Option<&Window>,
    memory: Option<&KeyMemory>,
) -> Landing {
    if let Some(window) = open {
        return Landing::Joins(window.join(step));
    }
    let memory = memory.filter(|memory| step.at < memory.expires_at);
    let in_burst = memory.filter(|memory| {
        step.at < memory.last_at + step.thresholds.min()
            && step.at < memory.burst_at + step.thresholds.max()
    });
    match (debounce.edge, in_burst) {
        (Edge::Trailing, _) | (Edge::Both, Some(_)) => Landing::Opens(Window::open(step)),
        (Edge::Leading, Some(memory)) => Landing::Suppressed(memory.leader),
        (Edge::Leading | Edge::Both, None) => {
            Landing::Opens(Window::open_fixed(step, step.at, DueReason::Leading))
        }
        (Edge::Throttle, _) => Landing::Opens(open_throttled(step, memory)),
    }
}

/// The next start that the throttle allows.
fn open_throttled(step: &Step, memory: Option<&KeyMemory>) -> Window {
    let free_at = memory.map_or(Timestamp::MIN, |memory| throttle_until(memory, step));
    if free_at > step.at {
        let window = Window::open_fixed(step, free_at, DueReason::Throttled);
        Window { not_before: free_at, ..window }
    } else {
        Window::open_fixed(step, step.at, DueReason::Immediate)
    }
}

fn throttle_until(memory: &KeyMemory, step: &Step) -> Timestamp {
    if memory.started_at == Timestamp::MIN {
        Timestamp::MIN
    } else {
        memory.started_at + step.thresholds.min()
    }
}

/// The memory after a trigger landed as the newest one of its job; none for an edge that remembers
/// nothing.
#[must_use]
pub fn remember_trigger(
    memory: Option<&KeyMemory>,
    step: &Step,
    edge: Edge,
    newest: TriggerId,
) -> Option<KeyMemory> {
    if !matches!(edge, Edge::Leading | Edge::Both) {
        return memory.copied();
    }
    let quiet_at = step.at + step.thresholds.min();
    let fresh = KeyMemory {
        burst_at: step.at,
        last_at: step.at,
        started_at: Timestamp::MIN,
        leader: newest.job,
        triggers: newest.seq,
        expires_at: quiet_at,
    };
    let in_burst = memory.filter(|memory| {
        step.at < memory.last_at + step.thresholds.min()
            && step.at < memory.burst_at + step.thresholds.max()
    });
    Some(in_burst.map_or(fresh, |memory| KeyMemory {
        last_at: step.at,
        triggers: if memory.leader == newest.job { newest.seq } else { memory.triggers },
        expires_at: memory.expires_at.max(quiet_at),
        ..*memory
    }))
}

/// The memory after a throttled job started at `now` with this period (R13).
#[must_use]
pub fn remember_start(job: JobId, now: Timestamp, period: std::time::Duration) -> KeyMemory {
    KeyMemory {
        burst_at: now,
        last_at: now,
        started_at: now,
        leader: job,
        triggers: 0,
        expires_at: now + period,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::steps::{at, step};
    use crate::window::Thresholds;
    use std::time::Duration;

    /// The first trigger of another job.
    fn first() -> TriggerId {
        TriggerId { job: JobId::new(8), seq: 1 }
    }

    /// Runs a key through triggers with a free worker; returns the seconds of the starts.
    fn starts(debounce: Debounce, triggers: &[i64], until: i64) -> Vec<i64> {
        let (mut open, mut memory, mut started) = (None::<Window>, None, Vec::new());
        for now in 0..=until {
            if open.is_some_and(|window| window.due_at <= at(now)) {
                open = None;
                started.push(now);
                if debounce.edge == Edge::Throttle {
                    let period = debounce.thresholds.min();
                    memory = Some(remember_start(JobId::new(1), at(now), period));
                }
            }
            if triggers.contains(&now) {
                let step = Step { thresholds: debounce.thresholds, ..step(now) };
                match land(&step, &debounce, open.as_ref(), memory.as_ref()) {
                    Landing::Opens(window) | Landing::Joins(window) => open = Some(window),
                    Landing::Suppressed(_) => {}
                }
                memory = remember_trigger(memory.as_ref(), &step, debounce.edge, first());
            }
        }
        started
    }

    #[test]
    fn r13_each_edge_runs_the_triggers_it_says() {
        let edge = |edge| Debounce { edge, ..Debounce::new(Thresholds::DEFAULT) };
        let throttle = Debounce::throttle(Duration::from_secs(10)).unwrap();
        let table: [(Debounce, &[i64], &[i64]); 7] = [
            (edge(Edge::Trailing), &[0, 5], &[15]),
            (edge(Edge::Leading), &[0, 5, 12], &[1]),
            (edge(Edge::Leading), &[0, 5, 20], &[1, 21]),
            (edge(Edge::Both), &[0], &[1]),
            (edge(Edge::Both), &[0, 5, 8], &[1, 18]),
            (edge(Edge::Both), &[0, 5, 40], &[1, 15, 41]),
            (throttle, &[0, 3, 5, 12, 40], &[1, 11, 21, 41]),
        ];
        for (debounce, triggers, expected) in table {
            assert_eq!(
                starts(debounce, triggers, 80),
                expected,
                "{:?} {triggers:?}",
                debounce.edge
            );
        }
    }

    #[test]
    fn r13_a_leading_edge_runs_again_after_max_however_long_the_burst() {
        let debounce = Debounce { edge: Edge::Leading, ..Debounce::new(Thresholds::DEFAULT) };
        let triggers: Vec<i64> = (0..130).step_by(5).collect();
        assert_eq!(starts(debounce, &triggers, 130), [1, 61, 121]);
    }

    /// Memories of triggers that brought other thresholds than the one that comes now.
    fn memory() -> KeyMemory {
        KeyMemory {
            burst_at: at(0),
            last_at: at(50),
            started_at: at(0),
            leader: JobId::new(7),
            triggers: 3,
            expires_at: at(100),
        }
    }

    fn lands(edge: Edge, secs: i64, memory: KeyMemory) -> Landing {
        let debounce = Debounce { edge, ..Debounce::new(Thresholds::DEFAULT) };
        land(&step(secs), &debounce, None, Some(&memory))
    }

    #[test]
    fn r13_a_burst_is_over_at_its_end_and_no_sooner() {
        let leads =
            |landing| matches!(landing, Landing::Opens(Window { reason: DueReason::Leading, .. }));
        let suppressed = Landing::Suppressed(JobId::new(7));
        // 10 s after the last trigger, 60 s after the first, and when the memory expires.
        assert_eq!(lands(Edge::Leading, 59, memory()), suppressed);
        assert!(leads(lands(Edge::Leading, 60, memory())));
        let late = KeyMemory { burst_at: at(40), ..memory() };
        assert_eq!(lands(Edge::Leading, 59, late), suppressed);
        assert!(leads(lands(Edge::Leading, 60, late)));
        let short = KeyMemory { expires_at: at(55), ..memory() };
        assert_eq!(lands(Edge::Leading, 54, short), suppressed);
        assert!(leads(lands(Edge::Leading, 55, short)));
        let goes_on = |secs, memory| {
            let next = remember_trigger(Some(&memory), &step(secs), Edge::Both, first());
            next.is_some_and(|next| next.leader == JobId::new(7))
        };
        assert!(goes_on(59, late) && !goes_on(60, late));
        assert!(goes_on(59, memory()) && !goes_on(60, memory()));
    }

    #[test]
    fn r13_a_throttle_is_free_at_the_end_of_its_period() {
        let reason = |secs| {
            let Landing::Opens(window) = lands(Edge::Throttle, secs, memory()) else {
                panic!("it opens a window")
            };
            (window.reason, window.due_at, window.not_before)
        };
        assert_eq!(reason(9), (DueReason::Throttled, at(10), at(10)));
        assert_eq!(reason(10), (DueReason::Immediate, at(10), Timestamp::MIN));
    }
}
