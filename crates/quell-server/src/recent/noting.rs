//! What the record takes from calls of the store.

use std::collections::HashMap;

use quell::job::AttemptOutcome;
use quell::store::{
    Answer, Claimed, ExpiredLease, Fired, Lease, Now, Operation, Renewal, Settled, SettledAs,
    Settlement,
};
use quell::trigger::NewTrigger;
use quell::{Batch, JobId, Key, QueueName, Receipt, Result, TaskName, Timestamp};

use super::lane::{Accepted, Run};
use super::{Recent, State};

/// What an operation asks for, as far as its answer does not say it.
#[derive(Debug)]
pub(super) enum Asked {
    /// The lane and the hash of the key of each trigger of each batch.
    Enqueue(Vec<Vec<(Option<usize>, u64)>>),
    /// The queue.
    Claim(QueueName),
    /// The leases.
    Renew(Vec<Lease>),
    /// The outcomes.
    Settle(HashMap<Lease, AttemptOutcome>),
    /// The leases that expired, or the ticks that fired: the answer says all.
    Else,
}

/// When an operation was called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Called {
    /// On the host's clock.
    pub(super) at: Timestamp,
    /// By the store's clock, where the caller gives it.
    pub(super) now: Now,
}

impl Asked {
    /// None where nothing is noted.
    pub(super) fn of(recent: &Recent, operation: &Operation) -> Option<Asked> {
        match operation {
            Operation::Enqueue { batches } => Some(Asked::Enqueue(recent.lanes_of(batches))),
            Operation::Claim { claim } => Some(Asked::Claim(claim.queue.clone())),
            Operation::Renew { leases, .. } => Some(Asked::Renew(leases.clone())),
            Operation::Settle { settlements } => {
                let outcome = |one: &Settlement| (one.lease, one.outcome.counted());
                Some(Asked::Settle(settlements.iter().map(outcome).collect()))
            }
            Operation::Reap { .. } | Operation::Tick { .. } => Some(Asked::Else),
            _ => None,
        }
    }
}

impl Recent {
    fn lanes_of(&self, batches: &[Batch]) -> Vec<Vec<(Option<usize>, u64)>> {
        let mut state = self.state();
        let one = |trigger: &NewTrigger, state: &mut State| {
            let key = trigger.keyed.as_ref().map(|keyed| &keyed.key);
            (state.lane(&trigger.queue, &trigger.task), self.hash(key, state))
        };
        let of = |batch: &Batch, state: &mut State| {
            batch.triggers.iter().map(|trigger| one(trigger, state)).collect()
        };
        batches.iter().map(|batch| of(batch, &mut state)).collect()
    }

    /// The number of a key among hashes, and its name where it is new; 0 for none.
    fn hash(&self, key: Option<&Key>, state: &mut State) -> u64 {
        let Some(key) = key else { return 0 };
        let hash = self.hash_of(key);
        state.names.learn(hash, key);
        hash
    }

    /// Notes an answer.
    pub(super) fn note(&self, called: Called, asked: Asked, answer: &Answer) {
        let mut state = self.state();
        let now = called.now;
        match (asked, answer) {
            (Asked::Enqueue(lanes), Answer::Enqueue(answers)) => {
                let at = now.unwrap_or_else(|| state.now());
                state.enqueued(at, &lanes, answers);
            }
            (Asked::Claim(queue), Answer::Claim(claimed)) => {
                state.is_now(claimed.now, called.at);
                self.claimed(&mut state, &queue, claimed);
            }
            (Asked::Renew(leases), Answer::Renew(renewals)) => state.renewed(&leases, renewals),
            (Asked::Settle(outcomes), Answer::Settle(settled)) => {
                let at = now.unwrap_or_else(|| state.now());
                state.settled(at, &outcomes, settled);
            }
            (Asked::Else, Answer::Reap(expired)) => {
                let at = now.unwrap_or_else(|| state.now());
                state.expired(at, expired);
            }
            (Asked::Else, Answer::Tick(ticked)) => {
                state.is_now(ticked.now, called.at);
                state.fired(ticked.now, &ticked.fired);
            }
            _ => {}
        }
    }

    fn claimed(&self, state: &mut State, queue: &QueueName, claimed: &Claimed) {
        for job in &claimed.jobs {
            let Some(at) = state.lane(queue, &job.task) else { continue };
            let key = self.hash(job.key.as_ref(), state);
            // Attempts that were released or snoozed are not counted; starts only grow.
            let is_first = job.token.starts() <= 1;
            state.lose(claimed.now, job.id);
            let run = Run {
                job: job.id,
                key,
                opened: job.first_at,
                due: job.due_at,
                started: claimed.now,
                until: job.lease_until,
                ended: None,
                outcome: None,
                lost: false,
                died: false,
                absorbed_by: None,
                attempt: job.attempt,
                triggers: job.triggers,
            };
            let late = claimed.now.since(job.due_at);
            let Some(lane) = state.lanes.get_mut(at) else { continue };
            lane.count(claimed.now, |tally| {
                tally.starts += 1;
                tally.started(late);
                if is_first {
                    tally.runs += 1;
                    tally.covered = tally.covered.saturating_add(job.triggers);
                }
            });
            let number = lane.dropped.saturating_add(lane.runs.len() as u64);
            lane.runs.push_back(run);
            state.running.insert(job.id, (at, number));
            state.runs = state.runs.saturating_add(1);
        }
        state.bound();
    }
}

