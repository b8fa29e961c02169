//! Dead jobs in the memory store (R25, R26).

use super::Event;
use super::state::State;
use crate::dedup::{Hold, HoldUntil};
use crate::{
    DeadExport, DeadFilter, DeadPlace, Imported, Job, JobId, JobState, Redrive, Result, SettledAs,
};

impl State {
    pub(super) fn redrive(&mut self, redrive: &Redrive) -> Result<SettledAs> {
        let (now, id) = (self.now(), redrive.id);
        self.known(id)?;
        let place = self.next_event();
        let (became, before) = self
            .update_with_successor(id, |job, successor| {
                job.redrive(now, redrive.payload.as_ref(), successor)
            })
            .transpose()?
            .unwrap_or((SettledAs::Refused, None));
        let edited = before.is_some();
        if let Some(before) = before {
            let past = self.pasts.remove(&id).unwrap_or_default().edited(before);
            self.pasts.insert(id, past);
        }
        self.free_holds(id);
        self.free_records_of(id);
        let became = self.moved_back(id, became);
        self.push_event_at(place, || Event::Redrive { t: now, job: id, became, edited });
        Ok(became)
    }

    /// Keys that the job's end freed stay free.
    pub(super) fn free_holds(&mut self, id: JobId) {
        let elapsing = |hold: &Hold| matches!(hold.until, HoldUntil::Elapsed(_));
        self.holds.retain(|_, hold| hold.job != id || elapsing(hold));
    }

    pub(super) fn dead(&self, filter: &DeadFilter) -> Vec<Job> {
        let mut dead: Vec<&Job> = self.all_jobs().filter(|job| filter.matches(job)).collect();
        dead.sort_by_key(|job| std::cmp::Reverse(DeadPlace::of(job)));
        dead.into_iter().take(filter.page()).cloned().collect()
    }

    pub(super) fn export(&self, id: JobId) -> Option<DeadExport> {
        let job = self.job(id).filter(|job| job.state == JobState::Dead)?.clone();
        let past = self.pasts.get(&id).cloned().unwrap_or_default();
        Some(DeadExport { job, attempts: self.attempts(id), effects: self.effects(id), past })
    }

    pub(super) fn discard(&mut self, id: JobId, reason: &str) -> bool {
        let may_go = |job: &Job| matches!(job.state, JobState::Dead | JobState::Unreadable);
        if !self.job(id).is_some_and(may_go) {
            return false;
        }
        self.remove(id);
        self.free_holds(id);
        let t = self.now();
        self.push_event(|| Event::Discard { t, job: id, reason: reason.to_owned() });
        true
    }

    pub(super) fn import(&mut self, export: &DeadExport) -> Imported {
        let (t, origin) = (self.now(), export.origin());
        let came = self.pasts.iter().find(|(_, past)| past.origin == Some(origin));
        let was_here = || self.job(origin.job).filter(|row| export.is_of(row)).map(|row| row.id);
        if let Some(id) = came.map(|(id, _)| *id).or_else(was_here) {
            return Imported { id, known: true };
        }
        let id = self.next_id();
        let (job, past) = export.arrive(id);
        self.push_event(|| Event::imported(t, &job, origin));
        self.insert_ended(job, export.attempts.clone());
        self.take_effects(id, &export.effects);
        self.pasts.insert(id, past);
        Imported { id, known: false }
    }
}
