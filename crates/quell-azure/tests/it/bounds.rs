//! What a table takes, and what it refuses with nothing sent.

use std::time::Duration;

use quell_core::ErrorKind;
use quell_portable::{Change, Condition, Range, Table};

use crate::proxy::{Act, Proxy};
use crate::server::{P, Place, done, put, row, text, wrote};

fn bytes(length: usize) -> Vec<u8> {
    (0..=252).cycle().take(length).collect()
}

#[tokio::test]
async fn values_up_to_the_bound_are_kept() {
    let table = Place::new().open_table().await;
    let most = table.bounds().row_bytes;
    let sizes = [0, 1, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, most];
    for length in sizes {
        wrote(&table, put(&format!("r{length}"), Condition::Absent, bytes(length))).await;
        let found = row(&table, &format!("r{length}")).await.unwrap();
        assert!(*found.value == *bytes(length), "{length} bytes");
    }
    let page = table.range(P, &Range::of("r"), 1_000).await.unwrap();
    let mut lengths: Vec<usize> = page.rows.iter().map(|row| row.value.len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, sizes);
    for row in page.rows {
        assert!(*row.value == *bytes(row.value.len()));
        assert_eq!(Some(row.version), self::row(&table, &row.name).await.map(|row| row.version));
    }
    // A shorter value leaves nothing of a longer one.
    wrote(&table, put(&format!("r{most}"), Condition::Present, "short")).await;
    assert_eq!(text(&table, &format!("r{most}")).await.as_deref(), Some("short"));
}

#[tokio::test]
async fn names_have_any_character_of_the_alphabet() {
    let table = Place::new().open_table().await;
    let alphabet: String =
        (' '..='~').filter(|c| c.is_ascii_alphanumeric() || "-._~:".contains(*c)).collect();
    let longest = alphabet.repeat(8)[..table.bounds().name_bytes].to_owned();
    let mut names: Vec<String> = alphabet.chars().map(String::from).collect();
    names.extend([alphabet, longest, "..".to_owned(), "a:b/c".replace('/', "~")]);
    for partition in [&names[0], &names[67], &names[3]] {
        for name in &names {
            let change = put(name, Condition::Absent, name);
            table.commit(partition, vec![change]).await.unwrap();
        }
        // Several at once take another way than one.
        let again: Vec<Change> = names.iter().map(|n| put(n, Condition::Present, n)).collect();
        table.commit(partition, again).await.unwrap();
        let found = table.get(partition, &names).await.unwrap();
        for (name, row) in names.iter().zip(found) {
            let row = row.unwrap();
            assert_eq!((&row.name, &*row.value), (name, name.as_bytes()));
        }
        let page = table.range(partition, &Range::of(""), 1_000).await.unwrap();
        let listed: Vec<&String> = page.rows.iter().map(|row| &row.name).collect();
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort_by_key(|name| name.as_bytes());
        assert_eq!(listed, sorted);
    }
    let too_long = "n".repeat(table.bounds().name_bytes + 1);
    for bad in ["", "a/b", "a'b", "a b", "é", "a\n", "a?", "a%", too_long.as_str()] {
        let errors = [
            table.commit(P, vec![put(bad, Condition::Any, "")]).await.map(drop),
            table.commit(bad, vec![put("r", Condition::Any, "")]).await.map(drop),
            table.get(P, &[bad.to_owned()]).await.map(drop),
            table.range(bad, &Range::of("r"), 1).await.map(drop),
        ];
        for result in errors {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }
}

#[tokio::test]
async fn a_batch_above_a_bound_is_refused_with_nothing_sent() {
    let place = Place::new();
    let proxy = Proxy::start(place.port(), |_| Act::Forward).await;
    let table = place.through(proxy.port, Duration::from_secs(30)).open_table().await.unwrap();
    let bounds = table.bounds();
    let many = |count: usize, total: usize| -> Vec<Change> {
        let names = (0..count).map(|at| format!("{at:0>width$}", width = bounds.name_bytes));
        let bytes = |at: usize| vec![7; total / count + usize::from(at < total % count)];
        let each = names.enumerate().map(|(at, n)| put(&n, Condition::Any, bytes(at)));
        each.collect()
    };
    let names = bounds.changes * bounds.name_bytes;
    let partition = "p".repeat(bounds.name_bytes);
    let fits = many(bounds.changes, bounds.batch_bytes - names);
    let before = proxy.seen().len();
    for (what, changes) in [
        ("101 changes", many(101, 101)),
        ("a byte more than a batch", many(bounds.changes, bounds.batch_bytes - names + 1)),
        ("a byte more than a row", vec![put("r", Condition::Any, vec![0; bounds.row_bytes + 1])]),
    ] {
        let error = table.commit(&partition, changes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{what}");
        assert!(error.to_string().contains("the limit is"), "{what}: {error}");
    }
    assert_eq!(proxy.seen().len(), before, "something was sent");
    table.commit(&partition, fits.clone()).await.unwrap();
    let largest = proxy.seen().iter().map(|(_, request)| request.len()).max().unwrap();
    assert!(largest <= 4 << 20, "Azure takes no request of {largest} bytes");
    let last = fits.last().unwrap();
    let found = table.get(&partition, std::slice::from_ref(&last.row)).await.unwrap();
    assert_eq!(found[0].as_ref().map(|row| &row.value), last.value.as_ref());
}

#[tokio::test]
async fn a_hundred_changes_are_one_batch() {
    let table = Place::new().open_table().await;
    let inserts: Vec<Change> =
        (0..100).map(|at| put(&format!("{at:03}"), Condition::Absent, "x")).collect();
    let versions = done(&table, inserts).await;
    assert_eq!(versions.iter().flatten().count(), 100);
    let page = table.range(P, &Range::of("0"), 1_000).await.unwrap();
    let found: Vec<_> = page.rows.into_iter().map(|row| Some(row.version)).collect();
    assert_eq!(found, versions);
}
