//! Whose turn it is in the partitions of a queue of strict order (R41).
//!
//! A job holds up those behind it in its partition whether or not a worker may run it. So the heads of
//! partitions are read of all lanes of the queue, page by page, until those that have been read have
//! enough to start. Jobs that have started before come first in their partitions; they are read all.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::line::DueLane;
use quell_core::turn::Turn;
use quell_core::{JobId, Key, Result, Timestamp};
use sqlx::postgres::PgRow;

use crate::hot::heads::{Cursor, at, heads_query};
use crate::hot::limit::count_starts_of_partitions;
use crate::hot::look::{Ask, Look, Looking, joint};
use crate::hot::trail::{At, Part};
use crate::row::{blocked, get, time, unsigned};

/// Heads of a lane that are read at once: at first, and at most.
const FIRST_PAGE: usize = 64;
const PAGE: usize = 1_024;

/// A lane of the queue, as far as its heads have been read.
#[derive(Debug)]
struct Lane {
    priority: i64,
    cursor: Cursor,
    is_over: bool,
}

/// A job that is next in its partition, as far as that is known.
#[derive(Clone, Debug)]
struct Next {
    turn: Turn,
    lane: i32,
    at: At,
    name: Key,
}

/// The partitions of a queue, as far as they have been read.
#[derive(Debug)]
struct Partitions {
    lanes: BTreeMap<i32, Lane>,
    next: BTreeMap<i32, Next>,
    /// Lanes and partitions whose heads were read.
    seen: BTreeSet<i64>,
}

/// Reads whose turn it is into the lanes of a look: of each partition one lane at most, from its next job on,
/// where that is of a task that was asked for. `full` are partitions in which an attempt runs.
pub(crate) async fn read_turns(
    by: &mut impl Ask,
    looking: &Looking<'_>,
    look: &mut Look,
    full: Vec<i32>,
) -> Result<()> {
    let mut all = Partitions::of(by, looking).await?;
    // Of these it is known what is next, if anything is.
    let known: Vec<i32> = full.into_iter().chain(all.next.keys().copied()).collect();
    let mut page = FIRST_PAGE.max(looking.most).min(PAGE);
    let mut counted = BTreeSet::new();
    loop {
        let cursors = all.lanes.iter().filter(|(_, lane)| !lane.is_over);
        let cursors: Vec<(i32, Cursor)> = cursors.map(|(id, lane)| (*id, lane.cursor)).collect();
        if !cursors.is_empty() {
            let query = heads_query(looking.sql, &cursors, &known, page);
            let rows = by.ask("read the heads of partitions", query).await?;
            all.take(&rows, page, look)?;
            page = (page * 4).min(PAGE);
        }
        if let Some(rate) = look.line.settings.partition_rate {
            let names = all.next.values().map(|next| next.name.clone());
            let new: Vec<Key> = names.filter(|name| counted.insert(name.clone())).collect();
            if !new.is_empty() {
                count_starts_of_partitions(by, looking, &mut look.line, rate, &new).await?;
            }
        }
        if all.is_enough(looking, look) {
            break;
        }
    }
    all.add_lanes(look);
    Ok(())
}

impl Partitions {
    /// The lanes of the queue, and what has started before.
    async fn of(by: &mut impl Ask, looking: &Looking<'_>) -> Result<Self> {
        const LANES: &str = "select l.id, l.priority from quell.queue q
               join quell.lane l on l.queue_id = q.id
              where q.name = $1
                and exists (select from quell.head h where h.lane_id = l.id)";
        // The sum keeps the index of all jobs away.
        const BEGUN: &str = concat!(
            "select j.lane_id, j.partition_id, j.partition, j.due_at, j.id
               from unnest($1::int[]) l (id)
              cross join lateral (
                    select * from quell.job j
                     where j.lane_id = l.id and j.state = 0 and j.behind is null
                       and j.partition_id <> 0 and j.token <> 0
                     order by j.due_at, j.id) j
              where not ",
            blocked!()
        );
        let query = looking.sql.query(LANES).bind(looking.queue.as_str().to_owned());
        let mut lanes = BTreeMap::new();
        for row in &by.ask("read the lanes of a queue", query).await? {
            let priority = i64::from(get::<i16, _>(row, 1)?);
            lanes.insert(get(row, 0)?, Lane { priority, cursor: Cursor::FIRST, is_over: false });
        }
        let mut all = Partitions { lanes, next: BTreeMap::new(), seen: BTreeSet::new() };
        let query = looking.sql.query(BEGUN).bind(all.lanes.keys().copied().collect::<Vec<i32>>());
        for row in &by.ask("read jobs that have started before", query).await? {
            // R25: a name that is none harms its own job only.
            let name = get::<Option<&str>, _>(row, 2)?.and_then(|name| Key::new(name).ok());
            let Some(name) = name else { continue };
            let at = (time(row, 3)?, get(row, 4)?);
            all.put(get(row, 1)?, Next { turn: turn(true, at), lane: get(row, 0)?, at, name });
        }
        Ok(all)
    }

