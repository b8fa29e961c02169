//! What limits count, in tables: attempts that run, and starts that a rate remembers (R31).
//!
//! The core decides what that leaves free; here is only the counting. A queue without limits costs
//! no statement.

use quell_core::limit::{PartitionUsed, RatedStarts, WHOLE_QUEUE};
use quell_core::line::Line;
use quell_core::{Key, QueueSettings, Rate, Result, Timestamp};

use crate::hot::look::{Ask, Looking};
use crate::row::{get, optional_time};
use crate::tx::Tx;

/// Counts the attempts of a queue that run; the partitions in which no more may.
pub(crate) async fn count_running(
    by: &mut impl Ask,
    looking: &Looking<'_>,
    line: &mut Line,
) -> Result<Vec<i32>> {
    // It reads all that runs in the store, which its workers' slots bound: an index of what runs of a
    // lane would cost each start of any queue a twentieth of its time.
    const RUNNING: &str = "select case when $3 then j.partition end,
                case when $3 then j.partition_id else 0 end, count(*),
                count(*) filter (where j.worker = $2)
           from quell.job j
          where j.state = 1
            and j.lane_id = any(array(
                    select l.id from quell.queue q
                      join quell.lane l on l.queue_id = q.id
                     where q.name = $1))
          group by 1, 2";
    let (settings, taken) = (&line.settings, &mut line.taken);
    let query = looking.sql.query(RUNNING).bind(looking.queue.as_str().to_owned());
    let query = query.bind(looking.worker.map(|worker| worker.as_str().to_owned()));
    let query = query.bind(settings.partition_concurrency.is_some());
    let mut full = Vec::new();
    for row in &by.ask("count what runs of a queue", query).await? {
        let running = count(get(row, 2)?);
        taken.used.running += running;
        taken.used.by_worker += count(get(row, 3)?);
        if let Some(partition) = get::<Option<&str>, _>(row, 0)? {
            let used = taken.partitions.entry(Key::new(partition)?).or_default();
            used.running = running;
            if settings.partition_room(used) == 0 {
                full.push(get(row, 1)?);
            }
        }
    }
    Ok(full)
}

/// Counts the starts that the queue's own rate remembers.
pub(crate) async fn count_starts_of_queue(
    by: &mut impl Ask,
    looking: &Looking<'_>,
    line: &mut Line,
    rate: Rate,
) -> Result<()> {
    for (_, used) in count_starts(by, looking, line.now, rate, &[WHOLE_QUEUE]).await? {
        line.taken.used.recent = used.recent;
        line.taken.free_at = used.free_at;
    }
    Ok(())
}

/// Counts the starts of these partitions that the rate of partitions remembers.
pub(crate) async fn count_starts_of_partitions(
    by: &mut impl Ask,
    looking: &Looking<'_>,
    line: &mut Line,
    rate: Rate,
    partitions: &[Key],
) -> Result<()> {
    let names: Vec<&str> = partitions.iter().map(Key::as_str).collect();
    for (partition, recent) in count_starts(by, looking, line.now, rate, &names).await? {
        let used = line.taken.partitions.entry(Key::new(&*partition)?).or_default();
        (used.recent, used.free_at) = (recent.recent, recent.free_at);
    }
    Ok(())
}

