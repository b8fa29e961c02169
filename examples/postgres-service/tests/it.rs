//! The service as its users see it, and the guide's page that shows it.
#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use postgres_service::{App, create_tables, routes, worker};
use quell::Quell;
use quell_services::Postgres;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::sync::oneshot;
use tower::ServiceExt;

async fn app(server: &Postgres) -> App {
    let db = PgPool::connect(&server.url()).await.unwrap();
    create_tables(&db).await.unwrap();
    App { db, quell: Quell::open(&server.url()).await.unwrap() }
}

async fn ask(app: &App, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string())).unwrap();
    let answer = routes(app.clone()).oneshot(request).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn a_burst_of_requests_is_one_update_of_the_bill_and_loses_nothing() {
    let server = Postgres::start(&["fsync=off"]).unwrap();
    let app = app(&server).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let mut working = tokio::task::JoinSet::new();
    working.spawn(worker(&app).run_until(async { drop(stopped.await) }));
    for amount in 1..=20 {
        let usage = json!({ "customer": 7, "amount": amount });
        assert_eq!(ask(&app, "POST", "/usage", usage).await.0, StatusCode::ACCEPTED);
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    let bill = loop {
        let (status, bill) = ask(&app, "GET", "/bills/7", Value::Null).await;
        if status == StatusCode::OK && bill["total"] == 210 {
            break bill;
        }
        assert!(Instant::now() < deadline, "the bill stays at {bill}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(bill["updates"].as_i64().unwrap() < 20, "{bill}");
    drop(stop);
    while let Some(ended) = working.join_next().await {
        ended.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_request_that_fails_leaves_neither_usage_nor_trigger() {
    let server = Postgres::start(&["fsync=off"]).unwrap();
    let app = app(&server).await;
    // No usage may be negative: the commit fails after the trigger.
    sqlx::raw_sql(
        "create function refuse() returns trigger language plpgsql as
         $$ begin raise exception 'no'; end $$;
         create constraint trigger refuse after insert on usage deferrable initially deferred
            for each row execute function refuse()",
    )
    .execute(&app.db)
    .await
    .unwrap();
    let usage = json!({ "customer": 7, "amount": 1 });
    let answer = ask(&app, "POST", "/usage", usage).await;
    assert_eq!(answer.0, StatusCode::INTERNAL_SERVER_ERROR);
    let left: i64 =
        sqlx::query_scalar("select count(*) from quell.inbox").fetch_one(&app.db).await.unwrap();
    assert_eq!(left, 0);
    assert_eq!(ask(&app, "GET", "/bills/7", Value::Null).await.0, StatusCode::NOT_FOUND);
}

/// Every block of code on the page stands in the example, word for word.
#[test]
fn the_page_shows_this_service() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/postgres.md")).unwrap();
    let source = ["src/lib.rs", "src/main.rs", "Cargo.toml"]
        .map(|file| std::fs::read_to_string(root.join(file)).unwrap())
        .concat();
    let blocks: Vec<&str> = page.split("```rust\n").skip(1).collect();
    assert!(blocks.len() >= 4, "the page has {} blocks", blocks.len());
    for block in blocks {
        let code = block.split("```").next().unwrap();
        assert!(source.contains(code), "not in the example:\n{code}");
    }
}
