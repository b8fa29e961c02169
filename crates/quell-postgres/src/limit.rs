//! What limits count, in tables: attempts that run, and starts that a rate remembers (R31).
//!
//! The core decides what that leaves free; here is only the counting. A queue without limits costs
//! no statement.

use std::collections::BTreeMap;

use quell_core::line::{Line, Taken};
use quell_core::{Key, QueueName, QueueSettings, Rate, Result, Timestamp, WorkerId};
use sqlx::postgres::PgRow;

use crate::row::{get, optional_time};
use crate::sql::{PgQuery, Sql};
use crate::tx::Tx;

/// The partition under which a queue's own starts are kept; no partition is called so.
const WHOLE: &str = "";

/// Counts what is taken of a queue's limits, one statement after the other, whoever runs them.
#[derive(Debug)]
pub(crate) struct Counting<'l> {
    pub(crate) taken: Taken,
    line: &'l Line,
    queue: &'l QueueName,
    worker: Option<&'l WorkerId>,
    /// What is still to be asked, last first.
    left: Vec<Count<'l>>,
    asked: Option<Count<'l>>,
}

#[derive(Clone, Debug)]
enum Count<'l> {
    Running,
    Starts(Rate, Vec<&'l str>),
}

impl<'l> Counting<'l> {
    pub(crate) fn new(
        line: &'l Line,
        queue: &'l QueueName,
        worker: Option<&'l WorkerId>,
    ) -> Counting<'l> {
        let settings = &line.settings;
        let mut left = Vec::new();
        left.extend(settings.limits_concurrency().then_some(Count::Running));
        left.extend(settings.rate.map(|rate| Count::Starts(rate, vec![WHOLE])));
        let names: Vec<&str> = line.partitions().into_iter().map(Key::as_str).collect();
        let of_partitions = settings.partition_rate.filter(|_| !names.is_empty());
        left.extend(of_partitions.map(|rate| Count::Starts(rate, names)));
        Counting { taken: Taken::default(), line, queue, worker, left, asked: None }
    }

    /// The next statement, if there is one; its rows are to be given to [`Counting::take`].
    pub(crate) fn next(&mut self, sql: &Sql) -> Option<PgQuery> {
        const RUNNING: &str = "select case when $3 then j.partition end, count(*),
                    count(*) filter (where j.worker = $2)
               from quell.job j
              where j.state = 1
                and j.lane_id = any(array(
                        select l.id from quell.queue q
                          join quell.lane l on l.queue_id = q.id
                         where q.name = $1))
              group by 1";
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
        self.asked = self.left.pop();
        let queue = self.queue.as_str().to_owned();
        Some(match self.asked.as_ref()? {
            Count::Running => sql
                .query(RUNNING)
                .bind(queue)
                .bind(self.worker.map(|worker| worker.as_str().to_owned()))
                .bind(self.line.settings.partition_concurrency.is_some()),
            Count::Starts(rate, names) => sql
                .query(COUNTED)
                .bind(queue)
                .bind(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
                .bind(rate.cutoff(self.line.now).as_micros())
                .bind(i64::from(rate.limit)),
        })
    }

    pub(crate) fn take(&mut self, rows: &[PgRow]) -> Result<()> {
        let Some(asked) = self.asked.take() else { return Ok(()) };
        for row in rows {
            let counted = count(get(row, 1)?);
            match &asked {
                Count::Running => {
                    self.taken.used.running += counted;
                    self.taken.used.by_worker += count(get(row, 2)?);
                    if let Some(partition) = get::<Option<&str>, _>(row, 0)? {
                        let partition = Key::new(partition)?;
                        self.taken.partitions.entry(partition).or_default().running = counted;
                    }
                }
                Count::Starts(rate, _) => {
                    let oldest = optional_time(row, 2)?.filter(|_| rate.room(counted) == 0);
                    let free_at = rate.free_at(oldest);
                    let partition: &str = get(row, 0)?;
                    if partition == WHOLE {
                        self.taken.used.recent = counted;
                        self.taken.free_at = free_at;
                    } else {
                        let used = self.taken.partitions.entry(Key::new(partition)?).or_default();
                        (used.recent, used.free_at) = (counted, free_at);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Tx<'_> {
    /// What is taken of the limits of a queue.
    pub(crate) async fn count_taken(
        &mut self,
        line: &Line,
        queue: &QueueName,
        worker: &WorkerId,
    ) -> Result<Taken> {
        let mut counting = Counting::new(line, queue, Some(worker));
        while let Some(query) = counting.next(self.sql) {
            counting.take(&self.fetch("count what is taken of limits", query).await?)?;
        }
        Ok(counting.taken)
    }

    /// Puts starts on record, by partition, where a rate counts them.
    pub(crate) async fn record_starts(
        &mut self,
        queue: &QueueName,
        settings: &QueueSettings,
        started: &[Option<&Key>],
    ) -> Result<()> {
        if let Some(rate) = settings.rate {
            let whole = BTreeMap::from([(WHOLE, started.len())]);
            self.record_of_rate(queue, &rate, &whole).await?;
        }
        let mut partitions = BTreeMap::<&str, usize>::new();
        for partition in started.iter().copied().flatten() {
            *partitions.entry(partition.as_str()).or_default() += 1;
        }
        if let Some(rate) = settings.partition_rate.filter(|_| !partitions.is_empty()) {
            self.record_of_rate(queue, &rate, &partitions).await?;
        }
        Ok(())
    }

    /// The queue's row is locked, so nobody else counts meanwhile.
    async fn record_of_rate(
        &mut self,
        queue: &QueueName,
        rate: &Rate,
        starts: &BTreeMap<&str, usize>,
    ) -> Result<()> {
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
        let name = queue.as_str().to_owned();
        let names: Vec<String> = starts.keys().map(|name| (*name).to_owned()).collect();
        let counts: Vec<i64> =
            starts.values().map(|count| i64::try_from(*count).unwrap_or(i64::MAX)).collect();
        let query = self
            .sql
            .query(RECORD)
            .bind(name.clone())
            .bind(names.clone())
            .bind(counts)
            .bind(self.now.as_micros())
            .bind((self.now + rate.period).as_micros());
        self.run("record starts", query).await?;
        let query = self.sql.query(FORGET).bind(name).bind(names);
        let query = query.bind(rate.cutoff(self.now).as_micros());
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
