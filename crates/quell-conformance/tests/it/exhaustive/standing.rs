//! What must hold of every state, whatever step led to it, and that every state comes to rest.

use quell_core::edge::Edge;
use quell_core::{Job, JobState, Lease, QueueSettings, Store};

use super::judge::{Case, Jobs};
use super::model::{Action, Answer, BACKOFF, End, LEASE, Moment, Operation, at, at_once, jobs};

impl Case<'_> {
    /// P11 and P15: only the moves of the contract, and what has ended stays as it is.
    pub(super) fn moves(&mut self, action: &Action) {
        let trailing = self.world.debounce.edge == Edge::Trailing;
        let changes: Vec<(Job, Option<Job>)> = self
            .before
            .values()
            .map(|job| (job.clone(), self.after.get(&job.id).cloned()))
            .filter(|(before, after)| after.as_ref() != Some(before))
            .collect();
        for (before, after) in changes {
            let name = if before.state == JobState::Dead { "P15" } else { "P11" };
            let reported = || format!("{action:?} made {before:?} into {after:?}");
            let redriven = matches!(action, Action::Redrive(id) if *id == before.id);
            let Some(after) = &after else {
                let ended = before.ended_at.is_some_and(|ended| ended < at(self.now));
                self.must(
                    name,
                    *action == Action::Prune && before.state.is_ended() && ended,
                    reported,
                );
                continue;
            };
            let legal = match (before.state, after.state) {
                (from, to) if from == to => !from.is_ended() || !trailing,
                (JobState::Dead, JobState::Scheduled | JobState::Absorbed) => redriven,
                (from, to) => from.may_become(to),
            };
            self.must(name, legal, reported);
        }
    }

    /// What holds of every state.
    pub(super) fn standing(&mut self, next: &Moment) {
        let after = std::mem::take(&mut self.after);
        for job in after.values() {
            self.alone(&after, job);
            self.bound(next, job);
            let counted = next.ghost.of(job.id).count() as u64;
            let absorbed = job.state == JobState::Absorbed;
            self.must("P4", absorbed || counted == job.window.triggers, || {
                format!("{counted} accepted triggers are its, and it counts: {job:?}")
            });
            let lost = next.ghost.of(job.id).find(|known| !known.done);
            let runs_all = self.world.debounce.edge != Edge::Leading;
            let ended = job.state == JobState::Succeeded && runs_all;
            self.must("P2", !ended || lost.is_none(), || {
                format!("{lost:?} is not covered: {job:?}")
            });
            let successor = job.absorbed_by.and_then(|id| after.get(&id));
            let known = successor
                .is_none_or(|successor| successor.key == job.key && successor.id != job.id);
            self.must("P14", known && absorbed == job.absorbed_by.is_some(), || format!("{job:?}"));
        }
        for known in &next.ghost.triggers {
            let there = after.contains_key(&next.ghost.home(known.id.job));
            let gone = self.world.operators.contains(&Operation::Prune);
            self.must("P4", there || gone, || format!("{known:?} is nowhere"));
        }
        self.after = after;
    }

    /// P8 and P9, and that a window waits just while its key runs.
    fn alone(&mut self, after: &Jobs, job: &Job) {
        let like = |other: &&Job| other.key.is_some() && other.key == job.key;
        let others =
            |state| after.values().filter(like).filter(|other| other.state == state).count();
        let (open, running) = (others(JobState::Scheduled), others(JobState::Running));
        self.must("P8", open <= 1, || format!("{open} open windows: {job:?}"));
        if !self.world.debounce.overlap {
            self.must("P9", running <= 1, || format!("{running} attempts at once: {job:?}"));
            let waits = job.state == JobState::Scheduled && running > 0;
            self.must("P9", job.waits == waits, || format!("it should wait: {waits}: {job:?}"));
        }
    }

    /// P7a: due at the bound at the latest, but for a backoff.
    fn bound(&mut self, next: &Moment, job: &Job) {
        let trailing = self.world.debounce.edge == Edge::Trailing && job.key.is_some();
        if job.state != JobState::Scheduled || !trailing {
            return;
        }
        let max = self.secs(self.world.debounce.thresholds.max());
        let first = next.ghost.own(job.id).map(|known| known.at + max).min().unwrap_or(i64::MAX);
        let latest = first.max(next.ghost.not_before(job.id));
        self.must("P7a", job.window.due_at <= at(latest), || {
            format!("due at {:?}, after {latest}: {job:?}", job.window.due_at)
        });
    }

    /// After the last second nothing more goes wrong: everything must end, and every trigger with it.
    pub(super) fn drains(&mut self, next: &Moment) {
        let (world, store) = (self.world, next.store());
        let settings = at_once(store.queues()).unwrap().into_iter().next().unwrap().settings;
        let open = QueueSettings { paused: false, ..settings };
        world.carry_out(&store, next.now, &Action::Queue(open));
        for now in next.now..next.now + 2 * (LEASE + BACKOFF) + 6 {
            world.carry_out(&store, now, &Action::Tick);
            world.carry_out(&store, now, &Action::Reap);
            loop {
                let Answer::Claimed(claimed) = world.carry_out(&store, now, &Action::Claim) else {
                    panic!("a claim was answered otherwise");
                };
                let Some(job) = claimed.first() else { break };
                let lease = Lease { job: job.id, token: job.token };
                world.carry_out(&store, now, &Action::Settle(lease, End::Succeeded));
            }
        }
        let left = jobs(&store).into_iter().find(|job| !job.state.is_ended());
        self.must("P2", left.is_none(), || format!("it never ends: {left:?}"));
    }
}
