//! Which ticks of a schedule have fired (R36), in as many bytes whatever their number.
//!
//! A [`Span`] says of a plan that each of its ticks from the first to the last has fired. While a
//! schedule fires by plan, its newest span grows in place. A tick that is left out, a pause or
//! another plan begins another span; a backfill joins those between which it leaves no tick out. Spans
//! of two plans may overlap: what fired under one plan is known by its times when another one asks.
//! Where newer data of time zones moves ticks of the past, those in a span have fired.
//!
//! The newest span is in the schedule's [`Record`], with what every change of its spans changes, so
//! that a step which read some of them commits only while all are as they were. The closed ones are in
//! two sorted sets by their last tick. One set has the spans that are shorter than an hour: a range of
//! time meets none of them that ends an hour after it. The other set has the rest; a year has few.
//!
//! What is shown with a job is in a hash of the job's own, and goes with it.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::schedule::{ScheduleInfo, Spec, Tick, TickedBy};
use quell_core::{Error, ErrorKind, JobId, Result, ScheduleName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::keys::Keys;
use crate::row::{corrupt, from_json, internal, to_json};
use crate::writes::{Write, Writes};

/// A closed span of so much time and more is in a set of its own.
pub(crate) const LONG: Duration = Duration::from_secs(3_600);
/// The resolution of store time.
pub(crate) const MICROSECOND: Duration = Duration::from_micros(1);

/// Consecutive ticks of a plan that have all fired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) first: Timestamp,
    /// The last tick, or a later moment up to which no tick is left out.
    pub(crate) last: Timestamp,
    /// The [`Spec`]. What upkeep does with a span asks nothing of a plan that only a newer Quell
    /// knows.
    plan: serde_json::Value,
}

impl Span {
    fn new(plan: &serde_json::Value, first: Timestamp, last: Timestamp) -> Self {
        Span { first, last, plan: plan.clone() }
    }

    /// Reads what [`Span::member`] wrote.
    pub(crate) fn parse(member: &str) -> Result<Self> {
        let parts = || {
            let (first, rest) = member.split_once(' ')?;
            let (last, plan) = rest.split_once(' ')?;
            let moment = |text: &str| text.parse().ok().map(Timestamp::from_micros);
            Some((moment(first)?, moment(last)?, plan))
        };
        let wrong = || corrupt(format_args!("the ticks {member:?}"));
        let (first, last, plan) = parts().ok_or_else(wrong)?;
        Ok(Span { first, last, plan: from_json("a plan", plan.as_bytes())? })
    }

    /// As a member of a sorted set, whose scores are not exact for all times.
    pub(crate) fn member(&self) -> String {
        let (first, last) = (self.first.as_micros(), self.last.as_micros());
        format!("{first} {last} {}", self.plan)
    }

    /// The set in which it is once it is closed.
    pub(crate) fn set(&self, keys: &Keys, schedule: &ScheduleName) -> String {
        if self.last.since(self.first) < LONG {
            keys.fired(schedule)
        } else {
            keys.fired_long(schedule)
        }
    }

    pub(crate) fn meets(&self, from: Timestamp, to: Timestamp) -> bool {
        self.first <= to && from <= self.last
    }

    /// Without what is later.
    pub(crate) fn until(mut self, to: Timestamp) -> Option<Self> {
        self.last = self.last.min(to);
        (self.first <= to).then_some(self)
    }

    /// The ticks of `plan` in this span that have fired, of these in their order.
    fn fired<'t>(&self, plan: &Spec, ticks: &'t [Timestamp]) -> Result<Vec<&'t Timestamp>> {
        let from = ticks.partition_point(|tick| *tick < self.first);
        let mut in_span = ticks.iter().skip(from).take_while(|tick| **tick <= self.last).peekable();
        // R25: a plan that cannot be decoded is asked about the ticks in its span only.
        if in_span.peek().is_none() {
            return Ok(Vec::new());
        }
        let own: Spec = serde_json::from_value(self.plan.clone())
            .map_err(|error| corrupt(format_args!("the plan {}: {error}", self.plan)))?;
        let is_own = |tick: &&Timestamp| own.next(tick.before(MICROSECOND)) == Some(**tick);
        Ok(if own == *plan { in_span.collect() } else { in_span.filter(is_own).collect() })
    }

    /// Whether no tick of `plan`, which both have, lies between them.
    fn touches(&self, other: &Span, plan: &Spec) -> bool {
        let (one, two) = if self.first <= other.first { (self, other) } else { (other, self) };
        plan.next(one.last).is_none_or(|next| next >= two.first)
    }

    fn join(&mut self, other: &Span) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
    }
}

