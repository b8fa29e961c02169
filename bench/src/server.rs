//! The store that is measured: a fresh file or a fresh private server, and what it counts of itself.

use std::path::{Path, PathBuf};

use anyhow::Context;
use quell_services::{Postgres, Redis};
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

use crate::cpu;
use crate::redis::counters::Counters;
use crate::redis::{SETTINGS, version_of};
use crate::workload::bytes_written;

/// The stores that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Store {
    Sqlite,
    Postgres,
    Redis,
}

impl Store {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Store::Sqlite => "SQLite",
            Store::Postgres => "PostgreSQL",
            Store::Redis => "Redis",
        }
    }
}

/// A store that nothing else uses.
#[derive(Debug)]
pub(crate) enum Server {
    Sqlite(TempDir),
    Postgres(Postgres),
    Redis(Redis),
}

/// What the store has done so far, by its own counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Ticks of the server's processes; SQLite has none.
    pub(crate) cpu: Option<f64>,
    /// Transactions, on Redis commands; those that scripts call are among them.
    pub(crate) calls: f64,
    /// Bytes: what this process wrote (SQLite), WAL (PostgreSQL), the append-only file (Redis).
    pub(crate) written: f64,
}

impl Server {
    /// Starts one with its settings as shipped; SQLite's file is below this folder.
    pub(crate) fn start(store: Store, folder: &Path) -> anyhow::Result<Self> {
        Ok(match store {
            Store::Sqlite => Server::Sqlite(tempfile::tempdir_in(folder)?),
            Store::Postgres => Server::Postgres(Postgres::start(&[]).context("start PostgreSQL")?),
            Store::Redis => Server::Redis(Redis::start(&SETTINGS).context("start Redis")?),
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Server::Sqlite(folder) => format!("sqlite://{}", file(folder).display()),
            Server::Postgres(server) => server.url(),
            Server::Redis(server) => server.url(),
        }
    }

    /// Its version, and the settings that decide what is durable when.
    pub(crate) async fn version(&self) -> anyhow::Result<String> {
        Ok(match self {
            Server::Sqlite(folder) => {
                let version: String = ask_file(folder, "select sqlite_version()").await?;
                format!("SQLite {version}, synchronous=full")
            }
            Server::Postgres(server) => {
                format!("PostgreSQL {}, settings as shipped", ask(server, "show server_version")?)
            }
            Server::Redis(server) => {
                format!("{}, {}", version_of(server)?, SETTINGS.join(", "))
            }
        })
    }

    /// Takes some ten milliseconds of a server, so call it where waiting does no harm.
    pub(crate) fn counts(&self) -> anyhow::Result<Counts> {
        match self {
            Server::Sqlite(folder) => Ok(Counts {
                cpu: None,
                calls: f64::from(transactions(folder)?),
                written: bytes_written()? as f64,
            }),
            Server::Postgres(server) => {
                let pid = server.pid().context("PostgreSQL does not run")?;
                let number = |sql| anyhow::Ok(ask(server, sql)?.parse::<f64>()?);
                let calls = "select xact_commit + xact_rollback from pg_stat_database
                              where datname = current_database()";
                Ok(Counts {
                    cpu: Some(cpu::of_tree(pid)? as f64),
                    calls: number(calls)?,
                    written: number("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")?,
                })
            }
            Server::Redis(server) => {
                let counters = Counters::read(server)?;
                Ok(Counts {
                    cpu: Some(counters.cpu * cpu::TICKS / 1e6),
                    calls: counters.commands,
                    written: counters.file_bytes,
                })
            }
        }
    }

    /// The bytes that its rows and indexes hold, without what is free for others.
    pub(crate) async fn held(&self) -> anyhow::Result<f64> {
        match self {
            Server::Sqlite(folder) => {
                let used = "select cast((page_count - freelist_count) * page_size as real)
                              from pragma_page_count, pragma_freelist_count, pragma_page_size";
                ask_file(folder, used).await
            }
            Server::Postgres(server) => {
                ask(server, "vacuum full")?;
                self.size()
            }
            Server::Redis(server) => Ok(Counters::read(server)?.memory_bytes),
        }
    }

    /// The bytes that it takes as it is: of files (SQLite), tables (PostgreSQL), memory (Redis).
    pub(crate) fn size(&self) -> anyhow::Result<f64> {
        match self {
            Server::Sqlite(folder) => {
                let files = std::fs::read_dir(folder.path())?;
                let sizes = files.map(|file| Ok(file?.metadata()?.len() as f64));
                sizes.sum()
            }
            Server::Postgres(server) => {
                let size = "select sum(pg_total_relation_size(c.oid))
                              from pg_class c join pg_namespace n on n.oid = c.relnamespace
                             where n.nspname = 'quell' and c.relkind = 'r'";
                Ok(ask(server, size)?.parse()?)
            }
            Server::Redis(server) => Ok(Counters::read(server)?.memory_bytes),
        }
    }
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("quell.db")
}

/// One value out of the file.
async fn ask_file<T>(folder: &TempDir, sql: &'static str) -> anyhow::Result<T>
where
    T: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + Send + Unpin,
{
    let mut db = SqliteConnection::connect(&format!("sqlite://{}", file(folder).display())).await?;
    let value = sqlx::query_scalar(sql).fetch_one(&mut db).await?;
    db.close().await?;
    Ok(value)
}

/// The transactions that wrote to the file: the third number of the WAL index, which a running
/// store keeps beside its file (<https://sqlite.org/walformat.html>).
fn transactions(folder: &TempDir) -> anyhow::Result<u32> {
    let index = std::fs::read(folder.path().join("quell.db-shm"))?;
    let number = index.get(8..12).context("the WAL index is too short")?;
    Ok(u32::from_ne_bytes(number.try_into()?))
}

/// One value out of PostgreSQL.
fn ask(server: &Postgres, sql: &str) -> anyhow::Result<String> {
    let output = server.psql().args(["--command", sql]).output()?;
    let failed = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{sql}: {failed}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
