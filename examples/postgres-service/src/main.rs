//! `cargo run -p postgres-service -- postgres://user@localhost/app`

use anyhow::Context;
use postgres_service::{App, create_tables, routes, worker};
use quell::Quell;
use sqlx::PgPool;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).context("name the database: postgres://user@host/name")?;
    let db = PgPool::connect(&url).await?;
    create_tables(&db).await?;
    let app = App { db, quell: Quell::open(&url).await? };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let stop = || async { drop(tokio::signal::ctrl_c().await) };
    let serve = axum::serve(listener, routes(app.clone())).with_graceful_shutdown(stop());
    let work = worker(&app).run_until(stop());
    let (served, worked) = tokio::join!(serve, work);
    served?;
    Ok(worked?)
}
