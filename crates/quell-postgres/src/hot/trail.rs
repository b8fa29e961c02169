//! Where the last claims of a queue left off, so that the next one need not walk there again.
//!
//! The entries of jobs that have started stay at the head of their lane's index until they are
//! vacuumed, and no vacuum removes what a snapshot that stays open anywhere on the server may still
//! see. A claim that begins at the head reads past all of them. So most claims begin where the last one
//! of this process left off.
//!
//! A job may come to stand before that place later: one that was released, rescheduled or redriven,
//! a window whose key was freed, or a trigger whose commit took its time. A notification follows, as
//! for everything that workers are woken for (R34), and the next claim begins there. As it may be
//! lost, a claim begins at the head now and then. The longer such a claim takes, the fewer there are, so
//! that they take a twentieth of the time at most.
//!
//! In virtual time, which only tests have, each claim begins at the head.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quell_core::{Claim, NextDue, QueueName, TaskName, Timestamp};

use crate::hot::claim::PASSED_OVER;
use crate::sql::PgQuery;

/// How many times as long as a claim from the head takes none follows it.
pub(crate) const RARELY: u32 = 20;
/// Between two claims from the head at the longest, where one takes half a second: so long a job may be
/// passed over whose notification was lost (R30, R39).
const LONGEST: Duration = Duration::from_secs(10);
/// The same behind a transaction pooler, where no notification arrives.
const UNTOLD: Duration = Duration::from_millis(500);
/// A trail whose next claim from the head is overdue for so long is forgotten when another begins.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// What was due this long before a claim began has been committed by then, but for the rare transaction
/// that takes longer. In microseconds.
const COMMITS: i64 = 20_000;

/// The last claims of each queue, by the tasks that they know: a claim from the head finds no others.
#[derive(Debug)]
pub(crate) struct Trails {
    known: Mutex<HashMap<QueueName, ByTasks>>,
    /// Between two claims from the head at the longest.
    longest: Duration,
}

type ByTasks = HashMap<Arc<[TaskName]>, Trail>;

/// What of a lane is read in one order: the lane's number, and which [`Part`].
pub(crate) type Strand = (i32, Part);

/// A part of a lane, by its number in statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Its jobs without a partition.
    Plain = 0,
    /// Its jobs with one, whichever.
    Partitioned = 1,
    /// The heads of its partitions.
    Heads = 2,
}

impl Part {
    /// The part of jobs that a statement numbers so.
    pub(crate) fn of_jobs(number: i32) -> Part {
        if number == Part::Plain as i32 { Part::Plain } else { Part::Partitioned }
    }
}

/// A place in an order: a due time and an id.
pub(crate) type At = (Timestamp, i64);

/// How far a claim came.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    pub(crate) strand: Strand,
    /// The last that it took.
    pub(crate) last: Option<At>,
    /// The first that it left there.
    pub(crate) left: Option<At>,
}

/// The last claims of a queue.
#[derive(Debug)]
pub(crate) struct Trail {
    /// From where the next claim reads.
    places: BTreeMap<Strand, At>,
    /// No lease that was seen expires earlier.
    expiry: Timestamp,
    /// When the next claim from the head is due.
    head_at: Instant,
    /// How many claims and notifications there were.
    steps: u64,
    /// The newest claim that was taken note of.
    noted: u64,
    /// The notifications that no claim came after: the number of the last, and the earliest due time.
    reported: Option<(u64, Timestamp)>,
}

impl Trail {
    /// The first claim begins at the head.
    fn new() -> Self {
        let (places, expiry, head_at) = (BTreeMap::new(), Timestamp::MIN, Instant::now());
        Trail { places, expiry, head_at, steps: 0, noted: 0, reported: None }
    }

    fn note_due(&mut self, due: Timestamp) {
        self.steps += 1;
        let earliest = self.reported.map_or(due, |(_, reported)| reported.min(due));
        self.reported = Some((self.steps, earliest));
        self.places.values_mut().for_each(|place| *place = (*place).min((due, 0)));
    }
}

/// From where a claim reads: from the head of what is not named.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    at: BTreeMap<Strand, At>,
    /// No lease expires earlier.
    pub(crate) expiry: Timestamp,
    pub(crate) read: Read,
}

/// Which claim it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// When a claim from the head follows; none for one that is.
    pub(crate) head_at: Option<Instant>,
    /// Which step of the trail it is.
    step: u64,
}

