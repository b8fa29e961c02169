//! What a scrape of `/metrics` costs, and how long the page may get: the same with any number of jobs, callers and
//! names.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::Request;
use futures_util::future::join_all;
use quell::sqlite::{SqliteOptions, StepCounter};
use quell::trigger::NewTrigger;
use quell::worker::pull::PullTasks;
use quell::{Payload, Policy, Quell, TaskName};
use quell_core::Batch;
use quell_server::config::Config;
use quell_server::http::{self, Api};
use sqlx::Connection;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// The routes of a server on a store whose steps are counted.
struct Scraped {
    app: axum::Router,
    quell: Quell,
    steps: StepCounter,
    folder: TempDir,
}

impl Scraped {
    async fn new() -> Self {
        let (folder, steps) = (tempfile::tempdir().unwrap(), StepCounter::default());
        let url = format!("sqlite://{}?synchronous=normal", folder.path().join("q.db").display());
        let options = SqliteOptions::from_url(&url).unwrap().count_steps(Arc::clone(&steps));
        let quell = Quell::with_store(Arc::new(options.open().await.unwrap())).build().unwrap();
        let config = Config::parse("[tasks.t]\npull = true\n", folder.path()).unwrap();
        let tasks = PullTasks::new(quell.clone());
        let stop = CancellationToken::new();
        let api = Api::alone(quell.clone(), config, tasks.clone(), tasks, stop).unwrap();
        Scraped { app: http::router(api), quell, steps, folder }
    }

    async fn trigger(&self, triggers: impl Iterator<Item = NewTrigger>) {
        let triggers: Vec<_> = triggers.collect();
        for triggers in triggers.chunks(1_000) {
            let batch = Batch { triggers: triggers.to_vec(), dedup: None };
            self.quell.enqueue(batch).await.unwrap();
        }
    }

    async fn page(&self) -> String {
        let request = Request::get("/metrics").header("host", "localhost");
        let answer = self.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// The steps of a scrape, and its page.
    async fn cost(&self) -> (u64, String) {
        let before = self.steps.load(Ordering::Relaxed);
        let page = self.page().await;
        (self.steps.load(Ordering::Relaxed) - before, page)
    }

    async fn execute(&self, text: &'static str) {
        let url = format!("sqlite://{}", self.folder.path().join("q.db").display());
        let mut db = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::raw_sql(text).execute(&mut db).await.unwrap();
        db.close().await.unwrap();
    }
}

fn of_task(name: &str) -> NewTrigger {
    let task = TaskName::new(name).unwrap();
    Policy::queue("q").trigger(task, Payload::from_stored("1"), None).unwrap()
}

fn jobs(page: &str, labels: &str) -> Option<u64> {
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("quell_jobs{{{labels}}} ")));
    line.and_then(|count| count.parse().ok())
}

#[tokio::test]
async fn a_scrape_reads_no_more_with_20_000_jobs_than_with_10() {
    let scraped = Scraped::new().await;
    let mut costs = Vec::new();
    for (more, sum) in [(10, 10), (19_990, 20_000)] {
        scraped.trigger((0..more).map(|_| of_task("t"))).await;
        // The first one reads what is cached later.
        scraped.page().await;
        let (steps, page) = scraped.cost().await;
        let counted = jobs(&page, "queue=\"q\",task=\"t\",state=\"scheduled\"");
        assert_eq!(counted, Some(sum), "{page}");
        costs.push(steps);
    }
    let [few, many] = costs[..] else { panic!("{costs:?}") };
    assert!(few > 0 && many <= few + 10, "{few} steps with 10 jobs, {many} with 20,000");
}

/// Triggers of callers' transactions that no process takes in, or that were refused.
#[tokio::test]
async fn a_scrape_reads_a_bounded_part_of_a_long_inbox() {
    let scraped = Scraped::new().await;
    let mut costs = Vec::new();
    let rows = "with recursive n (n) as (select 1 union all select n + 1 from n where n < 11000)
                insert into quell_inbox (triggers, refused) select '[]', nullif(n % 100, 1) from n;
                with recursive n (n) as (select 1 union all select n + 1 from n where n < 11000)
                insert into quell_inbox (triggers) select '[]' from n";
    for _ in 0..2 {
        scraped.execute(rows).await;
        scraped.page().await;
        let (steps, page) = scraped.cost().await;
        assert!(page.contains("quell_store_inbox_waiting 10000\n"), "{page}");
        assert!(page.contains("quell_store_inbox_refused 1000\n"), "{page}");
        costs.push(steps);
    }
    let [few, many] = costs[..] else { panic!("{costs:?}") };
    assert!(many <= few + 10, "{few} steps with 22,000 rows, {many} with 44,000");
}

#[tokio::test]
async fn scrapes_at_the_same_time_share_a_look_at_the_store() {
    let scraped = Scraped::new().await;
    scraped.trigger((0..500).map(|number| of_task(&format!("t{number}")))).await;
    scraped.page().await;
    let (alone, _) = scraped.cost().await;
    assert!(alone > 500, "{alone} steps for 500 tasks");
    let before = scraped.steps.load(Ordering::Relaxed);
    let pages = join_all((0..100).map(|_| scraped.page())).await;
    let together = scraped.steps.load(Ordering::Relaxed) - before;
    assert!(together <= 3 * alone, "{alone} steps alone, {together} for 100 at the same time");
    assert!(pages.iter().all(|page| page.contains("task=\"t499\"")));

    // What was done before a scrape is on its page.
    for number in 0..20 {
        let beside = join_all((0..5).map(|_| scraped.page()));
        let own = async {
            scraped.trigger(std::iter::once(of_task("own"))).await;
            scraped.page().await
        };
        let (_, page) = futures_util::future::join(beside, own).await;
        let counted = jobs(&page, "queue=\"q\",task=\"own\",state=\"scheduled\"");
        assert_eq!(counted, Some(number + 1));
    }
}

#[tokio::test]
async fn the_page_has_a_bound_however_many_tasks_a_store_has() {
    let scraped = Scraped::new().await;
    scraped.trigger((0..3_000).map(|number| of_task(&format!("t{number:04}")))).await;
    let page = scraped.page().await;
    let lines = page.lines().filter(|line| line.starts_with("quell_jobs{")).count();
    // The declared task has no job, and one line is of all others.
    assert_eq!(lines, 1_000, "{lines}");
    let other = jobs(&page, "queue=\"(other)\",task=\"(other)\",state=\"scheduled\"");
    assert_eq!(other, Some(3_000 - 999));
    let counted = page.lines().filter(|line| line.starts_with("quell_triggers_total{")).count();
    assert!(counted <= 4 * 1_001, "{counted} lines of triggers");
}
