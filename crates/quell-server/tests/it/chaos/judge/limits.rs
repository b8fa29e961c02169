//! R31: limits on what runs at once and on how often attempts start, at the claim by the store's
//! clock and at the handler's start by the host's.
//!
//! Every process and server of a run is on one host, so both clocks are the same.

use std::collections::BTreeMap;
use std::time::Duration;

use quell::history::Event;
use quell::queue::Rate;
use quell::{Job, JobId, Timestamp};

use super::super::seen::Counts;
use super::history::{Held, leases};
use crate::chaos::workload::record::Entry;
use crate::chaos::workload::tasks::{NARROW, RATED, RATES, SLOTS};

/// A worker may hold a claimed job this long before it starts or releases it.
const HOLD: Duration = Duration::from_millis(100);
/// The limits at once, each by the name of its count.
pub(in crate::chaos) const SLOTS_REACHED: [(&str, usize); 3] = [
    ("most at once of the queue", SLOTS[0] as usize),
    ("most at once of a worker", SLOTS[1] as usize),
    ("most at once of a partition", SLOTS[2] as usize),
];

fn partition(jobs: &BTreeMap<JobId, Job>, job: JobId) -> String {
    let partition = jobs.get(&job).and_then(|job| job.partition.as_ref());
    partition.map(ToString::to_string).unwrap_or_default()
}

/// No more leases hold at once than the queue, a worker and a partition may have.
pub(super) fn slots(
    events: &[Event],
    jobs: &BTreeMap<JobId, Job>,
    counts: &mut Counts,
) -> Result<(), String> {
    let narrow = narrow(events);
    counts.add("leases under concurrency limits", narrow.len());
    most_at_once(&narrow, |lease| partition(jobs, lease.job), counts)
}

/// How close a run that goes on has come to each limit so far; of partitions by what keys say.
pub(in crate::chaos) fn reached(events: &[Event]) -> Counts {
    let mut counts = Counts::default();
    let partition = |lease: &Held| {
        let key = lease.key.as_ref().map(ToString::to_string).unwrap_or_default();
        key.split('k').next().unwrap_or_default().to_owned()
    };
    if let Err(broken) = most_at_once(&narrow(events), partition, &mut counts) {
        panic!("{broken}");
    }
    counts
}

/// The leases in the queue with limits, as far as their ends are on record.
fn narrow(events: &[Event]) -> Vec<Held> {
    let narrow = leases(events).into_iter().filter(|lease| lease.queue == NARROW);
    narrow.filter(|lease| lease.end().is_some()).collect()
}

fn most_at_once(
    narrow: &[Held],
    partition: impl Fn(&Held) -> String,
    counts: &mut Counts,
) -> Result<(), String> {
    let whose = |lease: &Held| [String::new(), lease.worker.to_string(), partition(lease)];
    for (index, (name, limit)) in SLOTS_REACHED.into_iter().enumerate() {
        let mut moves: BTreeMap<String, Vec<(Timestamp, isize, &Held)>> = BTreeMap::new();
        for lease in narrow {
            let moves = moves.entry(whose(lease)[index].clone()).or_default();
            moves.push((lease.from, 1, lease));
            moves.push((lease.end().unwrap_or(lease.from), -1, lease));
        }
        let mut reached = 0;
        for (whose, mut moves) in moves {
            // What ends at the moment of a start makes room for it.
            moves.sort_by_key(|(t, change, _)| (*t, *change));
            let mut taken = 0_usize;
            for (_, change, lease) in moves {
                taken = taken.saturating_add_signed(change);
                if taken > limit {
                    return Err(format!("{taken} at once, {name} {whose:?}: {lease:?}"));
                }
                reached = reached.max(taken);
            }
        }
        counts.add(name, reached);
    }
    Ok(())
}

/// No window of a rate's length has more claims than the rate allows, of the queue and of each
/// partition; and none that is shorter by what a worker may hold a job has more starts of handlers.
pub(super) fn rates(
    events: &[Event],
    entries: &[Entry],
    jobs: &BTreeMap<JobId, Job>,
    counts: &mut Counts,
) -> Result<(), String> {
    let claims: Vec<(Timestamp, JobId)> = leases(events)
        .iter()
        .filter(|lease| lease.queue == RATED)
        .map(|lease| (lease.from, lease.job))
        .collect();
    counts.add("claims under rates", claims.len());
    within("claims", &claims, jobs, Duration::ZERO)?;
    let starts = starts(events, entries);
    counts.add("handler starts under rates", starts.len());
    let in_time = starts.iter().filter(|start| start.late() <= HOLD);
    let in_time: Vec<(Timestamp, JobId)> = in_time.map(|start| (start.at, start.job)).collect();
    counts.add("handler starts later than the hold", starts.len() - in_time.len());
    within("handlers", &in_time, jobs, HOLD)
}

