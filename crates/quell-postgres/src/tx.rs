//! One transaction of several statements, or one statement that is its own.
//!
//! A transaction begins with the store's time, in one trip. If it is dropped before its end, its
//! connection is closed, which rolls it back: nothing else may follow on it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use quell_core::history::Event;
use quell_core::touched::TaskKey;
use quell_core::trigger::Priority;
use quell_core::{Job, JobId, Key, Now, QueueName, Result, TaskName, Timestamp};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Execute, SqlStr};
use tokio::sync::{Mutex, MutexGuard};

use crate::bounded::Bounded;
use crate::connections::{AGAIN, Connections, Held};
use crate::error::{corrupt, explain, explain_commit, is_conflict, is_lost_soon, wants_retry};
use crate::names::{Lane, LaneNames, Names};
use crate::row::{get, time};
use crate::sql::{PgQuery, Sql};
use crate::tries::Tries;

/// What every transaction sets, and every session where no pooler is in the way. Tables of a queue
/// change faster than their statistics, and each statement here has an index that was made for it.
///
/// A process that is suspended inside a transaction holds its locks no longer than the last one says.
pub(crate) const SESSION: [&str; 8] = [
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "plan_cache_mode = force_generic_plan",
    "jit = off",
    "default_transaction_isolation = 'read committed'",
    "idle_in_transaction_session_timeout = '10s'",
];

/// What a session sets of its server's network, where the server knows the setting: a client that is
/// gone without a word is noticed, and does not hold its locks until the kernel gives up.
const TCP: [(&str, &str); 5] = [
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "3"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "10000"),
    // PostgreSQL 14 or later: notices it in the middle of a statement, too.
    ("client_connection_check_interval", "2000"),
];

/// Sets what the server is to do about clients that fall silent.
pub(crate) fn tcp_settings() -> String {
    tolerantly(
        TCP.map(|(name, value)| format!("set_config('{name}', '{value}', false)")).as_slice(),
    )
}

/// Lets the server end a statement before this process gives it up (`limit`), unless it does so
/// earlier already: then the answer is certain, and nothing is left behind that runs on.
pub(crate) fn statement_timeout(limit: Duration) -> String {
    let own = limit.saturating_sub(limit / 10).as_millis().max(1);
    tolerantly(&[format!(
        "set_config('statement_timeout', '{own}', false)
           where current_setting('statement_timeout')::interval = interval '0'
              or current_setting('statement_timeout')::interval > interval '{own} milliseconds'"
    )])
}

/// Runs each of these, whether or not the server can do it.
fn tolerantly(all: &[String]) -> String {
    let each = all
        .iter()
        .map(|one| format!("begin perform {one}; exception when others then null; end; "));
    format!("do $quell$ begin {} end $quell$", each.collect::<String>())
}

/// What is published once the transaction has committed.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// The earliest new due time of each queue.
    pub(crate) wakes: HashMap<QueueName, Timestamp>,
    /// Queues whose limits let more start.
    pub(crate) frees: BTreeSet<QueueName>,
    /// Something may be due in any queue: the inbox holds more than one transaction folds, or a
    /// task was resumed.
    pub(crate) wakes_all: bool,
    /// When workers, who may know of later ticks only, are to ask for ticks.
    pub(crate) next_tick: Option<Timestamp>,
    /// Jobs that have ended.
    pub(crate) ended: Vec<JobId>,
    /// Running jobs that were cancelled.
    pub(crate) cancelled: Vec<JobId>,
    pub(crate) events: Vec<Event>,
}

impl Outgoing {
    /// What a step of the engine publishes.
    pub(crate) fn of(step: &quell_core::part::Notifications) -> Self {
        Outgoing {
            wakes: step.wakes.iter().map(|(queue, due)| (queue.clone(), *due)).collect(),
            next_tick: step.next_tick,
            ended: step.ended.clone(),
            cancelled: step.cancelled.clone(),
            events: step.events.clone(),
            ..Outgoing::default()
        }
    }

    /// Takes in what comes after it.
    pub(crate) fn append(&mut self, news: Outgoing) {
        for (queue, due) in &news.wakes {
            self.wake(queue, *due);
        }
        self.frees.extend(news.frees);
        self.wakes_all |= news.wakes_all;
        self.next_tick = self.next_tick.into_iter().chain(news.next_tick).min();
        self.ended.extend(news.ended);
        self.cancelled.extend(news.cancelled);
        self.events.extend(news.events);
    }

