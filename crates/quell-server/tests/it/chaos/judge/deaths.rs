//! R25: a job dies only where as many of its leases in a row expired by crashes as the default
//! `max_crashes` allows.

use std::collections::{BTreeMap, BTreeSet};

use quell::history::Event;
use quell::{Job, JobId, Key, Retry, TaskName, Timestamp};

use super::super::seen::Counts;
use super::history::{Story, leases};

/// Crashes go with the key (R25), so they are counted by it; a job without a key is alone.
type Line = (TaskName, Option<Key>, Option<JobId>);

fn line(job: &Job) -> Line {
    (job.task.clone(), job.key.clone(), job.key.is_none().then_some(job.id))
}

/// Each dead job had enough crashes in a row. A lease that expired without a crash changes nothing.
pub(super) fn deaths_are_by_crashes(story: &Story, counts: &mut Counts) -> Result<(), String> {
    let Story { events, jobs, gone, died, .. } = story;
    let (moves, max) = (moves(events, jobs), Retry::default().max_crashes);
    for job in died {
        let died = job.ended_at.unwrap_or(Timestamp::MAX);
        let before = moves.get(&line(job)).into_iter().flatten().filter(|(t, _)| *t < died);
        let crashes =
            before.fold(0, |crashes, (_, crashed)| if *crashed { crashes + 1 } else { 0 });
        if crashes < max {
            return Err(format!("a job died after {crashes} crashes in a row: {job:?}"));
        }
        counts.add("jobs that died of crashes", 1);
    }
    let crashed: Vec<_> = leases(events).into_iter().filter(|lease| lease.crash).collect();
    let killed = crashed.iter().filter(|lease| gone.contains(&lease.worker)).count();
    counts.add("crashes of killed workers", killed);
    counts.add("crashes of workers that hung", crashed.len() - killed);
    Ok(())
}

/// By store time, whether each end of an attempt was a crash (true) or reported (false). Where a
/// process was killed before it recorded a claim, the expiry shows it; where it took a lease back and
/// did not record that, the missing end does.
fn moves(events: &[Event], jobs: &BTreeMap<JobId, Job>) -> BTreeMap<Line, Vec<(Timestamp, bool)>> {
    let (mut ends, mut claimed) = (Vec::new(), BTreeSet::new());
    for lease in leases(events) {
        claimed.insert((lease.job, lease.token));
        if lease.reported || lease.crash || lease.ended.is_none() {
            ends.push((lease.job, lease.ended.unwrap_or(lease.until), !lease.reported));
        }
    }
    for event in events {
        if let Event::Expire { t, job, token, crash: true, .. } = event
            && !claimed.contains(&(*job, *token))
        {
            ends.push((*job, *t, true));
        }
    }
    let mut moves: BTreeMap<Line, Vec<(Timestamp, bool)>> = BTreeMap::new();
    for (job, t, crashed) in ends {
        if let Some(job) = jobs.get(&job) {
            moves.entry(line(job)).or_default().push((t, crashed));
        }
    }
    moves.values_mut().for_each(|moves| moves.sort_unstable());
    moves
}

#[cfg(test)]
mod tests {
    use quell::JobState;

    use super::super::made::{at, claimed, expiry, job, settled};
    use super::*;

    #[test]
    fn r25_a_death_without_enough_crashes_in_a_row_is_found() {
        let mut dead = job(1, "stamped", "1");
        (dead.state, dead.ended_at) = (JobState::Dead, Some(at(9_999)));
        let jobs = BTreeMap::from([(dead.id, dead.clone())]);
        let died = vec![dead];
        let crash = |n: i64| {
            let token = u64::try_from(n).unwrap();
            [claimed(n * 200, 1, token), expiry(n * 200 + 100, 1, token)]
        };
        let verdict = |events: Vec<Event>| {
            let (jobs, died) = (jobs.clone(), died.clone());
            let story = Story { events, jobs, died, ..Story::default() };
            deaths_are_by_crashes(&story, &mut Counts::default()).is_ok()
        };
        let five: Vec<Event> = (1..=5).flat_map(crash).collect();
        assert!(verdict(five.clone()));
        assert!(!verdict(five[2..].to_vec()), "four are not five");
        let unrecorded = [&five[..3], &five[4..]].concat();
        assert!(verdict(unrecorded), "an expiry that a killed process did not record");
        let outage: Vec<Event> = five
            .iter()
            .cloned()
            .map(|event| match event {
                Event::Expire { t, job, token, became, .. } => {
                    Event::Expire { t, job, token, became, crash: false }
                }
                other => other,
            })
            .collect();
        assert!(!verdict(outage), "expiries of an outage are no crashes");
        let reported = [claimed(750, 1, 9), settled(790, 1, 9)];
        assert!(!verdict([&five[..], &reported].concat()), "an attempt reported in between");
    }
}
