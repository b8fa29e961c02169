//! What waits and runs in the partitions of a queue (R31): a limited number of jobs of each lane, those that
//! are due first.

use std::collections::BTreeMap;

use quell_core::backlog::{Backlog, BacklogOf, Seen, Spread, Waiting};
use quell_core::{Key, Result, Timestamp};
use sqlx::postgres::PgRow;

use crate::read::Reader;
use crate::row::{get, optional_time, unsigned};

/// The lanes of a queue, `$1`, at most `$2`.
const LANES: &str = "select l.id from quell.queue q join quell.lane l on l.queue_id = q.id
     where q.name = $1 order by l.id limit $2";

/// Of each of the lanes `$1` at most `$2` jobs, at the time `$3`, by partition; and whether there are more.
/// Each kind of job has an index in the order of due times, so a lane reads three times its limit at most.
const JOBS: &str = "
    select a.lane, j.partition, count(*) filter (where j.place <= $2),
           count(*) filter (where j.place <= $2 and j.due_at <= $3),
           min(j.due_at) filter (where j.place <= $2), max(j.place) > $2
      from unnest($1::int[]) a (lane)
     cross join lateral (
           select k.partition, k.due_at, row_number() over (order by k.due_at, k.id) as place
             from ((select w.id, w.partition, w.due_at from quell.job w
                     where w.lane_id = a.lane and least(w.partition_id, 1) = 0
                       and w.state = 0 and w.behind is null
                     order by w.due_at, w.id limit $2 + 1)
                    union all
                   (select w.id, w.partition, w.due_at from quell.job w
                     where w.lane_id = a.lane and least(w.partition_id, 1) = 1
                       and w.state = 0 and w.behind is null
                     order by w.due_at, w.id limit $2 + 1)
                    union all
                   (select w.id, w.partition, w.due_at from quell.job w
                     where w.lane_id = a.lane and w.state = 0 and w.behind is not null
                     order by w.due_at, w.id limit $2 + 1)
                    order by due_at, id limit $2 + 1) k) j
     group by a.lane, j.partition";

/// What runs in the lanes `$1`. It reads all that runs in the store, which its workers' slots bound.
const RUNNING: &str = "select j.partition, count(*) from quell.job j
     where j.state = 1 and j.lane_id = any($1) group by j.partition";

impl Reader<'_> {
    /// The partitions of a queue with the most waiting jobs.
    pub(crate) async fn backlog(&mut self, now: Timestamp, of: &BacklogOf) -> Result<Backlog> {
        let most = i64::try_from(of.most_entries()).unwrap_or(i64::MAX);
        let query = self.sql.query(LANES).bind(of.queue.as_str().to_owned());
        let rows =
            self.fetch("read the lanes of a queue", query.bind(most.saturating_add(1))).await?;
        let lanes: Vec<i32> = rows.iter().map(|row| get(row, 0)).collect::<Result<_>>()?;
        let mut spread = Spread::new(of, lanes.iter().copied(), true);
        while let Some((lanes, limit)) = spread.next_lines() {
            let seen = self.jobs_of_lanes(&lanes, limit, now).await?;
            spread.add(seen);
        }
        let query = self.sql.query(RUNNING).bind(lanes);
        let mut running: BTreeMap<Option<Key>, u64> = BTreeMap::new();
        for row in self.fetch("count what runs of a queue", query).await? {
            running.insert(partition(&row, 0)?, unsigned(get(&row, 1)?));
        }
        Ok(Backlog::new(now, of, spread.end(), running))
    }

    async fn jobs_of_lanes(
        &mut self,
        lanes: &[i32],
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Seen>> {
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let query = self.sql.query(JOBS).bind(lanes.to_vec()).bind(most).bind(now.as_micros());
        let mut seen: BTreeMap<i32, Seen> = BTreeMap::new();
        for row in self.fetch("read what waits in a queue", query).await? {
            let of_lane = seen.entry(get(&row, 0)?).or_default();
            of_lane.is_cut |= get::<bool, _>(&row, 5)?;
            let (jobs, due) = (unsigned(get(&row, 2)?), unsigned(get(&row, 3)?));
            if jobs > 0 {
                let (later, first_due) = (jobs.saturating_sub(due), optional_time(&row, 4)?);
                let waiting = of_lane.waiting.entry(partition(&row, 1)?).or_default();
                waiting.add(Waiting { due, later, first_due });
            }
        }
        Ok(lanes.iter().map(|lane| seen.remove(lane).unwrap_or_default()).collect())
    }
}

fn partition(row: &PgRow, index: usize) -> Result<Option<Key>> {
    get::<Option<&str>, _>(row, index)?.map(Key::new).transpose()
}
