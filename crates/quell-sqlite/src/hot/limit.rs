//! What limits count, in tables: attempts that run, and starts that a rate remembers (R31).
//!
//! The core decides what that leaves free; here is only the counting. A queue without limits costs
//! no statement.

use quell_core::limit::{RatedStarts, WHOLE_QUEUE};
use quell_core::line::{Line, Taken};
use quell_core::{Key, QueueName, Rate, Result, Timestamp, WorkerId};
use sqlx::SqliteConnection;

use crate::error::explain;
use crate::keys::json;
use crate::names::base_lane;
use crate::row::{get, time};
use crate::tx::Tx;

/// What a rate counts of one queue or partition.
#[derive(Debug)]
struct Counted {
    partition: String,
    recent: usize,
    free_at: Timestamp,
}

/// What is taken of the limits; of rates, only the queue's own.
pub(crate) async fn load_taken(
    db: &mut SqliteConnection,
    line: &Line,
    queue: &QueueName,
    worker: Option<&WorkerId>,
) -> Result<Taken> {
    let mut taken = Taken::default();
    if line.settings.limits_concurrency() {
        count_running(&mut taken, db, line, (queue, worker)).await?;
    }
    count_starts(&mut taken, db, line, queue).await?;
    Ok(taken)
}

async fn count_running(
    taken: &mut Taken,
    db: &mut SqliteConnection,
    line: &Line,
    (queue, worker): (&QueueName, Option<&WorkerId>),
) -> Result<()> {
    const RUNNING: &str = concat!(
        "select case when ?3 then j.partition end, count(*), coalesce(sum(j.worker = ?2), 0)
               from quell_job j
               join quell_lane l on l.id = ",
        base_lane!("j"),
        "  join quell_queue q on q.id = l.queue_id
              where j.state = 1 and q.name = ?1
              group by 1"
    );
    let rows = sqlx::query(RUNNING)
        .bind(queue.as_str().to_owned())
        .bind(worker.map(|worker| worker.as_str().to_owned()))
        .bind(line.settings.partition_concurrency.is_some())
        .fetch_all(db)
        .await
        .map_err(|e| explain("count running jobs", e))?;
    for row in &rows {
        let running = count(get(row, 1)?);
        taken.used.running += running;
        taken.used.by_worker += count(get(row, 2)?);
        if let Some(partition) = get::<Option<&str>, _>(row, 0)? {
            taken.partitions.entry(Key::new(partition)?).or_default().running = running;
        }
    }
    Ok(())
}

/// Counts what the queue's rate remembers; again, where that has changed since the line.
pub(crate) async fn count_starts(
    taken: &mut Taken,
    db: &mut SqliteConnection,
    line: &Line,
    queue: &QueueName,
) -> Result<()> {
    if let Some(rate) = line.settings.rate {
        let counted = counted(db, queue, &[WHOLE_QUEUE], (rate, line.now)).await?.pop();
        taken.used.recent = counted.as_ref().map_or(0, |counted| counted.recent);
        taken.free_at = counted.map_or(Timestamp::MIN, |counted| counted.free_at);
    }
    Ok(())
}

/// Counts what the rate of these partitions remembers.
pub(crate) async fn count_partitions(
    db: &mut SqliteConnection,
    line: &mut Line,
    queue: &QueueName,
    names: &[&str],
) -> Result<()> {
    let Some(rate) = line.settings.partition_rate.filter(|_| !names.is_empty()) else {
        return Ok(());
    };
    for counted in counted(db, queue, names, (rate, line.now)).await? {
        let used = line.taken.partitions.entry(Key::new(&counted.partition)?).or_default();
        (used.recent, used.free_at) = (counted.recent, counted.free_at);
    }
    Ok(())
}

/// What a rate counts at a moment, of each of these that has such starts.
async fn counted(
    db: &mut SqliteConnection,
    queue: &QueueName,
    partitions: &[&str],
    (rate, now): (Rate, Timestamp),
) -> Result<Vec<Counted>> {
    // The oldest start that counts, the newest, and the one that must be past before the next.
    const COUNTED: &str = "select k.value, n.number - o.number + o.starts,
                (select s.at from quell_start s
                  where s.queue_id = q.id and s.partition = k.value
                    and s.at > ?3 and s.number > n.number - ?4
                  order by s.at limit 1)
           from quell_queue q
           cross join json_each(?2) k
           cross join quell_start o on o.queue_id = q.id and o.partition = k.value
                 and o.at = (select min(at) from quell_start
                              where queue_id = q.id and partition = k.value and at > ?3)
           cross join quell_start n on n.queue_id = q.id and n.partition = k.value
                 and n.at = (select max(at) from quell_start
                              where queue_id = q.id and partition = k.value)
          where q.name = ?1";
    let rows = sqlx::query(COUNTED)
        .bind(queue.as_str().to_owned())
        .bind(json(&partitions)?)
        .bind(rate.cutoff(now).as_micros())
        .bind(i64::from(rate.limit))
        .fetch_all(db)
        .await
        .map_err(|e| explain("count starts", e))?;
    let decode = |row| {
        let recent = count(get(row, 1)?);
        let oldest = if rate.room(recent) == 0 { Some(time(row, 2)?) } else { None };
        Ok(Counted { partition: get(row, 0)?, recent, free_at: rate.free_at(oldest) })
    };
    rows.iter().map(decode).collect()
}

impl Tx {
    /// Puts starts on record.
    pub(crate) async fn record_starts(&mut self, starts: &RatedStarts<'_>) -> Result<()> {
        const RECORD: &str = "insert into quell_start
                    (queue_id, partition, at, starts, number, expires_at)
             select ?1, k.value ->> 0, ?2, k.value ->> 1,
                    (k.value ->> 1) + coalesce((select s.number from quell_start s
                                                 where s.queue_id = ?1
                                                   and s.partition = k.value ->> 0
                                                 order by s.at desc limit 1), 0),
                    ?4
               from json_each(?3) k
              where true
             on conflict (queue_id, partition, at) do update set
                 starts = starts + excluded.starts, number = excluded.number";
        const FORGET: &str = "delete from quell_start
              where queue_id = ?1 and partition in (select value ->> 0 from json_each(?3))
                and at <= ?2";
        let queue_id = self.names().queue_id(starts.queue);
        let scopes = json(&starts.counts.iter().collect::<Vec<_>>())?;
        sqlx::query(RECORD)
            .bind(queue_id)
            .bind(self.now.as_micros())
            .bind(scopes.clone())
            .bind((self.now + starts.rate.period).as_micros())
            .execute(&mut self.writer.db)
            .await
            .map_err(|e| explain("record starts", e))?;
        let forget = sqlx::query(FORGET).bind(queue_id);
        let forget = forget.bind(starts.rate.cutoff(self.now).as_micros()).bind(scopes);
        let forgot = forget.execute(&mut self.writer.db).await;
        forgot.map(drop).map_err(|e| explain("forget old starts", e))
    }
}

fn count(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}
