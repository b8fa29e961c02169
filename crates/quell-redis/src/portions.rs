//! Reading a sorted set or a hash of any size by scripts of a bounded size: Redis does one thing at a
//! time, and a script that reads all of a large one holds up every other client.

use std::cmp::Ordering;

use quell_core::{Result, Timestamp};

use crate::known::Pairs;
use crate::look::{Looked, Read, Score};
use crate::shard::{Shard, Time};

/// Fields of a hash that one script reads, more or less.
const FIELDS: usize = 500;

/// Which scores come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Lowest,
    Highest,
}

/// A walk through a sorted set, a portion at a time. Members that are added or moved meanwhile may be
/// missed; one that stays where it is comes exactly once.
#[derive(Debug)]
pub(crate) struct Walk {
    key: String,
    order: Order,
    start: Score,
    /// The last member that was read: the next portion begins after it.
    last: Option<(Timestamp, String)>,
    /// The member that is furthest in the order. It differs from `last` where that one was removed and
    /// members of its score were read again.
    furthest: Option<(Timestamp, String)>,
    is_over: bool,
}

impl Walk {
    /// Begins at a score, whose members are included.
    pub(crate) fn new(key: String, order: Order, start: Score) -> Self {
        Walk { key, order, start, last: None, furthest: None, is_over: false }
    }

    /// Begins after a member, which need not be in this set.
    pub(crate) fn after(key: String, order: Order, after: (Timestamp, String)) -> Self {
        let (start, last) = (Score::At(after.0), Some(after));
        Walk { key, order, start, last: last.clone(), furthest: last, is_over: false }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The last member that was read, or the one that it begins after.
    pub(crate) fn last(&self) -> Option<&(Timestamp, String)> {
        self.last.as_ref()
    }

    /// The read of the next portion.
    pub(crate) fn read(&self, limit: usize) -> Read {
        let (key, order) = (self.key.clone(), self.order);
        let (from, after) = match self.last.clone() {
            Some((score, member)) => (Score::At(score), Some(member)),
            None => (self.start, None),
        };
        Read::Portion { key, order, from, after, limit }
    }

    /// Takes the answer to that read, and returns the members that were not met before.
    pub(crate) fn take(
        &mut self,
        mut members: Vec<(String, Timestamp)>,
        limit: usize,
    ) -> Vec<(String, Timestamp)> {
        self.is_over = members.len() < limit;
        let Some((member, score)) = members.last() else { return members };
        let last = (*score, member.clone());
        if let Some(furthest) = &self.furthest {
            members.retain(|(member, score)| self.follows((*score, member), furthest));
        }
        if !members.is_empty() {
            self.furthest = Some(last.clone());
        }
        self.last = Some(last);
        members
    }

    /// Whether a member comes after another one. Those of one score are in the order of their bytes.
    fn follows(&self, one: (Timestamp, &str), other: &(Timestamp, String)) -> bool {
        let after = match self.order {
            Order::Lowest => Ordering::Greater,
            Order::Highest => Ordering::Less,
        };
        one.cmp(&(other.0, other.1.as_str())) == after
    }
}

impl Shard {
    /// Reads all pairs of these hashes, and `before` at the moment at which it begins. What is written
    /// meanwhile may be among them or not.
    pub(crate) async fn read_hashes<const N: usize>(
        &self,
        what: &'static str,
        before: Vec<Read>,
        hashes: [String; N],
    ) -> Result<(Looked, [Pairs; N])> {
        let start = || hashes.iter().map(|key| Read::ScanPairs(key.clone(), "0".into(), FIELDS));
        let skipped = before.len();
        let reads: Vec<Read> = before.into_iter().chain(start()).collect();
        let mut first = self.look(what, Time::Last, &reads).await?;
        let mut pairs = std::array::from_fn(|_| Pairs::new());
        let mut scanned = first.split_off(skipped);
        let mut left: Vec<usize> = (0..N).collect();
        loop {
            let mut next = Vec::new();
            for number in left {
                let (cursor, found) = scanned.scanned_pairs()?;
                let (Some(all), Some(key)) = (pairs.get_mut(number), hashes.get(number)) else {
                    continue;
                };
                all.extend(found);
                if cursor != "0" {
                    next.push((number, Read::ScanPairs(key.clone(), cursor, FIELDS)));
                }
            }
            if next.is_empty() {
                return Ok((first, pairs));
            }
            let reads: Vec<Read>;
            (left, reads) = next.into_iter().unzip();
            scanned = self.look(what, Time::Last, &reads).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(of: &[(&str, i64)]) -> Vec<(String, Timestamp)> {
        of.iter().map(|(name, at)| ((*name).to_owned(), Timestamp::from_micros(*at))).collect()
    }

    #[test]
    fn members_of_one_score_that_are_read_again_come_once() {
        let mut walk = Walk::new("k".to_owned(), Order::Lowest, Score::Min);
        let first = members(&[("a", 1), ("b", 2), ("c", 2)]);
        assert_eq!(walk.take(first.clone(), 3), first);
        assert!(!walk.is_over());
        // The last one was removed, so that all of its score come again.
        assert_eq!(walk.take(members(&[("a2", 2), ("b", 2)]), 2), []);
        assert_eq!(walk.take(members(&[("d", 2), ("e", 3)]), 3), members(&[("d", 2), ("e", 3)]));
        assert!(walk.is_over());
    }

    #[test]
    fn highest_scores_first_end_with_the_lowest() {
        let mut walk = Walk::new("k".to_owned(), Order::Highest, Score::Max);
        assert_eq!(walk.take(members(&[("b", 2), ("a", 2)]), 2), members(&[("b", 2), ("a", 2)]));
        assert_eq!(walk.take(members(&[("b", 2), ("z", 1)]), 3), members(&[("z", 1)]));
    }
}
