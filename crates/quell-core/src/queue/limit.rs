//! What limits leave free (R31): the sliding log of a rate, and the room for the next starts.
//!
//! A store counts what runs and what started lately, asks here how many more may start, and starts
//! no more than that within the same atomic step. The log below is for stores that keep it in
//! memory; others keep the same numbers in a table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::queue::{QueueSettings, Rate};
use crate::{Key, QueueName, Timestamp};

/// The name under which tables keep the starts of a whole queue; no partition has it.
pub const WHOLE_QUEUE: &str = "";

/// Starts to put on record for a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatedStarts<'k> {
    /// The queue.
    pub queue: &'k QueueName,
    /// The rate that counts them.
    pub rate: Rate,
    /// How many they are, by partition, or those of the [`WHOLE_QUEUE`].
    pub counts: BTreeMap<&'k str, usize>,
}

impl Rate {
    /// Starts at or before this moment count no more at `now`.
    #[must_use]
    pub fn cutoff(&self, now: Timestamp) -> Timestamp {
        now.before(self.period)
    }

    /// How many more may start, where `recent` starts count.
    #[must_use]
    pub fn room(&self, recent: usize) -> usize {
        as_count(self.limit).saturating_sub(recent)
    }

    /// When the next may start, where this is the `limit`-th newest start that counts; now where
    /// there is none.
    #[must_use]
    pub fn free_at(&self, oldest: Option<Timestamp>) -> Timestamp {
        oldest.map_or(Timestamp::MIN, |at| at + self.period)
    }
}

/// The starts that a rate counts, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StartLog(Vec<Timestamp>);

impl StartLog {
    /// Puts a start on record, and forgets those that `rate` counts no more.
    pub fn record(&mut self, rate: &Rate, now: Timestamp) {
        self.forget(rate, now);
        self.0.push(now);
    }

    /// Forgets the starts that `rate` counts no more.
    pub fn forget(&mut self, rate: &Rate, now: Timestamp) {
        let cutoff = rate.cutoff(now);
        self.0.retain(|at| cutoff < *at);
    }

    /// The starts, oldest first; the oldest ones may count no more.
    #[must_use]
    pub fn starts(&self) -> &[Timestamp] {
        &self.0
    }

    /// Whether it holds no start.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many starts count at `now`.
    #[must_use]
    pub fn recent(&self, rate: &Rate, now: Timestamp) -> usize {
        self.counted(rate, now).count()
    }

    /// When the next may start, seen from `now`.
    #[must_use]
    pub fn free_at(&self, rate: &Rate, now: Timestamp) -> Timestamp {
        rate.free_at(self.counted(rate, now).rev().nth(as_count(rate.limit.saturating_sub(1))))
    }

    fn counted(&self, rate: &Rate, now: Timestamp) -> impl DoubleEndedIterator<Item = Timestamp> {
        let cutoff = rate.cutoff(now);
        self.0.iter().copied().filter(move |at| cutoff < *at)
    }
}

impl FromIterator<Timestamp> for StartLog {
    /// The log of these starts, oldest first.
    fn from_iter<I: IntoIterator<Item = Timestamp>>(starts: I) -> Self {
        StartLog(starts.into_iter().collect())
    }
}

/// How much of a queue's limits is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Attempts of the queue that run, at any worker.
    pub running: usize,
    /// Those of them that run at the worker that asks.
    pub by_worker: usize,
    /// Starts that the queue's rate counts.
    pub recent: usize,
}

/// How much of a partition's limits is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionUsed {
    /// Attempts of the partition that run, at any worker.
    pub running: usize,
    /// Starts that the partition's rate counts.
    pub recent: usize,
    /// When that rate lets the next one start.
    pub free_at: Timestamp,
}

impl Default for PartitionUsed {
    /// Nothing is taken.
    fn default() -> Self {
        PartitionUsed { running: 0, recent: 0, free_at: Timestamp::MIN }
    }
}

