//! Ranges of rows, page by page.

use std::time::Duration;

use quell_portable::{Change, Condition, Range, Row, Table};

use crate::proxy::{Act, Proxy};
use crate::server::{P, Place, done, put};

async fn all(table: &impl Table, range: Range, limit: usize) -> (Vec<Row>, usize) {
    let (mut rows, mut pages, mut range) = (Vec::new(), 0, range);
    loop {
        let page = table.range(P, &range, limit).await.unwrap();
        assert!(page.rows.len() <= limit);
        rows.extend(page.rows);
        pages += 1;
        match page.next {
            Some(next) => range.from = next,
            None => return (rows, pages),
        }
    }
}

#[tokio::test]
async fn pages_have_each_row_of_a_range_once_and_in_order() {
    let table = Place::new().open_table().await;
    let name = |at: usize| format!("r{at:04}");
    for first in (0..2_500).step_by(100) {
        let rows = first..first + 100;
        let inserts = rows.map(|at| put(&name(at), Condition::Absent, at.to_string())).collect();
        done(&table, inserts).await;
    }
    let neighbours: Vec<Change> =
        ["q", "qz", "r", "r-", "s"].map(|n| put(n, Condition::Absent, "no")).to_vec();
    done(&table, neighbours).await;
    let whole = || Range { from: "r0".to_owned(), to: "r3".to_owned() };
    for (limit, pages) in [(10_000, 3), (1_000, 3), (1_250, 3), (999, 3), (500, 5)] {
        let (rows, seen) = all(&table, whole(), limit).await;
        assert_eq!(rows.len(), 2_500, "limit {limit}");
        assert!(rows.iter().enumerate().all(|(at, row)| row.name == name(at)), "limit {limit}");
        assert_eq!(seen, pages, "limit {limit}");
    }
    let of = |from: &str, to: &str| Range { from: from.to_owned(), to: to.to_owned() };
    for (range, count) in [
        (Range::of("r12"), 100),
        (Range::of(""), 2_505),
        (Range::of("~"), 0),
        (of("r0010", "r0020"), 10),
        (of("r0010", "r0010"), 0),
        (of("r0020", "r0010"), 0),
        (of("r0010", "r0010\0"), 1),
        (of("r0010\0", "r0012"), 1),
        (of("r-", "r-"), 0),
    ] {
        assert_eq!(all(&table, range.clone(), 1_000).await.0.len(), count, "{range:?}");
    }
}

#[tokio::test]
async fn an_empty_page_that_is_not_the_last_one_is_passed_over() {
    let place = Place::new();
    place.open_table().await;
    let answer = |headers: &str, body: &str| {
        let length = body.len();
        let headers = format!("{headers}content-length: {length}\r\nconnection: close\r\n");
        Act::Answer(format!("HTTP/1.1 200 OK\r\n{headers}\r\n{body}"))
    };
    let proxy = Proxy::start(place.port(), move |request| {
        // The service answers so where it has looked for long.
        let marks = "x-ms-continuation-NextPartitionKey: 1!4!cA--\r\n\
                     x-ms-continuation-NextRowKey: 1!4!YQ--\r\n";
        let row = r#"{"odata.etag":"e","PartitionKey":"p","RowKey":"a","b":"b","v0":"MQ=="}"#;
        match () {
            () if request.contains("NextPartitionKey=1%214%21cA%2D%2D&NextRowKey=1%214%21YQ") => {
                answer("", &format!(r#"{{"value":[{row}]}}"#))
            }
            () if request.contains("$top=10&") => answer(marks, r#"{"value":[]}"#),
            () => Act::Forward,
        }
    })
    .await;
    let through = place.through(proxy.port, Duration::from_secs(10)).open_table().await.unwrap();
    let page = through.range(P, &Range::of(""), 10).await.unwrap();
    let found: Vec<_> = page.rows.iter().map(|row| (row.name.as_str(), &*row.value)).collect();
    assert_eq!((found, page.next), (vec![("a", &b"1"[..])], None));
}
