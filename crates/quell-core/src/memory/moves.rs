//! Claiming, settling and everything else that moves a job (R11, R12, R21–R31, R37).

use std::time::Duration;

use super::Event;
use super::part::TaskKey;
use super::state::State;
use crate::attempt::clipped;
use crate::crash::is_crash;
use crate::dedup::{Hold, HoldUntil};
use crate::edge::{Edge, remember_start};
use crate::{
    AttemptOutcome, Claim, ClaimedJob, ExpiredLease, Job, JobId, JobState, Key, Lease, Pruned,
    Result, Retention, Settled, SettledAs, Settlement, TaskName, Timestamp,
};

impl State {
    pub(super) fn claim(&mut self, claim: &Claim) -> Vec<ClaimedJob> {
        let settings = self.settings(&claim.queue);
        let room = settings.room(&self.used(&settings, claim));
        let mut claimed = Vec::new();
        while claimed.len() < claim.limit.min(room) {
            let has_room = |partition: &Key| {
                let used = self.partition_used(&settings, &claim.queue, partition);
                settings.partition_room(&used) > 0
            };
            let first = self.first_due(&claim.queue, &claim.tasks, has_room);
            let Some(id) = first else { break };
            claimed.extend(self.start_claimed(id, claim));
        }
        claimed
    }

    pub(super) fn start_claimed(&mut self, id: JobId, claim: &Claim) -> Option<ClaimedJob> {
        let job = self.start(id, claim)?;
        let now = self.now();
        self.push_event(|| Event::claimed(now, claim, &job));
        Some(job)
    }

    fn start(&mut self, id: JobId, claim: &Claim) -> Option<ClaimedJob> {
        let now = self.now();
        self.update(id, |job| job.start(now, claim))?;
        let job = self.job(id)?;
        let (queue, partition) = (job.queue.clone(), job.partition.clone());
        let claimed = ClaimedJob::of(job)?;
        if let (Edge::Throttle, Some(period), Some(key)) =
            (job.shape.edge, job.shape.period, job.key.clone())
        {
            let memory = remember_start(id, now, period);
            self.memories.insert((job.task.clone(), key), memory);
        }
        self.record_start(&queue, partition.as_ref());
        Some(claimed)
    }

    pub(super) fn renew(&mut self, lease: &Lease, length: Duration) -> Option<Timestamp> {
        let now = self.now();
        let held = self.job(lease.job).is_some_and(|job| job.is_held_by(lease.token, now));
        held.then(|| {
            let until = now + length;
            self.update(lease.job, |job| job.lease_until = Some(until));
            self.push_event(|| Event::Renew { t: now, job: lease.job, token: lease.token, until });
            until
        })
    }

    pub(super) fn settle(&mut self, settlement: &Settlement) -> Settled {
        let Settlement { lease, outcome } = settlement;
        let now = self.now();
        let held = self.job(lease.job).is_some_and(|job| job.is_held_by(lease.token, now));
        let place = self.next_event();
        if !held {
            let became = settlement.without_lease(self.job(lease.job));
            self.push_event(|| Event::settled(now, settlement, became));
            return Settled { lease: *lease, became };
        }
        if let Some((ended, error)) = outcome.on_record() {
            self.record_attempt(lease.job, ended, error);
        }
        let became =
            self.end_attempt(lease.job, |job, successor| job.settle(now, outcome, successor));
        let became = became.unwrap_or(SettledAs::Refused);
        self.push_event_at(place, || Event::settled(now, settlement, became));
        Settled { lease: *lease, became }
    }

    pub(super) fn reap(&mut self, limit: usize) -> Vec<ExpiredLease> {
        let now = self.now();
        let expired = |job: &&Job| job.lease_until.is_some_and(|until| until <= now);
        let mut due: Vec<_> =
            self.running().filter(expired).map(|job| (job.lease_until, job.id)).collect();
        due.sort_unstable();
        due.into_iter().take(limit).filter_map(|(_, id)| self.expire_lease(id)).collect()
    }

    fn expire_lease(&mut self, id: JobId) -> Option<ExpiredLease> {
        let now = self.now();
        let token = self.job(id)?.token;
        self.record_attempt(id, AttemptOutcome::LeaseExpired, None);
        let place = self.next_event();
        let crash = is_crash(self.job(id)?, &self.workers);
        let became =
            self.end_attempt(id, |job, successor| job.expire_lease(now, crash, successor))?;
        self.push_event_at(place, || Event::Expire { t: now, job: id, token, became, crash });
        Some(ExpiredLease { lease: Lease { job: id, token }, became, crash })
    }

    /// Ends an attempt, which frees its key (R11).
    fn end_attempt(
        &mut self,
        id: JobId,
        end: impl FnOnce(&mut Job, Option<&mut Job>) -> SettledAs,
    ) -> Option<SettledAs> {
        let became = self.update_with_successor(id, end)?;
        let became = self.moved_back(id, became);
        self.free_key(id);
        self.free_slot(id);
        Some(became)
    }

    /// A job that is scheduled again heeds its key; dedup holds follow one that was absorbed.
    pub(super) fn moved_back(&mut self, id: JobId, became: SettledAs) -> SettledAs {
        let now = self.now();
        match (became, self.task_key(id)) {
            (SettledAs::Absorbed { by, .. }, _) => {
                self.follow(id, by);
                became
            }
            (SettledAs::Scheduled { .. }, Some(task_key)) => {
                let is_next = self.next_window(&task_key) == Some(id);
                let is_busy = self.key_runs(&task_key) || !is_next;
                let memory = self.memories.get(&task_key).copied();
                self.update(id, |job| job.apply_key(now, is_busy, memory.as_ref()))
                    .unwrap_or(became)
            }
            _ => became,
        }
    }

