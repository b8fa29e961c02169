//! Lines of a history: parsed, and those of several processes brought into one order.

use std::collections::HashMap;
use std::fmt;

use quell_core::history::Event;
use quell_core::{JobId, Timestamp};
use serde::{Deserialize, Serialize};

use super::ties::{Placed, untie};

/// One event and who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The process: numbers of calls are its own.
    #[serde(default)]
    pub p: String,
    /// Its place in the order of all, where one recorder wrote for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// When it was written, on the host's clock: after the commit that it records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub w: Option<Timestamp>,
    /// When the call was made that did it, on the host's clock: what came later it may have missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub c: Option<Timestamp>,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

impl Line {
    /// A line of this process, without a number and a time of its own.
    pub fn new(p: impl Into<String>, event: Event) -> Self {
        Line { p: p.into(), n: None, w: None, c: None, event }
    }

    /// When its change was visible to every process, if known: a transaction may read the clock long
    /// before it commits.
    pub(super) fn seen_from(&self) -> Option<Timestamp> {
        self.event.at().map(|t| self.w.map_or(t, |written| written.max(t)))
    }

    /// The earliest time at which its call can have read the store, where its event is of `t`: a call may
    /// read the clock long after the rows, or rows long before it commits.
    pub(super) fn looked_from(&self, t: Timestamp) -> Timestamp {
        self.c.map_or(t, |called| called.min(t))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match serde_json::to_string(self) {
            Ok(text) => f.write_str(&text),
            Err(error) => write!(f, "{:?} ({error})", self.event),
        }
    }
}

/// A line that is no event.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of {name} is no event of a history: {source}")]
pub struct MalformedLine {
    /// Which line, from 1.
    pub line: usize,
    /// The file's name as it was given.
    pub name: String,
    /// What is wrong with it.
    pub source: serde_json::Error,
}

/// Reads JSON lines. A torn last line, as a kill may leave it, is left out; `name` stands for the
/// process where lines do not name one.
///
/// # Errors
/// [`MalformedLine`] for the first line that is no event and not the torn last one.
pub fn parse(name: &str, text: &str) -> Result<Vec<Line>, MalformedLine> {
    let mut lines = Vec::new();
    let count = text.lines().count();
    for (index, (line, next)) in text.lines().zip(text.lines().skip(1).chain([""])).enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str::<Line>(line) {
            Ok(mut line) => {
                if line.p.is_empty() {
                    name.clone_into(&mut line.p);
                }
                lines.push(line);
            }
            // Whole lines end in a newline, and a process that finds a torn one begins a new line.
            Err(_) if index + 1 == count && !text.ends_with('\n') => {}
            Err(_) if begins(next) => {}
            Err(source) => {
                return Err(MalformedLine { line: index + 1, name: name.to_owned(), source });
            }
        }
    }
    Ok(lines)
}

fn begins(line: &str) -> bool {
    serde_json::from_str::<Line>(line).is_ok_and(|line| matches!(line.event, Event::Begin { .. }))
}

/// The record of one process that ended well: `events` between its begin and its end.
#[must_use]
pub fn whole(process: &str, events: impl IntoIterator<Item = Event>) -> Vec<Line> {
    let begin = Event::Begin { t: Timestamp::MIN };
    let events = std::iter::once(begin).chain(events).chain([Event::End]);
    events.map(|event| Line::new(process, event)).collect()
}

/// Brings the lines of several recorders into one order: by their number where all have one, else
/// by store time, and within one moment as they were written, or in another order that can have been. What
/// has no time of its own stays behind the line before it; rows come last.
#[must_use]
pub fn merge(files: Vec<Vec<Line>>) -> Vec<Line> {
    if files.iter().flatten().all(|line| line.n.is_some()) {
        let mut lines: Vec<Line> = files.into_iter().flatten().collect();
        lines.sort_by_key(|line| line.n);
        return lines;
    }
    let mut placed = Vec::new();
    for (file, lines) in files.into_iter().enumerate() {
        let times = Places::of(&lines);
        placed.extend(times.into_iter().zip(lines).map(|(at, line)| (at, file, line)));
    }
    // What is equal stays in the order of files and lines.
    placed.sort_by_key(|(at, ..)| *at);
    let placed = placed.into_iter();
    untie(placed.map(|((time, _), file, line)| Placed { time, file, line }).collect())
}

/// Where the lines of one process stand among those of others.
///
/// A process writes a line after its call has committed, and one that was made before another had committed
/// may be written after it, with an earlier time. So a line stands behind those that were written before its
/// call was made, and behind all earlier ones of its jobs; one of no call behind all that are before it.
#[derive(Debug, Default)]
struct Places {
    /// After each line: the latest time so far, and when it was written.
    each: Vec<(Timestamp, Timestamp)>,
    /// The latest time of each job.
    jobs: HashMap<JobId, Timestamp>,
}

impl Places {
    /// The time of each line, and when it was written.
    fn of(lines: &[Line]) -> Vec<(Timestamp, Timestamp)> {
        let mut places = Places::default();
        let together = |one: &Line, next: &Line| one.c.is_some() && one.c == next.c;
        lines.chunk_by(together).flat_map(|call| places.of_call(call)).collect()
    }

    /// The same of the lines of one call, whose order stays.
    fn of_call(&mut self, call: &[Line]) -> Vec<(Timestamp, Timestamp)> {
        let mut time = self.floor(call);
        let mut found = Vec::with_capacity(call.len());
        for line in call {
            let row = matches!(line.event, Event::Row { .. }).then_some(Timestamp::MAX);
            time = row.or(line.event.at()).map_or(time, |t| t.max(time));
            let (latest, written) = self.after(self.each.len());
            let written = line.w.map_or(written, |w| w.max(written));
            self.each.push((latest.max(time), written));
            if let Some(job) = job_of(&line.event) {
                self.jobs.insert(job, time);
            }
            found.push((time, written));
        }
        found
    }

    /// Nothing of a call stands before this.
    fn floor(&self, call: &[Line]) -> Timestamp {
        let called = call.first().and_then(|line| line.c);
        let until = |called| self.each.partition_point(|(_, written)| *written <= called);
        let (seen, _) = self.after(called.map_or(self.each.len(), until));
        let of_jobs = call.iter().filter_map(|line| self.jobs.get(&job_of(&line.event)?).copied());
        of_jobs.fold(seen, Timestamp::max)
    }

    /// What was so after the first lines, of this number.
    fn after(&self, lines: usize) -> (Timestamp, Timestamp) {
        let last = lines.checked_sub(1).and_then(|last| self.each.get(last));
        last.copied().unwrap_or((Timestamp::MIN, Timestamp::MIN))
    }
}

/// The job that an event of a store is about, or its row.
pub(super) fn job_of(event: &Event) -> Option<JobId> {
    match event {
        Event::Window { job, .. }
        | Event::Suppressed { job, .. }
        | Event::Claimed { job, .. }
        | Event::Renew { job, .. }
        | Event::Expire { job, .. }
        | Event::Settle { job, .. }
        | Event::Cancel { job, .. }
        | Event::Adjust { job, .. }
        | Event::Redrive { job, .. }
        | Event::Discard { job, .. }
        | Event::Import { job, .. }
        | Event::SetAside { job, .. }
        | Event::Restored { job, .. }
        | Event::Row { job, .. }
        | Event::Prune { job, .. } => Some(*job),
        _ => None,
    }
}
