//! What each call touches does not grow with what the store holds.

use std::sync::Arc;

use quell_conformance::budget::{Ledger, judge};
use quell_conformance::rig::until;
use quell_core::{Result, Store};
use quell_postgres::PostgresOptions;

use crate::scene::Scene;

/// One more level of each index of the tables that a call touches, and a block for each row of a list.
const SLACK: u64 = 60;

/// Calls that may touch more, and what bounds them.
const GROWING: &[(&str, &str)] = &[
    ("claim under limits", "it counts what runs in the store, which its workers' slots bound"),
    ("backlog", "a look reads 30,000 waiting jobs at most"),
    ("explain", "advice on keys reads the newest 20,000 jobs at most"),
];

/// A schema whose blocks are counted.
pub(crate) struct Books(pub(crate) Scene);

impl Books {
    /// What its sessions are called.
    fn name(&self) -> String {
        format!("budget-{}", self.0.schema())
    }

    /// The blocks of all tables and indexes that were touched by sessions that have ended.
    fn blocks(&self) -> u64 {
        let blocks = format!(
            "select sum(heap_blks_hit + heap_blks_read
                        + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))
               from pg_statio_all_tables where schemaname = '{}'",
            self.0.schema()
        );
        self.0.sql(&blocks).parse().unwrap()
    }
}

impl Ledger for Books {
    async fn open(&self) -> Arc<dyn Store> {
        let url = format!("{}&application_name={}", self.0.url, self.name());
        let options = PostgresOptions::from_url(&url).unwrap();
        Arc::new(options.connections(1).open().await.unwrap())
    }

    async fn close(&self, store: Arc<dyn Store>) {
        drop(store);
        // A session hands in its counts before it is gone. Those for notifications have their own name.
        let open = format!(
            "select count(*) from pg_stat_activity
              where application_name in ('{}', 'quell hints {}')",
            self.name(),
            self.0.schema()
        );
        until("the sessions have ended", async || self.0.sql(&open) == "0").await;
    }

    async fn count(&self, call: impl AsyncFnOnce(&dyn Store) -> Result<()>) -> Result<u64> {
        let before = self.blocks();
        let store = self.open().await;
        call(&*store).await?;
        let named = format!(
            "select count(*) > 0 from pg_stat_activity where application_name = '{}'",
            self.name()
        );
        assert_eq!(self.0.sql(&named), "t", "the session is known by its name");
        self.close(store).await;
        Ok(self.blocks() - before)
    }
}

/// A new schema without autovacuum, whose blocks are touched by its stores only.
async fn books() -> Books {
    let books = Books(Scene::new());
    books.close(books.open().await).await;
    let schema = books.0.schema();
    books.0.sql(&format!(
        "do $$ declare t regclass; begin
             for t in select c.oid from pg_class c
                       where c.relnamespace = '{schema}'::regnamespace and c.relkind = 'r'
             loop execute format('alter table %s set (autovacuum_enabled = off)', t); end loop;
         end $$"
    ));
    books
}

#[tokio::test]
async fn r35_no_call_touches_more_blocks_where_more_is_held() {
    let costs = judge(books, SLACK, GROWING).await.unwrap();
    eprintln!("{}", costs.join("\n"));
}
