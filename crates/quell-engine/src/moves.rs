//! Steps that move several jobs at once, each whole: the engine splits what is too much for one.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use quell_core::payload::WINDOW_BYTES;
use quell_core::schedule::{CATCH_UP_STEP, Fired, MAX_BACKFILL, Schedule, Ticked};
use quell_core::trigger::Keyed;
use quell_core::{
    Batch, Claim, Claimed, DeadExport, Error, ErrorKind, ExpiredLease, Imported, JobId, Lease, Now,
    Pruned, Receipt, Renewal, Result, Retention, ScheduleName, Settled, Settlement, Timestamp,
};

use crate::backend::{Backend, Index, Scan};
use crate::backoff::Backoff;
use crate::claim::Started;
use crate::engine::{Engine, halves, too_much};
use crate::rows::RowName;
use crate::step::{Windows, is_too_large, is_too_much, step};
use crate::upkeep::job_of;
use tracing::{error, warn};

/// Rows that a renewal changes.
pub(crate) const CHANGES_OF_A_RENEWAL: usize = 3;
/// Rows that a start changes where it is of the common kind.
pub(crate) const CHANGES_OF_A_START: usize = 5;
/// Rows that the end of an attempt changes where it is of the common kind, or a job that is made or
/// removed.
pub(crate) const CHANGES_OF_AN_END: usize = 8;
/// Rows that a key changes which is removed: its own, and where it stands among those that expire and
/// those that name its job.
const CHANGES_OF_A_KEY: usize = 3;

/// The outcome of each batch.
type Accepted = Vec<Result<Vec<Receipt>>>;

impl<B: Backend> Engine<B> {
    /// How many moves one step makes, where each changes this number of rows.
    pub(crate) fn share(&self, changes: usize) -> usize {
        self.backend.most_changes().checked_div(changes).unwrap_or(1).max(1)
    }

    /// Accepts batches, as many at once as the backend takes, each whole.
    pub(crate) async fn accept(&self, now: Now, batches: &[Batch]) -> Result<Accepted> {
        let mut accepted: Accepted = Vec::with_capacity(batches.len());
        let batches = &self.bounded(batches)[..];
        let mut left = self.groups(batches);
        left.reverse();
        while let Some(next) = left.pop() {
            match self.accept_at_once(now, next).await {
                Ok(some) => accepted.extend(some),
                Err(error) if is_too_much(&error) && next.len() > 1 => {
                    left.extend(halves(next).into_iter().rev());
                }
                Err(error) if is_too_large(&error) => {
                    accepted.push(Err(too_much(&error)));
                }
                Err(error) if is_too_much(&error) => accepted.push(Err(error)),
                Err(error) if accepted.is_empty() => return Err(error),
                // What was accepted stays so: the rest is refused by itself.
                Err(error) => {
                    let rest = next.len() + left.iter().map(|group| group.len()).sum::<usize>();
                    let again = || Error::new(error.kind(), error.to_string());
                    accepted.extend((0..rest).map(|_| Err(again())));
                    break;
                }
            }
        }
        Ok(accepted)
    }

