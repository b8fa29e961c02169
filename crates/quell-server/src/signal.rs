//! The signals that end the program in order.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

/// Completes at the first SIGINT or SIGTERM after the call.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn shutdown() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
