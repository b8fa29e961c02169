//! The floor: what plain SQL does through the same driver, on a table that holds the least. It has
//! no leases and no retries, keeps no dead jobs and wakes only its own process, so no queue is
//! expected to reach it everywhere.

use std::sync::Arc;

use anyhow::Result;
use pg_common::{Peer, PostgresPeer, Settings, Starts, version_in};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, query, query_as};
use tokio::sync::Notify;
use tokio::task::JoinSet;

const SCHEMA: &str = "
    create table if not exists job (
        id bigserial primary key, task text not null, queue text not null, payload text not null,
        due_at timestamptz not null default now(), claimed_at timestamptz);
    create index if not exists job_due on job (queue, due_at, id) where claimed_at is null;
    create table if not exists keyed (key text primary key, due_at timestamptz not null)";

#[derive(Clone, Debug)]
struct Floor {
    pool: PgPool,
    settings: Settings,
    enqueued: Arc<Notify>,
}

fn payload(n: usize) -> String {
    format!("{{\"n\":{n}}}")
}

impl Peer for Floor {
    const NAME: &'static str = "plain SQL, sqlx";
    const DEBOUNCED: &'static str = "one upsert a commit: the due time of a key moves";
    type Settings = Settings;
    type Worker = JoinSet<Result<()>>;

    fn version() -> String {
        version_in(include_str!("../Cargo.lock"), "sqlx")
    }

    fn tuned(settings: Settings) -> &'static str {
        match settings {
            Settings::Defaults => "values (...), (...); 32 connections; drain by 1,000 on one",
            Settings::Best | Settings::Failover => {
                "arrays through unnest; 32 connections; drain by 1,000 on one"
            }
        }
    }

    async fn open(url: &str, settings: Settings) -> Result<Self> {
        let pool =
            PgPoolOptions::new().min_connections(32).max_connections(32).connect(url).await?;
        sqlx::raw_sql(SCHEMA).execute(&pool).await?;
        Ok(Floor { pool, settings, enqueued: Arc::default() })
    }

    async fn enqueue_many(&self, first: usize, count: usize) -> Result<()> {
        let payloads = (first..first + count).map(payload);
        match self.settings {
            Settings::Defaults => {
                let rows: Vec<String> =
                    (0..count).map(|row| format!("('noop', 'default', ${})", row + 1)).collect();
                let sql =
                    format!("insert into job (task, queue, payload) values {}", rows.join(","));
                let insert = payloads.fold(query(AssertSqlSafe(sql)), |sql, value| sql.bind(value));
                insert.execute(&self.pool).await?;
            }
            Settings::Best | Settings::Failover => {
                let sql = "insert into job (task, queue, payload)
                           select 'noop', 'default', payload from unnest($1::text[]) as payload";
                query(sql).bind(payloads.collect::<Vec<_>>()).execute(&self.pool).await?;
            }
        }
        Ok(())
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        let sql = "insert into job (task, queue, payload) values ('noop', 'default', $1)";
        query(sql).bind(payload(n)).execute(&self.pool).await?;
        self.enqueued.notify_one();
        Ok(())
    }

    async fn debounce(&self, key: usize) -> Result<()> {
        let sql = "insert into keyed (key, due_at) values ($1, now() + interval '1 hour')
                   on conflict (key) do update set due_at = excluded.due_at";
        query(sql).bind(format!("customer-{key}")).execute(&self.pool).await?;
        Ok(())
    }

    async fn work(&self, starts: Starts) -> Result<Self::Worker> {
        let (pool, enqueued) = (self.pool.clone(), Arc::clone(&self.enqueued));
        let mut worker = JoinSet::new();
        worker.spawn(async move {
            loop {
                if !claim_and_delete(&pool, &starts).await? {
                    enqueued.notified().await;
                }
            }
        });
        Ok(worker)
    }

    async fn stop(mut worker: Self::Worker) -> Result<()> {
        worker.shutdown().await;
        Ok(())
    }
}

impl PostgresPeer for Floor {
    const UNFINISHED: &'static str = "select count(*) from job where $1 > 0";

    async fn close(self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

/// One batch, in two commits as a queue that survives its worker needs them; false if none is due.
async fn claim_and_delete(pool: &PgPool, starts: &Starts) -> Result<bool> {
    let claimed: Vec<(i64, String)> = query_as(
        "update job set claimed_at = now()
          where id in (select id from job
                        where queue = 'default' and claimed_at is null and due_at <= now()
                        order by due_at, id limit 1000 for update skip locked)
         returning id, payload",
    )
    .fetch_all(pool)
    .await?;
    if claimed.is_empty() {
        return Ok(false);
    }
    for _ in &claimed {
        starts.report().await;
    }
    let ids: Vec<i64> = claimed.into_iter().map(|(id, _)| id).collect();
    query("delete from job where id = any($1)").bind(ids).execute(pool).await?;
    Ok(true)
}

fn main() -> Result<()> {
    pg_common::main::<Floor>()
}
