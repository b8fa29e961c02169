//! Places in indexes, which follow from the tables and their SQL indexes.
//!
//! Invariant: a scan reads no more than it returns and a few entries beside, whatever the store holds.

use std::cmp::Reverse;

use quell_core::limit::WHOLE_QUEUE;
use quell_core::{
    AlertName, JobFilter, JobId, JobState, Key, QueueName, Result, ScheduleName, TaskName,
    Timestamp, WorkerId,
};
use quell_engine::{Entry, Index, Kind, Lanes, Note, Place, RowName, Scan, Seen};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection};

use crate::error::explain;
use crate::load::id;
use crate::names::{Lane, Names, base_lane};
use crate::row::{get, signed, time};
use crate::turns::{HEADS, begun};
use crate::tx::Trip;

/// Where a scan begins and ends in a table, by time and then by number.
struct Range {
    /// Only what comes after this.
    low: (i64, i64),
    /// Only what comes before this.
    high: (i64, i64),
    /// The first and the last time.
    from: i64,
    to: i64,
    /// One more than is asked for, so that it is known whether there are more.
    limit: i64,
}

impl Range {
    fn of(scan: &Scan) -> Self {
        let micros = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
        let from = micros(scan.from).unwrap_or(i64::MIN);
        let to = micros(scan.to).unwrap_or(i64::MAX);
        let after = scan.after.as_ref().map(|(place, name)| {
            let number = match name {
                RowName::Job(id) => signed(id.get()),
                _ => 0,
            };
            (place.at.as_micros(), number)
        });
        let limit = i64::try_from(scan.limit).unwrap_or(i64::MAX).saturating_add(1);
        let (low, high) = (after.unwrap_or((from, -1)), after.unwrap_or((to, i64::MAX)));
        Range { low, high, from, to, limit }
    }

    /// Binds what an ascending scan needs: `?1` and `?2` what it comes after, `?3` and `?4` its first and
    /// last time, `?5` its limit.
    fn ascending(&self, query: Trip) -> Trip {
        let query = query.bind(self.low.0).bind(self.low.1);
        query.bind(self.from.max(self.low.0)).bind(self.to).bind(self.limit)
    }

    /// Binds what a descending scan needs, in the same way.
    fn descending(&self, query: Trip) -> Trip {
        let query = query.bind(self.high.0).bind(self.high.1);
        query.bind(self.from).bind(self.to.min(self.high.0)).bind(self.limit)
    }
}

/// The jobs of an ascending index, by its time and then by their ids. There must be a SQL index over the
/// time.
macro_rules! jobs_by {
    ($columns:literal, $time:literal, $where:literal) => {
        concat!(
            "select j.id, j.",
            $time,
            ", ",
            $columns,
            " from quell_job j where ",
            $where,
            " and j.",
            $time,
            " >= ?3 and j.",
            $time,
            " <= ?4 and (j.",
            $time,
            ", j.id) > (?1, ?2) order by j.",
            $time,
            ", j.id limit ?5 + 0"
        )
    };
}

pub(crate) use jobs_by;

/// The jobs in line of the partitions of a lane, `?6`, for which `$where` is true.
macro_rules! jobs_of_partitions {
    ($where:literal) => {
        concat!(
            "select j.id, j.due_at, p.name
           from quell_partition p
          cross join quell_job j on j.id in (
                select i.id from quell_job i
                 where i.lane_id = (p.lane_id << 32) + p.number and i.state = 0 and i.waits = 0
                   and i.due_at >= ?3 and i.due_at <= ?4 and (i.due_at, i.id) > (?1, ?2)
                 order by i.due_at, i.id limit ?5 + 0)
          where p.lane_id = ?6 and ",
            $where
        )
    };
}

/// Reads one index.
pub(crate) async fn scan(db: &mut SqliteConnection, names: &Names, scan: &Scan) -> Result<Seen> {
    let entries = match &scan.index {
        Index::Line(queue, task) => line(db, names, scan, (queue, task)).await?,
        Index::Begun(queue) => begun(db, names, scan, queue).await?,
        Index::Leases => leases(db, names, scan).await?,
        Index::Waiting => waiting(db, names, scan).await?,
        Index::Ended => ended(db, names, scan).await?,
        Index::Dead => dead(db, names, scan).await?,
        Index::Unreadable => unreadable(db, names, scan).await?,
        Index::Closed((task, key)) => closed(db, names.task_id(task), key, scan).await?,
        Index::Of(id) => of(db, *id, scan).await?,
        Index::Expiry => expiry(db, scan).await?,
        Index::Plan => plan(db, scan).await?,
        Index::Ticks => ticks(db, scan).await?,
        Index::Fired(schedule) => fired(db, schedule, scan).await?,
        Index::Jobs => jobs(db, scan).await?,
        Index::Rows(kind) => within(rows(db, names, *kind).await?, scan),
    };
    Ok(page(entries, scan.limit))
}