impl QueueSettings {
    /// How many more attempts of the queue the asking worker may start now.
    #[must_use]
    pub fn room(&self, used: &Used) -> usize {
        if self.paused {
            return 0;
        }
        left(self.concurrency, used.running)
            .min(left(self.worker_concurrency, used.by_worker))
            .min(self.rate.map_or(usize::MAX, |rate| rate.room(used.recent)))
    }

    /// The starts to put on record in a table, where jobs of `queue` in these partitions start.
    #[must_use]
    pub fn rated_starts<'k>(
        &self,
        queue: &'k QueueName,
        started: &[Option<&'k Key>],
    ) -> Vec<RatedStarts<'k>> {
        let of_queue = self.rate.map(|rate| {
            let counts = BTreeMap::from([(WHOLE_QUEUE, started.len())]);
            RatedStarts { queue, rate, counts }
        });
        let of_partitions = self.partition_rate.map(|rate| {
            let mut counts = BTreeMap::<&str, usize>::new();
            for partition in started.iter().copied().flatten() {
                let count = counts.entry(partition.as_str()).or_default();
                *count = count.saturating_add(1);
            }
            RatedStarts { queue, rate, counts }
        });
        let rated = of_queue.into_iter().chain(of_partitions);
        rated.filter(|starts| !starts.counts.is_empty()).collect()
    }

    /// How many more attempts of a partition may start now, as far as it is concerned.
    #[must_use]
    pub fn partition_room(&self, used: &PartitionUsed) -> usize {
        let by_rate = self.partition_rate.map_or(usize::MAX, |rate| rate.room(used.recent));
        left(self.partition_concurrency, used.running).min(by_rate)
    }

    /// When a job of a partition that is due at `due` may start; none while all slots of the
    /// partition are taken, because then only the end of an attempt says when.
    #[must_use]
    pub fn partition_start(&self, due: Timestamp, used: &PartitionUsed) -> Option<Timestamp> {
        let has_slot = left(self.partition_concurrency, used.running) > 0;
        has_slot.then(|| due.max(used.free_at))
    }
}

fn left(limit: Option<u32>, taken: usize) -> usize {
    limit.map_or(usize::MAX, |limit| as_count(limit).saturating_sub(taken))
}