    /// Notes that something in `queue` is due at `due`.
    pub(crate) fn wake(&mut self, queue: &QueueName, due: Timestamp) {
        match self.wakes.get_mut(queue) {
            Some(earliest) => *earliest = due.min(*earliest),
            None => {
                self.wakes.insert(queue.clone(), due);
            }
        }
    }
}

/// The store's time: asked for, or the server's clock; and what this process has seen (R38).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) now: Now,
    pub(crate) seen: Timestamp,
}

impl Asked {
    /// The values of `$1` and `$2`.
    pub(crate) fn bind(self, query: PgQuery) -> PgQuery {
        query.bind(self.now.map(Timestamp::as_micros)).bind(self.seen.as_micros())
    }

    /// The same two, for a text that has no values.
    pub(crate) fn literals(self) -> String {
        let now = self.now.map_or_else(|| "null".to_owned(), |now| now.as_micros().to_string());
        format!("{now}, {}", self.seen.as_micros())
    }
}

/// A connection within a transaction: dropped, it rolls back.
#[derive(Debug)]
struct Open(Held);

impl Open {
    async fn begin(pool: &Connections, sql: &Sql) -> Result<Self> {
        pool.begin(BEGIN, &begin_text(sql)).await.map(|(db, _)| Open(db))
    }

    async fn fetch(&mut self, what: &'static str, query: PgQuery) -> Result<Vec<PgRow>> {
        self.0.fetch_all(query).await.map_err(|e| explain(what, e))
    }

    async fn commit(mut self) -> Result<()> {
        let committed = self.0.execute(sqlx::raw_sql("commit")).await;
        committed.map_err(|e| explain_commit("commit", e))?;
        self.0.release();
        Ok(())
    }

    async fn roll_back(mut self) {
        // Where this fails, the connection is closed, which rolls back too.
        if self.0.is_sound() && self.0.execute(sqlx::raw_sql("rollback")).await.is_ok() {
            self.0.release();
        }
    }
}

/// An open transaction.
#[derive(Debug)]
pub(crate) struct Tx {
    open: Open,
    pub(crate) sql: Arc<Sql>,
    pub(crate) names: Arc<Names>,
    /// When the call takes effect: see [`Tx::read_clock`].
    pub(crate) now: Timestamp,
    pub(crate) asked: Asked,
    pub(crate) inbox_waits: bool,
    /// The windows that were locked as it began; the time was read after that.
    pub(crate) opened: Option<Vec<PgRow>>,
    pub(crate) news: Outgoing,
    pub(crate) has_history: bool,
    /// Dedup keys that were there when this call locked them.
    pub(crate) locked: BTreeSet<TaskKey>,
    /// Idempotency keys that were.
    pub(crate) locked_records: BTreeSet<TaskKey>,
    /// Names without a number, which are made in a transaction of their own before another try.
    pub(crate) unnamed: Unnamed,
}

/// Names without a number.
#[derive(Debug, Default)]
pub(crate) struct Unnamed {
    pub(crate) lanes: Vec<LaneNames>,
    pub(crate) partitions: Vec<Key>,
}

impl Unnamed {
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.partitions.is_empty()
    }
}

impl Tx {
    /// Begins a transaction at the store's time, with what [`opening`](crate::hot::opening::opening) says.
    pub(crate) async fn begin(
        pool: &Connections,
        (sql, names): (&Arc<Sql>, &Arc<Names>),
        asked: Asked,
        has_history: bool,
        opening: Option<String>,
    ) -> Result<Self> {
        // An opening returns the time itself, once its rows are locked.
        let time_of_begin = match opening {
            Some(_) => "0::bigint".to_owned(),
            None => format!("quell.peek({})", asked.literals()),
        };
        let mut text = sql.rewrite(&format!(
            "{}; select {time_of_begin}, exists (select from quell.inbox where refused is null)",
            begin_text(sql),
        ));
        text.push_str(opening.as_deref().unwrap_or_default());
        let (db, mut rows) = pool.begin(BEGIN, &text).await?;
        let open = Open(db);
        let head = first(&rows)?;
        let (mut now, inbox_waits) = (time(head, 0)?, get(head, 1)?);
        let opened = match opening.and_then(|_| rows.pop()) {
            Some(last) => {
                now = time(&last, 0)?;
                Some(rows.split_off(1))
            }
            None => None,
        };
        Ok(Tx {
            open,
            sql: Arc::clone(sql),
            names: Arc::clone(names),
            now,
            asked,
            inbox_waits,
            // What the inbox holds comes first.
            opened: opened.filter(|_| !inbox_waits),
            news: Outgoing::default(),
            has_history,
            locked: BTreeSet::new(),
            locked_records: BTreeSet::new(),
            unnamed: Unnamed::default(),
        })
    }

