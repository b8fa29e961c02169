//! What workers elsewhere report of attempts that run: their progress and their last log lines.
//!
//! It is kept in memory, for the page of a job; the next renewal brings it to another server. The
//! log of a failed attempt is kept with its error, that of another one in memory for a while.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quell::Payload;
use quell::store::Lease;

use crate::handlers::MAX_OUTPUT;

/// The most bytes of a progress report.
pub(crate) const MAX_PROGRESS: usize = 4 << 10;
/// The most attempts whose reports are kept: some 16 MiB of them.
const MOST: usize = 1_000;

/// The reports of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Reported {
    pub(crate) progress: Option<Payload>,
    pub(crate) log: VecDeque<String>,
    at: Instant,
}

/// The reports of the attempts that run, and the logs of those that ended without a failure.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    running: Mutex<BTreeMap<Lease, Reported>>,
    ended: Mutex<Logs>,
}

/// Logs of attempts that have ended, the oldest first.
#[derive(Debug, Default)]
struct Logs(VecDeque<(Lease, Vec<String>)>);

impl Reports {
    fn reports(&self) -> MutexGuard<'_, BTreeMap<Lease, Reported>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, Logs> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a report of an attempt.
    pub(crate) fn add(&self, lease: Lease, progress: Option<Payload>, lines: Vec<String>) {
        if progress.is_none() && lines.is_empty() {
            return;
        }
        let mut reports = self.reports();
        if reports.len() >= MOST && !reports.contains_key(&lease) {
            let oldest = reports.iter().min_by_key(|(_, reported)| reported.at);
            if let Some(oldest) = oldest.map(|(lease, _)| *lease) {
                reports.remove(&oldest);
            }
        }
        let none = || Reported { progress: None, log: VecDeque::new(), at: Instant::now() };
        let reported = reports.entry(lease).or_insert_with(none);
        reported.at = Instant::now();
        reported.progress = progress.or_else(|| reported.progress.take());
        reported.log.extend(tail(lines));
        shorten(&mut reported.log);
    }

    /// The reports of an attempt.
    pub(crate) fn of_attempt(&self, lease: Lease) -> Option<Reported> {
        self.reports().get(&lease).cloned()
    }

    /// Removes the reports of an attempt that has ended. Where its last lines are given, its log is kept
    /// for a while.
    pub(crate) fn end(&self, lease: Lease, last: Option<Vec<String>>) {
        let before = self.reports().remove(&lease);
        let Some(lines) = last else { return };
        let log = joined(before, lines);
        if log.is_empty() {
            return;
        }
        let mut ended = self.ended();
        if ended.0.len() >= MOST {
            ended.0.pop_front();
        }
        ended.0.push_back((lease, log));
    }

    /// The log of an attempt that has ended.
    pub(crate) fn log_of(&self, lease: Lease) -> Option<Vec<String>> {
        let ended = self.ended();
        ended.0.iter().rev().find(|(one, _)| *one == lease).map(|(_, log)| log.clone())
    }
}

/// An error with the log lines that led to it.
pub(crate) fn with_log(error: String, before: Option<Reported>, lines: Vec<String>) -> String {
    let lines = joined(before, lines);
    if lines.is_empty() {
        return error;
    }
    format!("{error}\nlog: {}", lines.join("\n     "))
}

/// The whole log of an attempt, within the bound.
fn joined(before: Option<Reported>, lines: Vec<String>) -> Vec<String> {
    let mut log = before.map(|reported| reported.log).unwrap_or_default();
    log.extend(tail(lines));
    shorten(&mut log);
    log.into()
}

/// What a line takes besides its text, at most.
const LINE: usize = 32;

/// How many of the newest lines are within the bound; one at least.
fn kept<'l>(lines: impl Iterator<Item = &'l String>) -> usize {
    let mut bytes = 0;
    let within = lines.take_while(|line| {
        bytes += line.len() + LINE;
        bytes <= MAX_OUTPUT
    });
    within.count().max(1)
}

/// The newest of these lines: a body may have many more than are kept.
fn tail(mut lines: Vec<String>) -> Vec<String> {
    let kept = kept(lines.iter().rev());
    lines.split_off(lines.len().saturating_sub(kept))
}

/// Removes the oldest lines beyond the bound, and cuts a line that is too long by itself.
fn shorten(log: &mut VecDeque<String>) {
    let kept = kept(log.iter().rev());
    log.drain(..log.len().saturating_sub(kept));
    if let Some(line) = log.front_mut().filter(|line| line.len() > MAX_OUTPUT) {
        line.truncate(line.floor_char_boundary(MAX_OUTPUT));
        line.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use quell::JobId;
    use quell::store::LeaseToken;

    use super::*;

    fn lease(job: u64, token: u64) -> Lease {
        Lease { job: JobId::new(job), token: LeaseToken::new(token) }
    }

    #[test]
    fn the_newest_lines_of_an_attempt_are_kept_within_the_bound() {
        let reports = Reports::default();
        let log = |token| reports.of_attempt(lease(1, token)).unwrap().log;
        reports.add(lease(1, 1), Some(Payload::from_stored("1")), vec!["first".to_owned()]);
        reports.add(lease(1, 2), None, (0..3_000).map(|line| format!("line {line}")).collect());
        assert_eq!(log(2).back().unwrap(), "line 2999");
        assert!(log(2).iter().map(|line| line.len() + LINE).sum::<usize>() <= MAX_OUTPUT);
        assert!(log(2).capacity() < 1_000, "a body of many lines leaves no room behind");
        reports.add(lease(1, 2), None, vec![String::new(); 300_000]);
        assert_eq!(log(2).len(), MAX_OUTPUT / LINE);
        reports.add(lease(1, 2), None, vec!["ä".repeat(MAX_OUTPUT)]);
        assert_eq!(log(2), ["ä".repeat(MAX_OUTPUT / 2)]);
        let before = reports.of_attempt(lease(1, 1));
        assert_eq!(before.as_ref().unwrap().progress, Some(Payload::from_stored("1")));
        reports.end(lease(1, 1), Some(vec!["last".to_owned()]));
        assert!(reports.of_attempt(lease(1, 1)).is_none());
        assert_eq!(reports.log_of(lease(1, 1)).unwrap(), ["first", "last"]);
        reports.end(lease(1, 2), None);
        assert!(reports.of_attempt(lease(1, 2)).is_none() && reports.log_of(lease(1, 2)).is_none());
        assert_eq!(with_log("e".into(), before, vec!["last".into()]), "e\nlog: first\n     last");
    }

    #[test]
    fn reports_of_a_thousand_attempts_are_kept() {
        let reports = Reports::default();
        for job in 1..=1_500 {
            reports.add(lease(job, 1), Some(Payload::from_stored("0")), Vec::new());
        }
        assert_eq!(reports.reports().len(), MOST);
        let is_kept = |job| reports.of_attempt(lease(job, 1)).is_some();
        assert!(!is_kept(500) && is_kept(501));
        for job in 1..=1_500 {
            reports.end(lease(job, 1), Some(vec![format!("of {job}")]));
        }
        let is_kept = |job| reports.log_of(lease(job, 1)).is_some();
        assert!(!is_kept(500) && is_kept(501));
    }
}
