//! `--wait`: follows an action to its end, with a line that changes on a terminal and plain lines elsewhere.
//!
//! A server that does not answer for a moment ends no wait; an interrupt ends the wait and not the action.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};

use super::{At, print_action, summary};
use crate::cli::source::Remote;
use crate::view::{Action, ActionState};

/// Between two looks.
const EVERY: Duration = Duration::from_millis(300);
/// How often plain lines come.
const LINE_EVERY: Duration = Duration::from_secs(2);
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many looks in a row may fail.
const MOST_FAILURES: u32 = 20;

/// Waits, prints the action, and fails where it did not do all.
pub(super) fn until_ended(at: &At, name: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let ended = ended(at, name)?;
    print_action(at, &ended, out)?;
    if ended.state != ActionState::Done {
        bail!("action {name} is {}, not done", ended.state.name());
    }
    anyhow::ensure!(ended.failed == 0, "{} jobs could not be changed", ended.failed);
    Ok(())
}

/// Waits for the end of an action.
pub(super) fn ended(at: &At, name: &str) -> anyhow::Result<Action> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let interrupted = crate::signal::shutdown()?;
        let remote = Remote::new(&at.server, PATIENCE)?;
        tokio::select! {
            ended = follow(&remote, name) => ended,
            () = interrupted => bail!("interrupted: action {name} goes on in the server"),
        }
    })
}

async fn follow(remote: &Remote, name: &str) -> anyhow::Result<Action> {
    let mut shown = Shown::new();
    let mut failures = 0;
    loop {
        match remote.get::<Action>(&["v1", "actions", name], &[]).await {
            Ok(Ok(action)) if action.state != ActionState::Running => {
                shown.bar.finish_and_clear();
                return Ok(action);
            }
            Ok(Ok(action)) => {
                failures = 0;
                shown.update(&action);
            }
            Ok(Err(refusal)) => {
                return Err(anyhow::Error::msg(refusal)).context("an action ends with its server");
            }
            Err(error) => {
                failures += 1;
                if failures > MOST_FAILURES {
                    return Err(error.context(format!("action {name}")));
                }
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// The line that changes, or the lines in its place.
struct Shown {
    bar: ProgressBar,
    plain: bool,
    last: Instant,
}

impl Shown {
    fn new() -> Self {
        let plain = !std::io::stderr().is_terminal();
        let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        let bar = match ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Shown { bar, plain, last: Instant::now() }
    }

    fn update(&mut self, action: &Action) {
        self.bar.set_message(summary(action));
        self.bar.tick();
        if self.plain && self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            // Standard error may be closed; the end has the numbers, too.
            let _closed = writeln!(std::io::stderr(), "{}", summary(action));
        }
    }
}