    /// The connection.
    pub(crate) fn db(&mut self) -> &mut Bounded {
        &mut self.open.0
    }

    /// As [`Tx::asked`], now that this call has its time.
    pub(crate) fn asked_now(&self) -> Asked {
        Asked { now: Some(self.now), seen: self.now }
    }

    /// The time now that all rows are locked which decide: what another call did to them while this
    /// one waited happened before.
    pub(crate) async fn read_clock(&mut self) -> Result<()> {
        let query = self.asked.bind(self.sql.query("select quell.tick($1, $2)"));
        let rows = self.fetch("read the time", query).await?;
        self.now = self.now.max(time(first(&rows)?, 0)?);
        Ok(())
    }

    /// Makes everything durable; returns what to publish.
    pub(crate) async fn commit(self) -> Result<Outgoing> {
        self.open.commit().await?;
        Ok(self.news)
    }

    /// Undoes everything.
    pub(crate) async fn roll_back(self) {
        self.open.roll_back().await;
    }

    /// The lane and the partition's number of a job. Where it has none, the call is tried again
    /// once it has.
    pub(crate) fn name(&mut self, job: &Job) -> Option<(Arc<Lane>, i32)> {
        let partition = match &job.partition {
            None => Some(0),
            Some(partition) => self.names.partition_id(partition),
        };
        if let (None, Some(partition)) = (partition, &job.partition) {
            self.unnamed.partitions.push(partition.clone());
        }
        self.lane(&job.queue, &job.task, job.priority).zip(partition)
    }

    /// As [`Tx::name`], by the names themselves.
    pub(crate) fn lane(
        &mut self,
        queue: &QueueName,
        task: &TaskName,
        priority: Priority,
    ) -> Option<Arc<Lane>> {
        let lane = self.names.find(queue, task, priority);
        if lane.is_none() {
            self.unnamed.lanes.push((queue.clone(), task.clone(), priority));
        }
        lane
    }

    /// Fails where names without a number were met.
    pub(crate) fn check_named(&self) -> Result<()> {
        if self.unnamed.is_empty() { Ok(()) } else { Err(corrupt("a name without a number")) }
    }

    pub(crate) async fn fetch(&mut self, what: &'static str, query: PgQuery) -> Result<Vec<PgRow>> {
        self.open.fetch(what, query).await
    }

    pub(crate) async fn run(&mut self, what: &'static str, query: PgQuery) -> Result<()> {
        self.run_counted(what, query).await.map(drop)
    }

    /// Runs a statement; returns how many rows it affected.
    pub(crate) async fn run_counted(&mut self, what: &'static str, query: PgQuery) -> Result<u64> {
        let ran = self.open.0.execute(query).await;
        ran.map_err(|e| explain(what, e))
    }

    pub(crate) fn record_event(&mut self, event: impl FnOnce() -> Event) {
        if self.has_history {
            self.news.events.push(event());
        }
    }
}

fn begin_text(sql: &Sql) -> String {
    let mut text = "begin isolation level read committed".to_owned();
    if !sql.is_persistent() {
        // A pooler hands each transaction to any session.
        for setting in SESSION.iter().filter(|setting| !setting.starts_with("default_")) {
            text.push_str("; set local ");
            text.push_str(setting);
        }
    }
    text
}

const BEGIN: &str = "begin a transaction";
const WHAT: &str = "run a statement that commits";

/// A statement that can be sent again.
struct Statement {
    text: SqlStr,
    values: PgArguments,
    persistent: bool,
}

impl Statement {
    fn of(mut query: PgQuery) -> std::result::Result<Self, sqlx::Error> {
        let values = query.take_arguments().map_err(sqlx::Error::Encode)?.unwrap_or_default();
        Ok(Statement { persistent: Execute::persistent(&query), text: query.sql(), values })
    }

    fn query(&self) -> PgQuery {
        sqlx::query_with(self.text.clone(), self.values.clone()).persistent(self.persistent)
    }
}

/// Runs a statement that is a transaction of its own and writes.
///
/// Where the server ended the session before it took the statement, or undid it for a conflict with
/// another call, the statement is sent again.
pub(crate) async fn one_shot(pool: &Connections, sql: &Sql, query: PgQuery) -> Result<Vec<PgRow>> {
    one_shot_in_order(pool, sql, query, None).await.map(|(rows, _)| rows)
}

