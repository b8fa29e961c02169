//! What alerts look at and keep (R27): dead jobs and the oldest due ones, by lane, and one row for
//! each alert.
//!
//! An overview reads a few waiting jobs of each lane, and a limited number of its dead and unreadable
//! jobs. Its cost does not grow with the backlog or the number of partitions.

use std::collections::BTreeMap;

use quell_core::alert::{AlertRow, LaneOverview, Overview};
use quell_core::{AlertName, Result};
use sqlx::postgres::PgRow;

use crate::error::corrupt;
use crate::hot::look::first_waiting;
use crate::names::Names;
use crate::row::{get, optional_time, signed, time, unsigned};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, first};

/// The time and all unreadable jobs, then rows of lanes: lane, dead and unreadable jobs, the first due
/// time.
pub(crate) fn overview_query(sql: &Sql, asked: Asked) -> PgQuery {
    const LANES: &str = concat!(
        "with head as (
             select l.id as lane_id, h.due_at
               from quell.lane l
              cross join ",
        first_waiting!(),
        "    union all
             select l.id, j.due_at
               from quell.lane l
              cross join lateral (
                    select j.due_at from quell.job j
                     where j.lane_id = l.id and j.state = 0 and j.behind is not null
                     order by j.due_at, j.id limit 1) j)
         select quell.peek($1, $2), null::int, null::bigint,
                -- With those whose lane is unknown.
                (select count(*) from (select from quell.unreadable limit $3) u), null::bigint
          union all
         select null, lane_id, 0, 0, min(due_at) from head group by lane_id
          union all
         select null, l.id, d.jobs, u.jobs, null
           from quell.lane l
          cross join lateral (
                select count(*) as jobs
                  from (select from quell.ended e
                         where e.part = 0 and e.state = 3 and e.lane_id = l.id limit $3) e) d
          cross join lateral (
                select count(*) as jobs
                  from (select from quell.ended e
                         where e.part = 0 and e.state = 6 and e.lane_id = l.id limit $3) e) u
          where d.jobs > 0 or u.jobs > 0"
    );
    asked.bind(sql.query(LANES)).bind(signed(Overview::MOST))
}

/// The lanes that an overview speaks of.
pub(crate) fn overview_lanes(rows: &[PgRow]) -> Result<Vec<i32>> {
    let lanes = rows.iter().map(|row| get::<Option<i32>, _>(row, 1));
    lanes.filter_map(Result::transpose).collect()
}

/// What [`overview_query`] brought; the lanes must be known.
pub(crate) fn decode_overview(rows: &[PgRow], names: &Names) -> Result<Overview> {
    let mut lanes = BTreeMap::new();
    for row in rows {
        let Some(id) = get::<Option<i32>, _>(row, 1)? else { continue };
        let lane = names.lane(id).ok_or_else(|| corrupt("the lane of a job"))?;
        let (queue, task) = (lane.queue.clone(), lane.task.clone());
        let names = (queue.clone(), task.clone());
        let empty = LaneOverview { queue, task, dead: 0, unreadable: 0, first_due: None };
        let seen: &mut LaneOverview = lanes.entry(names).or_insert(empty);
        seen.dead += unsigned(get(row, 2)?);
        seen.unreadable += unsigned(get(row, 3)?);
        seen.first_due = seen.first_due.into_iter().chain(optional_time(row, 4)?).min();
    }
    let head = first(rows)?;
    let (now, unreadable) = (time(head, 0)?, unsigned(get(head, 3)?));
    Ok(Overview { now, lanes: lanes.into_values().collect(), unreadable })
}

/// A row of an alert: its name, how often it was written, and its state.
pub(crate) fn decode_alert(row: &PgRow) -> Result<AlertRow> {
    let name: &str = get(row, 0)?;
    let state = serde_json::from_str(get(row, 2)?)
        .map_err(|error| corrupt(format_args!("the state of alert {name}: {error}")))?;
    Ok(AlertRow { name: AlertName::new(name)?, version: unsigned(get(row, 1)?), state })
}
