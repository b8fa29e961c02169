//! What a batch needs to be made, and that it is made as a whole or not at all.

use std::sync::Arc;

use quell_azure::TableStorage;
use quell_core::ErrorKind;
use quell_portable::{Committed, Condition, Table, Version};
use tokio::task::JoinSet;

use crate::server::{P, Place, at, done, put, remove, row, text, wrote};

#[tokio::test]
async fn each_condition_holds_or_conflicts() {
    let table = Place::new().open_table().await;
    let old = wrote(&table, put("there", Condition::Absent, "1")).await;
    let new = wrote(&table, put("there", at(&old), "2")).await;
    assert_ne!(old, new);
    assert_eq!(row(&table, "there").await.unwrap().version, new);
    for (name, change, is_made) in [
        ("absent, there", put("there", Condition::Absent, "x"), false),
        ("absent, gone", put("a", Condition::Absent, "x"), true),
        ("present, there", put("there", Condition::Present, "x"), true),
        ("present, gone", put("b", Condition::Present, "x"), false),
        ("any, there", put("there", Condition::Any, "x"), true),
        ("any, gone", put("c", Condition::Any, "x"), true),
        ("stale version", put("there", at(&old), "x"), false),
        ("version of a row that is gone", put("d", at(&old), "x"), false),
        ("remove a stale version", remove("there", at(&old)), false),
        ("remove what is gone", remove("e", Condition::Present), false),
        ("remove a version of what is gone", remove("e", at(&old)), false),
        ("remove what is there", remove("there", Condition::Present), true),
    ] {
        let before = text(&table, &change.row).await;
        let committed = table.commit(P, vec![change.clone()]).await.unwrap();
        let after = text(&table, &change.row).await;
        match (committed, is_made) {
            (Committed::Done(versions), true) => {
                let found = row(&table, &change.row).await.map(|row| row.version);
                assert_eq!(versions, [found], "{name}");
                assert_eq!(after.is_some(), change.value.is_some(), "{name}");
            }
            (Committed::Conflict, false) => assert_eq!(before, after, "{name}"),
            (committed, _) => panic!("{name}: {committed:?}"),
        }
    }
}

#[tokio::test]
async fn a_version_differs_after_a_row_was_deleted_and_inserted_again() {
    let table = Place::new().open_table().await;
    let first = wrote(&table, put("r", Condition::Absent, "1")).await;
    done(&table, vec![remove("r", at(&first))]).await;
    let second = wrote(&table, put("r", Condition::Absent, "1")).await;
    assert_ne!(first, second);
    let stale = table.commit(P, vec![put("r", at(&first), "2")]).await.unwrap();
    assert_eq!(stale, Committed::Conflict);
}

#[tokio::test]
async fn a_batch_is_made_as_a_whole_or_not_at_all() {
    let table = Place::new().open_table().await;
    let gone = wrote(&table, put("gone", Condition::Absent, "0")).await;
    done(&table, vec![remove("gone", at(&gone))]).await;
    // Rows of one batch may share a version, but not with an earlier one.
    let inserts = ["a", "b", "c"].map(|name| put(name, Condition::Absent, "0")).to_vec();
    let versions = done(&table, inserts).await;
    let [a, b, c] = <[_; 3]>::try_from(versions).unwrap().map(Option::unwrap);
    let good = || {
        vec![
            put("a", at(&a), "1"),
            put("new", Condition::Absent, "1"),
            remove("b", at(&b)),
            put("any", Condition::Any, "1"),
            put("c", Condition::Present, "1"),
        ]
    };
    let stale = |row: &str| match row {
        "new" => put("a", Condition::Absent, "1"),
        row => put(row, at(&gone), "1"),
    };
    for place in 0..good().len() {
        let mut changes = good();
        let stale = stale(&changes[place].row.clone());
        changes.retain(|change| change.row != stale.row);
        changes.insert(place.min(changes.len()), stale);
        let committed = table.commit(P, changes.clone()).await.unwrap();
        assert_eq!(committed, Committed::Conflict, "{changes:?}");
        let names = ["a", "b", "c", "gone", "new", "any"].map(str::to_owned);
        let rows = table.get(P, &names).await.unwrap();
        let found: Vec<_> = rows.into_iter().map(|row| row.map(|row| row.version)).collect();
        let untouched = [Some(a.clone()), Some(b.clone()), Some(c.clone()), None, None, None];
        assert_eq!(found, untouched, "{changes:?}");
    }
    let versions = done(&table, good()).await;
    assert_eq!(
        versions.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, true, false, true, true]
    );
    for (change, version) in good().iter().zip(&versions) {
        let found = row(&table, &change.row).await.map(|row| row.version);
        assert_eq!(&found, version, "{change:?}");
    }
}

#[tokio::test]
async fn an_empty_batch_and_one_without_meaning_write_nothing() {
    let table = Place::new().open_table().await;
    assert_eq!(table.commit(P, Vec::new()).await.unwrap(), Committed::Done(Vec::new()));
    for changes in [
        vec![remove("a", Condition::Absent)],
        vec![put("b", Condition::Any, "1"), put("a", at(&Version::new("x\r\ny: z")), "1")],
        vec![put("b", Condition::Any, "1"), remove("a", Condition::Any)],
        vec![put("b", Condition::Any, "1"), put("b", Condition::Any, "2")],
    ] {
        let error = table.commit(P, changes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert_eq!(text(&table, "b").await, None);
    let own = table.commit("quell", vec![put("format", Condition::Any, "9")]).await.unwrap_err();
    assert_eq!(own.kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_increment_of_concurrent_writers_counts_once() {
    let table = Arc::new(Place::new().open_table().await);
    done(&table, vec![put("n", Condition::Absent, "0"), put("m", Condition::Absent, "0")]).await;
    let mut writers = JoinSet::new();
    for _ in 0..8 {
        let table = Arc::clone(&table);
        writers.spawn(async move {
            let (mut made, mut conflicts) = (0, 0);
            while made < 25 {
                let [n, m] = both(&table).await;
                let next = [n.0 + 1, m.0 + 1].map(|number| number.to_string());
                let changes = vec![put("n", at(&n.1), &next[0]), put("m", at(&m.1), &next[1])];
                match table.commit(P, changes).await.unwrap() {
                    Committed::Done(_) => made += 1,
                    Committed::Conflict => conflicts += 1,
                }
            }
            conflicts
        });
    }
    let conflicts: u32 = writers.join_all().await.into_iter().sum();
    for row in ["n", "m"] {
        assert_eq!(text(&table, row).await.as_deref(), Some("200"));
    }
    assert!(conflicts > 0, "nothing was tested");
}

async fn both(table: &TableStorage) -> [(u32, Version); 2] {
    let rows = table.get(P, &["n".to_owned(), "m".to_owned()]).await.unwrap();
    let rows = <[_; 2]>::try_from(rows).unwrap();
    rows.map(|row| {
        let row = row.unwrap();
        (std::str::from_utf8(&row.value).unwrap().parse().unwrap(), row.version)
    })
}