/// Runs statements in one transaction, and undoes it.
pub(crate) async fn rehearse(
    pool: &Connections,
    sql: &Sql,
    queries: impl IntoIterator<Item = PgQuery>,
) -> Result<()> {
    let mut open = Open::begin(pool, sql).await?;
    let mut done = Ok(());
    for query in queries {
        done = open.fetch("rehearse a statement", query).await.map(drop);
        if done.is_err() {
            break;
        }
    }
    // After an error too: the connection is the one that jobs use.
    open.roll_back().await;
    done
}

/// As [`one_shot`], with what orders the commits of this process where they are put on record: it is
/// held from before the commit until the caller has done so.
pub(crate) async fn one_shot_in_order<'o>(
    pool: &Connections,
    sql: &Sql,
    query: PgQuery,
    order: Option<&'o Mutex<()>>,
) -> Result<(Vec<PgRow>, Option<MutexGuard<'o, ()>>)> {
    let statement = Statement::of(query).map_err(|e| explain(WHAT, e))?;
    let mut tries = Tries::new();
    loop {
        let done = if order.is_none() && sql.is_persistent() {
            let rows = run_again(pool, WHAT, &statement, Bounded::was_undone, explain_commit).await;
            rows.map(|rows| (rows, None))
        } else {
            in_transaction(pool, sql, &statement, order).await
        };
        match done {
            Err(error) if wants_retry(&error) && tries.again().await => {}
            done => return done,
        }
    }
}

async fn in_transaction<'o>(
    pool: &Connections,
    sql: &Sql,
    statement: &Statement,
    order: Option<&'o Mutex<()>>,
) -> Result<(Vec<PgRow>, Option<MutexGuard<'o, ()>>)> {
    let mut open = Open::begin(pool, sql).await?;
    let rows = match open.fetch(WHAT, statement.query()).await {
        Ok(rows) => rows,
        Err(error) => {
            open.roll_back().await;
            return Err(error);
        }
    };
    let ordered = match order {
        Some(order) => Some(order.lock().await),
        None => None,
    };
    open.commit().await?;
    Ok((rows, ordered))
}

/// Runs a statement that only reads.
pub(crate) async fn read(
    pool: &Connections,
    sql: &Sql,
    what: &'static str,
    query: PgQuery,
) -> Result<Vec<PgRow>> {
    run_idempotent(pool, sql, (what, query), Ending::RollBack).await
}

/// Runs a statement that is a transaction of its own, and that may be run twice as well as once: it
/// is nothing to a caller whether it was done when it fails.
pub(crate) async fn repeatable(
    pool: &Connections,
    sql: &Sql,
    what: &'static str,
    query: PgQuery,
) -> Result<Vec<PgRow>> {
    run_idempotent(pool, sql, (what, query), Ending::Commit).await
}

/// How a transaction of a statement that may be run twice ends.
enum Ending {
    RollBack,
    Commit,
}

async fn run_idempotent(
    pool: &Connections,
    sql: &Sql,
    (what, query): (&'static str, PgQuery),
    ending: Ending,
) -> Result<Vec<PgRow>> {
    if sql.is_persistent() {
        let statement = Statement::of(query).map_err(|e| explain(what, e))?;
        return run_again(pool, what, &statement, |_, error| is_lost_soon(error), explain).await;
    }
    let mut open = Open::begin(pool, sql).await?;
    let rows = open.fetch(what, query).await?;
    match ending {
        Ending::RollBack => open.roll_back().await,
        Ending::Commit => {
            let committed = open.0.execute(sqlx::raw_sql("commit")).await;
            committed.map_err(|e| explain(what, e))?;
            open.0.release();
        }
    }
    Ok(rows)
}

/// Runs a statement, and again on another connection after a failure that `may_repeat`. Every other
/// failure is as `explain_other` says.
async fn run_again(
    pool: &Connections,
    what: &'static str,
    statement: &Statement,
    may_repeat: impl Fn(&Bounded, &sqlx::Error) -> bool,
    explain_other: fn(&'static str, sqlx::Error) -> quell_core::Error,
) -> Result<Vec<PgRow>> {
    let mut tries = 0;
    loop {
        let mut db = pool.acquire().await?;
        match db.fetch_all(statement.query()).await {
            Ok(rows) => {
                db.release();
                return Ok(rows);
            }
            Err(error) if !may_repeat(&db, &error) => {
                if is_conflict(&error) && db.is_sound() {
                    db.release();
                }
                return Err(explain_other(what, error));
            }
            Err(_) if tries < AGAIN => tries += 1,
            Err(error) => return Err(explain(what, error)),
        }
    }
}

/// The first row of an answer that always has one.
pub(crate) fn first(rows: &[PgRow]) -> Result<&PgRow> {
    rows.first().ok_or_else(|| corrupt("an answer without rows"))
}