/// The first entries, and whether there are more.
fn page(mut entries: Vec<Entry>, limit: usize) -> Seen {
    let more = entries.len() > limit;
    entries.truncate(limit);
    Seen { entries, more }
}

/// Those entries of an ascending index that a scan is about, in its order.
fn within(mut entries: Vec<Entry>, scan: &Scan) -> Vec<Entry> {
    entries.retain(|Entry { place, name, .. }| {
        scan.from.is_none_or(|from| from <= place.at)
            && scan.to.is_none_or(|to| place.at <= to)
            && scan.after.as_ref().is_none_or(|(at, after)| (at, after) < (place, name))
    });
    entries.sort_unstable();
    entries
}

async fn fetch(db: &mut SqliteConnection, query: Trip) -> Result<Vec<SqliteRow>> {
    query.fetch_all(db).await.map_err(|e| explain("read an index", e))
}

/// The entry of a job, as far as its columns can be decoded; none where its time cannot be.
fn entry(row: &SqliteRow, note: Option<Note>) -> Result<Option<Entry>> {
    let name = RowName::Job(id(row, 0)?);
    let at = row.try_get::<i64, _>(1).ok().map(Timestamp::from_micros);
    Ok(at.map(|at| Entry { place: Place::at(at), name, note }))
}

/// What an index says of a job in the lane that a column names; none where there is no such lane.
fn note(row: &SqliteRow, lane: usize, names: &Names, state: JobState) -> Option<Note> {
    let lane = names.lane(row.try_get(lane).ok()?)?;
    let (queue, task) = (lane.queue.clone(), lane.task.clone());
    Some(Note { queue, task, state, partition: None, worker: None })
}

fn partition(row: &SqliteRow, index: usize) -> Option<Key> {
    row.try_get::<Option<&str>, _>(index).ok().flatten().and_then(|name| Key::new(name).ok())
}

/// Jobs in line, of the lanes of each priority and of their partitions.
async fn line(
    db: &mut SqliteConnection,
    names: &Names,
    scan: &Scan,
    (queue, task): (&QueueName, &TaskName),
) -> Result<Vec<Entry>> {
    const OF_LANE: &str =
        jobs_by!("null", "due_at", "j.lane_id = ?6 and j.state = 0 and j.waits = 0");
    // The first jobs of all partitions are among those of the first partitions.
    const FIRST: &str = jobs_of_partitions!(
        "p.name in (
                select name from quell_partition
                 where lane_id = ?6 and head_at is not null
                 order by head_at, head_id limit ?5 + 0)"
    );
    const NEXT: &str = jobs_of_partitions!("p.head_at is not null");
    let statements: [&[&str]; 2] = match scan.lanes {
        Lanes::All => [&[OF_LANE, FIRST], &[OF_LANE, NEXT]],
        Lanes::Plain => [&[OF_LANE]; 2],
        Lanes::Heads => [&[HEADS]; 2],
    };
    of_lanes(db, scan, &names.lanes_of(queue, Some(task)), statements).await
}

