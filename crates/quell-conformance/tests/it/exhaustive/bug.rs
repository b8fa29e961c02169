//! Worlds that are wrong in one thing, to see that the judge says so.

use std::time::Duration;

use quell_core::window::{Debounce, Thresholds};
use quell_core::{Batch, JobState, Lease, MemoryStore, Receipt, Retention, Store, TriggerId};

use super::model::{Action, Answer, End, World, at, at_once, jobs};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A trigger is acknowledged and never written.
    AcksBeforeWrite,
    /// A trigger that comes while its key runs is taken into the attempt.
    JoinsRunning,
    /// A second window is opened beside an open one.
    SecondWindow,
    /// The bound is forgotten.
    NeverCapped,
    /// A claim looks a second ahead.
    StartsEarly,
    /// Attempts of one key overlap.
    NoExclusion,
    /// A settlement ends whatever attempt runs.
    NoFence,
    /// Expired leases are never reclaimed.
    NeverReaps,
    /// A failure of an attempt with a successor ends the job.
    AbsorbDrops,
    /// A dead job is removed at once.
    DropsDead,
    /// A failed call keeps the dedup key.
    BurnsKey,
    /// A transient failure is retried for ever.
    NeverDies,
}

impl Bug {
    /// Carries a step out as the broken world does.
    pub(super) fn act(
        self,
        world: &World,
        store: &MemoryStore,
        now: i64,
        action: &Action,
    ) -> Answer {
        match (self, action) {
            (Bug::NeverReaps, Action::Reap) => Answer::Expired(Vec::new()),
            (Bug::StartsEarly, Action::Claim) => world.act(store, now + 1, action),
            (Bug::NeverCapped, Action::Trigger { key, .. }) => {
                let thresholds =
                    Thresholds::new(world.debounce.thresholds.min(), Duration::from_secs(99));
                let debounce = Debounce { thresholds: thresholds.unwrap(), ..world.debounce };
                let loose = World { debounce, ..world.clone() };
                loose.act(store, now, &Action::Trigger { key: *key, dedup: None, delayed: false })
            }
            (Bug::NoExclusion, Action::Trigger { .. }) => {
                let debounce = Debounce { overlap: true, ..world.debounce };
                World { debounce, ..world.clone() }.act(store, now, action)
            }
            (_, Action::Trigger { .. }) => self.trigger(world, store, now, action),
            (_, Action::Settle(lease, end)) => self.settle(world, store, now, *lease, *end),
            _ => world.act(store, now, action),
        }
    }

    fn trigger(self, world: &World, store: &MemoryStore, now: i64, action: &Action) -> Answer {
        let all = jobs(store);
        let running = all.iter().find(|job| job.state == JobState::Running);
        let open = all.iter().find(|job| job.state == JobState::Scheduled);
        match (self, running, open) {
            (Bug::AcksBeforeWrite, _, Some(job)) | (Bug::JoinsRunning, Some(job), _) => {
                let trigger = TriggerId { job: job.id, seq: job.window.triggers + 1 };
                let (job, triggers, due) = (job.id, trigger.seq, job.window.due_at);
                Answer::Receipt(Receipt::Debounced { job, trigger, triggers, due })
            }
            (Bug::SecondWindow, _, Some(_)) => {
                let other = world.trigger(Some("another"), None, false);
                let receipts =
                    at_once(store.enqueue(Some(at(now)), vec![Batch::one(other)])).unwrap();
                Answer::Receipt(receipts.into_iter().flatten().flatten().next().unwrap())
            }
            (Bug::BurnsKey, None, None) if all.is_empty() => {
                let answer = world.act(store, now, action);
                let Some(job) = jobs(store).pop() else { return answer };
                at_once(store.cancel(Some(at(now)), job.id, "it never was")).unwrap();
                remove_ended(store, now);
                Answer::Nothing
            }
            _ => world.act(store, now, action),
        }
    }

    fn settle(
        self,
        world: &World,
        store: &MemoryStore,
        now: i64,
        lease: Lease,
        end: End,
    ) -> Answer {
        let all = jobs(store);
        let Some(job) = all.iter().find(|job| job.id == lease.job) else {
            return world.act(store, now, &Action::Settle(lease, end));
        };
        let successor = all.iter().any(|other| other.state == JobState::Scheduled);
        match (self, end) {
            (Bug::NoFence, _) => {
                let lease = Lease { token: job.token, ..lease };
                world.act(store, now, &Action::Settle(lease, end))
            }
            (Bug::AbsorbDrops, End::Failed) if successor => {
                world.act(store, now, &Action::Settle(lease, End::Succeeded))
            }
            (Bug::NeverDies, End::Failed) if job.attempt > 1 => {
                world.act(store, now, &Action::Settle(lease, End::Released))
            }
            (Bug::DropsDead, End::Permanent) => {
                let answer = world.act(store, now, &Action::Settle(lease, end));
                remove_ended(store, now);
                answer
            }
            _ => world.act(store, now, &Action::Settle(lease, end)),
        }
    }
}

fn remove_ended(store: &MemoryStore, now: i64) {
    let none = Some(Duration::ZERO);
    let gone = Retention { succeeded: none, dead: none };
    at_once(store.prune(Some(at(now + 1)), &gone, 10)).unwrap();
}
