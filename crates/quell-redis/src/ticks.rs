//! Ticks that fired, for the engine: it asks for those of a time, and they are in the spans of a schedule.

use std::collections::BTreeSet;

use quell_core::schedule::{CATCH_UP_STEP, MAX_BACKFILL, RECORD, ScheduleInfo, Tick, TickedBy};
use quell_core::{JobId, Result, ScheduleName, Timestamp};
use quell_engine::{Entry, Place, RowName, Scan, Seen};

use crate::fired::{Fired, LONG, MICROSECOND, Record, Shown, Span};
use crate::look::Score;
use crate::open::{Cell, Open};
use crate::portions::{Order, Walk};
use crate::row::from_json;

/// Closed spans of ticks that are read in one trip.
pub(crate) const SPANS: usize = 250;

impl Open {
    /// The ticks of a schedule that fired in a time. All of them, from the first to the last, are asked
    /// for where the schedule is removed, with which they go.
    pub(crate) async fn scan_fired(&mut self, name: &ScheduleName, scan: &Scan) -> Result<Seen> {
        let bounds = scan.from.zip(scan.to).filter(|(from, _)| *from > Timestamp::MIN);
        let (Some((from, to)), None) = (bounds, &scan.after) else { return Ok(Seen::default()) };
        let key = self.keys().schedules();
        self.fetch(vec![Cell::new(key.clone(), name.as_str())]).await?;
        let Some(bytes) = self.cell(key, name.as_str()) else { return Ok(Seen::default()) };
        let info: ScheduleInfo = from_json("a schedule", bytes)?;
        // Of a range with more ticks none is fired.
        let range = info.ticks_between(from, to);
        let range = Some(range).filter(|ticks| ticks.len() <= MAX_BACKFILL);
        let mut ticks: BTreeSet<Timestamp> = range.into_iter().flatten().collect();
        // What is due when the step is taken may be more. No process has fired that: the record, which
        // the commit compares, was read before.
        ticks.extend(info.ticks_due(to, CATCH_UP_STEP));
        let ticks: Vec<Timestamp> = ticks.into_iter().collect();
        let entry = |at| {
            let name = RowName::Tick(name.clone(), at);
            Entry { place: Place::at(at), name, note: None }
        };
        let fired = self.load_fired(&info, &ticks).await?;
        Ok(Seen { entries: fired.into_iter().map(entry).collect(), more: false })
    }

    /// Which of these ticks of a schedule's plan have fired; loads the spans that they may lengthen, too.
    async fn load_fired(
        &mut self,
        info: &ScheduleInfo,
        ticks: &[Timestamp],
    ) -> Result<Vec<Timestamp>> {
        let (name, plan) = (&info.schedule.name, &info.schedule.spec);
        let key = self.keys().ticks();
        self.fetch(vec![Cell::new(key.clone(), name.as_str())]).await?;
        let record = self.cell(key, name.as_str());
        let record: Option<Record> =
            record.map(|bytes| from_json("a record of ticks", bytes)).transpose()?;
        let (mut fired, mut all) = (Fired { record, closed: Vec::new() }, Vec::new());
        if let (Some(first), Some(last)) = (ticks.first(), ticks.last()) {
            let from = plan.latest(first.before(MICROSECOND)).unwrap_or(*first);
            let to = plan.next(*last).unwrap_or(*last);
            let closed = fired.record.as_ref().and_then(|record| record.closed);
            if closed.is_some_and(|closed| closed >= from) {
                fired.closed = self.closed_spans(name, from, to).await?;
            }
            all = fired.among(plan, ticks)?;
        }
        for tick in &all {
            // Steps only ask whether it has fired.
            let (schedule, job, by) = (name.clone(), None, TickedBy::Plan);
            let row = Tick { schedule, tick: *tick, job, by };
            self.ticks.insert((name.clone(), *tick), row);
        }
        self.fired.insert(name.clone(), fired);
        Ok(all)
    }

    /// The closed spans of a schedule that meet this time.
    pub(crate) async fn closed_spans(
        &mut self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Span>> {
        let keys = self.keys().clone();
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

    /// The newest ticks among a job's triggers, of schedules that are there and by their records.
    pub(crate) async fn ticks_of(
        &mut self,
        job: JobId,
        kept: Vec<(String, Vec<u8>)>,
    ) -> Result<Vec<RowName>> {
        let key = self.keys().ticks();
        let cells = kept.iter().map(|(name, _)| Cell::new(key.clone(), name.as_str()));
        self.fetch(cells.collect()).await?;
        let oldest = self.now.before(RECORD);
        let mut names = Vec::new();
        for (name, kept) in kept {
            let Some(record) = self.cell(key.clone(), &name) else { continue };
            let record: Record = from_json("a record of ticks", record)?;
            let (id, shown) = Shown::parse_all(&kept)?;
            if id != record.id {
                continue;
            }
            let schedule = ScheduleName::new(name)?;
            for Shown { tick, by } in shown.into_iter().filter(|shown| shown.tick >= oldest) {
                let row = Tick { schedule: schedule.clone(), tick, job: Some(job), by };
                self.ticks.insert((schedule.clone(), tick), row);
                names.push(RowName::Tick(schedule.clone(), tick));
            }
        }
        Ok(names)
    }
}