impl Read {
    /// What was passed over is found from the head: then at the latest the worker is to claim again.
    pub(crate) fn look_from_the_head(self, began: Instant, next: &mut NextDue) {
        if let Some(head_at) = self.head_at {
            // The store's time is that of the beginning, and what is due at once would be held back by
            // a limit.
            let soon = next.now + head_at.saturating_duration_since(began).max(PASSED_OVER);
            next.due = Some(next.due.map_or(soon, |due| due.min(soon)));
        }
    }
}

impl Places {
    /// The head of everything.
    pub(crate) const HEAD: Places = Places {
        at: BTreeMap::new(),
        expiry: Timestamp::MIN,
        read: Read { head_at: None, step: 0 },
    };

    /// For a claim of no lanes: no lease is read either.
    pub(crate) fn nothing() -> Places {
        Places { expiry: Timestamp::MAX, ..Places::HEAD }
    }

    /// The place of the heads of a lane.
    pub(crate) fn of_heads(&self, lane: i32) -> At {
        self.at.get(&(lane, Part::Heads)).copied().unwrap_or((Timestamp::MIN, 0))
    }

    /// The lanes, the parts, the due times and the ids, as four values of a statement.
    pub(crate) fn bind(&self, query: PgQuery) -> PgQuery {
        let (lanes, parts): (Vec<i32>, Vec<i32>) =
            self.at.keys().map(|(lane, part)| (*lane, *part as i32)).unzip();
        let (dues, ids): (Vec<i64>, Vec<i64>) =
            self.at.values().map(|(due, id)| (due.as_micros(), *id)).unzip();
        query.bind(lanes).bind(parts).bind(dues).bind(ids)
    }
}

impl Trails {
    /// No claims; `are_told` says whether notifications of other processes arrive.
    pub(crate) fn new(are_told: bool) -> Self {
        let longest = if are_told { LONGEST } else { UNTOLD };
        Trails { known: Mutex::default(), longest }
    }

    fn with<R>(&self, claim: &Claim, act: impl FnOnce(&mut Trail) -> R) -> R {
        let mut trails = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known =
            trails.get(&claim.queue).is_some_and(|known| known.contains_key(&claim.tasks));
        if !is_known {
            // One that no claim followed for long is of no more use.
            let is_in_use = |trail: &Trail| trail.head_at.elapsed() < FORGOTTEN;
            trails.values_mut().for_each(|known| known.retain(|_, trail| is_in_use(trail)));
            trails.retain(|_, known| !known.is_empty());
        }
        let of_queue = trails.entry(claim.queue.clone()).or_default();
        act(of_queue.entry(Arc::clone(&claim.tasks)).or_insert_with(Trail::new))
    }

    /// From where the next claim reads.
    pub(crate) fn next(&self, claim: &Claim) -> Places {
        self.with(claim, |trail| {
            trail.steps += 1;
            let step = trail.steps;
            if Instant::now() >= trail.head_at {
                return Places { read: Read { head_at: None, step }, ..Places::HEAD };
            }
            Places {
                at: trail.places.clone(),
                expiry: trail.expiry,
                read: Read { head_at: Some(trail.head_at), step },
            }
        })
    }

    /// Takes note of how far a claim came that read `from` these places and `took` so long, at the
    /// store's time `now`; `expiry` is when the first lease expires.
    pub(crate) fn note(
        &self,
        claim: &Claim,
        (from, took): (Read, Duration),
        (now, expiry): (Timestamp, Option<Timestamp>),
        reached: &[Reached],
    ) {
        // What was committed since it began it may not have seen, whenever it read the clock.
        let before = i64::try_from(took.as_micros()).unwrap_or(i64::MAX).saturating_add(COMMITS);
        let committed = Timestamp::from_micros(now.as_micros().saturating_sub(before));
        self.with(claim, |trail| {
            let is_newest = from.step > trail.noted;
            if is_newest {
                trail.noted = from.step;
                // The claim has seen everything that was notified before it began.
                trail.reported = trail.reported.filter(|(step, _)| *step > from.step);
            }
            if from.head_at.is_none() {
                trail.head_at = Instant::now() + took.saturating_mul(RARELY).min(self.longest);
                trail.expiry = Timestamp::MIN;
            }
            let expiry = expiry.unwrap_or(trail.expiry);
            trail.expiry = if is_newest { expiry } else { expiry.min(trail.expiry) };
            let reported = trail.reported.map(|(_, due)| (due, 0));
            for Reached { strand, last, left } in reached {
                let place = trail.places.get(strand).copied();
                let last = last.map(|last| last.min((committed, 0)));
                // Where none was taken, or a later claim has taken note already, it only goes back.
                let to =
                    if is_newest { last.or(place) } else { last.into_iter().chain(place).min() };
                let to =
                    to.map(|to| [*left, reported].into_iter().flatten().fold(to, std::cmp::min));
                trail.places.extend(to.map(|to| (*strand, to)));
            }
        });
    }

