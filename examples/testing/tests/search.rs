//! The task of this crate on a real client and worker, in virtual time: a minute takes no time, and
//! each run has an exact time.
#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell::testing::TestKit;
use quell::{JobState, Result};
use quell_example_testing::{Index, IndexError, IndexPage, index_page};

/// An index that notes each call and returns what the test prepared.
#[derive(Clone, Default)]
struct FakeIndex(Arc<Mutex<Calls>>);

#[derive(Default)]
struct Calls {
    pages: Vec<String>,
    answers: Vec<IndexError>,
}

impl FakeIndex {
    /// The first calls fail with these errors, the last one first.
    fn failing(answers: Vec<IndexError>) -> FakeIndex {
        FakeIndex(Arc::new(Mutex::new(Calls { answers, ..Calls::default() })))
    }

    fn calls(&self) -> usize {
        self.0.lock().unwrap().pages.len()
    }
}

impl Index for FakeIndex {
    async fn put(&self, page: &str) -> std::result::Result<(), IndexError> {
        let mut calls = self.0.lock().unwrap();
        calls.pages.push(page.to_owned());
        calls.answers.pop().map_or(Ok(()), Err)
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A worker with the task under test, and the index that it calls.
fn start(index: &FakeIndex) -> Result<TestKit> {
    TestKit::start(|quell| quell.worker(index.clone()).register(index_page::<FakeIndex>))
}

async fn edit(kit: &TestKit) -> Result<()> {
    kit.quell().trigger(IndexPage { page: "home".to_owned() }).await.map(drop)
}

#[tokio::test]
async fn a_burst_of_edits_is_one_call() -> Result<()> {
    let index = FakeIndex::default();
    let kit = start(&index)?;
    for _ in 0..5 {
        edit(&kit).await?;
        kit.advance(secs(3)).await;
    }
    // The last edit was at 12 s: the page is quiet for 10 s at 22 s.
    kit.advance(secs(6)).await;
    assert_eq!(index.calls(), 0);
    kit.advance(secs(1)).await;
    assert_eq!(index.calls(), 1);
    let jobs = kit.succeeded("page.index").await?;
    assert_eq!((jobs.len(), jobs[0].window.triggers), (1, 5));
    Ok(())
}

#[tokio::test]
async fn a_page_that_is_never_quiet_is_indexed_each_minute() -> Result<()> {
    let index = FakeIndex::default();
    let kit = start(&index)?;
    for _ in 0..60 {
        edit(&kit).await?;
        kit.advance(secs(5)).await;
    }
    assert_eq!(index.calls(), 5, "300 s of edits, 60 s at most from an edit to its run");
    Ok(())
}

#[tokio::test]
async fn an_index_that_does_not_answer_is_tried_again() -> Result<()> {
    let index = FakeIndex::failing(vec![IndexError::Unreachable]);
    let kit = start(&index)?;
    edit(&kit).await?;
    kit.advance(secs(10)).await;
    assert_eq!((index.calls(), kit.succeeded("page.index").await?.len()), (1, 0));
    // The policy's backoff: 30 s after the first failure.
    kit.advance(secs(29)).await;
    assert_eq!(index.calls(), 1);
    kit.advance(secs(1)).await;
    assert_eq!((index.calls(), kit.succeeded("page.index").await?.len()), (2, 1));
    Ok(())
}

#[tokio::test]
async fn a_page_is_dead_after_three_failures() -> Result<()> {
    let index = FakeIndex::failing((0..3).map(|_| IndexError::Unreachable).collect());
    let kit = start(&index)?;
    edit(&kit).await?;
    // 10 s of quiet, then backoffs of 30 s and 60 s.
    kit.advance(secs(100)).await;
    let dead = kit.jobs("page.index", JobState::Dead).await?;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].error.as_deref(), Some("index does not answer"));
    assert_eq!((index.calls(), kit.quell().attempts(dead[0].id).await?.len()), (3, 3));
    Ok(())
}

#[tokio::test]
async fn a_page_that_the_index_refuses_is_dead_at_once_and_can_be_redriven() -> Result<()> {
    let index = FakeIndex::failing(vec![IndexError::Refused]);
    let kit = start(&index)?;
    edit(&kit).await?;
    kit.advance(secs(10)).await;
    let dead = kit.jobs("page.index", JobState::Dead).await?;
    assert_eq!(dead[0].error.as_deref(), Some("index refuses the page"));
    kit.quell().dead().redrive(dead[0].id).await?;
    kit.settle().await;
    assert_eq!((index.calls(), kit.succeeded("page.index").await?.len()), (2, 1));
    Ok(())
}

#[test]
fn the_readme_lists_these_tests() {
    let source = include_str!("search.rs");
    let shown = include_str!("../README.md").lines().filter_map(|line| {
        line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... ok"))
    });
    let shown: Vec<&str> = shown.collect();
    assert!(shown.iter().all(|name| source.contains(&format!("async fn {name}()"))), "{shown:?}");
    assert_eq!(shown.len(), source.matches("\n#[tokio::test]\n").count());
}