/// What a schedule keeps of its ticks beside its closed spans.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Drawn for the schedule, so that ticks of a deleted one of the same name are none of it.
    pub(crate) id: String,
    /// Drawn for each change. Not the next number: where a server loses writes, another process may
    /// count to it too.
    mark: String,
    pub(crate) newest: Option<Span>,
    /// No span ends before this.
    pub(crate) oldest: Timestamp,
    /// No closed span ends after this.
    pub(crate) closed: Option<Timestamp>,
}

impl Record {
    fn new(at: Timestamp) -> Self {
        Record { id: drawn(), mark: String::new(), newest: None, oldest: at, closed: None }
    }

    /// As it is written with each change.
    pub(crate) fn changed(&mut self) -> Result<Vec<u8>> {
        self.mark = drawn();
        to_json(self)
    }
}

fn drawn() -> String {
    format!("{:012x}", fastrand::u64(..1 << 48))
}

/// What a step has read of a schedule's ticks.
#[derive(Debug, Default)]
pub(crate) struct Fired {
    pub(crate) record: Option<Record>,
    /// Closed spans that a tick of the step may meet or follow.
    pub(crate) closed: Vec<Span>,
}

impl Fired {
    /// Of these ticks, in their order, those that have fired.
    pub(crate) fn among(&self, plan: &Spec, ticks: &[Timestamp]) -> Result<Vec<Timestamp>> {
        let newest = self.record.iter().filter_map(|record| record.newest.as_ref());
        let mut fired = Vec::new();
        for span in newest.chain(&self.closed) {
            fired.extend(span.fired(plan, ticks)?);
        }
        Ok(fired)
    }

    /// Adds a span, joined with those that it touches; says which closed spans go and which come.
    fn add(&mut self, plan: &Spec, mut span: Span) -> (Vec<Span>, Option<Span>) {
        let record = self.record.get_or_insert_with(|| Record::new(span.last));
        record.oldest = record.oldest.min(span.last);
        let touches = |other: &Span| other.plan == span.plan && other.touches(&span, plan);
        let (gone, stay): (Vec<Span>, Vec<Span>) =
            self.closed.drain(..).partition(|closed| touches(closed));
        self.closed = stay;
        let grows = record.newest.as_ref().is_some_and(touches);
        gone.iter().for_each(|closed| span.join(closed));
        let comes = match &mut record.newest {
            Some(newest) if grows => {
                newest.join(&span);
                None
            }
            Some(newest) if newest.last >= span.last => Some(span),
            newest => newest.replace(span),
        };
        if let Some(closed) = &comes {
            record.closed = record.closed.max(Some(closed.last));
            self.closed.push(closed.clone());
        }
        (gone, comes)
    }
}

impl Writes {
    /// Puts new ticks of a schedule on record, beside those that were read.
    pub(crate) fn spans(
        &mut self,
        keys: &Keys,
        info: &ScheduleInfo,
        fired: Option<&mut Fired>,
        (ticks, is_new, has_job): NewTicks<'_>,
    ) -> Result<()> {
        let name = &info.schedule.name;
        let fired = fired.ok_or_else(|| {
            let message = format!("cannot fire ticks of {name}: the step read none of them");
            Error::new(ErrorKind::Internal, message)
        })?;
        let oldest = fired.record.as_ref().map(|record| record.oldest);
        for span in spans(info, ticks, is_new)? {
            let (gone, comes) = fired.add(&info.schedule.spec, span);
            gone.iter().for_each(|span| self.unplace(span.set(keys, name), span.member()));
            if let Some(span) = comes {
                self.place(span.set(keys, name), span.member(), span.last);
            }
        }
        let Some(record) = &mut fired.record else { return Ok(()) };
        self.hash_set(keys.ticks(), name, record.changed()?);
        if oldest != Some(record.oldest) {
            self.place(keys.tick_times(), name.to_string(), record.oldest);
        }
        let new = ticks.iter().copied().filter(|tick| is_new(tick));
        self.show(keys, &record.id, has_job, new);
        Ok(())
    }