    fn put(&mut self, partition: i32, next: Next) {
        let is_first = self.next.get(&partition).is_none_or(|first| next.turn < first.turn);
        if is_first {
            self.next.insert(partition, next);
        }
    }

    /// Takes a page of heads.
    fn take(&mut self, rows: &[PgRow], page: usize, look: &mut Look) -> Result<()> {
        let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
        for row in rows {
            let lane: i32 = get(row, 0)?;
            if let Some([due, id]) = get::<Option<Vec<i64>>, _>(row, 9)?.as_deref()
                && look.lanes.contains_key(&lane)
            {
                let first = (Timestamp::from_micros(*due), *id);
                look.firsts.entry((lane, Part::Heads)).or_insert(first);
            }
            let Some(partition) = get::<Option<i32>, _>(row, 1)? else { continue };
            let head: At = (time(row, 3)?, get(row, 4)?);
            *counts.entry(lane).or_default() += 1;
            if let Some(lane) = self.lanes.get_mut(&lane) {
                lane.cursor = Cursor { at: head, partition };
            }
            let is_new = self.seen.insert(joint(lane, partition));
            if head.0 <= look.line.now && (at(row, 5)? != Some(head) || !is_new) {
                look.stale.insert((lane, partition));
            }
            let name = get::<Option<&str>, _>(row, 2)?.and_then(|name| Key::new(name).ok());
            let next = at(row, 7)?.filter(|_| is_new).zip(name);
            if let Some((at, name)) = next {
                self.put(partition, Next { turn: turn(false, at), lane, at, name });
            }
        }
        for (id, lane) in self.lanes.iter_mut().filter(|(_, lane)| !lane.is_over) {
            lane.is_over = counts.get(id).is_none_or(|count| *count < page);
        }
        Ok(())
    }

    /// No job of a partition that was not read comes before this.
    fn frontier(&self) -> Option<At> {
        let unread = self.lanes.values().filter(|lane| !lane.is_over);
        unread.map(|lane| lane.cursor.at).min()
    }

    /// Those whose turn it is for certain, and whose task was asked for.
    fn sure<'p>(&'p self, look: &'p Look) -> impl Iterator<Item = (i32, &'p Next)> {
        let frontier = self.frontier();
        let is_sure = move |next: &Next| match (next.turn, frontier) {
            (Turn::New(..), Some(frontier)) => next.at <= frontier,
            (Turn::Begun(_), _) | (_, None) => true,
        };
        let is_mine = |next: &Next| look.lanes.contains_key(&next.lane);
        let sure = self.next.iter().filter(move |(_, next)| is_sure(next) && is_mine(next));
        sure.map(|(partition, next)| (*partition, next))
    }

    /// Whether no further heads are needed.
    fn is_enough(&self, looking: &Looking<'_>, look: &Look) -> bool {
        let Some(frontier) = self.frontier() else { return true };
        let (line, now) = (&look.line, look.line.now);
        let has_room = |next: &Next| {
            let used = line.taken.partitions.get(&next.name).copied().unwrap_or_default();
            line.settings.partition_room(&used) > 0
        };
        // What waits for a retry may be due after what was not read.
        let open = self.sure(look).filter(|(_, next)| next.at <= frontier && has_room(next));
        let due: Vec<bool> = open.map(|(_, next)| next.at.0 <= now).collect();
        let mut priorities = self.lanes.values().map(|lane| lane.priority);
        let first = priorities.next();
        let is_one_priority = priorities.all(|priority| Some(priority) == first);
        // Of several priorities, one that is due later may start first.
        let is_full =
            is_one_priority && due.iter().filter(|due| **due).count() >= looking.most.max(1);
        is_full || (frontier.0 > now && !due.is_empty())
    }

    /// Adds the lanes that a claim takes from.
    fn add_lanes(&self, look: &mut Look) {
        let sure: Vec<(i32, Next)> =
            self.sure(look).map(|(partition, next)| (partition, next.clone())).collect();
        for (partition, Next { lane, at, name, .. }) in sure {
            let id = joint(lane, partition);
            let priority = self.lanes.get(&lane).map_or(0, |lane| lane.priority);
            look.from.insert(id, at);
            let (partition, first) = (Some(name), Some(at.0));
            look.line.lanes.push(DueLane { id, priority, partition, first, later: None });
        }
    }
}

fn turn(has_begun: bool, (due, id): At) -> Turn {
    Turn::of(has_begun, due, JobId::new(unsigned(id)))
}
