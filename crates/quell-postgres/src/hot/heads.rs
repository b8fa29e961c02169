//! The heads of partitions: from where their jobs are read, in queues that limit partitions (R31).
//!
//! No job of a partition that may start comes before its first head, which a trigger of the schema
//! sees to. So the heads are read in their order, page by page, until those that have been read have
//! enough to start. Partitions whose slots are all taken are not among them.
//!
//! A head stays behind when its job has started. Claims that find such a stale head replace it, while
//! a lock keeps writers from adding a job before it. Where a writer holds that lock, a later claim
//! replaces the head.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::line::{DueLane, Line};
use quell_core::{Key, Result, Timestamp};
use sqlx::postgres::PgRow;

use crate::hot::look::{Look, Looking, joint};
use crate::hot::trail::{At, Part};
use crate::row::{blocked, get, optional_time, time};
use crate::sql::{PgQuery, Sql};
use crate::tx::Tx;

/// Partitions whose heads are replaced in one statement.
pub(crate) const RAISED: usize = 1_000;

/// A lane and a partition whose heads are no longer where its first job is.
pub(crate) type Stale = (i32, i32);

/// Heads of a lane that are read at once: at first, and at most.
const FIRST_PAGE: usize = 16;
const PAGE: usize = 1_024;

/// The heads of a queue's lanes, as far as they have been read.
#[derive(Debug)]
pub(crate) struct Heads {
    /// The lanes that have more heads to read.
    unread: BTreeMap<i32, Unread>,
    /// The partitions that have been read, by their joint numbers.
    seen: BTreeSet<i64>,
    /// Partitions without a free slot.
    full: Vec<i32>,
    now: Timestamp,
    page: usize,
    /// How many partitions that may start something are enough.
    enough: usize,
}

/// What is left of the heads of a lane.
#[derive(Debug)]
struct Unread {
    priority: i64,
    /// The last head that was read.
    last: Cursor,
    /// The partitions that have been read and have something due, each with its first job.
    due: Vec<(At, Key)>,
    is_over: bool,
}

/// Whether `j` is a job of the partition `$partition` of the lane `l` that is in the index of that.
macro_rules! of_partition {
    ($partition:literal) => {
        concat!(
            "j.lane_id = l.id and j.partition_id = ",
            $partition,
            " and j.partition_id <> 0 and j.state = 0 and j.behind is null"
        )
    };
}

/// A place among the heads of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The head's own place.
    pub(crate) at: At,
    /// Its partition.
    pub(crate) partition: i32,
}

impl Cursor {
    /// Before all heads.
    pub(crate) const FIRST: Cursor = Cursor { at: (Timestamp::MIN, 0), partition: 0 };
}