impl State {
    fn enqueued(
        &mut self,
        at: Timestamp,
        lanes: &[Vec<(Option<usize>, u64)>],
        answers: &[Result<Vec<Receipt>>],
    ) {
        for (lanes, answer) in lanes.iter().zip(answers) {
            let Ok(receipts) = answer else { continue };
            for ((lane, key), receipt) in lanes.iter().zip(receipts) {
                if let Some(lane) = lane {
                    self.receipt(at, *lane, *key, receipt);
                }
            }
        }
        self.bound();
    }

    fn receipt(&mut self, at: Timestamp, lane: usize, key: u64, receipt: &Receipt) {
        let Some(lane) = self.lanes.get_mut(lane) else { return };
        let (job, joined) = match receipt {
            Receipt::Accepted { job, .. } => (*job, 0),
            Receipt::Debounced { job, .. } => (*job, 1),
            Receipt::Duplicate { .. } | Receipt::Existing { .. } => {
                lane.count(at, |tally| tally.duplicates += 1);
                return;
            }
            // It counts from the commit of its transaction, which no call shows.
            _ => return,
        };
        lane.count(at, |tally| {
            tally.triggers += 1;
            tally.joined += joined;
        });
        // Calls answer in any order: the record is in that of time.
        let at = lane.accepted.back().map_or(at, |last| last.at.max(at));
        lane.accepted.push_back(Accepted { at, job, key });
        self.accepted = self.accepted.saturating_add(1);
    }

    fn fired(&mut self, at: Timestamp, fired: &[Fired]) {
        for one in fired {
            if let Some(lane) = self.lane(&one.queue, &one.task) {
                self.receipt(at, lane, 0, &one.receipt);
            }
        }
        self.bound();
    }

    fn settled(
        &mut self,
        at: Timestamp,
        outcomes: &HashMap<Lease, AttemptOutcome>,
        settled: &[Settled],
    ) {
        for one in settled {
            let Some(outcome) = outcomes.get(&one.lease) else { continue };
            if one.became == SettledAs::Refused {
                self.lose(at, one.lease.job);
            } else {
                self.end(at, one.lease.job, *outcome, one.became);
            }
        }
    }

    fn expired(&mut self, at: Timestamp, expired: &[ExpiredLease]) {
        for one in expired {
            self.end(at, one.lease.job, AttemptOutcome::LeaseExpired, one.became);
        }
    }

    fn end(&mut self, at: Timestamp, job: JobId, outcome: AttemptOutcome, became: SettledAs) {
        // An attempt that another process claimed is none of this record.
        let Some((lane, number)) = self.running.remove(&job) else { return };
        let Some(lane) = self.lanes.get_mut(lane) else { return };
        let died = became == SettledAs::Dead;
        lane.count(at, |tally| {
            tally.succeeded += u64::from(outcome == AttemptOutcome::Succeeded);
            tally.failed += u64::from(is_failure(outcome));
            tally.dead += u64::from(died);
        });
        let Some(run) = lane.run(number) else { return };
        run.ended = Some(at);
        run.outcome = Some(outcome);
        run.died = died;
        if let SettledAs::Absorbed { by, .. } = became {
            run.absorbed_by = Some(by);
            // The newer window counts its triggers again.
            let (started, triggers) = (run.started, run.triggers);
            lane.count(started, |tally| tally.covered = tally.covered.saturating_sub(triggers));
        }
    }

    /// Leases were extended.
    fn renewed(&mut self, leases: &[Lease], renewals: &[Renewal]) {
        for (lease, renewal) in leases.iter().zip(renewals) {
            let Some((lane, number)) = self.running.get(&lease.job).copied() else { continue };
            let run = self.lanes.get_mut(lane).and_then(|lane| lane.run(number));
            if let Some((run, until)) = run.zip(renewal.until()) {
                run.until = run.until.max(until);
            }
        }
    }

    /// An attempt ended, and it is not known how.
    fn lose(&mut self, at: Timestamp, job: JobId) {
        let Some((lane, number)) = self.running.remove(&job) else { return };
        let run = self.lanes.get_mut(lane).and_then(|lane| lane.run(number));
        if let Some(run) = run {
            (run.ended, run.lost) = (Some(at), true);
        }
    }

    /// The number of a task's lane; none where there are too many.
    pub(super) fn lane(&mut self, queue: &QueueName, task: &TaskName) -> Option<usize> {
        if let Some(at) = self.numbers.get(queue).and_then(|tasks| tasks.get(task)) {
            return Some(*at);
        }
        self.add_lane(queue, task)
    }
}

pub(super) fn is_failure(outcome: AttemptOutcome) -> bool {
    use AttemptOutcome::{Failed, LeaseExpired, Panicked, TimedOut};
    matches!(outcome, Failed | Panicked | TimedOut | LeaseExpired)
}