    /// Notifications may have been lost: the next claims begin at the head.
    pub(crate) fn tell_all(&self) {
        let mut trails = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for trail in trails.values_mut().flat_map(ByTasks::values_mut) {
            trail.note_due(Timestamp::MIN);
        }
    }

    /// Something in a queue is due then: the next claim begins no later.
    pub(crate) fn note_due(&self, queue: &QueueName, due: Timestamp) {
        let mut trails = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for trail in trails.get_mut(queue).into_iter().flat_map(ByTasks::values_mut) {
            trail.note_due(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_core::{Draw, WorkerId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);
    const LANE: Strand = (7, Part::Plain);

    fn claim() -> Claim {
        Claim {
            queue: QueueName::new("q").unwrap(),
            tasks: Arc::from([TaskName::new("t").unwrap()]),
            worker: WorkerId::new("w").unwrap(),
            limit: 1,
            lease: Duration::from_secs(30),
            draw: Draw::new(1),
        }
    }

    /// A claim that took the job that was due then, and left one.
    fn note(trails: &Trails, from: Read, took: Duration, due: i64, left: Option<i64>) {
        let at = |due| (Timestamp::from_secs(due), due);
        let reached = Reached { strand: LANE, last: Some(at(due)), left: left.map(at) };
        trails.note(&claim(), (from, took), (NOW, None), &[reached]);
    }

    /// Trails after a claim from the head.
    fn trails() -> Trails {
        let trails = Trails::new(true);
        let head = trails.next(&claim());
        assert!(head.read.head_at.is_none() && head.at.is_empty());
        note(&trails, head.read, Duration::from_secs(1), 10, None);
        trails
    }

    /// In seconds.
    fn place(trails: &Trails) -> i64 {
        let places = trails.next(&claim());
        assert_eq!(places.at.keys().collect::<Vec<_>>(), [&LANE]);
        places.at[&LANE].0.as_micros() / 1_000_000
    }

    #[test]
    fn r30_a_claim_begins_where_the_last_one_left_off_and_after_no_job_that_was_left() {
        let trails = trails();
        assert_eq!(place(&trails), 10);
        for (due, left, next) in [(20, None, 20), (30, Some(40), 30), (50, Some(45), 45)] {
            let read = trails.next(&claim()).read;
            note(&trails, read, Duration::ZERO, due, left);
            assert_eq!(place(&trails), next, "{due} was taken, {left:?} left");
        }
    }

    #[test]
    fn r30_r34_what_was_told_while_a_claim_was_under_way_is_no_later_than_the_next() {
        let trails = trails();
        let under_way = trails.next(&claim()).read;
        trails.note_due(&claim().queue, Timestamp::from_secs(5));
        note(&trails, under_way, Duration::ZERO, 20, None);
        assert_eq!(place(&trails), 5);
        let after = trails.next(&claim()).read;
        note(&trails, after, Duration::ZERO, 30, None);
        assert_eq!(place(&trails), 30, "it was seen");
    }

    /// A statement reads the clock after the rows, on a busy machine long after.
    #[test]
    fn r30_the_next_claim_begins_where_all_was_committed_before_the_last_one() {
        let trails = trails();
        for (took, next) in [(0, 999), (30, 969), (0, 999)] {
            let read = trails.next(&claim()).read;
            note(&trails, read, Duration::from_secs(took), 1_000, None);
            assert_eq!(place(&trails), next, "it took {took} s");
        }
    }

    #[test]
    fn r30_a_claim_that_is_noted_late_takes_no_place_further() {
        let trails = trails();
        let slow = trails.next(&claim()).read;
        trails.note_due(&claim().queue, Timestamp::from_secs(5));
        let quick = trails.next(&claim()).read;
        note(&trails, quick, Duration::ZERO, 5, Some(6));
        note(&trails, slow, Duration::ZERO, 20, None);
        assert_eq!(place(&trails), 5);
    }
}
