//! Jobs whose attempts end without a report: which of them count as crashes, and when they run
//! again (R21, R25, R39).
//!
//! A lease expires because its worker died or hung, or because the store could not be reached.
//! [`is_crash`] decides which it was, from the worker rows that the store has when it takes the
//! lease back.
//!
//! A job that kills its worker takes down what else that worker held, and no record shows which of
//! them did it. Each comes back at a moment that its id spreads, further apart with every crash in
//! a row: soon they run apart from each other, and those that are sound end well.

use std::time::Duration;

use crate::heartbeat::{WorkerRow, longest_gap};
use crate::{Job, JobId, Timestamp, WorkerId};

/// After this many expiries beyond two in a row, pauses grow no further.
const MOST_ROUNDS: u32 = 2;
/// No pause is longer.
const LONGEST: Duration = Duration::from_secs(600);

/// How long a job waits after this number of crashes in a row; `ran` is how long after the
/// attempt's start its lease was taken back. None after the first, which says nothing about the
/// job: workers are stopped, and machines fail. After that within once what it ran, then 4 times,
/// then 16 times, at most 10 minutes.
///
/// ```
/// use std::time::Duration;
/// use quell_core::{JobId, crash::pause};
///
/// let ran = Duration::from_secs(30);
/// assert_eq!(pause(1, JobId::new(7), ran), Duration::ZERO);
/// assert!(pause(2, JobId::new(7), ran) < ran);
/// assert_ne!(pause(2, JobId::new(7), ran), pause(2, JobId::new(8), ran));
/// ```
#[must_use]
pub fn pause(expiries: u32, id: JobId, ran: Duration) -> Duration {
    let Some(rounds) = expiries.checked_sub(2) else { return Duration::ZERO };
    let longest = ran.saturating_mul(4_u32.saturating_pow(rounds.min(MOST_ROUNDS))).min(LONGEST);
    let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
    // The upper half of the product is the fraction's share.
    let fraction = u128::from(scattered(id.get() ^ u64::from(expiries).rotate_right(8)));
    let micros = fraction.saturating_mul(u128::from(longest)) >> 64;
    Duration::from_micros(u64::try_from(micros).unwrap_or(longest))
}

/// The part of a lease's last term in which its worker should have given a sign of life, and in
/// which signs of other workers show that the store could be reached.
///
/// A living worker renews when two thirds of the term are left. The part begins after that, with
/// five eighths left, and ends with an eighth left: after a sign of another worker in it, a living
/// holder had an eighth of the term to renew.
#[derive(Clone, Copy, Debug)]
struct Term {
    /// The length of the lease.
    lease: Duration,
    /// Where the part begins.
    from: Timestamp,
    /// Where it ends.
    to: Timestamp,
    /// When the lease expired.
    expired_at: Timestamp,
}

impl Term {
    fn new(expired_at: Timestamp, lease: Duration) -> Self {
        let eighth = lease.checked_div(8).unwrap_or_default();
        let from = expired_at.before(eighth.saturating_mul(5));
        Term { lease, from, to: expired_at.before(eighth), expired_at }
    }

    /// Whether this worker reached the store within the part.
    fn is_witnessed_by(&self, row: &WorkerRow) -> bool {
        let within = |at: Timestamp| self.from <= at && at <= self.to;
        let spans = row.steady_since < self.from && row.seen_at > self.to;
        // Heartbeats that are further apart than the part is long might all lie outside of it.
        let is_dense = longest_gap(row.lease) <= self.lease.checked_div(2).unwrap_or_default();
        within(row.steady_since) || within(row.seen_at) || (spans && is_dense)
    }
}

/// Whether an expired lease counts as a crash of its worker (R25): the worker is gone, although
/// the store could be reached. `job` is as it was while it ran; `workers` are the rows of the
/// moment at which the lease is taken back.
///
/// The worker is gone if its last heartbeat came before the last five eighths of the lease's term.
/// One that was seen since lives: it stopped for a while, or could not reach the store. A worker
/// without a row proves nothing.
///
/// The store could be reached, or the worker's end is certain, if
/// - another worker reached the store in that time, or
/// - a worker has been seen since the expiry, and each that has started after the holder was last
///   seen: all that ran beside it are gone too, and an outage ends no process. This is how the crash
///   of the only worker counts, however late its supervisor starts the next one.
#[must_use]
pub fn is_crash(job: &Job, workers: &[WorkerRow]) -> bool {
    let (Some(name), Some(started_at), Some(expired_at)) =
        (&job.worker, job.started_at, job.lease_until)
    else {
        return false;
    };
    let Some(holder) = holder(name, started_at, workers) else { return false };
    let term = Term::new(expired_at, holder.lease);
    if holder.seen_at >= term.from {
        return false;
    }
    let others = || workers.iter().filter(|row| !std::ptr::eq(*row, holder));
    if others().any(|row| term.is_witnessed_by(row)) {
        return true;
    }
    let mut since = others().filter(|row| row.seen_at >= term.expired_at).peekable();
    since.peek().is_some() && since.all(|row| row.started_at > holder.seen_at)
}

/// The row of the worker that started an attempt then: of that name the process that started last
/// before it.
fn holder<'w>(
    name: &WorkerId,
    started_at: Timestamp,
    workers: &'w [WorkerRow],
) -> Option<&'w WorkerRow> {
    let named = workers.iter().filter(|row| row.worker == *name && row.started_at <= started_at);
    named.max_by_key(|row| (row.started_at, row.incarnation))
}

/// A number that looks like chance and is the same each time: the finaliser of SplitMix64.
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAN: Duration = Duration::from_secs(10);

    /// Which hundredth of the longest pause it is.
    fn share(expiries: u32, id: u64, longest: u64) -> usize {
        let hundredths =
            pause(expiries, JobId::new(id), RAN).as_millis() / 10 / u128::from(longest);
        usize::try_from(hundredths).unwrap()
    }

    #[test]
    fn r25_jobs_whose_leases_expired_together_come_back_apart() {
        for (expiries, longest) in [(2, 10), (3, 40), (4, 160), (5, 160), (u32::MAX, 160)] {
            let mut tenths = [0_u32; 10];
            (1..=1_000).for_each(|id| tenths[share(expiries, id, longest) / 10] += 1);
            assert!(tenths.iter().all(|jobs| (60..=140).contains(jobs)), "{expiries}: {tenths:?}");
        }
    }

    #[test]
    fn r25_no_pause_is_longer_than_ten_minutes() {
        let hours = Duration::from_secs(9_999);
        let longest = (1..=1_000).map(|id| pause(4, JobId::new(id), hours)).max().unwrap();
        assert!(longest < LONGEST && longest > Duration::from_secs(590), "{longest:?}");
    }

    #[test]
    fn r21_a_first_expiry_waits_for_nothing() {
        assert_eq!(pause(0, JobId::new(3), RAN), Duration::ZERO);
        assert_eq!(pause(1, JobId::new(3), RAN), Duration::ZERO);
    }

    #[test]
    fn r25_neighbours_of_one_expiry_are_others_after_the_next() {
        let near = |expiries, longest| -> Vec<u64> {
            let own = share(expiries, 1_001, longest);
            (1..=1_000).filter(|id| share(expiries, *id, longest).abs_diff(own) <= 2).collect()
        };
        let (first, then) = (near(2, 10), near(3, 40));
        let both = first.iter().filter(|id| then.contains(id)).count();
        assert!(both * 4 <= first.len(), "{first:?} {then:?}");
    }
}
