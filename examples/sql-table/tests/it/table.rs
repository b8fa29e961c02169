//! What the suite cannot see: versions, bounds, the clock and errors of the table itself.

use std::time::{Duration, SystemTime};

use quell_core::{ErrorKind, Result};
use quell_example_sql_table::SqlTable;
use quell_portable::{Bounds, Change, Committed, Condition, Range, Table, Version};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

/// A table and the folder of its file.
struct Opened {
    table: SqlTable,
    folder: TempDir,
}

impl Opened {
    async fn new(deadline: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = SqliteConnectOptions::new().filename(folder.path().join("quell.db"));
        Opened { table: SqlTable::open(file, deadline).await.unwrap(), folder }
    }

    /// A connection of another program.
    async fn other(&self) -> SqliteConnection {
        let file = SqliteConnectOptions::new().filename(self.folder.path().join("quell.db"));
        SqliteConnection::connect_with(&file).await.unwrap()
    }

    async fn commit(&self, change: Change) -> Result<Committed> {
        self.table.commit("p", vec![change]).await
    }

    async fn version(&self, change: Change) -> Option<Version> {
        let committed = self.commit(change).await.unwrap();
        assert_ne!(committed, Committed::Conflict, "a condition does not hold");
        let Committed::Done(mut versions) = committed else { return None };
        versions.pop().unwrap()
    }

    async fn value(&self, name: &str) -> Option<Vec<u8>> {
        let rows = self.table.get("p", &[name.to_owned()]).await.unwrap();
        rows[0].as_ref().map(|row| row.value.to_vec())
    }
}

/// For calls that must succeed: a busy machine may take its time.
const LONG: Duration = Duration::from_secs(60);
/// For the call that must fail, and for opening the table before it.
const SHORT: Duration = Duration::from_secs(3);

fn put(name: &str, condition: Condition, value: &[u8]) -> Change {
    Change { row: name.to_owned(), condition, value: Some(value.into()) }
}

fn delete(name: &str) -> Change {
    Change { row: name.to_owned(), condition: Condition::Present, value: None }
}

#[tokio::test]
async fn a_version_never_repeats_after_delete_and_insert() {
    let opened = Opened::new(LONG).await;
    let first = opened.version(put("a", Condition::Absent, b"1")).await.unwrap();
    assert_eq!(opened.version(delete("a")).await, None);
    let second = opened.version(put("a", Condition::Absent, b"1")).await.unwrap();
    assert_ne!(first, second);
    let old = opened.commit(put("a", Condition::Version(first), b"2")).await.unwrap();
    assert_eq!(old, Committed::Conflict);
    opened.version(put("a", Condition::Version(second), b"3")).await;
    assert_eq!(opened.value("a").await.unwrap(), b"3");
}

#[tokio::test]
async fn a_batch_with_one_failed_condition_changes_nothing() {
    let opened = Opened::new(LONG).await;
    for failed in [delete("b"), put("b", Condition::Present, b"1")] {
        let batch = vec![put("a", Condition::Any, b"1"), failed];
        assert_eq!(opened.table.commit("p", batch).await.unwrap(), Committed::Conflict);
        assert_eq!(opened.value("a").await, None);
    }
    opened.version(put("a", Condition::Absent, b"1")).await;
    let again = opened.commit(put("a", Condition::Absent, b"2")).await.unwrap();
    assert_eq!(again, Committed::Conflict);
}

#[tokio::test]
async fn pages_of_a_range_follow_each_other_byte_by_byte() {
    let opened = Opened::new(LONG).await;
    let names = ["a:B", "a:a", "a:b", "a:~", "b:a"];
    let batch = names.iter().rev().map(|name| put(name, Condition::Absent, b"")).collect();
    opened.table.commit("p", batch).await.unwrap();
    let (mut range, mut found) = (Range::of("a:"), Vec::new());
    loop {
        let page = opened.table.range("p", &range, 3).await.unwrap();
        found.extend(page.rows.into_iter().map(|row| row.name));
        match page.next {
            Some(next) => range.from = next,
            None => break,
        }
    }
    assert_eq!(found, names[..4]);
    assert_eq!(opened.table.range("q", &Range::of(""), 3).await.unwrap().rows, []);
}

#[tokio::test]
async fn a_batch_above_a_bound_is_rejected_with_the_bound() {
    let opened = Opened::new(LONG).await;
    let bounds = Bounds { changes: 2, batch_bytes: 20, row_bytes: 15, name_bytes: 3 };
    let table = opened.table.clone().with_bounds(bounds);
    let row = |name: &str, bytes| put(name, Condition::Any, &vec![0; bytes]);
    for (partition, batch, message) in [
        ("p", vec![row("a", 0), row("b", 0), row("c", 0)], "3 changes in a batch, the limit is 2"),
        ("p", vec![row("a", 15), row("b", 4)], "21 bytes in a batch, the limit is 20"),
        ("p", vec![row("a", 16)], "16 bytes in a value, the limit is 15"),
        ("p", vec![row("abcd", 0)], "4 bytes in a name, the limit is 3"),
        ("long", vec![row("a", 0)], "4 bytes in a name, the limit is 3"),
        ("", vec![row("a", 0)], "a name is empty"),
        ("p", vec![row("", 0)], "a name is empty"),
    ] {
        let error = table.commit(partition, batch).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().starts_with(message), "{error}");
    }
    assert_eq!(table.range("p", &Range::of(""), 10).await.unwrap().rows, []);
    let most = table.commit("p", vec![row("a", 15), row("b", 3)]).await.unwrap();
    assert!(matches!(most, Committed::Done(_)), "{most:?}");
}

#[tokio::test]
async fn the_time_is_that_of_the_database() {
    let opened = Opened::new(LONG).await;
    let before = host_millis();
    let now = opened.table.now().await.unwrap().as_micros();
    // SQLite's clock counts milliseconds.
    assert!(before * 1_000 <= now, "{now} is before {before}");
    assert!(now <= host_millis() * 1_000, "{now} is ahead of the host");
}

fn host_millis() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

#[tokio::test]
async fn a_locked_file_is_unavailable_and_nothing_is_written() {
    let opened = Opened::new(SHORT).await;
    let mut other = opened.other().await;
    let lock = other.begin_with("begin immediate").await.unwrap();
    let error = opened.commit(put("a", Condition::Absent, b"1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(opened.value("a").await, None);
    lock.rollback().await.unwrap();
    opened.version(put("a", Condition::Absent, b"1")).await;
}

#[tokio::test]
async fn a_commit_that_fails_unclearly_has_an_unknown_outcome() {
    let opened = Opened::new(LONG).await;
    let mut other = opened.other().await;
    // SQLite checks this foreign key at the COMMIT.
    let refuse = "
        create table parents (id integer primary key);
        create table children (id integer references parents deferrable initially deferred);
        create trigger refuse after insert on quell_rows when new.name = 'bad'
        begin insert into children values (1); end";
    sqlx::raw_sql(refuse).execute(&mut other).await.unwrap();
    let error = opened.commit(put("bad", Condition::Absent, b"1")).await.unwrap_err();
    assert!(error.is_unknown_outcome(), "{error}");
    // No connection keeps the transaction open.
    opened.version(put("good", Condition::Absent, b"1")).await;
    assert_eq!(opened.value("bad").await, None);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quell.db");
    std::fs::write(&path, vec![b'x'; 4096]).unwrap();
    let file = SqliteConnectOptions::new().filename(path);
    let error = SqlTable::open(file, LONG).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
