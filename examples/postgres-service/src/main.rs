//! `cargo run -p postgres-service -- postgres://user@localhost/app`: the server and its worker in one
//! process. On SIGTERM or Ctrl-C both stop: requests and running attempts complete first.

use std::io;

use anyhow::Context;
use postgres_service::{App, create_tables, routes, worker};
use quell::Quell;
use sqlx::PgPool;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).context("name the database: postgres://user@host/name")?;
    // One for the server, one for the worker.
    let (stop_serving, stop_working) = (stop()?, stop()?);
    let db = PgPool::connect(&url).await?;
    create_tables(&db).await?;
    let app = App { db, quell: Quell::open(&url).await? };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let serve = axum::serve(listener, routes(app.clone())).with_graceful_shutdown(stop_serving);
    let work = worker(&app).run_until(stop_working);
    let (served, worked) = tokio::join!(serve, work);
    served?;
    Ok(worked?)
}

/// Completes when the process is asked to stop. From this call on, signals no longer kill it.
fn stop() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