/// Jobs that wait in these lanes, the highest priority first and then by when they are due, as statements
/// with a lane in `?6` read them: `first` at the beginning of a priority, and `next` after that.
pub(crate) async fn of_lanes(
    db: &mut SqliteConnection,
    scan: &Scan,
    lanes: &[&Lane],
    [first, next]: [&[&'static str]; 2],
) -> Result<Vec<Entry>> {
    let (mut entries, wanted) = (Vec::new(), scan.limit.saturating_add(1));
    for of_priority in lanes.chunk_by(|one, other| one.priority == other.priority) {
        let Some(rank) = of_priority.first().map(|lane| Reverse(lane.priority)) else { continue };
        let after = scan.after.as_ref().filter(|(place, _)| place.rank >= rank);
        if after.is_some_and(|(place, _)| place.rank > rank || place.at == Timestamp::MAX) {
            continue;
        }
        let of_rank = Scan { after: after.cloned(), ..scan.clone() };
        let range = Range::of(&of_rank);
        let statements = if after.is_none() && scan.from.is_none() { first } else { next };
        let mut found = Vec::new();
        for lane in of_priority {
            for sql in statements.iter().copied() {
                for row in fetch(db, range.ascending(sqlx::query(sql)).bind(lane.id)).await? {
                    let (queue, task) = (lane.queue.clone(), lane.task.clone());
                    let (state, partition) = (JobState::Scheduled, partition(&row, 2));
                    let note = Note { queue, task, state, partition, worker: None };
                    found.extend(entry(&row, Some(note))?);
                }
            }
        }
        found.iter_mut().for_each(|entry| entry.place.rank = rank);
        found.sort_unstable();
        entries.extend(found);
        if entries.len() >= wanted {
            break;
        }
    }
    entries.truncate(wanted);
    Ok(entries)
}

async fn leases(db: &mut SqliteConnection, names: &Names, scan: &Scan) -> Result<Vec<Entry>> {
    const LEASES: &str = jobs_by!("j.lane_id, j.partition, j.worker", "lease_until", "j.state = 1");
    let rows = fetch(db, Range::of(scan).ascending(sqlx::query(LEASES))).await?;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        let note = note(row, 2, names, JobState::Running).map(|note| {
            let worker = row.try_get::<Option<&str>, _>(4).ok().flatten();
            let worker = worker.and_then(|worker| WorkerId::new(worker).ok());
            Note { partition: partition(row, 3), worker, ..note }
        });
        entries.extend(entry(row, note)?);
    }
    Ok(entries)
}

/// Windows that wait for a running attempt of their key. There are few.
async fn waiting(db: &mut SqliteConnection, names: &Names, scan: &Scan) -> Result<Vec<Entry>> {
    const WAITING: &str = "select j.id, j.due_at, j.lane_id, j.partition from quell_job j
          where j.waits = 1 and j.state = 0";
    let mut entries = Vec::new();
    for row in &fetch(db, sqlx::query(WAITING)).await? {
        let note = note(row, 2, names, JobState::Scheduled);
        let note = note.map(|note| Note { partition: partition(row, 3), ..note });
        entries.extend(entry(row, note)?);
    }
    Ok(within(entries, scan))
}

async fn ended(db: &mut SqliteConnection, names: &Names, scan: &Scan) -> Result<Vec<Entry>> {
    // The bound on the state is what makes the index of ended jobs serve.
    const ENDED: &str = jobs_by!("j.lane_id", "ended_at", "j.state >= 2 and j.state = ?6");
    let mut entries = Vec::new();
    for state in [JobState::Succeeded, JobState::Cancelled, JobState::Absorbed] {
        let query = Range::of(scan).ascending(sqlx::query(ENDED)).bind(state.code());
        for row in &fetch(db, query).await? {
            entries.extend(entry(row, note(row, 2, names, state))?);
        }
    }
    entries.sort_unstable();
    Ok(entries)
}

async fn dead(db: &mut SqliteConnection, names: &Names, scan: &Scan) -> Result<Vec<Entry>> {
    const DEAD: &str = "select j.id, j.ended_at, j.lane_id from quell_job j
          where j.state >= 2 and j.state = 3 and j.ended_at >= ?3 and j.ended_at <= ?4
            and (j.ended_at, j.id) < (?1, ?2)
          order by j.ended_at desc, j.id desc limit ?5 + 0";
    let rows = fetch(db, Range::of(scan).descending(sqlx::query(DEAD))).await?;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        entries.extend(entry(row, note(row, 2, names, JobState::Dead))?);
    }
    Ok(entries)
}

async fn unreadable(db: &mut SqliteConnection, names: &Names, scan: &Scan) -> Result<Vec<Entry>> {
    const UNREADABLE: &str = "select u.job_id, j.lane_id
           from quell_unreadable u left join quell_job j on j.id = u.job_id
          where u.job_id < ?1 order by u.job_id desc limit ?2 + 0";
    let Range { high, limit, .. } = Range::of(scan);
    let rows = fetch(db, sqlx::query(UNREADABLE).bind(high.1).bind(limit)).await?;
    let entry = |row: &SqliteRow| {
        let note = note(row, 1, names, JobState::Unreadable);
        Ok(Entry { place: Place::NONE, name: RowName::Job(id(row, 0)?), note })
    };
    rows.iter().map(entry).collect()
}

