//! Schedules in the memory store (R36): the core's plan decides, ticks are accepted as triggers.

use std::collections::BTreeSet;

use super::Event;
use super::state::State;
use crate::accept::accept_trigger;
use crate::schedule::{
    Fired, RECORD, RecordedTick, Schedule, ScheduleInfo, ScheduleState, Tick, Ticked, TickedBy,
    no_such_schedule,
};
use crate::{JobId, Receipt, Result, ScheduleName, Timestamp};

impl State {
    pub(super) fn set_schedule(&mut self, schedule: &Schedule) {
        let now = self.now();
        let changed = match self.schedules.get_mut(&schedule.name) {
            Some(info) => info.set(schedule, now),
            None => {
                let info = ScheduleInfo::new(schedule.clone(), now);
                self.schedules.insert(schedule.name.clone(), info);
                true
            }
        };
        if changed {
            self.schedule_changed(&schedule.name);
        }
    }

    pub(super) fn set_schedule_state(
        &mut self,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        let now = self.now();
        if self.known_schedule(name)?.switch(state, now) {
            self.schedule_changed(name);
        }
        Ok(())
    }

    pub(super) fn delete_schedule(&mut self, name: &ScheduleName) -> Result<()> {
        self.known_schedule(name)?;
        self.schedules.remove(name);
        self.ticks.retain(|(schedule, _), _| schedule != name);
        let (t, schedule) = (self.now(), name.clone());
        self.push_event(|| Event::Unscheduled { t, schedule });
        Ok(())
    }

    pub(super) fn schedules(&self) -> Vec<ScheduleInfo> {
        self.schedules.values().cloned().collect()
    }

    /// The ticks of a schedule that fired in this time, the first `limit`.
    pub(super) fn ticks_between(
        &self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<RecordedTick>> {
        if !self.schedules.contains_key(name) {
            return Err(no_such_schedule(name));
        }
        if from > to {
            return Ok(Vec::new());
        }
        let within = self.ticks.range((name.clone(), from)..=(name.clone(), to));
        Ok(within.map(|(_, tick)| tick.into()).take(limit.min(RecordedTick::MAX_PAGE)).collect())
    }

    pub(super) fn tick(&mut self, limit: usize) -> Ticked {
        let now = self.now();
        let mut due: Vec<(Timestamp, ScheduleName)> = self
            .schedules
            .iter()
            .filter_map(|(name, info)| Some((info.next?, name.clone())))
            .filter(|(next, _)| *next <= now)
            .collect();
        due.sort_unstable();
        due.truncate(limit);
        let mut fired = Vec::new();
        for (_, name) in due {
            let left = limit.saturating_sub(fired.len());
            let Some(info) = self.schedules.get(&name) else { continue };
            let known = self.fired_between(&name, info.handled, now);
            let Some(info) = self.schedules.get_mut(&name) else { continue };
            let ticks = info.due(now, left, &known);
            fired.extend(self.fire(&name, &ticks, TickedBy::Plan));
        }
        let next = self.schedules.values().filter_map(|info| info.next).min();
        Ticked { now, fired, next }
    }

    pub(super) fn run_schedule(&mut self, name: &ScheduleName) -> Result<Receipt> {
        let trigger = self.known_schedule(name)?.schedule.trigger.clone();
        let (t, place) = (self.now(), self.next_event());
        let receipt = accept_trigger(self, &trigger);
        let (schedule, fired) = (name.clone(), receipt.clone());
        self.push_event_at(place, || Event::ScheduleRun { t, schedule, receipt: fired });
        Ok(receipt)
    }

    pub(super) fn backfill(
        &mut self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        let now = self.now();
        let known = self.fired_between(name, from, to);
        let ticks = self.known_schedule(name)?.backfill(from, to, now, &known)?;
        let fired = self.fire(name, &ticks, TickedBy::Backfill);
        Ok(u64::try_from(fired.len()).unwrap_or(u64::MAX))
    }

    /// The ticks of schedules among a job's triggers.
    pub(super) fn ticks_of(&self, job: JobId) -> Vec<Tick> {
        let of_job = self.ticks.values().filter(|tick| tick.job == Some(job));
        Tick::newest(of_job.cloned().collect())
    }

    /// Forgets ticks that no backfill can reach any more.
    pub(super) fn prune_ticks(&mut self) {
        let oldest = self.now().before(RECORD);
        self.ticks.retain(|(_, tick), _| *tick >= oldest);
    }

    fn fire(&mut self, name: &ScheduleName, ticks: &[Timestamp], by: TickedBy) -> Vec<Fired> {
        let mut fired = Vec::new();
        let Some(info) = self.schedules.get(name) else { return fired };
        let schedule = info.schedule.clone();
        for tick in ticks.iter().copied() {
            let (t, place) = (self.now(), self.next_event());
            let receipt = accept_trigger(self, &schedule.trigger);
            let row = Tick { schedule: name.clone(), tick, job: receipt.job(), by };
            self.ticks.insert((name.clone(), tick), row);
            let one = Fired::new(&schedule, tick, receipt);
            self.push_event_at(place, || Event::ticked(t, &one, by));
            fired.push(one);
        }
        fired
    }

    fn fired_between(
        &self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> BTreeSet<Timestamp> {
        if from > to {
            return BTreeSet::new();
        }
        let range = (name.clone(), from)..=(name.clone(), to);
        self.ticks.range(range).map(|((_, tick), _)| *tick).collect()
    }

    fn known_schedule(&mut self, name: &ScheduleName) -> Result<&mut ScheduleInfo> {
        self.schedules.get_mut(name).ok_or_else(|| no_such_schedule(name))
    }

    /// Notifies workers, which sleep until the next tick they know of, and records the change.
    fn schedule_changed(&mut self, name: &ScheduleName) {
        let Some(info) = self.schedules.get(name).cloned() else { return };
        if let Some(next) = info.next {
            self.next_tick = Some(self.next_tick.map_or(next, |known| known.min(next)));
        }
        let t = self.now();
        self.push_event(|| Event::schedule(t, &info));
    }
}
