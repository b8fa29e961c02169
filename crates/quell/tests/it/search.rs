//! Jobs found by more than stores filter by: page by page, with a cursor.

use std::sync::Arc;

use quell::job::{JobFilter, JobPage, JobSearch};
use quell::testing::TestKit;
use quell::trigger::NewTrigger;
use quell::{
    Batch, Job, JobId, JobState, Key, Payload, Policy, Quell, QueueName, Result, TaskName,
};

use crate::tasks::{App, reindex, secs};

fn kit() -> Result<TestKit> {
    let state = Arc::clone(&App::default());
    TestKit::start(|quell| quell.worker(state).register(reindex))
}

/// A trigger of a queue without workers.
fn trigger(partition: Option<&str>) -> NewTrigger {
    let policy = Policy::queue("elsewhere");
    let task = TaskName::new("t").unwrap();
    let plain = policy.trigger(task, Payload::from_stored("1"), None).unwrap();
    NewTrigger { partition: partition.map(|name| Key::new(name).unwrap()), ..plain }
}

async fn accept(quell: &Quell, triggers: Vec<NewTrigger>) -> Vec<JobId> {
    let receipts = quell.enqueue(Batch { triggers, dedup: None }).await.unwrap();
    receipts.iter().map(|receipt| receipt.job().unwrap()).collect()
}

async fn found(quell: &Quell, search: &JobSearch) -> Vec<JobId> {
    let page = quell.search(search).await.unwrap();
    assert_eq!(page.next, None, "{page:?}");
    page.jobs.iter().map(|job| job.id).collect()
}

#[tokio::test]
async fn jobs_are_found_by_partition_age_and_lateness() -> Result<()> {
    let kit = kit()?;
    let quell = kit.quell();
    let old = accept(quell, vec![trigger(Some("acme")), trigger(None)]).await;
    kit.advance(secs(100)).await;
    let delayed = NewTrigger { when: quell::When::After(secs(60)), ..trigger(Some("acme")) };
    let new = accept(quell, vec![delayed]).await;
    kit.advance(secs(10)).await;
    let all = JobSearch::default;
    let acme = || Some(Key::new("acme").unwrap());
    let table = [
        (all(), vec![new[0], old[1], old[0]]),
        (JobSearch { partition: acme(), ..all() }, vec![new[0], old[0]]),
        (JobSearch { age: Some(secs(109)), ..all() }, vec![old[1], old[0]]),
        (JobSearch { age: Some(secs(110)), ..all() }, vec![]),
        (JobSearch { age: Some(secs(9)), ..all() }, vec![new[0], old[1], old[0]]),
        (JobSearch { late: Some(secs(109)), ..all() }, vec![old[1], old[0]]),
        (JobSearch { late: Some(secs(110)), ..all() }, vec![]),
        (JobSearch { partition: acme(), late: Some(secs(1)), ..all() }, vec![old[0]]),
    ];
    for (search, expected) in table {
        assert_eq!(found(quell, &search).await, expected, "{search:?}");
    }
    let dead = JobFilter::default().state(JobState::Dead);
    let never = JobSearch { filter: dead, late: Some(secs(1)), ..all() };
    assert_eq!(quell.search(&never).await.unwrap_err().field(), Some("late"));
    let silent = JobSearch { error: Some(" ".to_owned()), ..all() };
    assert_eq!(quell.search(&silent).await.unwrap_err().field(), Some("error"));
    Ok(())
}

#[test]
fn an_error_is_searched_for_without_regard_to_case() {
    let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
    let window = quell::job::Window::unkeyed(TestKit::START, quell::Timestamp::MIN);
    let job = Job::new(JobId::new(1), task, queue, Payload::from_stored("1"), window);
    let failed = Job { error: Some("Connection REFUSED by db-1".to_owned()), ..job.clone() };
    let search = JobSearch { error: Some("connection refused".to_owned()), ..JobSearch::default() };
    assert!(search.matches(&failed, TestKit::START));
    assert!(!search.matches(&job, TestKit::START));
    let other = JobSearch { error: Some("timed out".to_owned()), ..JobSearch::default() };
    assert!(!other.matches(&failed, TestKit::START));
}

#[test]
fn r25_a_cause_finds_the_jobs_that_the_list_of_causes_counts() {
    let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
    let window = quell::job::Window::unkeyed(TestKit::START, quell::Timestamp::MIN);
    let job = Job::new(JobId::new(1), task, queue, Payload::from_stored("1"), window);
    let failed = |error: &str| Job { error: Some(error.to_owned()), ..job.clone() };
    let of = |cause: &str| JobSearch { cause: Some(cause.to_owned()), ..JobSearch::default() };
    let search = of("no answer from N in Ns");
    assert!(search.matches(&failed("no answer from 10.0.0.7 in 1.5s"), TestKit::START));
    assert!(!search.matches(&failed("no answer from 10.0.0.7 in 1.5s, gave up"), TestKit::START));
    assert!(!search.matches(&job, TestKit::START));
    assert_eq!(of(" ").validate().unwrap_err().field(), Some("cause"));
}

/// A call reads a bounded number of jobs, and the pages together have each match once.
#[tokio::test]
async fn a_search_is_bounded_and_its_cursor_goes_on() -> Result<()> {
    let kit = kit()?;
    let quell = kit.quell();
    let first = accept(quell, vec![trigger(Some("acme")), trigger(Some("acme"))]).await;
    for _ in 0..2 {
        accept(quell, vec![trigger(None); JobPage::MAX_JOBS / 2 + 100]).await;
    }
    let last = accept(quell, vec![trigger(Some("acme"))]).await;
    let mut search =
        JobSearch { partition: Some(Key::new("acme").unwrap()), ..JobSearch::default() };
    search.filter.limit = 2;
    let (mut pages, mut matches) = (Vec::new(), Vec::new());
    loop {
        let page = quell.search(&search).await?;
        pages.push(page.jobs.len());
        matches.extend(page.jobs.iter().map(|job| job.id));
        search.filter.before = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(matches, [last[0], first[1], first[0]]);
    assert_eq!(pages, [1, 2], "the first page ends at its bound");
    Ok(())
}
