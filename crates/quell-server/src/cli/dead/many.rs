//! `quell dead redrive --all` and `discard --all`: page by page, with a bar on a terminal and plain
//! lines elsewhere. Invariant: after a stop, the same command does the rest.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use quell::dead::{BulkResult, DeadFilter, Progress, RedriveRate};
use serde_json::json;

use super::desk::Desk;
use crate::cli::numbers::grouped;
use crate::cli::source::Source;

/// How often plain lines come.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Redrives all matches, at most `rate` of them a second.
pub(super) fn redrive(
    source: &Source,
    filter: DeadFilter,
    rate: u32,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (desk, rate) = (Desk::open(source)?, RedriveRate::new(rate)?);
    let filter = DeadFilter { limit: rate.batch(), ..filter };
    let began = Instant::now();
    let progress = sweep(&desk, filter, "redriven", |filter, so_far| {
        let turn = rate.after(so_far.seen());
        desk.sleep(turn.saturating_sub(began.elapsed()));
        desk.redrive_page(filter)
    })?;
    print_summary(source, "redriven", &progress, out)
}

/// Discards all matches, once the operator confirms.
pub(super) fn discard(
    source: &Source,
    filter: DeadFilter,
    reason: &str,
    yes: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let desk = Desk::open(source)?;
    if !yes {
        let matching = grouped(desk.count(&filter)?);
        bail!(
            "{matching} dead jobs would be discarded for good: look with --dry-run, keep a copy \
             with `quell dead export`, then add --yes"
        );
    }
    let filter = DeadFilter { limit: DeadFilter::MAX_PAGE, ..filter };
    let progress =
        sweep(&desk, filter, "discarded", |filter, _| desk.discard_page(filter, reason))?;
    print_summary(source, "discarded", &progress, out)
}

/// Takes page after page, and shows how far it is.
fn sweep(
    desk: &Desk,
    mut filter: DeadFilter,
    done: &str,
    mut step: impl FnMut(&DeadFilter, &Progress) -> anyhow::Result<BulkResult>,
) -> anyhow::Result<Progress> {
    let mut progress = Progress { matched: desk.count(&filter)?, ..Progress::default() };
    let mut shown = Shown::new(progress.matched, done);
    loop {
        let swept = step(&filter, &progress).with_context(|| {
            let so_far = grouped(progress.done);
            format!("stopped after {so_far} {done}; the same command does the rest")
        })?;
        progress.add(&swept);
        shown.update(&progress);
        if swept.next.is_none() {
            shown.bar.finish_and_clear();
            return Ok(progress);
        }
        filter.before = swept.next;
    }
}

fn print_summary(
    source: &Source,
    done: &str,
    progress: &Progress,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if source.json {
        let counts = json!({
            done: progress.done, "skipped": progress.skipped, "failed": progress.failed,
        });
        return Ok(writeln!(out, "{counts}")?);
    }
    write!(out, "{} {done}", grouped(progress.done))?;
    if progress.skipped > 0 {
        write!(out, ", {} skipped, which were not dead any more", grouped(progress.skipped))?;
    }
    if progress.failed > 0 {
        write!(out, ", {} failed, which are still dead: see the log", grouped(progress.failed))?;
    }
    Ok(writeln!(out)?)
}

/// The bar, or the lines in its place.
struct Shown {
    bar: ProgressBar,
    plain: bool,
    last: Instant,
    done: String,
}

impl Shown {
    fn new(matched: u64, done: &str) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new(matched) };
        let template = "{bar:40} {human_pos} of {human_len} {msg}, {per_sec}, {eta} left";
        let bar = match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Shown {
            bar: bar.with_message(done.to_owned()),
            plain,
            last: Instant::now(),
            done: done.to_owned(),
        }
    }

    fn update(&mut self, progress: &Progress) {
        self.bar.set_position(progress.seen());
        if self.plain && self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            let (seen, of) = (grouped(progress.seen()), grouped(progress.matched));
            // Standard error may be closed; the summary has the numbers, too.
            let _closed = writeln!(std::io::stderr(), "{seen} of {of} {}", self.done);
        }
    }
}