async fn closed(
    db: &mut SqliteConnection,
    task: Option<i64>,
    key: &Key,
    scan: &Scan,
) -> Result<Vec<Entry>> {
    const CLOSED: &str = "select -hold from quell_job
          where task_id = ?1 and key = ?2 and hold < ?3 and hold < 0
          order by hold desc limit ?4 + 0";
    let Range { low, limit, .. } = Range::of(scan);
    let after = if scan.after.is_some() { low.1 } else { 0 };
    let query = sqlx::query(CLOSED).bind(task).bind(key.as_str().to_owned());
    named(&fetch(db, query.bind(-after).bind(limit)).await?, |row| Ok(RowName::Job(id(row, 0)?)))
}

/// All jobs that are not set aside, newest first.
async fn jobs(db: &mut SqliteConnection, scan: &Scan) -> Result<Vec<Entry>> {
    let Range { high, limit, .. } = Range::of(scan);
    let none = JobFilter::default();
    let mut query = select_jobs(scan.filter.as_ref().unwrap_or(&none));
    query.push(" and j.id < ").push_bind(high.1);
    query.push(" order by j.id desc limit ").push_bind(limit);
    let rows = query.build().fetch_all(db).await.map_err(|e| explain("read jobs", e))?;
    named(&rows, |row| Ok(RowName::Job(id(row, 0)?)))
}

/// Entries without places.
fn named(rows: &[SqliteRow], name: impl Fn(&SqliteRow) -> Result<RowName>) -> Result<Vec<Entry>> {
    let entry = |row| Ok(Entry { place: Place::NONE, name: name(row)?, note: None });
    rows.iter().map(entry).collect()
}

/// The jobs that match a filter.
fn select_jobs(filter: &JobFilter) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("select j.id from quell_job j where j.state is not 6");
    if let Some(task) = &filter.task {
        query.push(" and j.task_id in (select id from quell_task where name = ");
        query.push_bind(task.as_str().to_owned()).push(")");
    } else if filter.key.is_some() {
        // With all the tasks named, the index of keys serves.
        query.push(" and j.task_id in (select id from quell_task)");
    }
    if let Some(key) = &filter.key {
        query.push(" and j.key = ").push_bind(key.as_str().to_owned());
    }
    if let Some(queue) = &filter.queue {
        query.push(concat!(
            " and ",
            base_lane!("j"),
            " in (select l.id from quell_lane l
                  join quell_queue q on q.id = l.queue_id where q.name = "
        ));
        query.push_bind(queue.as_str().to_owned()).push(")");
    }
    if let Some(state) = filter.state {
        query.push(" and j.state = ").push_bind(state.code());
        // Succeeded jobs are many, and the newest are found soonest by walking back; the others
        // are few enough to be sorted, and the bound makes their index serve.
        match state {
            JobState::Dead | JobState::Cancelled | JobState::Absorbed => {
                query.push(" and j.state >= 2");
            }
            JobState::Running => {
                query.push(" and j.state = 1 and j.lease_until > ").push_bind(i64::MIN);
            }
            JobState::Scheduled | JobState::Succeeded | JobState::Unreadable => {}
        }
    }
    query
}

