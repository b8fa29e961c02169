//! Schedules and their ticks (R36).

use std::collections::BTreeSet;

use quell_core::schedule::{
    CATCH_UP_STEP, MAX_BACKFILL, RECORD, ScheduleInfo, Tick, Ticked, TickedBy, UNREADABLE_PAUSE,
};
use quell_core::{Batch, ErrorKind, JobId, Result, ScheduleName, Timestamp};
use tracing::error;

use crate::fired::{Fired, LONG, MICROSECOND, Record, Shown, Span};
use crate::look::{Read, Score};
use crate::portions::{Order, Walk};
use crate::row::from_json;
use crate::shard::Time;
use crate::store::ShardStore;
use crate::tx::{Cell, Tx};

/// Closed spans of ticks that are read in one trip.
pub(crate) const SPANS: usize = 250;

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
        let keys = self.shard.keys.clone();
        let of = |name: &ScheduleName| {
            [keys.schedules(), keys.ticks()].map(|key| Cell::new(key, name.as_str()))
        };
        self.fetch(names.iter().flat_map(of).collect(), Vec::new()).await?;
        for name in names {
            match self.load_due_schedule(&name).await {
                Ok(()) => {}
                // R25: it is tried again later, by a process that may know how, and stops no other.
                // Its missed ticks follow its `catch_up` then.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    error!(%error, schedule = %name, "schedule cannot be decoded, trying again");
                    self.rows.schedules.remove(&name);
                    let later = self.now + UNREADABLE_PAUSE;
                    self.beside.place(keys.plan(), name.to_string(), later);
                }
                Err(error) => return Err(error),
            }
        }
        self.load_for_schedules().await
    }

    async fn load_due_schedule(&mut self, name: &ScheduleName) -> Result<()> {
        self.load_schedules([name.clone()]).await?;
        // What is due when the step is taken may be more. No process has fired that: the record, which
        // the commit compares, was read before.
        match self.rows.schedules.get(name) {
            Some(info) => self.load_fired(name, &info.ticks_due(self.now, CATCH_UP_STEP)).await,
            None => Ok(()),
        }
    }

    /// Loads a schedule, and which of its ticks in a range have fired.
    pub(crate) async fn load_for_backfill(
        &mut self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<()> {
        self.load_schedules([name.clone()]).await?;
        if let Some(info) = self.rows.schedules.get(name) {
            let ticks = info.ticks_between(from, to);
            // Of a range with more ticks none is fired.
            if ticks.len() <= MAX_BACKFILL {
                self.load_fired(name, &ticks).await?;
            }
        }
        self.load_for_schedules().await
    }

    /// Loads what accepting the triggers of the loaded schedules needs.
    pub(crate) async fn load_for_schedules(&mut self) -> Result<()> {
        let triggers = self.rows.schedules.values().map(|info| info.schedule.trigger.clone());
        let batches: Vec<Batch> = triggers.map(Batch::one).collect();
        self.load_for(&batches).await
    }

    /// Loads which of these ticks of a schedule's plan have fired, and the spans that they may lengthen.
    async fn load_fired(&mut self, name: &ScheduleName, ticks: &[Timestamp]) -> Result<()> {
        let key = self.shard.keys.ticks();
        self.fetch(vec![Cell::new(key.clone(), name.as_str())], Vec::new()).await?;
        let record = self.cell(key, name.as_str());
        let record: Option<Record> =
            record.map(|bytes| from_json("a record of ticks", bytes)).transpose()?;
        let mut fired = Fired { record, closed: Vec::new() };
        let plan = self.rows.schedules.get(name).map(|info| info.schedule.spec.clone());
        if let (Some(plan), Some(first), Some(last)) = (plan, ticks.first(), ticks.last()) {
            let from = plan.latest(first.before(MICROSECOND)).unwrap_or(*first);
            let to = plan.next(*last).unwrap_or(*last);
            let closed = fired.record.as_ref().and_then(|record| record.closed);
            if closed.is_some_and(|closed| closed >= from) {
                fired.closed = self.closed_spans(name, from, to).await?;
            }
            for tick in fired.among(&plan, ticks)? {
                // Steps only ask whether it has fired.
                let (schedule, job, by) = (name.clone(), None, TickedBy::Plan);
                self.rows.ticks.insert((name.clone(), tick), Tick { schedule, tick, job, by });
            }
        }
        self.fired.insert(name.clone(), fired);
        Ok(())
    }

    /// The closed spans of a schedule that meet this time.
    pub(crate) async fn closed_spans(
        &mut self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Span>> {
        let keys = self.shard.keys.clone();
        let mut spans = Vec::new();
        for (set, last) in [(keys.fired(name), to + LONG), (keys.fired_long(name), Timestamp::MAX)]
        {
            let mut walk = Walk::new(set, Order::Lowest, Score::At(from));
            let mut is_over = false;
            while !(is_over || walk.is_over()) {
                let portion = self.look(vec![walk.read(SPANS)]).await?.scored()?;
                for (member, at) in walk.take(portion, SPANS) {
                    is_over = at > last;
                    let span = Span::parse(&member)?;
                    if span.meets(from, to) {
                        spans.push(span);
                    }
                }
            }
        }
        Ok(spans)
    }

    /// Loads the newest ticks among a job's triggers, of schedules that are there and by their records.
    pub(crate) async fn load_ticks_of(&mut self, job: JobId) -> Result<()> {
        let keys = self.shard.keys.clone();
        let kept = self.look(vec![Read::All(keys.ticks_of(job))]).await?.pairs()?;
        let cells = kept.iter().map(|(name, _)| Cell::new(keys.ticks(), name.as_str()));
        self.fetch(cells.collect(), Vec::new()).await?;
        let oldest = self.now.before(RECORD);
        for (name, kept) in kept {
            let Some(record) = self.cell(keys.ticks(), &name) else { continue };
            let record: Record = from_json("a record of ticks", record)?;
            let (id, shown) = Shown::parse_all(&kept)?;
            if id != record.id {
                continue;
            }
            let schedule = ScheduleName::new(name)?;
            for Shown { tick, by } in shown.into_iter().filter(|shown| shown.tick >= oldest) {
                let row = Tick { schedule: schedule.clone(), tick, job: Some(job), by };
                self.rows.ticks.insert((schedule.clone(), tick), row);
            }
        }
        Ok(())
    }
}
