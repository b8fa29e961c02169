//! A schema of its own on the server that tests share, and callers' own connections to it.

use std::process::Output;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use quell_conformance::rig::{lease, until};
use quell_conformance::suite::transactions::{Connection, Success};
use quell_conformance::{Opened, Rig};
use quell_core::history::{Event, History};
use quell_core::{
    Batch, Claim, Claimed, Draw, Error, Location, Now, Outcome, Result, Settlement, Store,
};
use quell_postgres::{PostgresOptions, PostgresStore, settle_in, trigger_in};
use quell_services::{psql, url_for_tests};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// How many jobs no head leads to.
pub(crate) const MISSED: &str = "select count(*) from quell.job j
      where j.partition_id <> 0 and j.state = 0 and j.behind is null
        and not exists (
            select from quell.head h
             where h.lane_id = j.lane_id and h.partition_id = j.partition_id
               and (h.due_at, h.job_id) <= (j.due_at, j.id))";

/// A schema, which is made when the first store opens it.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) url: String,
}

impl Scene {
    /// Its sessions are known by the name of the schema.
    pub(crate) fn new() -> Self {
        let url = url_for_tests();
        let (server, schema) = url.split_once("?schema=").unwrap();
        Scene { url: format!("{server}?application_name={schema}&schema={schema}") }
    }

    pub(crate) async fn store(&self) -> Arc<PostgresStore> {
        Arc::new(PostgresStore::open(&self.url).await.unwrap())
    }

    /// A store in virtual time.
    pub(crate) async fn rig(&self) -> Rig {
        Rig::new(Opened { store: self.store().await, guard: Box::new(()) })
    }

    /// The URL without what only Quell knows.
    pub(crate) fn plain_url(&self) -> &str {
        self.url.split('?').next().unwrap()
    }

    pub(crate) fn schema(&self) -> &str {
        self.url.rsplit_once("schema=").unwrap().1
    }

    /// A caller's own connection.
    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(self.plain_url()).await.unwrap()
    }

    /// A caller, whose table is made here.
    pub(crate) async fn caller(&self) -> Caller {
        self.sql("create table if not exists quell.written (one int)");
        Caller { db: self.connect().await, schema: self.schema().to_owned() }
    }

    /// Runs a script as a user of `psql` would; `quell.` in it stands for the schema.
    pub(crate) fn psql(&self, script: &str) -> Output {
        let script = script.replace("quell.", &format!("{}.", self.schema()));
        let mut psql = psql(self.plain_url());
        psql.env("PGAPPNAME", format!("script {}", self.schema()))
            .args(["--command", &script])
            .output()
            .unwrap()
    }

    /// As [`Scene::psql`]; errors are printed with their codes.
    pub(crate) fn psql_verbose(&self, script: &str) -> Output {
        let script = script.replace("quell.", &format!("{}.", self.schema()));
        let mut psql = psql(self.plain_url());
        psql.args(["--set", "VERBOSITY=verbose", "--command", &script]).output().unwrap()
    }

    /// As [`Scene::psql`]; returns what it printed, and fails where psql did.
    pub(crate) fn sql(&self, script: &str) -> String {
        let output = self.psql(script);
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Closes a store, or what holds it, and waits until its sessions and those of scripts are gone: a session
    /// hands in what it has counted late, and all of it at its end.
    pub(crate) async fn close(&self, store: impl Sized) {
        let schema = self.schema();
        let sessions = format!(
            "select count(*) filter (where application_name = '{schema}'), count(*)
               from pg_stat_activity
              where application_name in ('{schema}', 'quell hints {schema}', 'script {schema}')
                and pid <> pg_backend_pid()"
        );
        assert!(!self.sql(&sessions).starts_with("0|"), "its sessions are known by their name");
        drop(store);
        until("its sessions have ended", async || self.sql(&sessions) == "0|0").await;
    }

    /// The blocks of the tables with names like these, and of their indexes, that sessions touched which have
    /// ended.
    pub(crate) fn blocks_touched(&self, tables: &[&str]) -> u64 {
        let sum = format!(
            "select sum(heap_blks_hit + heap_blks_read
                        + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))
               from pg_statio_all_tables
              where schemaname = '{}' and relname like any('{{{}}}')",
            self.schema(),
            tables.join(",")
        );
        self.sql(&sum).parse().unwrap()
    }

    /// The rows of a table that were read, by any means, by sessions that have ended.
    pub(crate) fn rows_read(&self, table: &str) -> u64 {
        let read = self.sql(&format!(
            "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))
               from pg_stat_all_tables
              where schemaname = '{}' and relname ~ '^{table}(_[0-8])?$'",
            self.schema()
        ));
        read.parse().unwrap()
    }

    /// A store with one session.
    pub(crate) async fn one_session(&self) -> PostgresStore {
        let options = PostgresOptions::from_url(&self.url).unwrap();
        options.connections(1).open().await.unwrap()
    }

    /// No job that may start comes before all heads of its partition.
    pub(crate) fn check_heads(&self) {
        assert_eq!(self.sql(MISSED), "0", "jobs that no head leads to");
    }
}