/// The starts that a rate counts of each of these, and when it lets the next one start.
async fn count_starts(
    by: &mut impl Ask,
    looking: &Looking<'_>,
    now: Timestamp,
    rate: Rate,
    names: &[&str],
) -> Result<Vec<(String, PartitionUsed)>> {
    // The oldest start that counts, the newest, and the one that must be past before the next.
    const COUNTED: &str = "select k.name, n.number - o.number + o.starts,
                (select s.at from quell.start s
                  where s.queue_id = q.id and s.partition = k.name
                    and s.at > $3 and s.number > n.number - $4
                  order by s.at limit 1)
           from quell.queue q
          cross join unnest($2::text[]) k (name)
          cross join lateral (
                select s.number, s.starts from quell.start s
                 where s.queue_id = q.id and s.partition = k.name and s.at > $3
                 order by s.at limit 1) o
          cross join lateral (
                select s.number from quell.start s
                 where s.queue_id = q.id and s.partition = k.name
                 order by s.at desc limit 1) n
          where q.name = $1";
    let query = looking.sql.query(COUNTED).bind(looking.queue.as_str().to_owned());
    let query = query.bind(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let query = query.bind(rate.cutoff(now).as_micros()).bind(i64::from(rate.limit));
    let mut counted = Vec::with_capacity(names.len());
    for row in &by.ask("count the starts that a rate remembers", query).await? {
        let recent = count(get(row, 1)?);
        let oldest = optional_time(row, 2)?.filter(|_| rate.room(recent) == 0);
        let used = PartitionUsed { recent, free_at: rate.free_at(oldest), ..Default::default() };
        counted.push((get::<&str, _>(row, 0)?.to_owned(), used));
    }
    Ok(counted)
}

impl Tx {
    /// Puts starts on record. The queue's row is locked, so no other call counts meanwhile.
    pub(crate) async fn record_starts(&mut self, starts: &RatedStarts<'_>) -> Result<()> {
        const RECORD: &str = "insert into quell.start as mine
                    (queue_id, partition, at, starts, number, expires_at)
             select q.id, k.name, $4, k.starts,
                    k.starts + coalesce((select s.number from quell.start s
                                          where s.queue_id = q.id and s.partition = k.name
                                          order by s.at desc limit 1), 0),
                    $5
               from quell.queue q, unnest($2::text[], $3::bigint[]) k (name, starts)
              where q.name = $1
                 on conflict (queue_id, partition, at) do update set
                    starts = mine.starts + excluded.starts, number = excluded.number";
        const FORGET: &str = "delete from quell.start
              where queue_id = (select id from quell.queue where name = $1)
                and partition = any($2) and at <= $3";
        let name = starts.queue.as_str().to_owned();
        let names: Vec<String> = starts.counts.keys().map(|name| (*name).to_owned()).collect();
        let counts: Vec<i64> =
            starts.counts.values().map(|count| i64::try_from(*count).unwrap_or(i64::MAX)).collect();
        let query = self
            .sql
            .query(RECORD)
            .bind(name.clone())
            .bind(names.clone())
            .bind(counts)
            .bind(self.now.as_micros())
            .bind((self.now + starts.rate.period).as_micros());
        self.run("record starts", query).await?;
        let query = self.sql.query(FORGET).bind(name).bind(names);
        let query = query.bind(starts.rate.cutoff(self.now).as_micros());
        self.run("forget old starts", query).await
    }

    /// A rate counts from when it was set; a longer period counts what the shorter one did.
    pub(crate) async fn change_rates(
        &mut self,
        queue_id: i32,
        was: &QueueSettings,
        to: &QueueSettings,
    ) -> Result<()> {
        // A partition's name is never empty; the queue's own is.
        const FORGET: &str = "delete from quell.start
              where queue_id = $1 and (partition = '') = $2 and at <= $3";
        const KEEP: &str = "update quell.start set expires_at = at + $3
              where queue_id = $1 and (partition = '') = $2";
        let scopes = [(true, was.rate, to.rate), (false, was.partition_rate, to.partition_rate)];
        for (whole, was, to) in scopes {
            let Some(was) = was else { continue };
            let cutoff = match to {
                None => Timestamp::MAX,
                Some(to) if was.period < to.period => was.cutoff(self.now),
                Some(_) => continue,
            };
            let query = self.sql.query(FORGET).bind(queue_id).bind(whole);
            self.run("forget old starts", query.bind(cutoff.as_micros())).await?;
            if let Some(to) = to {
                // Far enough from the end of time that the sum stays a number.
                let period = i64::try_from(to.period.as_micros()).unwrap_or(i64::MAX);
                let query = self.sql.query(KEEP).bind(queue_id).bind(whole);
                self.run("keep starts for longer", query.bind(period.min(i64::MAX / 2))).await?;
            }
        }
        Ok(())
    }
}

fn count(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}
