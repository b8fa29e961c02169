//! R11 and R21: of one task and key, one attempt holds a lease, and handler bodies overlap only
//! where the lease of the earlier one was over.

use std::collections::BTreeMap;

use quell::history::Event;
use quell::job::SettledAs;
use quell::{JobId, Key, TaskName, Timestamp};

use super::super::seen::Counts;
use super::history::{Held, leases};
use crate::chaos::workload::record::Entry;

type KeyOf = (TaskName, Key);

/// No two leases of a key hold at one moment of store time.
pub(super) fn one_lease_at_a_time(events: &[Event], counts: &mut Counts) -> Result<(), String> {
    let mut last: BTreeMap<KeyOf, Held> = BTreeMap::new();
    for lease in leases(events) {
        let Some(key) = lease.key.clone() else { continue };
        let key = (lease.task.clone(), key);
        if lease.end().is_none() {
            counts.add("leases without an end on record", 1);
            continue;
        }
        if let Some(before) = last.get(&key) {
            let held_until = before.end().unwrap_or(before.from);
            if lease.from < held_until {
                return Err(format!("two leases of {key:?} hold at once: {before:?}, {lease:?}"));
            }
            counts.add("leases of one key compared", 1);
        }
        last.insert(key, lease);
    }
    Ok(())
}

/// Each attempt is handed out once and settled at most once.
pub(super) fn each_attempt_once(events: &[Event]) -> Result<(), String> {
    let (mut settled, mut started) = (BTreeMap::new(), BTreeMap::new());
    for event in events {
        let twice = match event {
            Event::Settle { job, token, became, .. } if *became != SettledAs::Refused => {
                settled.insert((*job, *token), event)
            }
            Event::Start { job, token, .. } => started.insert((*job, *token), event),
            _ => None,
        };
        if let Some(before) = twice {
            return Err(format!("an attempt started or ended twice: {before:?}, {event:?}"));
        }
    }
    Ok(())
}

/// A handler's body.
#[derive(Clone, Debug)]
struct Body {
    job: JobId,
    begin: Timestamp,
    end: Timestamp,
    /// When its lease was over: expired, or taken back.
    lease_until: Timestamp,
}

/// Bodies of one key overlap only where one of them had lost its lease.
pub(super) fn one_body_at_a_time(
    events: &[Event],
    entries: &[Entry],
    counts: &mut Counts,
) -> Result<(), String> {
    let mut active: BTreeMap<KeyOf, Vec<Body>> = BTreeMap::new();
    for (key, body) in bodies(events, entries) {
        let earlier = active.entry(key.clone()).or_default();
        earlier.retain(|earlier| body.begin < earlier.end);
        // A process that is suspended between its last look at the lease and the body begins it too late.
        let is_late = body.lease_until <= body.begin;
        for overlapped in &*earlier {
            if body.begin < overlapped.lease_until && !is_late {
                let (one, other) = (overlapped.job, body.job);
                let shown = format!("{overlapped:?}, {body:?}");
                return Err(format!(
                    "bodies of jobs {one} and {other} of {key:?} overlap: {shown}"
                ));
            }
            counts.add("bodies that outlived their lease", 1);
        }
        earlier.push(body);
        counts.add("bodies compared", 1);
    }
    Ok(())
}

/// The bodies of keyed jobs by their beginning; those that ended on record, since a killed process
/// leaves no end.
fn bodies(events: &[Event], entries: &[Entry]) -> Vec<(KeyOf, Body)> {
    let tokens: BTreeMap<(JobId, Timestamp), _> = events
        .iter()
        .filter_map(|event| match event {
            Event::Start { t, job, token, .. } => Some(((*job, *t), *token)),
            _ => None,
        })
        .collect();
    let leases: BTreeMap<_, _> =
        leases(events).into_iter().map(|lease| ((lease.job, lease.token), lease)).collect();
    let ends: BTreeMap<(u64, Timestamp), Timestamp> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::End { at, job, started } => Some(((*job, *started), *at)),
            _ => None,
        })
        .collect();
    let mut bodies: Vec<(KeyOf, Body)> = entries
        .iter()
        .filter_map(|entry| {
            let Entry::Begin { at, job, started, task, key: Some(key) } = entry else {
                return None;
            };
            let end = *ends.get(&(*job, *started))?;
            let job = JobId::new(*job);
            let lease = leases.get(&(job, *tokens.get(&(job, *started))?))?;
            let taken_back = lease.ended.filter(|_| lease.expired);
            let lease_until = taken_back.map_or(lease.until, |taken| taken.min(lease.until));
            Some(((task.clone(), key.clone()), Body { job, begin: *at, end, lease_until }))
        })
        .collect();
    bodies.sort_by_key(|(_, body)| body.begin);
    bodies
}

