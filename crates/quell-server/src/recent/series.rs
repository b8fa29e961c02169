//! Counts by minute and by hour, and how late starts were.
//!
//! Invariant: a series has at most as many buckets as it was made for, and none for a time without events.

use std::collections::VecDeque;
use std::time::Duration;

use quell::Timestamp;

/// Buckets of lateness: one counts starts that were less than 2^n milliseconds late and no less than the one
/// before it; the last has the rest, from 70 minutes.
const LATE: usize = 24;

/// What happened in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Triggers that were accepted.
    pub triggers: u64,
    /// How many of them joined a window.
    pub joined: u64,
    /// Triggers that a dedup or idempotency key refused: nothing was written.
    pub duplicates: u64,
    /// Attempts that started.
    pub starts: u64,
    /// Jobs that started for the first time.
    pub runs: u64,
    /// The triggers that they cover.
    pub covered: u64,
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed in any way.
    pub failed: u64,
    /// Jobs that died.
    pub dead: u64,
    late: [u32; LATE],
}

impl Tally {
    /// Counts a start that was this late.
    pub(super) fn started(&mut self, late: Duration) {
        let bits = u128::BITS - late.as_millis().leading_zeros();
        let at = usize::try_from(bits).unwrap_or(LATE).min(LATE - 1);
        if let Some(count) = self.late.get_mut(at) {
            *count = count.saturating_add(1);
        }
    }

    /// Runs that were saved: a job that covers 5 triggers saves 4.
    #[must_use]
    pub fn saved(&self) -> u64 {
        self.covered.saturating_sub(self.runs)
    }

    /// Adds another span.
    pub fn add(&mut self, other: &Tally) {
        let counts = [
            (&mut self.triggers, other.triggers),
            (&mut self.joined, other.joined),
            (&mut self.duplicates, other.duplicates),
            (&mut self.starts, other.starts),
            (&mut self.runs, other.runs),
            (&mut self.covered, other.covered),
            (&mut self.succeeded, other.succeeded),
            (&mut self.failed, other.failed),
            (&mut self.dead, other.dead),
        ];
        for (sum, count) in counts {
            *sum = sum.saturating_add(count);
        }
        for (sum, count) in self.late.iter_mut().zip(other.late) {
            *sum = sum.saturating_add(count);
        }
    }

    /// The lateness that this share of the starts stayed below, from 0 to 1; none without starts. It is
    /// estimated within its bucket, so it is at most twice the true one.
    #[must_use]
    pub fn late(&self, share: f64) -> Option<Duration> {
        let all: u64 = self.late.iter().map(|count| u64::from(*count)).sum();
        if all == 0 {
            return None;
        }
        let wanted = share * all as f64;
        let mut below = 0.0;
        for (at, count) in self.late.iter().enumerate() {
            let count = f64::from(*count);
            if count > 0.0 && below + count >= wanted {
                let (from, to) = (if at == 0 { 0 } else { 1_u64 << (at - 1) }, 1_u64 << at);
                let within = ((wanted - below) / count).clamp(0.0, 1.0);
                let millis = from as f64 + (to - from) as f64 * within;
                return Some(Duration::from_secs_f64(millis / 1_000.0));
            }
            below += count;
        }
        None
    }
}

/// Tallies of equal spans, the newest last.
#[derive(Clone, Debug)]
pub(super) struct Series {
    span: i64,
    most: i64,
    tallies: VecDeque<(i64, Tally)>,
}

impl Series {
    /// At most `most` spans of this length.
    pub(super) fn new(span: Duration, most: u16) -> Self {
        let span = i64::try_from(span.as_micros()).unwrap_or(i64::MAX).max(1);
        Series { span, most: i64::from(most), tallies: VecDeque::new() }
    }

    /// The number of a moment's span.
    pub(super) fn number(&self, at: Timestamp) -> i64 {
        at.as_micros().div_euclid(self.span)
    }

    /// The tally of a moment; of the oldest span where that is too old.
    pub(super) fn at(&mut self, at: Timestamp) -> &mut Tally {
        let number = self.number(at);
        let newest = self.tallies.back().map_or(i64::MIN, |(newest, _)| *newest);
        if number > newest {
            self.tallies.push_back((number, Tally::default()));
            let oldest = number.saturating_sub(self.most);
            while self.tallies.front().is_some_and(|(first, _)| *first <= oldest) {
                self.tallies.pop_front();
            }
        }
        let place = self.tallies.partition_point(|(other, _)| *other < number);
        let is_there = self.tallies.get(place).is_some_and(|(other, _)| *other == number);
        if !is_there && self.tallies.len() < usize::try_from(self.most).unwrap_or(usize::MAX) {
            self.tallies.insert(place, (number, Tally::default()));
        }
        let last = self.tallies.len().saturating_sub(1);
        &mut self.tallies[place.min(last)].1
    }

    /// The spans of the last `count`, as seen at `now`, the oldest first; those without events are empty.
    pub(super) fn last<T: Default + Clone>(
        &self,
        now: Timestamp,
        count: u16,
        of: impl Fn(&Tally) -> T,
    ) -> Vec<T> {
        let from = self.number(now).saturating_sub(i64::from(count)).saturating_add(1);
        let mut found = vec![T::default(); usize::from(count)];
        for (number, tally) in &self.tallies {
            let at = usize::try_from(number.saturating_sub(from)).ok();
            if let Some(slot) = at.and_then(|at| found.get_mut(at)) {
                *slot = of(tally);
            }
        }
        found
    }

    /// The sum of all spans after a number.
    pub(super) fn since(&self, number: i64) -> Tally {
        let mut sum = Tally::default();
        for (_, tally) in self.tallies.iter().filter(|(other, _)| *other > number) {
            sum.add(tally);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Timestamp {
        Timestamp::from_secs(60 * number)
    }

    #[test]
    fn a_series_keeps_its_newest_spans_and_takes_what_comes_late() {
        let mut series = Series::new(Duration::from_secs(60), 3);
        for number in [10, 11, 13, 12, 13] {
            series.at(minute(number)).triggers += 1;
        }
        assert_eq!(series.last(minute(13), 4, |tally| tally.triggers), [0, 1, 1, 2]);
        series.at(minute(2)).triggers += 1;
        assert!(series.tallies.len() <= 3);
        series.at(minute(100)).triggers += 1;
        assert_eq!(series.since(0).triggers, 1);
    }

    #[test]
    fn lateness_is_estimated_within_its_bucket() {
        let mut tally = Tally::default();
        assert_eq!(tally.late(0.5), None);
        for millis in [0, 0, 3, 3, 3, 3, 3, 3, 3, 900] {
            tally.started(Duration::from_millis(millis));
        }
        let at = |share| tally.late(share).unwrap().as_millis();
        assert!((2..=4).contains(&at(0.5)), "{}", at(0.5));
        assert!((512..=1_024).contains(&at(0.99)), "{}", at(0.99));
        tally.started(Duration::MAX);
        assert!(tally.late(1.0).unwrap() >= Duration::from_secs(4_000));
    }
}
