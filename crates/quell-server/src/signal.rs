//! The signals that end the program in order.

use std::future::Future;

use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tracing::debug;

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

/// The SIGHUPs from now on: each asks for the configuration to be read again.
///
/// # Errors
/// When the handler cannot be installed.
pub fn hangups() -> anyhow::Result<tokio::signal::unix::Signal> {
    Ok(signal(SignalKind::hangup())?)
}

/// Notifies systemd, where it waits for that, that the server answers.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Notifies systemd that the configuration is read again; [`ready`] ends it.
pub fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    notify(&[NotifyState::Reloading].into_iter().chain(now).collect::<Vec<_>>());
}

/// Notifies systemd that the server ends.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "systemd could not be notified");
    }
}