#[cfg(test)]
mod tests {
    use super::super::made::{body, claimed, expiry, renew, settled, started};
    use super::*;

    /// The verdict on leases of a made-up history, and how many pairs were compared.
    fn verdict(events: &[Event]) -> (bool, usize) {
        let mut counts = Counts::default();
        let ok = one_lease_at_a_time(events, &mut counts).is_ok();
        (ok, counts.of("leases of one key compared"))
    }

    #[test]
    fn r11_two_jobs_of_one_key_whose_leases_overlap_are_found() {
        let overlap = [claimed(10, 1, 1), claimed(19, 2, 1), settled(20, 1, 1), settled(30, 2, 1)];
        assert_eq!(verdict(&overlap), (false, 0));
        let one_after_the_other =
            [claimed(10, 1, 1), claimed(20, 2, 1), settled(20, 1, 1), settled(30, 2, 1)];
        assert_eq!(verdict(&one_after_the_other), (true, 1));
    }

    #[test]
    fn r11_a_lease_holds_as_long_as_it_was_extended_and_no_longer() {
        // Leases are granted for 100.
        let expired = [claimed(0, 1, 1), claimed(100, 1, 2), expiry(100, 1, 1), settled(110, 1, 2)];
        assert_eq!(verdict(&expired), (true, 1));
        let extended = [&expired[..], &[renew(90, 1, 1, 190)]].concat();
        assert_eq!(verdict(&extended), (true, 1), "it was taken back before it expired");
        let held = [claimed(0, 1, 1), renew(90, 1, 1, 190), settled(180, 1, 1)];
        let early = [&held[..], &[claimed(150, 2, 1), settled(160, 2, 1)]].concat();
        assert_eq!(verdict(&early), (false, 0));
    }

    #[test]
    fn r11_what_has_no_end_on_record_is_counted_and_not_judged() {
        let mut counts = Counts::default();
        let events = [claimed(0, 1, 1), claimed(50, 2, 1), settled(60, 2, 1)];
        assert!(one_lease_at_a_time(&events, &mut counts).is_ok());
        assert_eq!(counts.of("leases without an end on record"), 1);
    }

    #[test]
    fn r11_bodies_that_overlap_under_a_lease_are_found_and_those_without_one_are_not() {
        let events = |end: Event| {
            vec![
                claimed(0, 1, 1),
                started(1, 1, 1),
                end,
                claimed(100, 2, 1),
                started(101, 2, 1),
                settled(120, 2, 1),
            ]
        };
        let entries = [body(1, 110, 1, 1), body(101, 119, 2, 101)].concat();
        let verdict = |events: &[Event]| {
            let mut counts = Counts::default();
            let ok = one_body_at_a_time(events, &entries, &mut counts).is_ok();
            (ok, counts.of("bodies that outlived their lease"))
        };
        assert_eq!(verdict(&events(expiry(100, 1, 1))), (true, 1));
        let renewed = [events(settled(115, 1, 1)), vec![renew(90, 1, 1, 190)]].concat();
        assert_eq!(verdict(&renewed), (false, 0));
    }

    #[test]
    fn r21_an_attempt_that_starts_or_ends_twice_is_found() {
        assert!(each_attempt_once(&[settled(1, 1, 1), settled(2, 1, 1)]).is_err());
        assert!(each_attempt_once(&[started(1, 1, 1), started(2, 1, 1)]).is_err());
        assert!(each_attempt_once(&[started(1, 1, 1), settled(2, 1, 1)]).is_ok());
    }
}
