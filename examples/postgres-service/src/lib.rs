//! A service that meters its customers: requests report usage, bills follow once per burst.
//!
//! It shows PostgreSQL transactions: a request writes usage and triggers in one (`report_usage`), and
//! the task writes the bill and ends its job in one (`update_bill`). So no usage is ever without a
//! bill to come, and none is billed twice. `docs/postgres.md` walks through this file.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use quell::{Ctx, Policy, Quell, Task, TaskError, WorkerBuilder};
use sqlx::PgPool;

/// Brings a customer's bill up to date.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct UpdateBill {
    customer: i64,
}

impl Task for UpdateBill {
    const NAME: &'static str = "bill.update";
    type Output = ();

    fn policy() -> Policy {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(10));
        Policy::queue("billing").debounce(min..=max).attempts(10)
    }

    fn debounce_key(&self) -> Option<String> {
        Some(self.customer.to_string())
    }
}

/// What requests and handlers share.
#[derive(Clone, Debug)]
pub struct App {
    /// The service's own database, which holds the store too.
    pub db: PgPool,
    /// Triggers.
    pub quell: Quell,
}

/// What a customer used.
#[derive(Debug, serde::Deserialize)]
pub struct Usage {
    customer: i64,
    amount: i64,
}

/// A customer's bill.
#[derive(Debug, serde::Serialize, sqlx::FromRow)]
pub struct Bill {
    total: i64,
    updates: i64,
}

/// The service's tables.
///
/// # Errors
/// Fails when the database refuses the statements.
pub async fn create_tables(db: &PgPool) -> sqlx::Result<()> {
    let tables = "create table if not exists usage (customer bigint, amount bigint);
         create table if not exists bill (customer bigint primary key, total bigint, updates bigint)";
    sqlx::raw_sql(tables).execute(db).await.map(drop)
}

/// The service's routes.
pub fn routes(app: App) -> Router {
    Router::new()
        .route("/usage", post(report_usage))
        .route("/bills/{customer}", get(bill))
        .with_state(app)
}

async fn report_usage(
    State(app): State<App>,
    Json(usage): Json<Usage>,
) -> Result<StatusCode, Failed> {
    let mut tx = app.db.begin().await?;
    sqlx::query("insert into usage values ($1, $2)")
        .bind(usage.customer)
        .bind(usage.amount)
        .execute(&mut *tx)
        .await?;
    app.quell.trigger(UpdateBill { customer: usage.customer }).within(&mut tx).await?;
    tx.commit().await?;
    Ok(StatusCode::ACCEPTED)
}

async fn bill(State(app): State<App>, Path(customer): Path<i64>) -> Result<Json<Bill>, Failed> {
    let bill = sqlx::query_as("select total, updates from bill where customer = $1");
    let bill = bill.bind(customer).fetch_optional(&app.db).await?;
    bill.map(Json).ok_or(Failed(StatusCode::NOT_FOUND))
}

async fn update_bill(task: UpdateBill, ctx: Ctx<App>) -> Result<(), TaskError> {
    let mut tx = ctx.state().db.begin().await?;
    sqlx::query(
        "insert into bill
         select $1, coalesce(sum(amount), 0)::bigint, 1 from usage where customer = $1
             on conflict (customer) do update
            set total = excluded.total, updates = bill.updates + 1",
    )
    .bind(task.customer)
    .execute(&mut *tx)
    .await?;
    ctx.settle_in(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

/// The worker that keeps bills.
pub fn worker(app: &App) -> WorkerBuilder<App> {
    app.quell.worker(app.clone()).register(update_bill)
}

/// The response to a request that failed; a real service would log the reason.
#[derive(Debug)]
pub struct Failed(StatusCode);

impl<E: std::error::Error> From<E> for Failed {
    fn from(_: E) -> Self {
        Failed(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        self.0.into_response()
    }
}
