//! What each call touches does not grow with what the store holds.

use std::sync::Arc;

use quell_conformance::budget::{Ledger, judge};
use quell_core::{Result, Store};

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

impl Ledger for Books {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.one_session().await)
    }

    async fn close(&self, store: Arc<dyn Store>) {
        self.0.close(store).await;
    }

    async fn count(&self, call: impl AsyncFnOnce(&dyn Store) -> Result<()>) -> Result<u64> {
        let before = self.0.blocks_touched(&["%"]);
        let store = self.open().await;
        call(&*store).await?;
        self.close(store).await;
        Ok(self.0.blocks_touched(&["%"]) - before)
    }
}

/// A new schema without autovacuum, whose blocks are touched by its stores only.
async fn books() -> Books {
    let books = Books(Scene::new());
    let store = books.open().await;
    store.queues().await.unwrap();
    books.close(store).await;
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