/// A claim of a draw of its own, as each of a worker is.
pub(crate) async fn claim(store: &PostgresStore, now: Now, limit: usize) -> Claimed {
    let draw = Draw::new(fastrand::u64(..));
    store.claim(now, &Claim { draw, ..Rig::claim_of(limit) }).await.unwrap()
}

/// Ends all jobs of a claim so.
pub(crate) async fn end(store: &PostgresStore, now: Now, claimed: &Claimed, outcome: Outcome) {
    let ended =
        claimed.jobs.iter().map(|job| Settlement { lease: lease(job), outcome: outcome.clone() });
    store.settle(now, ended.collect()).await.unwrap();
}

/// How many jobs there are.
pub(crate) async fn jobs(store: &dyn Store) -> u64 {
    store.counts().await.unwrap().iter().map(|count| count.jobs).sum()
}

/// Keeps what a store puts on record.
#[derive(Debug, Default)]
pub(crate) struct Recorded(Mutex<Vec<Event>>);

impl Recorded {
    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }
}

impl History for Recorded {
    fn record(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

/// A caller with a connection and a table of its own.
pub(crate) struct Caller {
    db: PgConnection,
    schema: String,
}

impl Caller {
    async fn run(&mut self, text: &str) {
        let text = text.replace("quell.", &format!("{}.", self.schema));
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut self.db).await.unwrap();
    }
}

#[async_trait]
impl Connection for Caller {
    async fn begin(&mut self) {
        self.run("begin").await;
    }

    async fn end(&mut self, commits: bool) {
        self.run(if commits { "commit" } else { "rollback" }).await;
    }

    async fn trigger(&mut self, store: &Location, batch: &Batch) -> Result<()> {
        trigger_in(&mut self.db, store, batch).await
    }

    async fn settle(&mut self, store: &Location, success: Success<'_>) -> Result<()> {
        let Success { lease, now, output } = success;
        settle_in(&mut self.db, store, &lease, now, output).await
    }

    async fn write(&mut self) {
        self.run("insert into quell.written values (1)").await;
    }

    async fn written(&mut self) -> u64 {
        let count = format!("select count(*) from {}.written", self.schema);
        let count: i64 =
            sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&mut self.db).await.unwrap();
        u64::try_from(count).unwrap()
    }

    async fn take_refused(&mut self) -> Vec<String> {
        let refused = format!(
            "delete from {}.inbox where refused is not null returning refused",
            self.schema
        );
        sqlx::query_scalar(AssertSqlSafe(refused)).fetch_all(&mut self.db).await.unwrap()
    }

    /// Claims beside others may lose to them.
    fn excuses(&self, _: &Error) -> bool {
        true
    }
}
