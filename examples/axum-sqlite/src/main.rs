//! `cargo run -p axum-sqlite -- app.db [ADDRESS]`: the server and its worker in one process.
//!
//! On SIGTERM or Ctrl-C both stop: the server completes its requests, and the worker lets running
//! attempts finish. Jobs that have not started stay in the file, and the next start runs them.
#![expect(clippy::print_stdout, reason = "the first line has the address")]

use std::io;
use std::path::Path;

use anyhow::Context;
use axum_sqlite::{App, routes, worker};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let mut args = std::env::args().skip(1);
    let file = args.next().context("name the database file: axum-sqlite app.db")?;
    let address = args.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let app = App::open(Path::new(&file)).await?;
    // One for the server, one for the worker.
    let (stop_serving, stop_working) = (stop()?, stop()?);
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let serve = axum::serve(listener, routes(app.clone())).with_graceful_shutdown(stop_serving);
    let work = worker(&app).run_until(stop_working);
    let (served, worked) = tokio::join!(serve, work);
    served?;
    worked?;
    println!("stopped");
    Ok(())
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