/// The start of a handler in the queue with rates.
struct Start {
    claimed: Timestamp,
    at: Timestamp,
    job: JobId,
}

impl Start {
    fn late(&self) -> Duration {
        self.at.since(self.claimed)
    }
}

/// Where the body's beginning and its claim are on record.
fn starts(events: &[Event], entries: &[Entry]) -> Vec<Start> {
    let leases = leases(events);
    let claims: BTreeMap<_, Timestamp> =
        leases.iter().map(|lease| ((lease.job, lease.token), lease.from)).collect();
    let mut begun = BTreeMap::new();
    for entry in entries {
        if let Entry::Begin { at, job, started, task, .. } = entry
            && task.as_str() == RATED
        {
            begun.insert((JobId::new(*job), *started), *at);
        }
    }
    let starts = events.iter().filter_map(|event| match event {
        Event::Start { t, job, token, .. } => {
            let at = *begun.get(&(*job, *t))?;
            Some(Start { claimed: *claims.get(&(*job, *token))?, at, job: *job })
        }
        _ => None,
    });
    starts.collect()
}

fn within(
    what: &str,
    starts: &[(Timestamp, JobId)],
    jobs: &BTreeMap<JobId, Job>,
    slack: Duration,
) -> Result<(), String> {
    let mut by_partition: BTreeMap<String, Vec<Timestamp>> = BTreeMap::new();
    for (t, job) in starts {
        by_partition.entry(partition(jobs, *job)).or_default().push(*t);
    }
    let [whole, part] = RATES;
    one_rate(what, "", starts.iter().map(|(t, _)| *t).collect(), (whole, slack))?;
    for (name, starts) in by_partition {
        one_rate(what, &name, starts, (part, slack))?;
    }
    Ok(())
}

fn one_rate(
    what: &str,
    whose: &str,
    mut starts: Vec<Timestamp>,
    (rate, slack): (Rate, Duration),
) -> Result<(), String> {
    starts.sort_unstable();
    let window = rate.period.saturating_sub(slack);
    for more in starts.windows(rate.limit as usize + 1) {
        if let ([first, ..], [.., last]) = (more, more)
            && last.since(*first) < window
        {
            return Err(format!("{} {what} of {whose:?} within {window:?}: {more:?}", more.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::made::{at, claimed_by, expiry, settled};
    use super::*;

    #[test]
    fn r31_more_leases_at_once_than_a_limit_are_found() {
        let verdict = |events: &[Event]| slots(events, &BTreeMap::new(), &mut Counts::default());
        let two = [claimed_by("a", 0, 1, 1), claimed_by("a", 10, 2, 1)];
        let ends = |job| settled(50, job, 1);
        let within = [&two[..], &[ends(1), ends(2)]].concat();
        assert_eq!(verdict(&within), Ok(()));
        let of_worker = [&within[..], &[claimed_by("a", 49, 3, 1), ends(3)]].concat();
        assert!(verdict(&of_worker).is_err());
        let next = [&within[..], &[claimed_by("a", 50, 3, 1), settled(60, 3, 1)]].concat();
        assert_eq!(verdict(&next), Ok(()), "a start at the moment of an end");
        let expired =
            [&two[..], &[expiry(120, 1, 1), ends(2), claimed_by("a", 100, 3, 1)]].concat();
        let expired = [&expired[..], &[settled(110, 3, 1)]].concat();
        assert_eq!(verdict(&expired), Ok(()), "a lease that expired gives its slot back");
    }

    #[test]
    fn r31_more_starts_than_a_rate_allows_are_found() {
        let [rate, _] = RATES;
        let starts = |gap: i64| -> Vec<Timestamp> {
            (0..=i64::from(rate.limit)).map(|n| at(n * gap)).collect()
        };
        let gap = i64::try_from(rate.period.as_micros()).unwrap() / i64::from(rate.limit);
        assert!(one_rate("", "", starts(gap + 1), (rate, Duration::ZERO)).is_ok());
        assert!(one_rate("", "", starts(gap - 1), (rate, Duration::ZERO)).is_err());
        assert!(one_rate("", "", starts(gap - 1), (rate, HOLD)).is_ok());
        assert!(one_rate("", "", starts(gap / 2), (rate, HOLD)).is_err());
    }
}