/// What names a job, kind by kind in the order of names; ticks by their times.
async fn of(db: &mut SqliteConnection, job: JobId, scan: &Scan) -> Result<Vec<Entry>> {
    const ABSORBED: &str = "select id from quell_job where absorbed_by = ?1 and id > ?2
          order by id limit ?3 + 0";
    const HOLDS: &str = "select t.name, h.key
           from quell_hold h join quell_task t on t.id = h.task_id where h.job_id = ?1";
    const RECORDS: &str = "select t.name, i.key
           from quell_idempotency i join quell_task t on t.id = i.task_id where i.job_id = ?1";
    const TICKS: &str = "select s.name, t.tick_at
           from quell_tick t join quell_schedule s on s.id = t.schedule_id
          where t.job_id = ?1 and t.tick_at >= ?2 order by t.tick_at limit ?3 + 0";
    let number = signed(job.get());
    let after = scan.after.as_ref().map(|(_, name)| name);
    let limit = Range::of(scan).limit;
    let mut entries = Vec::new();
    if !matches!(after, Some(RowName::Hold(_) | RowName::Record(_) | RowName::Tick(..))) {
        let last = match after {
            Some(RowName::Job(id)) => signed(id.get()),
            _ => -1,
        };
        let query = sqlx::query(ABSORBED).bind(number).bind(last).bind(limit);
        entries = named(&fetch(db, query).await?, |row| Ok(RowName::Job(id(row, 0)?)))?;
    }
    if !matches!(after, Some(RowName::Tick(..))) {
        let holds = fetch(db, sqlx::query(HOLDS).bind(number)).await?;
        let records = fetch(db, sqlx::query(RECORDS).bind(number)).await?;
        let mut keys = named(&holds, |row| Ok(RowName::Hold(task_key(row)?)))?;
        keys.extend(named(&records, |row| Ok(RowName::Record(task_key(row)?)))?);
        keys.retain(|entry| after.is_none_or(|after| *after < entry.name));
        keys.sort_unstable();
        entries.extend(keys);
    }
    let last = match after {
        Some(RowName::Tick(_, at)) => *at,
        _ => Timestamp::MIN,
    };
    // Those of one moment are few.
    let more = if last > Timestamp::MIN { limit.saturating_mul(2) } else { limit };
    let query = sqlx::query(TICKS).bind(number).bind(last.as_micros()).bind(more);
    let mut fired = named(&fetch(db, query).await?, tick)?;
    let time_of = |name: &RowName| match name {
        RowName::Tick(schedule, at) => Some((*at, schedule.clone())),
        _ => None,
    };
    let after = after.and_then(time_of);
    fired.retain(|entry| after.is_none() || time_of(&entry.name) > after);
    fired.sort_by_key(|entry| time_of(&entry.name));
    entries.extend(fired);
    Ok(entries)
}

fn task_key(row: &SqliteRow) -> Result<(TaskName, Key)> {
    Ok((TaskName::new(get::<&str, _>(row, 0)?)?, Key::new(get::<&str, _>(row, 1)?)?))
}

fn tick(row: &SqliteRow) -> Result<RowName> {
    Ok(RowName::Tick(ScheduleName::new(get::<&str, _>(row, 0)?)?, time(row, 1)?))
}

/// Keys, memories and starts by when they expire.
async fn expiry(db: &mut SqliteConnection, scan: &Scan) -> Result<Vec<Entry>> {
    const HOLDS: &str = "select t.name, h.key, h.expires_at
           from quell_hold h join quell_task t on t.id = h.task_id
          where h.expires_at >= ?1 and h.expires_at <= ?2 order by h.expires_at limit ?3 + 0";
    const RECORDS: &str = "select t.name, i.key, i.look_at
           from quell_idempotency i join quell_task t on t.id = i.task_id
          where i.look_at >= ?1 and i.look_at <= ?2 order by i.look_at limit ?3 + 0";
    const MEMORIES: &str = "select t.name, m.key, m.expires_at
           from quell_memory m join quell_task t on t.id = m.task_id
          where m.expires_at >= ?1 and m.expires_at <= ?2 order by m.expires_at limit ?3 + 0";
    const STARTS: &str = "select q.name, s.partition, s.expires_at
           from quell_start s join quell_queue q on q.id = s.queue_id
          where s.expires_at >= ?1 and s.expires_at <= ?2 order by s.expires_at limit ?3 + 0";
    let Range { low, to, limit, .. } = Range::of(scan);
    // After an entry all of its moment are read again.
    let limit = if scan.after.is_some() { i64::MAX } else { limit };
    let mut entries: Vec<Entry> = Vec::new();
    for sql in [HOLDS, RECORDS, MEMORIES, STARTS] {
        let query = sqlx::query(sql).bind(low.0).bind(to).bind(limit);
        for row in &fetch(db, query).await? {
            let name = match sql {
                HOLDS => RowName::Hold(task_key(row)?),
                RECORDS => RowName::Record(task_key(row)?),
                MEMORIES => RowName::Memory(task_key(row)?),
                _ => starts(row)?,
            };
            // A log expires start by start.
            if sql != STARTS || entries.iter().all(|entry| entry.name != name) {
                entries.push(Entry { place: Place::at(time(row, 2)?), name, note: None });
            }
        }
    }
    Ok(within(entries, scan))
}

fn starts(row: &SqliteRow) -> Result<RowName> {
    let partition: &str = get(row, 1)?;
    let partition = (partition != WHOLE_QUEUE).then(|| Key::new(partition)).transpose()?;
    Ok(RowName::Starts(QueueName::new(get::<&str, _>(row, 0)?)?, partition))
}

