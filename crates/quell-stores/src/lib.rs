//! Quell's own stores side by side: what the suite says of each, as the page `docs/conformance.md`.
//!
//! `cargo xtask conformance` and `cargo xtask soak` run it. Invariant: the page is made of the
//! suite's list, its verdicts, `docs/semantics.md` and the names of tests, and of nothing else; so
//! it cannot say what is not so.

pub mod page;
pub mod promises;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use quell_azure::{AzureOptions, Connection};
use quell_conformance::sim::{self, Place};
use quell_conformance::{Opened, Report, Rig, report};
use quell_core::history::Sink;
use quell_core::{MemoryStore, Store};
use quell_engine::{Engine, Maps};
use quell_example_sql_table::SqlTable;
use quell_portable::{MemoryTable, Partition};
use quell_postgres::PostgresOptions;
use quell_redis::RedisOptions;
use quell_sqlite::{SqliteOptions, Synchronous};
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};

/// The stores that this workspace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The model, in memory.
    Memory,
    /// SQLite, on a file in a temporary folder.
    Sqlite,
    /// PostgreSQL, on a schema of its own of the server that tests share.
    Postgres,
    /// Redis, under a prefix of its own on the server that tests share.
    Redis,
    /// The engine over ordered maps.
    Engine,
    /// The engine over a table in memory, which writes a hundred rows at once and no more.
    Table,
    /// The store of docs/write-a-store.md: the engine over one SQL table, on a file of its own.
    SqlTable,
    /// Azure Table Storage: a table of its own on the Azurite that tests share.
    Azure,
}

impl Kind {
    /// All of them, in the order of the page's columns.
    pub const ALL: [Kind; 8] = [
        Kind::Memory,
        Kind::Sqlite,
        Kind::Postgres,
        Kind::Redis,
        Kind::Engine,
        Kind::Table,
        Kind::SqlTable,
        Kind::Azure,
    ];