    /// A key that was taken until the start is free: the job has started.
    fn follow(&mut self, from: JobId, to: JobId) {
        let follows = |hold: &&mut Hold| hold.job == from && hold.until != HoldUntil::Started;
        self.holds.values_mut().filter(follows).for_each(|hold| hold.job = to);
        self.hand_over_records(from, to);
    }

    fn free_key(&mut self, id: JobId) {
        if let Some(task_key) = self.task_key(id) {
            self.free_next_window(&task_key);
        }
    }

    /// R11: the next window of the key may start once no attempt of it runs.
    pub(super) fn free_next_window(&mut self, task_key: &TaskKey) {
        if !self.key_runs(task_key)
            && let Some(window) = self.next_window(task_key)
            && self.job(window).is_some_and(|job| job.waits)
        {
            self.update(window, |job| job.waits = false);
        }
    }

    /// R31: jobs that wait for the queue's limits may start, at any worker.
    fn free_slot(&mut self, id: JobId) {
        let queue = self.job(id).map(|job| job.queue.clone());
        if let Some(queue) = queue.filter(|queue| self.settings(queue).limits_concurrency()) {
            self.wake_all(queue);
        }
    }

    fn task_key(&self, id: JobId) -> Option<TaskKey> {
        self.job(id).and_then(|job| Some((job.task.clone(), job.key.clone()?)))
    }

    pub(super) fn cancel(&mut self, id: JobId, reason: &str) -> Result<()> {
        let now = self.now();
        let was_running = self.known(id)?.state == JobState::Running;
        // Refused before anything is written.
        self.known(id)?.clone().cancel(now, reason)?;
        if was_running {
            self.record_attempt(id, AttemptOutcome::Cancelled, Some(clipped(reason)));
        }
        self.update(id, |job| job.cancel(now, reason)).transpose()?;
        self.free_key(id);
        if was_running {
            self.free_slot(id);
            self.cancelled.push(id);
        }
        self.push_event(|| Event::Cancel { t: now, job: id });
        Ok(())
    }

    /// Sets a job aside whose row cannot be decoded (R25). Its idempotency keys answer with
    /// its state.
    pub(super) fn set_aside(&mut self, id: JobId, reason: &str) {
        let Some(job) = self.job(id) else { return };
        let was_running = job.state == JobState::Running;
        self.update(id, |job| {
            job.state = JobState::Unreadable;
            job.waits = false;
        });
        self.keep_result(id);
        self.free_key(id);
        if was_running {
            self.free_slot(id);
        }
        let t = self.now();
        self.push_event(|| Event::SetAside { t, job: id, reason: reason.to_owned() });
    }

    /// Puts a job back that was set aside in the state `was`, now that its row can be decoded.
    pub(super) fn restore(&mut self, id: JobId, was: JobState) {
        let (t, place) = (self.now(), self.next_event());
        let waits = matches!(was, JobState::Scheduled | JobState::Running);
        let restored = self.update_with_successor(id, |job, successor| {
            job.restore(t, was, successor.filter(|_| waits));
            (job.state, job.window.due_at, job.absorbed_by)
        });
        let Some((state, due, by)) = restored else { return };
        // As with a redrive, keys that are free stay so.
        self.free_holds(id);
        self.forget_results(id);
        match (state, by.filter(|_| waits)) {
            (JobState::Absorbed, Some(by)) => {
                self.moved_back(id, SettledAs::Absorbed { by, due });
            }
            (JobState::Scheduled, _) => {
                self.moved_back(id, SettledAs::Scheduled { due });
            }
            _ => {}
        }
        self.push_event_at(place, || Event::Restored { t, job: id, state });
    }

    pub(super) fn flush(&mut self, task: &TaskName, key: &Key) -> Option<JobId> {
        let (id, now) = (self.open_window(task, key)?, self.now());
        self.update(id, |job| job.window = job.window.flush(now));
        Some(id)
    }

    pub(super) fn cancel_key(&mut self, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        match self.open_window(task, key) {
            Some(id) => self.cancel(id, "the window was cancelled by its key").map(|()| Some(id)),
            None => Ok(None),
        }
    }

    pub(super) fn prune(&mut self, retention: &Retention, limit: usize) -> Pruned {
        let now = self.now();
        let cutoff = |keep: Option<Duration>| keep.map(|keep| now.before(keep));
        let old = self.ended_before(|state| match state {
            JobState::Succeeded | JobState::Cancelled | JobState::Absorbed => {
                cutoff(retention.succeeded)
            }
            JobState::Dead => cutoff(retention.dead),
            JobState::Scheduled | JobState::Running | JobState::Unreadable => None,
        });
        let gone: Vec<JobId> = old.into_iter().take(limit).collect();
        for id in &gone {
            self.remove(*id);
            self.push_event(|| Event::Prune { t: now, job: *id });
        }
        let mut pruned = Pruned { jobs: count(gone.len()), expired: 0, more: false };
        pruned.reaches(pruned.jobs, limit);
        let before = self.rows_that_expire();
        self.memories.retain(|_, memory| now < memory.expires_at);
        self.limits.forget_starts(now);
        let mut holds = std::mem::take(&mut self.holds);
        holds.retain(|_, hold| {
            let job = self.job(hold.job).map(|job| (job.state, job.starts() > 0));
            hold.holds(now, job)
        });
        self.holds = holds;
        self.prune_records();
        self.prune_ticks();
        pruned.expired = before.saturating_sub(self.rows_that_expire());
        pruned
    }

    fn rows_that_expire(&self) -> u64 {
        let rows = [self.memories.len(), self.holds.len(), self.records.len(), self.ticks.len()];
        let keys = rows.into_iter().fold(self.limits.logs(), usize::saturating_add);
        count(keys)
    }
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}
