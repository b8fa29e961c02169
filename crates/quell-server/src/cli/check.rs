//! `quell check`: judges event histories, as `quell serve --history FILE` writes them, and says for
//! each property how many cases it judged, how many it could not, and why.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use quell::history::Event;
use quell::job::JobFilter;
use quell_check::{Cases, Clocks, Line, PROPERTIES, Report, check_by, elsewhere, merge, parse};
use serde_json::{Value, json};

use crate::cli::source::{open_store, print_json};

/// What to judge.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Event histories: one file for each process that wrote one.
    #[arg(required = true, value_name = "HISTORY")]
    histories: Vec<PathBuf>,
    /// The store that they are about, such as `sqlite://app.db`: its rows are held against the
    /// events. Everything that was triggered must have run by now.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Other processes used the store whose histories are not given, or it had jobs before: what
    /// they may have done counts as not judged.
    #[arg(long)]
    partial: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints what is wrong, each with the events that show it, and fails if anything is.
///
/// # Errors
/// When a history cannot be read, or breaks a promise.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for path in &args.histories {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        files.push(parse(&name, &text)?);
    }
    if let Some(url) = &args.store {
        files.push(rows(url)?);
    }
    if args.partial {
        files.push(vec![elsewhere()]);
    }
    let lines = merge(files);
    // Its processes estimate the service's time.
    let is_azure = args.store.as_ref().is_some_and(|url| url.starts_with("azure:"));
    let report = check_by(if is_azure { Clocks::Estimated } else { Clocks::One }, &lines);
    if args.json {
        print_json(&as_json(&report, &lines), out)?;
    } else {
        print(&report, &lines, out)?;
    }
    let broken = report.violations.len();
    anyhow::ensure!(broken == 0, "the history breaks {broken} promises");
    Ok(())
}

fn print(report: &Report, lines: &[Line], out: &mut dyn Write) -> anyhow::Result<()> {
    write!(out, "{}{}", report.text(lines), report.table())?;
    for process in &report.incomplete {
        writeln!(out, "{process} did not end its record: what it had in flight may be missing")?;
    }
    let (broken, events) = (report.violations.len(), report.events);
    let (accepted, attempts, pending) = (report.accepted, report.attempts, report.pending);
    writeln!(
        out,
        "{events} events, {accepted} triggers accepted, {attempts} attempts, {pending} triggers \
         that have not run: {broken} violations"
    )?;
    Ok(())
}

/// The same for programs: each violation with the lines that show it.
fn as_json(report: &Report, lines: &[Line]) -> Value {
    let violations = report.violations.iter().map(|violation| {
        let shown: Vec<&Line> = violation.lines.iter().filter_map(|at| lines.get(*at)).collect();
        json!({ "property": violation.property, "message": violation.message, "lines": shown })
    });
    let properties = PROPERTIES.iter().filter_map(|property| {
        let Cases { judged, unjudged } = report.cases.get(property)?;
        Some(json!({ "property": property, "judged": judged, "unjudged": unjudged }))
    });
    json!({
        "violations": violations.collect::<Vec<_>>(),
        "properties": properties.collect::<Vec<_>>(),
        "incomplete": report.incomplete,
        "events": report.events,
        "accepted": report.accepted,
        "attempts": report.attempts,
        "pending": report.pending,
    })
}

/// Every job's row, as the last events of the history.
fn rows(url: &str) -> anyhow::Result<Vec<Line>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let quell = open_store(url).await?;
        let store = quell.store();
        let (mut lines, mut before) = (Vec::new(), None);
        loop {
            let filter = JobFilter { before, limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
            let page = store.jobs(&filter).await?;
            let Some(last) = page.last() else { return Ok(lines) };
            before = Some(last.id);
            let store = crate::serve::without_password(url);
            lines.extend(page.iter().map(|job| Line::new(&*store, Event::row(job))));
        }
    })
}