    /// The name that heads its column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Sqlite => "sqlite",
            Kind::Postgres => "postgres",
            Kind::Redis => "redis",
            Kind::Engine => "engine",
            Kind::Table => "table",
            Kind::SqlTable => "sql table",
            Kind::Azure => "azurite",
        }
    }

    /// A fresh store.
    pub async fn open(self) -> Opened {
        match self {
            Kind::Memory => opened(MemoryStore::new(Rig::START), Box::new(())),
            Kind::Sqlite => sqlite(None).await,
            Kind::Postgres => postgres(None).await,
            Kind::Redis => redis(None).await,
            Kind::Engine => opened(Engine::new(Maps::new(Rig::START)), Box::new(())),
            Kind::Table => opened(table(MemoryTable::new(Rig::START)), Box::new(())),
            Kind::SqlTable => sql_table(None).await,
            Kind::Azure => azure(None).await,
        }
    }

    /// A fresh store that writes its history.
    pub async fn open_recorded(self, sink: Sink) -> Opened {
        match self {
            Kind::Memory => opened(MemoryStore::new(Rig::START).with_history(sink), Box::new(())),
            Kind::Sqlite => sqlite(Some(sink)).await,
            Kind::Postgres => postgres(Some(sink)).await,
            Kind::Redis => redis(Some(sink)).await,
            Kind::Engine => {
                opened(Engine::new(Maps::new(Rig::START)).with_history(sink), Box::new(()))
            }
            Kind::Table => {
                opened(table(MemoryTable::new(Rig::START)).with_history(sink), Box::new(()))
            }
            Kind::SqlTable => sql_table(Some(sink)).await,
            Kind::Azure => azure(Some(sink)).await,
        }
    }

    /// A fresh place that many simulated processes open.
    #[must_use]
    pub fn place(self) -> Place {
        match self {
            Kind::Memory => {
                let store = OnceLock::new();
                Place::new(move |sink| {
                    let opened = Arc::clone(store.get_or_init(|| sim::memory(sink)));
                    async move { opened }
                })
            }
            Kind::Sqlite => sqlite_place(),
            Kind::Postgres => postgres_place(),
            Kind::Redis => redis_place(),
            Kind::Engine => {
                let store: OnceLock<Arc<dyn Store>> = OnceLock::new();
                Place::new(move |sink| {
                    let engine = || Engine::new(Maps::new(Rig::START)).with_history(sink);
                    let opened = Arc::clone(store.get_or_init(|| Arc::new(engine())));
                    async move { opened }
                })
            }
            Kind::Table => {
                let rows = MemoryTable::new(Rig::START);
                Place::new(move |sink| {
                    let store = table(rows.clone()).with_history(sink);
                    async move { Arc::new(store) as Arc<dyn Store> }
                })
            }
            Kind::SqlTable => sql_table_place(),
            Kind::Azure => azure_place(),
        }
    }

    /// The file, below the workspace's root, whose `suite!` or `prove!` runs the whole suite on it.
    #[must_use]
    pub const fn tests(self) -> &'static str {
        match self {
            Kind::Memory => "crates/quell-conformance/tests/it/main.rs",
            Kind::Sqlite => "crates/quell-sqlite/tests/it/conformance.rs",
            Kind::Postgres => "crates/quell-postgres/tests/it/conformance.rs",
            Kind::Redis => "crates/quell-redis/tests/it/conformance.rs",
            Kind::Engine => "crates/quell-engine/tests/it/main.rs",
            Kind::Table => "crates/quell-portable/tests/it/main.rs",
            Kind::SqlTable => "examples/sql-table/tests/it/main.rs",
            Kind::Azure => "crates/quell-azure/tests/it/store.rs",
        }
    }

    /// Its report where all tests of [`Kind::tests`] pass: each rule that it claims is kept, and each
    /// that it does not claim is refused.
    pub async fn expected(self) -> Report {
        Report::expected(self.name(), &self.open().await.store.capabilities())
    }

    /// What the suite says of it.
    pub async fn report(self) -> Report {
        report::run_recorded(self.name(), move || self.open(), move |sink| self.open_recorded(sink))
            .await
    }
}

fn opened(store: impl quell_core::Store, guard: Box<dyn std::any::Any + Send>) -> Opened {
    Opened { store: Arc::new(store), guard }
}

/// Not fully synchronous: what a commit survives is a matter for the store's own tests.
#[expect(clippy::expect_used, reason = "a store that does not open fails the simulation")]
fn sqlite_place() -> Place {
    let folder = Arc::new(tempfile::tempdir().expect("a temporary folder"));
    Place::new(move |sink| {
        let folder = Arc::clone(&folder);
        async move {
            let options = SqliteOptions::new(folder.path().join("quell.db")).history(sink);
            let store = options.synchronous(Synchronous::Normal).open().await;
            Arc::new(store.expect("the file opens")) as Arc<dyn Store>
        }
    })
}

#[expect(clippy::expect_used, reason = "a store that does not open fails the simulation")]
fn postgres_place() -> Place {
    let url = quell_services::url_for_tests();
    Place::new(move |sink| {
        let options = PostgresOptions::from_url(&url).expect("a URL").connections(3).history(sink);
        async move { Arc::new(options.open().await.expect("the schema opens")) as Arc<dyn Store> }
    })
}

#[expect(clippy::expect_used, reason = "a store that does not open fails the simulation")]
fn redis_place() -> Place {
    let (url, prefix) = quell_services::redis_url_for_tests();
    Place::new(move |sink| {
        let options = RedisOptions::from_url(&url).and_then(|url| url.prefix(prefix.clone()));
        let options = options.expect("a URL").history(sink);
        async move { Arc::new(options.open().await.expect("the prefix opens")) as Arc<dyn Store> }
    })
}