/// Reads heads of lanes after these places, at most `page` of each, but for those of the partitions `full`:
/// lane, partition and its name, the head, its first job, the first that its key lets start, and the lane's
/// first head.
pub(crate) fn heads_query(
    sql: &Sql,
    cursors: &[(i32, Cursor)],
    full: &[i32],
    page: usize,
) -> PgQuery {
    // The next claim begins at the first head of all, full partitions included.
    const READ: &str = concat!(
        "select l.id, h.partition_id, n.name, h.due_at, h.job_id, k.due_at, k.id,
                j.due_at, j.id, l.first
           from (select l.*, (
                        select array[h.due_at, h.job_id] from quell.head h
                         where h.lane_id = l.id
                           and (h.due_at, h.job_id, h.partition_id)
                               >= (l.due_at, l.job_id, l.partition_id)
                         order by h.due_at, h.job_id, h.partition_id limit 1) as first
                   from unnest($1::int[], $2::bigint[], $3::bigint[], $4::int[])
                        l (id, due_at, job_id, partition_id)) l
           left join lateral (
                select h.partition_id, h.due_at, h.job_id from quell.head h
                 where h.lane_id = l.id
                   and (h.due_at, h.job_id, h.partition_id)
                       > (l.due_at, l.job_id, l.partition_id)
                   and h.partition_id not in (select unnest($5::int[]))
                 order by h.due_at, h.job_id, h.partition_id limit $6) h on true
           left join lateral (
                select j.due_at, j.id from quell.job j
                 where ",
        of_partition!("h.partition_id"),
        "          and (j.due_at, j.id) >= (h.due_at, h.job_id)
                 order by j.due_at, j.id limit 1) k on true
           left join lateral (
                select j.due_at, j.id from quell.job j
                 where ",
        of_partition!("h.partition_id"),
        "          and (j.due_at, j.id) >= (k.due_at, k.id) and not ",
        blocked!(),
        "        order by j.due_at, j.id limit 1) j on true
           left join quell.partition n on n.id = h.partition_id
          order by h.due_at, h.job_id, h.partition_id"
    );
    let of = |get: fn(&Cursor) -> i64| {
        cursors.iter().map(|(_, cursor)| get(cursor)).collect::<Vec<i64>>()
    };
    let query = sql.query(READ).bind(cursors.iter().map(|(lane, _)| *lane).collect::<Vec<i32>>());
    let query = query.bind(of(|cursor| cursor.at.0.as_micros())).bind(of(|cursor| cursor.at.1));
    let partitions = cursors.iter().map(|(_, cursor)| cursor.partition).collect::<Vec<i32>>();
    let query = query.bind(partitions).bind(full.to_vec());
    query.bind(i64::try_from(page).unwrap_or(i64::MAX))
}

impl Heads {
    pub(crate) fn new(looking: &Looking<'_>, look: &Look, full: Vec<i32>) -> Heads {
        let lanes = look.lanes.iter().map(|(lane, priority)| {
            // Just before the first one that is to be read.
            let last = Cursor { at: looking.from.of_heads(*lane), partition: 0 };
            let (priority, due) = (*priority, Vec::new());
            (*lane, Unread { priority, last, due, is_over: false })
        });
        Heads {
            unread: lanes.collect(),
            seen: BTreeSet::new(),
            full,
            now: look.line.now,
            page: FIRST_PAGE.max(looking.most).min(PAGE),
            enough: looking.most.max(1),
        }
    }

    /// The next page, if there is one; its rows are to be given to [`Heads::take`].
    pub(crate) fn next(&mut self, looking: &Looking<'_>) -> Option<PgQuery> {
        if self.unread.is_empty() {
            return None;
        }
        let cursors: Vec<(i32, Cursor)> =
            self.unread.iter().map(|(id, lane)| (*id, lane.last)).collect();
        Some(heads_query(looking.sql, &cursors, &self.full, self.page))
    }

    /// Takes the rows of a page to the lanes of the look; the names of the partitions that are new.
    pub(crate) fn take(&mut self, rows: &[PgRow], look: &mut Look) -> Result<Vec<Key>> {
        let mut names = Vec::new();
        let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
        for row in rows {
            let lane: i32 = get(row, 0)?;
            if let Some([due, id]) = get::<Option<Vec<i64>>, _>(row, 9)?.as_deref() {
                let first = (Timestamp::from_micros(*due), *id);
                look.firsts.entry((lane, Part::Heads)).or_insert(first);
            }
            let Some(unread) = self.unread.get_mut(&lane) else { continue };
            let Some(partition) = get::<Option<i32>, _>(row, 1)? else { continue };
            let Some(name) = get::<Option<&str>, _>(row, 2)?.map(Key::new).transpose()? else {
                continue;
            };
            let (id, head): (i64, At) = (joint(lane, partition), (time(row, 3)?, get(row, 4)?));
            unread.last = Cursor { at: head, partition };
            *counts.entry(lane).or_default() += 1;
            let waits = at(row, 5)?;
            if head.0 <= self.now && (waits != Some(head) || self.seen.contains(&id)) {
                look.stale.insert((lane, partition));
            }
            if !self.seen.insert(id) {
                // The first head of a partition counts.
                continue;
            }
            let first = at(row, 7)?;
            if let Some(first) = first.filter(|first| first.0 <= self.now) {
                unread.due.push((first, name.clone()));
            }
            names.push(name.clone());
            look.from.insert(id, waits.unwrap_or(head));
            let (priority, partition, first) = (unread.priority, Some(name), first.map(|at| at.0));
            look.line.lanes.push(DueLane { id, priority, partition, first, later: None });
        }
        for (lane, unread) in &mut self.unread {
            unread.is_over = counts.get(lane).is_none_or(|count| *count < self.page);
        }
        self.page = (self.page * 4).min(PAGE);
        Ok(names)
    }

    /// Leaves the lanes that need no further heads, once the use of the limits has been counted.
    pub(crate) fn settle(&mut self, line: &Line) {
        let enough = self.enough;
        let has_room = |name: &Key| {
            let used = line.taken.partitions.get(name).copied().unwrap_or_default();
            line.settings.partition_room(&used) > 0
        };
        // Where that is earlier than the next head, no partition that was not read starts before it.
        let best = line.next().due;
        self.unread.retain(|_, lane| {
            let is_passed =
                best.is_some_and(|best| best <= lane.last.at.0 && lane.last.at.0 > self.now);
            // Of partitions that were not read no job comes before their heads.
            let sure = lane.due.iter().filter(|(at, name)| *at <= lane.last.at && has_room(name));
            !lane.is_over && !is_passed && sure.count() < enough
        });
    }
}

/// The place in two columns, if there is one.
pub(crate) fn at(row: &PgRow, column: usize) -> Result<Option<At>> {
    let due = optional_time(row, column)?;
    due.map(|due| Ok((due, get(row, column + 1)?))).transpose()
}

impl Tx {
    /// Replaces the heads of these partitions, [`RAISED`] at most, by the places of their first jobs. Leaves
    /// partitions in which another transaction is writing a job.
    pub(crate) async fn raise_heads(&mut self, stale: &[Stale]) -> Result<()> {
        const LOCK: &str = "select l.id, l.partition_id
               from unnest($1::int[], $2::int[]) l (id, partition_id)
              where pg_try_advisory_xact_lock(quell.head_lock(l.id, l.partition_id))";
        // A statement of its own, which sees what was committed before the locks.
        const RAISE: &str = concat!(
            "with first as materialized (
                 select l.id as lane_id, l.partition_id, j.due_at, j.id
                   from unnest($1::int[], $2::int[]) l (id, partition_id)
                  cross join lateral (
                        select h.due_at, h.job_id from quell.head h
                         where h.lane_id = l.id and h.partition_id = l.partition_id
                         order by h.due_at, h.job_id limit 1) h
                  cross join lateral (
                        select j.due_at, j.id from quell.job j
                         where ",
            of_partition!("l.partition_id"),
            "              and (j.due_at, j.id) >= (h.due_at, h.job_id)
                         order by j.due_at, j.id limit 1) j),
             gone as (
                 delete from quell.head
                  where ctid = any(array(
                        select h.place
                          from unnest($1::int[], $2::int[]) l (id, partition_id)
                         cross join lateral (
                               select h.ctid as place from quell.head h
                                where h.lane_id = l.id and h.partition_id = l.partition_id
                                order by h.due_at, h.job_id) h)))
             insert into quell.head (lane_id, partition_id, due_at, job_id)
             select lane_id, partition_id, due_at, id from first"
        );
        if stale.is_empty() {
            return Ok(());
        }
        let (lanes, partitions): (Vec<i32>, Vec<i32>) = stale.iter().copied().unzip();
        let query = self.sql.query(LOCK).bind(lanes).bind(partitions);
        let (mut lanes, mut partitions) = (Vec::new(), Vec::new());
        for row in &self.fetch("lock the heads of partitions", query).await? {
            lanes.push(get::<i32, _>(row, 0)?);
            partitions.push(get::<i32, _>(row, 1)?);
        }
        if lanes.is_empty() {
            return Ok(());
        }
        let query = self.sql.query(RAISE).bind(lanes).bind(partitions);
        self.run("write the heads of partitions", query).await
    }
}
