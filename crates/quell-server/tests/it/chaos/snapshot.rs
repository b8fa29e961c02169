//! A transaction that another program keeps open beside a run: what is deleted meanwhile stays where
//! queries walk.

use sqlx::{Connection, PgConnection};

/// The transaction; it ends when this is dropped.
pub(super) struct Snapshot(PgConnection);

impl Snapshot {
    /// Opens one on the server of this URL.
    pub(super) async fn open(url: &str) -> Snapshot {
        let mut db = PgConnection::connect(url).await.unwrap();
        let begin = "begin isolation level repeatable read; select count(*) from pg_class";
        sqlx::raw_sql(begin).execute(&mut db).await.unwrap();
        Snapshot(db)
    }

    /// How many transactions have written since it was opened: they fail to be counted where it did not
    /// last.
    pub(super) async fn age(&mut self) -> i32 {
        let age = "select age(backend_xmin) from pg_stat_activity where pid = pg_backend_pid()";
        sqlx::query_scalar(age).fetch_one(&mut self.0).await.unwrap()
    }
}