#[expect(clippy::expect_used, reason = "a store that does not open fails its row of the report")]
async fn sqlite(history: Option<Sink>) -> Opened {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = SqliteOptions::new(folder.path().join("quell.db"));
    let options = history.into_iter().fold(options, SqliteOptions::history);
    let store = options.synchronous(Synchronous::Normal).open().await.expect("a fresh file opens");
    opened(store, Box::new(folder))
}

#[expect(clippy::expect_used, reason = "a store that does not open fails its row of the report")]
async fn postgres(history: Option<Sink>) -> Opened {
    let options = PostgresOptions::from_url(&quell_services::url_for_tests()).expect("a URL");
    let options = history.into_iter().fold(options, PostgresOptions::history);
    opened(options.open().await.expect("a fresh schema opens"), Box::new(()))
}

#[expect(clippy::expect_used, reason = "a store that does not open fails its row of the report")]
async fn redis(history: Option<Sink>) -> Opened {
    let (url, prefix) = quell_services::redis_url_for_tests();
    let options = RedisOptions::from_url(&url).and_then(|url| url.prefix(prefix)).expect("a URL");
    let options = history.into_iter().fold(options, RedisOptions::history);
    opened(options.open().await.expect("a fresh prefix opens"), Box::new(()))
}

fn table(rows: MemoryTable) -> Engine<Partition<MemoryTable>> {
    Engine::new(Partition::new(rows, "store"))
}

#[expect(clippy::expect_used, reason = "a store that does not open fails its row of the report")]
async fn azure(history: Option<Sink>) -> Opened {
    let (connection, name) = quell_services::azurite_for_tests();
    let options = azure_options(&connection, name);
    let options = history.into_iter().fold(options, AzureOptions::history);
    opened(options.open().await.expect("a fresh table opens"), Box::new(()))
}

#[expect(clippy::expect_used, reason = "a store that does not open fails its row of the report")]
async fn sql_table(history: Option<Sink>) -> Opened {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = sql_engine(folder.path()).await;
    let store = history.into_iter().fold(store, Engine::with_history);
    opened(store, Box::new(folder))
}

#[expect(clippy::expect_used, reason = "a store that does not open fails its row of the report")]
async fn sql_engine(folder: &Path) -> Engine<Partition<SqlTable>> {
    let file = SqliteConnectOptions::new().filename(folder.join("quell.db"));
    // No test cuts the power, so no commit waits for the disk.
    let file = file.synchronous(SqliteSynchronous::Normal);
    let table = SqlTable::open(file, Duration::from_secs(10)).await.expect("a fresh file opens");
    Engine::new(Partition::new(table, "store"))
}

#[expect(clippy::expect_used, reason = "a store that does not open fails the simulation")]
fn sql_table_place() -> Place {
    let folder = Arc::new(tempfile::tempdir().expect("a temporary folder"));
    Place::new(move |sink| {
        let folder = Arc::clone(&folder);
        async move { Arc::new(sql_engine(folder.path()).await.with_history(sink)) as Arc<dyn Store> }
    })
}

#[expect(clippy::expect_used, reason = "a store that does not open fails the simulation")]
fn azure_place() -> Place {
    let (connection, name) = quell_services::azurite_for_tests();
    Place::new(move |sink| {
        let options = azure_options(&connection, name.clone()).history(sink);
        async move { Arc::new(options.open().await.expect("the table opens")) as Arc<dyn Store> }
    })
}

#[expect(clippy::expect_used, reason = "Azurite's own connection string is one")]
fn azure_options(connection: &str, name: String) -> AzureOptions {
    let connection = Connection::from_string(connection).expect("a connection string");
    let options = AzureOptions::new(connection, name).expect("a name").create(true);
    // On a busy machine, Azurite is slow: no test is about how long its calls may take.
    options.timeout(Duration::from_secs(60))
}

/// The workspace's root, whose documents the page is made of.
///
/// # Errors
/// When this crate has been moved out of it.
pub fn root() -> anyhow::Result<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).context("this crate is not in a workspace")?;
    Ok(root.to_owned())
}