fn as_count(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn rate(limit: u32, secs: u64) -> Rate {
        Rate { limit, period: Duration::from_secs(secs) }
    }

    fn log(starts: &[i64]) -> StartLog {
        StartLog(starts.iter().map(|at| Timestamp::from_secs(*at)).collect())
    }

    #[test]
    fn r31_a_start_counts_until_the_period_has_passed() {
        // (starts, limit, now) → (how many count, when the next may start), period 10 s.
        let none = Timestamp::MIN;
        let table = [
            (&[][..], 1, 0, (0, none)),
            (&[0], 1, 0, (1, Timestamp::from_secs(10))),
            (&[0], 1, 9, (1, Timestamp::from_secs(10))),
            (&[0], 1, 10, (0, none)),
            (&[0], 2, 5, (1, none)),
            (&[0, 4], 2, 5, (2, Timestamp::from_secs(10))),
            (&[0, 4], 2, 10, (1, none)),
            (&[0, 4], 2, 14, (0, none)),
            // A limit that was lowered: more count than it allows.
            (&[0, 4, 6], 1, 7, (3, Timestamp::from_secs(16))),
            (&[0, 4, 6], 2, 7, (3, Timestamp::from_secs(14))),
            (&[3, 3, 3], 3, 5, (3, Timestamp::from_secs(13))),
        ];
        for (starts, limit, now, expected) in table {
            let (log, rate, now) = (log(starts), rate(limit, 10), Timestamp::from_secs(now));
            let found = (log.recent(&rate, now), log.free_at(&rate, now));
            assert_eq!(found, expected, "{starts:?}, {limit} at {now}");
            let has_room = rate.room(log.recent(&rate, now)) > 0;
            assert_eq!(has_room, log.free_at(&rate, now) <= now, "{starts:?}, {limit} at {now}");
        }
    }

    #[test]
    fn r31_the_log_forgets_what_no_longer_counts() {
        let mut log = log(&[0, 4, 6]);
        log.record(&rate(5, 10), Timestamp::from_secs(14));
        assert_eq!(log, self::log(&[6, 14]));
        log.forget(&rate(5, 10), Timestamp::from_secs(24));
        assert!(log.is_empty());
    }

    proptest! {
        #[test]
        fn r31_no_window_holds_more_starts_than_the_limit(
            steps in prop::collection::vec((0_u64..4_000, 0_usize..4), 1..80),
            limit in 1_u32..5,
        ) {
            let rate = Rate { limit, period: Duration::from_millis(5_000) };
            let (mut log, mut now, mut starts) = (StartLog::default(), Timestamp::from_secs(0), Vec::new());
            for (millis, wanted) in steps {
                now = now + Duration::from_millis(millis);
                for _ in 0..wanted.min(rate.room(log.recent(&rate, now))) {
                    log.record(&rate, now);
                    starts.push(now);
                }
            }
            for first in &starts {
                let within = starts.iter().filter(|at| first <= at && **at < *first + rate.period);
                prop_assert!(within.count() <= as_count(limit), "{starts:?}");
            }
        }
    }

    #[test]
    fn r31_the_tightest_limit_decides() {
        let limits = QueueSettings {
            concurrency: Some(5),
            worker_concurrency: Some(3),
            rate: Some(rate(4, 1)),
            ..QueueSettings::default()
        };
        let used = |running, by_worker, recent| Used { running, by_worker, recent };
        let table = [
            (used(0, 0, 0), 3),
            (used(4, 0, 0), 1),
            (used(5, 0, 0), 0),
            (used(9, 0, 0), 0),
            (used(2, 2, 0), 1),
            (used(0, 0, 3), 1),
            (used(0, 0, 7), 0),
        ];
        for (used, expected) in table {
            assert_eq!(limits.room(&used), expected, "{used:?}");
        }
        let paused = QueueSettings { paused: true, ..QueueSettings::default() };
        assert_eq!(paused.room(&Used::default()), 0);
        assert_eq!(QueueSettings::default().room(&Used::default()), usize::MAX);
    }

    #[test]
    fn r31_each_rate_records_its_own_starts() {
        let (a, b) = (Key::new("a").unwrap(), Key::new("b").unwrap());
        let queue = QueueName::new("mail").unwrap();
        let limits = QueueSettings {
            rate: Some(rate(4, 1)),
            partition_rate: Some(rate(3, 10)),
            ..QueueSettings::default()
        };
        let rated = limits.rated_starts(&queue, &[Some(&b), None, Some(&a), Some(&b)]);
        let counts: Vec<_> = rated.into_iter().map(|starts| (starts.rate, starts.counts)).collect();
        let (of_queue, of_partitions) = ([(WHOLE_QUEUE, 4)], [("a", 1), ("b", 2)]);
        assert_eq!(counts, [(rate(4, 1), of_queue.into()), (rate(3, 10), of_partitions.into())]);
        assert_eq!(limits.rated_starts(&queue, &[None]).len(), 1, "no partition has a start");
        assert!(QueueSettings::default().rated_starts(&queue, &[Some(&a)]).is_empty());
    }

    #[test]
    fn r31_a_partition_is_held_by_its_own_limits() {
        let limits = QueueSettings {
            partition_concurrency: Some(2),
            partition_rate: Some(rate(3, 10)),
            ..QueueSettings::default()
        };
        let (due, free_at) = (Timestamp::from_secs(5), Timestamp::from_secs(8));
        let used = |running, recent, free_at| PartitionUsed { running, recent, free_at };
        let none = Timestamp::MIN;
        let table = [
            (used(0, 0, none), 2, Some(due)),
            (used(1, 2, none), 1, Some(due)),
            (used(0, 3, free_at), 0, Some(free_at)),
            (used(2, 2, none), 0, None),
            (used(2, 3, free_at), 0, None),
        ];
        for (used, room, start) in table {
            assert_eq!(limits.partition_room(&used), room, "{used:?}");
            assert_eq!(limits.partition_start(due, &used), start, "{used:?}");
        }
    }
}