async fn plan(db: &mut SqliteConnection, scan: &Scan) -> Result<Vec<Entry>> {
    const PLAN: &str = "select s.name, s.next_at from quell_schedule s
          where s.next_at >= ?1 and s.next_at <= ?2 and (s.next_at, s.name) > (?1, ?3)
          order by s.next_at, s.name limit ?4 + 0";
    let Range { low, to, limit, .. } = Range::of(scan);
    let after = match &scan.after {
        Some((_, RowName::Schedule(name))) => name.as_str().to_owned(),
        _ => String::new(),
    };
    let query = sqlx::query(PLAN).bind(low.0).bind(to).bind(after).bind(limit);
    let entry = |row: &SqliteRow| {
        let name = RowName::Schedule(ScheduleName::new(get::<&str, _>(row, 0)?)?);
        Ok(Entry { place: Place::at(time(row, 1)?), name, note: None })
    };
    fetch(db, query).await?.iter().map(entry).collect()
}

async fn ticks(db: &mut SqliteConnection, scan: &Scan) -> Result<Vec<Entry>> {
    const TICKS: &str = "select s.name, t.tick_at
           from quell_tick t join quell_schedule s on s.id = t.schedule_id
          where t.tick_at >= ?1 and t.tick_at <= ?2 order by t.tick_at limit ?3 + 0";
    let Range { low, to, limit, .. } = Range::of(scan);
    let limit = if scan.after.is_some() { i64::MAX } else { limit };
    let query = sqlx::query(TICKS).bind(low.0).bind(to).bind(limit);
    let entry = |row: &SqliteRow| {
        Ok(Entry { place: Place::at(time(row, 1)?), name: tick(row)?, note: None })
    };
    let entries = fetch(db, query).await?.iter().map(entry).collect::<Result<_>>()?;
    Ok(within(entries, scan))
}

async fn fired(
    db: &mut SqliteConnection,
    schedule: &ScheduleName,
    scan: &Scan,
) -> Result<Vec<Entry>> {
    const FIRED: &str = "select t.tick_at from quell_tick t
          where t.schedule_id = (select id from quell_schedule where name = ?1)
            and t.tick_at >= ?2 and t.tick_at <= ?3 order by t.tick_at limit ?4 + 0";
    let Range { low, to, limit, .. } = Range::of(scan);
    let from = if scan.after.is_some() { low.0.saturating_add(1) } else { low.0 };
    let query = sqlx::query(FIRED).bind(schedule.as_str().to_owned()).bind(from).bind(to);
    let entry = |row: &SqliteRow| {
        let at = time(row, 0)?;
        let name = RowName::Tick(schedule.clone(), at);
        Ok(Entry { place: Place::at(at), name, note: None })
    };
    fetch(db, query.bind(limit)).await?.iter().map(entry).collect()
}

/// All rows of a kind.
async fn rows(db: &mut SqliteConnection, names: &Names, kind: Kind) -> Result<Vec<Entry>> {
    // Each name is found by itself: a log may hold many starts.
    const STARTS: &str = "with recursive log (queue_id, queue, partition) as (
             select q.id, q.name,
                    (select min(partition) from quell_start where queue_id = q.id)
               from quell_queue q
             union all
             select l.queue_id, l.queue,
                    (select min(partition) from quell_start
                      where queue_id = l.queue_id and partition > l.partition)
               from log l where l.partition is not null)
         select queue, partition from log where partition is not null";
    let bare = |name| Entry { place: Place::NONE, name, note: None };
    let sql = match kind {
        Kind::Queues => {
            return Ok(names.queue_names().into_iter().map(RowName::Queue).map(bare).collect());
        }
        Kind::Tasks => {
            return Ok(names.task_names().into_iter().map(RowName::Task).map(bare).collect());
        }
        Kind::Starts => STARTS,
        Kind::Workers => "select worker, incarnation from quell_worker",
        Kind::Alerts => "select name from quell_alert",
        Kind::Schedules => "select name from quell_schedule",
    };
    named(&fetch(db, sqlx::query(sql)).await?, |row| {
        Ok(match kind {
            Kind::Workers => RowName::Worker(WorkerId::new(get::<&str, _>(row, 0)?)?, get(row, 1)?),
            Kind::Alerts => RowName::Alert(AlertName::new(get::<&str, _>(row, 0)?)?),
            Kind::Schedules => RowName::Schedule(ScheduleName::new(get::<&str, _>(row, 0)?)?),
            Kind::Starts | Kind::Queues | Kind::Tasks => starts(row)?,
        })
    })
}
