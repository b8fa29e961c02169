//! Tables on the Azurite that tests share, and short words for rows and changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_azure::{AzureOptions, Connection, TableStorage};
use quell_portable::{Change, Committed, Condition, Row, Table, Version};
use quell_services::azurite_for_tests;

/// The partition that most tests use.
pub(crate) const P: &str = "p";

/// A table that no other test has, not yet created.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) connection: String,
    pub(crate) name: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let (connection, name) = azurite_for_tests();
        Place { connection, name }
    }

    pub(crate) fn options(&self) -> AzureOptions {
        let connection = Connection::from_string(&self.connection).unwrap();
        AzureOptions::new(connection, self.name.clone()).unwrap().create(true)
    }

    pub(crate) async fn open_table(&self) -> TableStorage {
        self.options().open_table().await.unwrap()
    }

    /// The table as seen through the server on this port of the loopback address.
    pub(crate) fn through(&self, port: u16, timeout: Duration) -> AzureOptions {
        let endpoint = format!("http://127.0.0.1:{port}/devstoreaccount1");
        self.options().endpoint(&endpoint).unwrap().timeout(timeout)
    }

    pub(crate) fn account(&self) -> &str {
        let parts = self.connection.split(';');
        parts.into_iter().find_map(|part| part.strip_prefix("AccountName=")).unwrap()
    }

    /// The port of the server's tables.
    pub(crate) fn port(&self) -> u16 {
        let (_, rest) = self.connection.split_once("TableEndpoint=http://127.0.0.1:").unwrap();
        rest.split('/').next().unwrap().parse().unwrap()
    }
}

pub(crate) fn put(row: &str, condition: Condition, value: impl AsRef<[u8]>) -> Change {
    Change { row: row.to_owned(), condition, value: Some(Arc::from(value.as_ref())) }
}

pub(crate) fn remove(row: &str, condition: Condition) -> Change {
    Change { row: row.to_owned(), condition, value: None }
}

pub(crate) fn at(version: &Version) -> Condition {
    Condition::Version(version.clone())
}

/// Makes changes that must not conflict; the versions of the rows.
pub(crate) async fn done(table: &TableStorage, changes: Vec<Change>) -> Vec<Option<Version>> {
    match table.commit(P, changes).await.unwrap() {
        Committed::Done(versions) => versions,
        Committed::Conflict => panic!("a conflict"),
    }
}

/// Makes one change that must not conflict; the version of the row that it writes.
pub(crate) async fn wrote(table: &TableStorage, change: Change) -> Version {
    done(table, vec![change]).await.remove(0).unwrap()
}

pub(crate) async fn row(table: &TableStorage, name: &str) -> Option<Row> {
    table.get(P, &[name.to_owned()]).await.unwrap().remove(0)
}

/// What a row holds, as text.
pub(crate) async fn text(table: &TableStorage, name: &str) -> Option<String> {
    row(table, name).await.map(|row| String::from_utf8(row.value.to_vec()).unwrap())
}

/// Waits until something is so, for ten seconds at most.
pub(crate) async fn until<F: Future<Output = bool>>(is_so: impl FnMut() -> F) {
    until_in(Duration::from_secs(10), is_so).await;
}

/// Waits until something is so, for `patience` at most.
pub(crate) async fn until_in<F: Future<Output = bool>>(
    patience: Duration,
    mut is_so: impl FnMut() -> F,
) {
    let deadline = Instant::now() + patience;
    while !is_so().await {
        assert!(Instant::now() < deadline, "it never came about");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
