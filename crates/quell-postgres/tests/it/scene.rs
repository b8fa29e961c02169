//! A schema of its own on the server that tests share, and callers' own connections to it.

use std::process::Output;
use std::sync::Arc;

use quell_conformance::{Opened, Rig};
use quell_core::Store;
use quell_postgres::PostgresStore;
use quell_services::{psql, url_for_tests};
use sqlx::{Connection, PgConnection};

/// A schema, which is made when the first store opens it.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) url: String,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Scene { url: url_for_tests() }
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

    /// Runs a script as a user of `psql` would; `quell.` in it stands for the schema.
    pub(crate) fn psql(&self, script: &str) -> Output {
        let script = script.replace("quell.", &format!("{}.", self.schema()));
        psql(self.plain_url()).args(["--command", &script]).output().unwrap()
    }

    /// As [`Scene::psql`]; errors are told with their codes.
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

    /// No job that may start comes before all heads of its partition.
    pub(crate) fn check_heads(&self) {
        let missed = self.sql(
            "select count(*) from quell.job j
              where j.partition_id <> 0 and j.state = 0 and j.behind is null
                and not exists (
                    select from quell.head h
                     where h.lane_id = j.lane_id and h.partition_id = j.partition_id
                       and (h.due_at, h.job_id) <= (j.due_at, j.id))",
        );
        assert_eq!(missed, "0", "jobs that no head leads to");
    }
}

/// How many jobs there are.
pub(crate) async fn jobs(store: &dyn Store) -> u64 {
    store.counts().await.unwrap().iter().map(|count| count.jobs).sum()
}
