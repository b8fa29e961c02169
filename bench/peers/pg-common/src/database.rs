//! A database for one round: created empty, dropped at its end, and watched from outside.
//!
//! Two connections watch. One stands in the server's own database, so that reading counters leaves
//! no trace in them; the other stands in the round's database and counts what it asks there.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection};

/// How long the peer's connections may take to end.
const CLOSING: Duration = Duration::from_secs(30);

/// One round's database.
#[derive(Debug)]
pub struct Database {
    pub(crate) outside: PgConnection,
    options: PgConnectOptions,
    pub(crate) name: String,
    url: String,
}

impl Database {
    /// An empty database on the server of `url`.
    ///
    /// # Errors
    ///
    /// Where there is no server, or the role may not.
    pub async fn create(url: &str, name: &str) -> anyhow::Result<Self> {
        let options: PgConnectOptions = url.parse().context("--url")?;
        let mut outside = PgConnection::connect_with(&options).await.context("no server there")?;
        for sql in [
            format!("drop database if exists {name} with (force)"),
            format!("create database {name}"),
        ] {
            sqlx::query(AssertSqlSafe(sql)).execute(&mut outside).await?;
        }
        let options = options.database(name);
        let url = with_database(url, name)?;
        Ok(Database { outside, options, name: name.to_owned(), url })
    }

    /// Where a peer connects to.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection to the round's database.
    ///
    /// # Errors
    ///
    /// Where the server does not answer.
    pub async fn inside(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect_with(&self.options).await?)
    }

    /// Waits until no connection is open, which is when every backend has reported its counts.
    pub(crate) async fn quiet(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + CLOSING;
        loop {
            let others: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity
                  where datname = $1 and backend_type = 'client backend'",
            )
            .bind(&self.name)
            .fetch_one(&mut self.outside)
            .await?;
            if others == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{others} connections to {} are still open", self.name);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Writes back what earlier work left, so that every round starts alike.
    ///
    /// # Errors
    ///
    /// Where the role is no superuser.
    pub async fn checkpoint(&mut self) -> anyhow::Result<()> {
        let reason = "checkpoint: the role of --url must be a superuser";
        sqlx::query("checkpoint").execute(&mut self.outside).await.context(reason)?;
        Ok(())
    }

    /// Lets autovacuum work on this server, or not: where transactions are counted, its own would
    /// be among them.
    ///
    /// # Errors
    ///
    /// Where the role is no superuser.
    pub async fn autovacuum(&mut self, on: bool) -> anyhow::Result<()> {
        let set =
            if on { "alter system reset autovacuum" } else { "alter system set autovacuum = off" };
        for sql in [set, "select pg_reload_conf()"] {
            sqlx::query(sql).execute(&mut self.outside).await?;
        }
        Ok(())
    }

    /// Removes it.
    ///
    /// # Errors
    ///
    /// Where the server does not answer.
    pub async fn drop(mut self) -> anyhow::Result<()> {
        let sql = format!("drop database {} with (force)", self.name);
        sqlx::query(AssertSqlSafe(sql)).execute(&mut self.outside).await?;
        Ok(self.outside.close().await?)
    }
}

/// `url` with another database in place of its own.
fn with_database(url: &str, name: &str) -> anyhow::Result<String> {
    let (place, query) = url.split_once('?').map_or((url, None), |(place, q)| (place, Some(q)));
    let (scheme, rest) = place.split_once("://").context("--url: postgres://…")?;
    let server = rest.split_once('/').map_or(rest, |(server, _)| server);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    Ok(format!("{scheme}://{server}/{name}{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_its_server_and_its_query() {
        for (url, expected) in [
            ("postgres://me@host:5/postgres", "postgres://me@host:5/b"),
            ("postgres://me@host:5", "postgres://me@host:5/b"),
            ("postgres://host/x?sslmode=disable", "postgres://host/b?sslmode=disable"),
        ] {
            assert_eq!(with_database(url, "b").unwrap(), expected);
        }
        assert!(with_database("host", "b").is_err());
    }
}