    /// Shows ticks of one schedule with the jobs that took their triggers.
    fn show<'t>(
        &mut self,
        keys: &Keys,
        id: &str,
        has_job: &dyn Fn(JobId) -> bool,
        ticks: impl Iterator<Item = &'t Tick>,
    ) {
        let mut by_job: BTreeMap<JobId, Vec<&Tick>> = BTreeMap::new();
        for tick in ticks {
            // A burst goes on after its leader's row has gone: then there is nothing to show.
            if let Some(job) = tick.job.filter(|job| has_job(*job)) {
                by_job.entry(job).or_default().push(tick);
            }
        }
        for (job, ticks) in by_job {
            let newest = ticks.iter().rev().take(Tick::SHOWN);
            let Some(Tick { schedule, .. }) = ticks.first() else { continue };
            self.push(Write::Show {
                key: keys.ticks_of(job),
                schedule: schedule.to_string(),
                id: id.to_owned(),
                ticks: newest.map(|tick| Shown::from(*tick).to_string()).collect(),
            });
        }
    }

    /// Forgets what a schedule has fired. What is still in hashes of jobs has the id of its record.
    pub(crate) fn forget_ticks(&mut self, keys: &Keys, schedule: &ScheduleName) {
        self.hash_delete(keys.ticks(), schedule);
        self.unplace(keys.tick_times(), schedule.to_string());
        self.delete(keys.fired(schedule));
        self.delete(keys.fired_long(schedule));
    }
}

/// Ticks of a schedule, which of them are new, and which jobs there are.
pub(crate) type NewTicks<'t> =
    (&'t [&'t Tick], &'t dyn Fn(&Tick) -> bool, &'t dyn Fn(JobId) -> bool);

/// The spans of these ticks of a schedule's plan that have new ones.
fn spans(
    info: &ScheduleInfo,
    ticks: &[&Tick],
    is_new: &dyn Fn(&Tick) -> bool,
) -> Result<Vec<Span>> {
    let spec = &info.schedule.spec;
    let plan = serde_json::to_value(spec).map_err(|error| internal("write a plan", error))?;
    let mut spans: Vec<(Span, bool)> = Vec::new();
    for tick in ticks {
        match spans.last_mut() {
            Some((span, has_new)) if spec.next(span.last) == Some(tick.tick) => {
                span.last = tick.tick;
                *has_new |= is_new(tick);
            }
            Some(_) | None => spans.push((Span::new(&plan, tick.tick, tick.tick), is_new(tick))),
        }
    }
    Ok(spans.into_iter().filter(|(_, has_new)| *has_new).map(|(span, _)| span).collect())
}

/// A tick among a job's triggers, as it is kept with the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) tick: Timestamp,
    pub(crate) by: TickedBy,
}

impl From<&Tick> for Shown {
    fn from(tick: &Tick) -> Self {
        Shown { tick: tick.tick, by: tick.by }
    }
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = match self.by {
            TickedBy::Plan => "",
            TickedBy::Backfill => "b",
        };
        write!(f, "{by}{}", self.tick.as_micros())
    }
}

impl Shown {
    /// Reads what `lua/commit.lua` keeps of one schedule with a job: the id of the schedule's record,
    /// and ticks.
    pub(crate) fn parse_all(kept: &[u8]) -> Result<(String, Vec<Shown>)> {
        let wrong = || corrupt(format_args!("the ticks {:?}", String::from_utf8_lossy(kept)));
        let mut words = std::str::from_utf8(kept).map_err(|_| wrong())?.split(' ');
        let id = words.next().ok_or_else(wrong)?.to_owned();
        let shown = |word: &str| {
            let (by, at) = match word.strip_prefix('b') {
                Some(at) => (TickedBy::Backfill, at),
                None => (TickedBy::Plan, word),
            };
            let tick = Timestamp::from_micros(at.parse().map_err(|_| wrong())?);
            Ok(Shown { tick, by })
        };
        Ok((id, words.map(shown).collect::<Result<_>>()?))
    }

    /// As [`Shown::parse_all`] reads them.
    pub(crate) fn write_all(id: &str, ticks: &[Shown]) -> Vec<u8> {
        let words = ticks.iter().map(ToString::to_string);
        let words: Vec<String> = std::iter::once(id.to_owned()).chain(words).collect();
        words.join(" ").into_bytes()
    }
}
