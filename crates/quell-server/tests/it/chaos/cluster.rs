//! One master of a Cluster falls silent for a while under load: the other two work on, with attempts
//! that outlast their leases, and schedules; and nothing on the third one is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use quell::history::Event;
use quell::job::SettledAs;
use quell::{DEFAULT_QUEUE, Timestamp};
use quell_conformance::effort::cases;
use quell_services::RedisCluster;

use super::ground::Ground;
use super::judge::events;
use super::outage::{accepted_more, caught_up};
use super::processes::{BEAT, PATIENCE};
use super::run::{begin, rest};
use super::workload::record::now;
use super::workload::tasks::{LEASE, LONG, NARROW, RATED, URGENT};

/// For how many seconds the master is away, in a usual run and in a long one.
const AWAY: (u64, u64) = (25, 60);
/// How far apart two ticks may be meanwhile, of a schedule of eight each second: the goal is 2 s, and
/// here other processes take the machine. Without it they would come [`AWAY`] apart.
const APART: Duration = Duration::from_secs(15);
/// Attempts that must outlast two leases meanwhile, and end well.
const OUTLAST: usize = 5;

/// What the checker must judge, on three shards.
const JUDGED: &[&str] =
    &["P1", "P2", "P4", "P5", "P6", "P8", "P9", "P10", "P11", "P23", "P24", "P25", "P32"];

/// The master that has neither the directory of shards nor the queue of the schedule.
fn third_master(cluster: &RedisCluster) -> usize {
    let master = |tag: &str| cluster.master_of(&format!("{{{tag}}}")).unwrap();
    let near = [master("#"), master(DEFAULT_QUEUE)];
    let third = (0..3).find(|node| !near.contains(node)).unwrap();
    assert!([URGENT, NARROW, RATED].iter().any(|queue| master(queue) == third), "it is idle");
    third
}

/// When a schedule fired, and how many attempts outlasted a lease, between two moments.
fn meanwhile(folder: &Path, from: Timestamp, to: Timestamp) -> (BTreeSet<Timestamp>, usize) {
    let (mut fired, mut outlasted) = (BTreeSet::from([from, to]), 0);
    let mut started = BTreeMap::new();
    let events = events(folder);
    for event in &events {
        match event {
            Event::Ticked { t, schedule, .. } if schedule.as_str() == BEAT => {
                fired.insert(*t);
            }
            Event::Start { t, job, token, task, .. } if task.as_str() == LONG && *t >= from => {
                started.insert((*job, *token), *t);
            }
            _ => {}
        }
    }
    for event in &events {
        if let Event::Settle { t, job, token, became: SettledAs::Succeeded, .. } = event {
            let start = started.get(&(*job, *token)).filter(|_| *t <= to);
            outlasted += usize::from(start.is_some_and(|start| t.since(*start) > 2 * LEASE));
        }
    }
    (fired.range(from..=to).copied().collect(), outlasted)
}

#[tokio::test]
async fn r21_r36_r39_a_master_of_a_cluster_that_is_silent_only_delays_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, away) = (folder.path(), Duration::from_secs(cases(AWAY.0, AWAY.1)));
    let mut ground = Ground::cluster();
    let (operator, mut processes) = begin(folder, &ground).await;
    accepted_more(folder, 200).await;
    let (since, gone) = (now(), Instant::now());
    let third = third_master(ground.masters());
    ground.masters().node_mut(third).unwrap().pause().unwrap();
    accepted_more(folder, 50).await;
    tokio::time::sleep(away.saturating_sub(gone.elapsed())).await;
    let (mut fired, mut outlasted) = meanwhile(folder, since, now());
    while outlasted < OUTLAST && gone.elapsed() < away + PATIENCE {
        tokio::time::sleep(Duration::from_millis(200)).await;
        (fired, outlasted) = meanwhile(folder, since, now());
    }
    ground.masters().node_mut(third).unwrap().go_on().unwrap();

    let gaps = fired.iter().zip(fired.iter().skip(1)).map(|(one, next)| next.since(*one));
    let widest = gaps.max().unwrap();
    eprintln!(
        "{} ticks, at most {widest:?} apart; {outlasted} attempts of {LEASE:?} and more",
        fired.len()
    );
    assert!(widest < APART, "schedules elsewhere stood still for {widest:?}");
    assert!(outlasted >= OUTLAST, "{outlasted} attempts ended that outlasted their leases");
    accepted_more(folder, 200).await;
    caught_up(&*ground.store().await).await;
    assert_eq!(processes.revive(), 0, "a process gave up");
    let counts = rest(folder, &mut ground, &mut processes, &operator, JUDGED).await;
    eprintln!("{counts}");
    assert!(counts.of("leases of one key compared") >= 50, "{counts}");
}
