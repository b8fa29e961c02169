//! Logs go to standard error; `QUELL_LOG` says how much (else the command's own default).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging for the process; a second call changes nothing.
pub fn start(default: &str) {
    let filter = EnvFilter::try_from_env("QUELL_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    if let Err(error) = started {
        tracing::debug!(%error, "logging was started before");
    }
}
