//! Schedules and their ticks (R36).

use std::collections::BTreeSet;

use quell_core::schedule::{ScheduleInfo, Tick, Ticked, TickedBy, UNREADABLE_PAUSE};
use quell_core::{Batch, ErrorKind, JobId, Result, ScheduleName, Timestamp};
use tracing::error;

use crate::look::{Read, Score};
use crate::portions::{Order, Walk};
use crate::row::{corrupt, from_json};
use crate::shard::Time;
use crate::store::ShardStore;
use crate::tx::{Cell, Tx};

/// Names of ticks of a job that are read in one trip, and ticks.
const SCANNED: usize = 1_000;
const SHOWN_AT_A_TIME: usize = 50;
/// Ticks that fired that are read in one trip.
const FIRED: usize = 1_000;

impl ShardStore {
    pub(crate) async fn read_schedules(&self) -> Result<Vec<ScheduleInfo>> {
        let reads = [Read::All(self.shard.keys.schedules())];
        let mut looked = self.shard.look("read schedules", Time::Last, &reads).await?;
        let mut infos = Vec::new();
        for (_, bytes) in looked.pairs()? {
            match from_json::<ScheduleInfo>("a schedule", &bytes) {
                Ok(info) => infos.push(info),
                Err(error) => error!(%error, "schedule left out of a list"),
            }
        }
        infos.sort_by(|a, b| a.schedule.name.cmp(&b.schedule.name));
        Ok(infos)
    }

    /// When the next tick is due.
    pub(crate) async fn look_for_ticks(&self, time: Time) -> Result<Ticked> {
        let reads = [Read::lowest(self.shard.keys.plan(), 1)];
        let mut looked = self.shard.look("look for ticks", time, &reads).await?;
        let next = looked.scored()?.pop().map(|(_, at)| at);
        Ok(Ticked { now: looked.now, fired: Vec::new(), next })
    }
}

impl Tx<'_> {
    pub(crate) async fn load_schedules(
        &mut self,
        names: impl IntoIterator<Item = ScheduleName>,
    ) -> Result<()> {
        let key = self.shard.keys.schedules();
        let names: BTreeSet<ScheduleName> = names.into_iter().collect();
        let cells = names.iter().map(|name| Cell::new(key.clone(), name.as_str())).collect();
        self.fetch(cells, Vec::new()).await?;
        for name in names {
            if let Some(bytes) = self.cell(key.clone(), name.as_str()) {
                let info = from_json("a schedule", bytes)?;
                self.rows.schedules.insert(name, info);
            }
        }
        Ok(())
    }

    /// Loads the schedules that are due, those that have waited longest first, with what their
    /// ticks need.
    pub(crate) async fn load_due_schedules(&mut self, limit: usize) -> Result<()> {
        let (key, to) = (self.shard.keys.plan(), Score::At(self.now));
        let due = vec![Read::Lowest { key, from: Score::Min, to, limit }];
        let mut names = Vec::new();
        for (name, _) in self.look(due).await?.scored()? {
            names.push(ScheduleName::new(name)?);
        }
        let key = self.shard.keys.schedules();
        let cells = names.iter().map(|name| Cell::new(key.clone(), name.as_str())).collect();
        self.fetch(cells, Vec::new()).await?;
        for name in names {
            match self.load_schedules([name.clone()]).await {
                Ok(()) => {}
                // R25: it is tried again later, by a process that may know how, and stops no other.
                // Its missed ticks follow its `catch_up` then.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    error!(%error, schedule = %name, "schedule cannot be decoded, trying again");
                    let later = self.now + UNREADABLE_PAUSE;
                    self.beside.place(self.shard.keys.plan(), name.to_string(), later);
                }
                Err(error) => return Err(error),
            }
        }
        let handled: Vec<(ScheduleName, Timestamp)> =
            self.rows.schedules.iter().map(|(name, info)| (name.clone(), info.handled)).collect();
        for (name, handled) in handled {
            self.load_ticks(&name, handled, self.now).await?;
        }
        self.load_for_schedules().await
    }

    /// Loads what accepting the triggers of the loaded schedules needs.
    pub(crate) async fn load_for_schedules(&mut self) -> Result<()> {
        let triggers = self.rows.schedules.values().map(|info| info.schedule.trigger.clone());
        let batches: Vec<Batch> = triggers.map(Batch::one).collect();
        self.load_for(&batches).await
    }

    /// Loads the ticks of a schedule that fired in this time: that they fired, and not their rows,
    /// which no step that asks for this reads or changes.
    pub(crate) async fn load_ticks(
        &mut self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<()> {
        let start = Score::At(from);
        let mut walk = Walk::new(self.shard.keys.fired(name), Order::Lowest, start);
        while from <= to && !walk.is_over() {
            let portion = self.look(vec![walk.read(FIRED)]).await?.scored()?;
            for (_, tick) in walk.take(portion, FIRED) {
                if tick > to {
                    return Ok(());
                }
                let (schedule, job, by) = (name.clone(), None, TickedBy::Plan);
                self.rows.ticks.insert((name.clone(), tick), Tick { schedule, tick, job, by });
            }
        }
        Ok(())
    }

    /// Loads the newest ticks among a job's triggers, as many as are shown. Those of a deleted
    /// schedule may still have rows.
    pub(crate) async fn load_ticks_of(&mut self, job: JobId) -> Result<()> {
        let keys = self.shard.keys.clone();
        let mut fields: BTreeSet<(i64, ScheduleName)> = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let reads = vec![Read::ScanMembers(keys.ticks_of(job), cursor, SCANNED)];
            let (next, found) = self.look(reads).await?.scanned()?;
            for field in found {
                let wrong = || corrupt(format_args!("the tick {field:?}"));
                let (name, at) = field.split_once(' ').ok_or_else(wrong)?;
                fields.insert((at.parse().map_err(|_| wrong())?, ScheduleName::new(name)?));
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
        let fields: Vec<(i64, ScheduleName)> = fields.into_iter().rev().collect();
        for fields in fields.chunks(SHOWN_AT_A_TIME) {
            let reads = fields
                .iter()
                .map(|(at, name)| Read::Scores(keys.fired(name), vec![at.to_string()]));
            let mut looked = self.look(reads.collect()).await?;
            let mut there = BTreeSet::new();
            for (at, name) in fields {
                if looked.present()?.contains(&true) {
                    there.insert(format!("{name} {at}"));
                }
            }
            self.load_tick_rows(&there).await?;
            let of_job = self.rows.ticks.values().filter(|tick| tick.job == Some(job));
            if of_job.count() >= Tick::SHOWN {
                break;
            }
        }
        Ok(())
    }

    /// Loads ticks by the fields that they have.
    pub(crate) async fn load_tick_rows(&mut self, fields: &BTreeSet<String>) -> Result<()> {
        let key = self.shard.keys.ticks();
        let cells = fields.iter().map(|field| Cell::new(key.clone(), field.as_str())).collect();
        self.fetch(cells, Vec::new()).await?;
        for field in fields {
            let Some(bytes) = self.cell(key.clone(), field) else { continue };
            let tick: Tick = from_json("a tick", bytes)?;
            let named = format!("{} {}", tick.schedule, tick.tick.as_micros());
            if named != *field {
                return Err(corrupt(format_args!("the tick {field:?} is {named:?}")));
            }
            self.rows.ticks.insert((tick.schedule.clone(), tick.tick), tick);
        }
        Ok(())
    }
}
