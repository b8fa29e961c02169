//! What alerts look at and keep (R27): dead jobs and the oldest due ones, by lane, and one row for
//! each alert.
//!
//! Looking reads of each lane its first job, that of its first partition, and as many entries of an
//! index as there are dead and unreadable jobs, up to a limit: so it costs no more with a longer
//! backlog or with more partitions.

use std::collections::BTreeMap;

use quell_core::alert::{AlertRow, AlertState, LaneOverview, Overview};
use quell_core::{AlertName, Result, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::names::{Names, base_lane};
use crate::row::{get, optional_time, signed, time, unsigned};
use crate::tx::Tx;

/// How many jobs of the lane `l` are in a state, no more than `?1`. The column has no affinity, as
/// what the index holds has none.
macro_rules! in_trouble {
    ($state:literal) => {
        concat!(
            "(select count(*) from (select 1 from quell_job j where j.state = ",
            $state,
            " and ",
            base_lane!("j"),
            " = +l.id limit ?1 + 0))"
        )
    };
}

/// Looks, without writing.
pub(crate) async fn read_overview(
    db: &mut SqliteConnection,
    names: &Names,
    now: Timestamp,
) -> Result<Overview> {
    const LANES: &str = concat!(
        "with first (id, due_at) as (
             select id, (select min(due_at) from quell_job
                          where lane_id = l.id and state = 0 and waits = 0)
               from quell_lane l
             union all
             select id, (select min(head_at) from quell_partition
                          where lane_id = l.id and head_at is not null)
               from quell_lane l)
         select id as lane_id, 0 as dead, 0 as unreadable, due_at
           from first where due_at is not null
          union all
         -- R11: those that wait for their key are few, one for each attempt that runs.
         select lane_id, 0, 0, due_at from quell_job where waits = 1 and state = 0
          union all
         select l.id, ",
        in_trouble!("3"),
        ",",
        in_trouble!("6"),
        ", null from quell_lane l
          union all
         -- With those whose lane is unknown.
         select null, 0, (select count(*) from (select 1 from quell_unreadable limit ?1 + 0)), null"
    );
    let what = "look at queues for alerts";
    let clock = sqlx::query("select max(?1, clock) from quell_meta").bind(now.as_micros());
    let clock = clock.fetch_one(&mut *db).await.map_err(|e| explain(what, e))?;
    let rows = sqlx::query(LANES).bind(signed(Overview::MOST)).fetch_all(db).await;
    let (mut lanes, mut all_unreadable) = (BTreeMap::new(), 0);
    for row in &rows.map_err(|e| explain(what, e))? {
        let (dead, unreadable) = (unsigned(get(row, 1)?), unsigned(get(row, 2)?));
        let first_due = optional_time(row, 3)?;
        let Some(lane) = get::<Option<i64>, _>(row, 0)? else {
            all_unreadable = unreadable;
            continue;
        };
        if dead == 0 && unreadable == 0 && first_due.is_none() {
            continue;
        }
        let lane = names.lane(lane).ok_or_else(|| corrupt("the lane of a job"))?;
        let (queue, task) = (lane.queue.clone(), lane.task.clone());
        let names = (queue.clone(), task.clone());
        let empty = LaneOverview { queue, task, dead: 0, unreadable: 0, first_due: None };
        let seen: &mut LaneOverview = lanes.entry(names).or_insert(empty);
        seen.dead += dead;
        seen.unreadable += unreadable;
        seen.first_due = seen.first_due.into_iter().chain(first_due).min();
    }
    let lanes = lanes.into_values().collect();
    Ok(Overview { now: time(&clock, 0)?, lanes, unreadable: all_unreadable })
}

/// All alerts, by name.
pub(crate) async fn read_alerts(db: &mut SqliteConnection) -> Result<Vec<AlertRow>> {
    let sql = "select name, version, state from quell_alert order by name";
    let rows = sqlx::query(sql).fetch_all(db).await.map_err(|e| explain("read alerts", e))?;
    let decode = |row: &SqliteRow| {
        let name: &str = get(row, 0)?;
        let state = serde_json::from_str(get(row, 2)?)
            .map_err(|error| corrupt(format_args!("the state of alert {name}: {error}")))?;
        Ok(AlertRow { name: AlertName::new(name)?, version: unsigned(get(row, 1)?), state })
    };
    rows.iter().map(decode).collect()
}

impl Tx<'_> {
    /// Writes an alert's row, if it still has this version; says whether it did.
    pub(crate) async fn set_alert(
        &mut self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        const MAKE: &str = "insert into quell_alert (name, version, state)
             select ?1, ?2 + 1, ?3 where true on conflict do nothing";
        const CHANGE: &str = "update quell_alert set version = version + 1, state = ?3
              where name = ?1 and version = ?2";
        const REMOVE: &str = "delete from quell_alert where name = ?1 and version = ?2";
        let sql = match (state, version) {
            (Some(_), 0) => MAKE,
            (Some(_), _) => CHANGE,
            (None, _) => REMOVE,
        };
        let query = sqlx::query(sql).bind(name.as_str().to_owned()).bind(signed(version));
        let query = match state {
            Some(state) => query.bind(json(state)?),
            None => query,
        };
        let written = query.execute(&mut *self.db).await;
        let written = written.map_err(|e| explain("write an alert", e))?.rows_affected();
        if written > 0 || state.is_some() || version > 0 {
            return Ok(written > 0);
        }
        // Nothing to remove, and nothing was expected.
        Ok(read_alerts(&mut self.db).await?.iter().all(|row| row.name != *name))
    }
}