    /// The batches with the bound of the store where their triggers bring a larger one (R10).
    fn bounded<'a>(&self, batches: &'a [Batch]) -> Cow<'a, [Batch]> {
        let Ok(most) = u32::try_from(self.backend.most_payload()) else { return batches.into() };
        let is_wide = |keyed: &Keyed| keyed.debounce.max_bytes.unwrap_or(WINDOW_BYTES) > most;
        let keyed = batches.iter().flat_map(|batch| &batch.triggers);
        if !keyed.filter_map(|trigger| trigger.keyed.as_ref()).any(is_wide) {
            return batches.into();
        }
        let mut batches = batches.to_vec();
        let keyed = batches.iter_mut().flat_map(|batch| &mut batch.triggers);
        let wide =
            keyed.filter_map(|trigger| trigger.keyed.as_mut()).filter(|keyed| is_wide(keyed));
        wide.for_each(|keyed| keyed.debounce.max_bytes = Some(most));
        batches.into()
    }

    /// Batches in groups that one step probably takes.
    fn groups<'a>(&self, batches: &'a [Batch]) -> Vec<&'a [Batch]> {
        let most = self.share(CHANGES_OF_AN_END);
        let (mut groups, mut start, mut triggers) = (Vec::new(), 0, 0_usize);
        for (place, batch) in batches.iter().enumerate() {
            let with = triggers.saturating_add(batch.triggers.len());
            if with > most && place > start {
                groups.extend(batches.get(start..place));
                (start, triggers) = (place, batch.triggers.len());
            } else {
                triggers = with;
            }
        }
        groups.extend(batches.get(start..).filter(|rest| !rest.is_empty()));
        groups
    }

    async fn accept_at_once(&self, now: Now, batches: &[Batch]) -> Result<Accepted> {
        let jobs: usize = batches.iter().map(|batch| batch.triggers.len()).sum();
        let backoff = || Backoff::of(self.backend.longest_pause(), &self.contention, batches);
        let (accepted, existing) = step!(self, "accept triggers", backoff(), (now, jobs), |step| {
            step.load_for(batches, &self.known).await?;
            step.check_ids(jobs).await?;
            let accepted = step.take(|part| part.enqueue(batches));
            accepted.map(|accepted| (accepted, step.existing()))
        });
        self.known.learn(existing);
        Ok(accepted)
    }

    pub(crate) async fn start(&self, now: Now, claim: &Claim) -> Result<Claimed> {
        if self.backend.looks_before_claims() {
            // Seldom, and a future too large to be a part of each claim's.
            if let Some(nothing) = Box::pin(self.nothing_to_start(now, claim)).await? {
                return Ok(nothing);
            }
        }
        loop {
            let started = step!(self, "start jobs", (now, 0), |step| step.start(claim).await?);
            if let Started::Claimed(claimed) = started {
                return Ok(claimed);
            }
        }
    }

    async fn nothing_to_start(&self, now: Now, claim: &Claim) -> Result<Option<Claimed>> {
        self.reading(now).await?.nothing_to_start(claim).await
    }

    /// Renews leases, as many at once as the backend takes.
    pub(crate) async fn extend_all(
        &self,
        now: Now,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        let mut renewed = Vec::with_capacity(leases.len());
        let mut left: Vec<&[Lease]> =
            leases.chunks(self.share(CHANGES_OF_A_RENEWAL)).rev().collect();
        while let Some(next) = left.pop() {
            match self.extend(now, next, lease).await {
                Err(error) if is_too_large(&error) && next.len() > 1 => {
                    left.extend(halves(next).into_iter().rev());
                }
                Ok(some) => renewed.extend(some),
                Err(error) if renewed.is_empty() => return Err(error),
                // Those before are held, whatever became of these.
                Err(error) => {
                    warn!(%error, "leases are not renewed");
                    renewed.extend(next.iter().map(|_| Renewal::Unknown));
                }
            }
        }
        Ok(renewed)
    }

    async fn extend(&self, now: Now, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>> {
        let ids: Vec<JobId> = leases.iter().map(|lease| lease.job).collect();
        Ok(step!(self, "renew leases", (now, 0), |step| {
            step.load_jobs(ids.iter().copied()).await?;
            step.take(|part| part.renew(leases, lease))
        }))
    }

    pub(crate) async fn end(
        &self,
        now: Now,
        settlements: &[Settlement],
        windows: Windows,
    ) -> Result<Vec<Settled>> {
        Ok(step!(self, "end attempts", (now, 0), |step| {
            step.load_for_settlements(settlements).await?;
            step.take_as(windows, |part| part.settle(settlements))
        }))
    }

    /// Takes back leases, as many at once as the backend takes.
    pub(crate) async fn take_all_back(&self, now: Now, limit: usize) -> Result<Vec<ExpiredLease>> {
        let (mut expired, mut most) = (Vec::new(), self.share(CHANGES_OF_AN_END));
        let (mut windows, mut stuck) = (Windows::Together, BTreeSet::new());
        let mut failed = None;
        if self.backend.locks()
            && self.reading(now).await?.expired_leases(1, &stuck).await?.is_empty()
        {
            return Ok(expired);
        }
        loop {
            let share = most.min(limit.saturating_sub(expired.len()));
            match self.take_back(now, share, windows, &stuck).await {
                Err(error) if is_too_much(&error) && most > 1 => most /= 2,
                Err(error) if is_too_much(&error) && windows == Windows::Together => {
                    windows = Windows::Apart;
                }
                Err(error) if is_too_much(&error) => {
                    // One that cannot go back holds up no other.
                    let next = self.reading(now).await?.expired_leases(1, &stuck).await?;
                    let Some(id) = next.first().and_then(job_of) else { return Err(error) };
                    error!(%error, job = %id, "lease cannot be taken back");
                    stuck.insert(id);
                    (windows, failed) = (Windows::Together, Some(error));
                }
                other => {
                    windows = Windows::Together;
                    let (some, more) = other?;
                    let is_last = (some.len() < share && !more) || share == 0;
                    expired.extend(some);
                    if is_last || expired.len() >= limit {
                        let failed = failed.filter(|_| expired.is_empty());
                        return failed.map_or(Ok(expired), Err);
                    }
                }
            }
        }
    }

    /// Takes leases back; says, too, whether there may be more although it took few.
    async fn take_back(
        &self,
        now: Now,
        limit: usize,
        windows: Windows,
        stuck: &BTreeSet<JobId>,
    ) -> Result<(Vec<ExpiredLease>, bool)> {
        Ok(step!(self, "take back leases", (now, 0), |step| {
            let entries = step.expired_leases(limit, stuck).await?;
            let expired: Vec<JobId> = entries.iter().filter_map(job_of).collect();
            step.load_around(&expired).await?;
            let swept = step.sweep_entries(&Index::Leases, &entries).await?;
            let workers = if expired.is_empty() { Vec::new() } else { step.workers().await? };
            step.take_as(windows, |part| (part.reap(workers, limit), swept))
        }))
    }

    pub(crate) async fn remove_old(
        &self,
        now: Now,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        let mut next = limit;
        Ok(step!(self, "remove what has ended", (now, 0), |step| {
            // It also reads rows that others write all the time, such as those of keys: the fewer it
            // removes, the sooner it meets none of them.
            let limit = next;
            next = limit.div_ceil(2);
            let (more, expired) = step.load_old(retention, limit).await?;
            let pruned = step.take(|part| part.prune(retention, limit));
            step.mend_expiry(expired);
            // Where nothing changes, the next step finds the same.
            let changes =
                |pruned: &Pruned| pruned.jobs > 0 || pruned.expired > 0 || !step.beside.is_empty();
            pruned.map(|pruned| Pruned { more: more && changes(&pruned), ..pruned })
        }))
    }

    /// Keeps in some keys that name the oldest job its result, before it is removed; says whether
    /// there were such.
    pub(crate) async fn keep_some(&self, now: Now, retention: &Retention) -> Result<bool> {
        let most = self.share(CHANGES_OF_A_KEY);
        Ok(step!(self, "keep the result of a job", (now, 0), |step| {
            step.load_old(retention, 1).await?;
            Some(step.keep_results(most))
        }))
    }

    /// Fires at most `limit` ticks that are due, of one schedule or of all.
    pub(crate) async fn fire(
        &self,
        now: Now,
        only: Option<&ScheduleName>,
        limit: usize,
    ) -> Result<Ticked> {
        Ok(step!(self, "fire ticks", (now, limit), |step| {
            match only {
                Some(only) => step.load_due_schedule(only).await?,
                None => {
                    let due = step.due_schedules(limit).await?;
                    step.load_due_schedules(due).await?;
                }
            }
            step.check_ids(limit).await?;
            step.take(|part| part.tick(limit))
        }))
    }

    /// The same, of one schedule after the other and each a few ticks at a time.
    pub(crate) async fn fire_one_by_one(&self, now: Now, limit: usize) -> Result<Ticked> {
        let mut step = self.reading(now).await?;
        let due = step.due_schedules(limit).await?;
        let now = step.now;
        drop(step);
        let (mut fired, mut failed) = (Vec::new(), None);
        for entry in due {
            let RowName::Schedule(name) = entry.name else { continue };
            let left = CATCH_UP_STEP.min(limit.saturating_sub(fired.len()));
            let Err(error) = self.fire_some(now, &name, left, &mut fired).await else { continue };
            // One that cannot fire is tried again with the next call, and holds up no other.
            error!(%error, schedule = %name, "schedule cannot fire");
            let goes_on = is_too_much(&error) || error.kind() == ErrorKind::Corrupt;
            failed = Some(error);
            if !goes_on {
                break;
            }
        }
        match failed.filter(|_| fired.is_empty()) {
            Some(error) => Err(error),
            None => Ok(Ticked { now, fired, next: None }),
        }
    }

    /// Fires at most `left` due ticks of a schedule, and notes which, also where it fails then.
    async fn fire_some(
        &self,
        now: Timestamp,
        name: &ScheduleName,
        left: usize,
        fired: &mut Vec<Fired>,
    ) -> Result<()> {
        let (mut most, mut left) = (self.share(CHANGES_OF_AN_END), left);
        while left > 0 {
            let share = most.min(left);
            match self.fire(Some(now), Some(name), share).await {
                Err(error) if is_too_much(&error) && most > 1 => most /= 2,
                other => {
                    let some = other?.fired;
                    left = if some.len() < share { 0 } else { left.saturating_sub(some.len()) };
                    fired.extend(some);
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn fire_between(
        &self,
        now: Now,
        name: &ScheduleName,
        (from, to): (Timestamp, Timestamp),
    ) -> Result<u64> {
        step!(self, "backfill a schedule", (now, MAX_BACKFILL), |step| {
            step.load_schedules([name.clone()]).await?;
            step.load_ticks(name, from, to).await?;
            step.load_for_schedules().await?;
            step.check_ids(MAX_BACKFILL).await?;
            step.take(|part| part.backfill(name, from, to))
        })
    }

    pub(crate) async fn discard_at_once(
        &self,
        now: Now,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        Ok(step!(self, "discard dead jobs", (now, 0), |step| {
            step.load_whole(ids).await?;
            let aside = step.load_asides(ids).await?;
            step.take(|part| {
                let mut gone: BTreeSet<JobId> = part.discard(ids, reason).into_iter().collect();
                gone.extend(&aside);
                ids.iter().copied().filter(|id| gone.remove(id)).collect()
            })
        }))
    }

    pub(crate) async fn restore_one(&self, now: Now, id: JobId) -> Result<bool> {
        Ok(step!(self, "restore a job", (now, 0), |step| step.restore(id).await?))
    }

    pub(crate) async fn import_at_once(
        &self,
        now: Now,
        exports: &[DeadExport],
    ) -> Result<Vec<Imported>> {
        Ok(step!(self, "import dead jobs", (now, exports.len()), |step| {
            step.load_for_exports(exports).await?;
            step.check_ids(exports.len()).await?;
            step.take(|part| part.import_dead(exports))
        }))
    }

    /// When the next tick is due; none fires.
    pub(crate) async fn next_tick(&self, now: Now) -> Result<Ticked> {
        let mut step = self.reading(now).await?;
        let seen = step.scan_one(Scan::first(Index::Plan, 1)).await?;
        let next = seen.entries.first().map(|entry| entry.place.at);
        Ok(Ticked { now: step.now, fired: Vec::new(), next })
    }

    /// Whether there is such a schedule already.
    pub(crate) async fn is_set(&self, now: Now, schedule: &Schedule) -> Result<bool> {
        let mut step = self.reading(now).await?;
        match step.load_schedules([schedule.name.clone()]).await {
            // One that cannot be decoded is replaced.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(false),
            other => other?,
        }
        let known = step.rows.schedules.get(&schedule.name);
        Ok(known.is_some_and(|known| known.schedule == *schedule))
    }
}
