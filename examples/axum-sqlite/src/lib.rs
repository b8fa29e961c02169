//! A service on one SQLite file: requests store orders and trigger tasks, a worker in the same
//! process runs them, and clients read the results.
//!
//! It shows
//! - a trigger in the transaction that writes the service's own rows (`add_order`),
//! - a task that settles its job in the transaction that writes its result (`update_total`),
//! - a request with an idempotency key, and its result (`request_statement`, `job_result`),
//! - a worker that stops with the server on SIGTERM (`main.rs`).
//!
//! Invariant: no order is stored without a trigger for its customer's total, and no trigger without
//! its order.

use std::path::Path as FilePath;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use quell::{Ctx, ErrorKind, JobId, JobResult, Policy, Quell, Task, TaskError, WorkerBuilder};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

/// The longest time that a request may wait for a result. The server waits for such requests before
/// it stops.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Adds up a customer's orders: once per burst of orders.
#[derive(Debug, Serialize, Deserialize)]
pub struct UpdateTotal {
    customer: i64,
}

impl Task for UpdateTotal {
    const NAME: &'static str = "total.update";
    type Output = ();

    fn policy() -> Policy {
        let (min, max) = (Duration::from_millis(500), Duration::from_secs(5));
        Policy::queue("totals").debounce(min..=max)
    }

    fn debounce_key(&self) -> Option<String> {
        Some(self.customer.to_string())
    }
}

/// Makes a statement of a customer's orders. It has no debounce key, so each trigger is a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct MakeStatement {
    customer: i64,
}

impl Task for MakeStatement {
    const NAME: &'static str = "statement.make";
    type Output = Statement;

    fn policy() -> Policy {
        Policy::queue("statements").attempts(5)
    }
}

/// The result of [`MakeStatement`].
#[derive(Debug, Serialize, Deserialize, sqlx::FromRow)]
pub struct Statement {
    customer: i64,
    orders: i64,
    cents: i64,
}

/// What requests and handlers share.
#[derive(Clone, Debug)]
pub struct App {
    /// The service's own tables. The same file holds the store.
    pub db: SqlitePool,
    /// The client that triggers tasks.
    pub quell: Quell,
}

impl App {
    /// Opens the file, and creates it and the service's tables where they do not exist.
    ///
    /// # Errors
    /// Fails when the file cannot be opened or written.
    pub async fn open(file: &FilePath) -> anyhow::Result<App> {
        // SQLite has one writer: a busy timeout lets connections wait for each other.
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(5));
        let db = SqlitePool::connect_with(options).await?;
        let tables = "create table if not exists orders (customer integer, cents integer);
             create table if not exists totals (customer integer primary key, cents integer, runs integer)";
        sqlx::raw_sql(tables).execute(&db).await?;
        let quell = Quell::open(&format!("sqlite://{}", file.display())).await?;
        Ok(App { db, quell })
    }
}

/// The service's routes.
pub fn routes(app: App) -> Router {
    Router::new()
        .route("/orders", post(add_order))
        .route("/customers/{customer}", get(total))
        .route("/customers/{customer}/statements", post(request_statement))
        .route("/jobs/{job}", get(job_result))
        .with_state(app)
}

/// The worker that runs the service's tasks.
pub fn worker(app: &App) -> WorkerBuilder<App> {
    app.quell.worker(app.clone()).register(update_total).register(make_statement)
}

#[derive(Debug, Deserialize)]
struct Order {
    customer: i64,
    cents: i64,
}

async fn add_order(State(app): State<App>, Json(order): Json<Order>) -> Result<StatusCode, Failed> {
    let mut tx = app.db.begin().await?;
    sqlx::query("insert into orders (customer, cents) values (?1, ?2)")
        .bind(order.customer)
        .bind(order.cents)
        .execute(&mut *tx)
        .await?;
    app.quell.trigger(UpdateTotal { customer: order.customer }).within(&mut tx).await?;
    tx.commit().await?;
    Ok(StatusCode::ACCEPTED)
}

async fn update_total(task: UpdateTotal, ctx: Ctx<App>) -> Result<(), TaskError> {
    let mut tx = ctx.state().db.begin_with("begin immediate").await?;
    sqlx::query(
        "insert into totals
         select ?1, coalesce(sum(cents), 0), 1 from orders where customer = ?1
             on conflict (customer) do update
            set cents = excluded.cents, runs = totals.runs + 1",
    )
    .bind(task.customer)
    .execute(&mut *tx)
    .await?;
    ctx.settle_in(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

#[derive(Debug, Serialize, sqlx::FromRow)]
struct Total {
    cents: i64,
    runs: i64,
}

async fn total(State(app): State<App>, Path(customer): Path<i64>) -> Result<Json<Total>, Failed> {
    let total = sqlx::query_as("select cents, runs from totals where customer = ?1");
    let total = total.bind(customer).fetch_optional(&app.db).await?;
    total.map(Json).ok_or(Failed(StatusCode::NOT_FOUND))
}

#[derive(Debug, Serialize)]
struct Requested {
    job: Option<JobId>,
}

/// A client that repeats its request with the same `Idempotency-Key` gets the same job.
async fn request_statement(
    State(app): State<App>,
    Path(customer): Path<i64>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<Requested>), Failed> {
    let mut trigger = app.quell.trigger(MakeStatement { customer });
    if let Some(key) = headers.get("idempotency-key") {
        trigger = trigger.idempotency_key(key.to_str()?);
    }
    let receipt = trigger.await?;
    Ok((StatusCode::ACCEPTED, Json(Requested { job: receipt.job() })))
}

async fn make_statement(task: MakeStatement, ctx: Ctx<App>) -> Result<Statement, TaskError> {
    let statement = sqlx::query_as(
        "select ?1 customer, count(*) orders, coalesce(sum(cents), 0) cents
           from orders where customer = ?1",
    );
    let statement = statement.bind(task.customer).fetch_one(&ctx.state().db).await?;
    // Printing it takes a while.
    ctx.sleep(Duration::from_millis(300)).await;
    Ok(statement)
}

#[derive(Debug, Deserialize)]
struct Wait {
    #[serde(default)]
    seconds: u64,
}

/// The state of a job and, once it has succeeded, its output. `?seconds=5` waits for its end.
async fn job_result(
    State(app): State<App>,
    Path(job): Path<u64>,
    Query(wait): Query<Wait>,
) -> Result<Json<JobResult>, Failed> {
    let wait = Duration::from_secs(wait.seconds).min(LONGEST_WAIT);
    Ok(Json(app.quell.result(JobId::new(job), wait).await?))
}

/// The response to a request that failed. The reason is logged and not sent to the client.
#[derive(Debug)]
pub struct Failed(StatusCode);

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        let error = error.into();
        let status = match error.downcast_ref::<quell::Error>().map(quell::Error::kind) {
            Some(ErrorKind::NotFound) => StatusCode::NOT_FOUND,
            Some(ErrorKind::Invalid) => StatusCode::BAD_REQUEST,
            Some(ErrorKind::IdempotencyConflict) => StatusCode::CONFLICT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        tracing::warn!(%status, error = format!("{error:#}"), "request failed");
        Failed(status)
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        self.0.into_response()
    }
}
