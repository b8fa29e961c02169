//! `quell tail`: follows what happens to jobs, by looking at their list again and again.
//!
//! `follow` compares the looks, `round` reads what one needs with a bounded number of requests. Filters that a
//! job may come to match or cease to match (state, error, age, late) are compared here with each line; the
//! list is read by the others.

mod follow;
mod round;

use std::io::{ErrorKind, Write};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quell::job::JobSearch;
use serde_json::json;
use tokio::time::Instant;

use super::exit::Misuse;
use super::jobs::searched;
use super::live::{Live, interval};
use super::source::{Source, print_json};
use super::text::printable;
use crate::config::duration;
use crate::filter::FilterText;
use follow::{Event, Happening};
use round::{Gap, Rounds};

/// How much of an error a line shows, in characters.
const SHOWN_ERROR: usize = 100;

/// `quell tail`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: FilterText,
    /// End after this long, such as 10s.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    length: Option<Duration>,
    /// How often to look, 100ms at least.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    every: Duration,
    #[command(flatten)]
    source: Source,
}

/// Runs `quell tail`: it ends by itself, at a signal, or where nothing reads its lines any more.
///
/// # Errors
/// Why the first look failed; later ones are repeated until they succeed.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let search = searched(&args.filter)?;
    if search.cause.is_some() {
        // A cause is made of a whole error, and what is followed has the beginnings of long ones.
        let message = "--cause is for lists and actions: follow a text of the error with --error";
        return Err(Misuse::error(message));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let signal = crate::signal::shutdown()?;
        let live = Live::open(&args.source).await?;
        let ended = tokio::select! {
            ended = follow(args, &search, &live, out) => ended,
            () = signal => Ok(()),
        };
        live.close().await?;
        match ended {
            // As when `head` has its lines.
            Err(error) if is_closed(&error) => Ok(()),
            ended => ended,
        }
    })
}

fn is_closed(error: &anyhow::Error) -> bool {
    let of_output = error.downcast_ref::<std::io::Error>();
    of_output.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

async fn follow(
    args: &Args,
    search: &JobSearch,
    live: &Live,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let end = args.length.map(|length| Instant::now() + length);
    let mut rounds = Rounds::new(search);
    rounds.begin(live).await?;
    // A program that reads the lines knows from when on none is missing.
    note("following");
    let mut is_away = false;
    loop {
        let next = Instant::now() + args.every;
        if end.is_some_and(|end| end <= next) {
            // The last look is at the end.
            tokio::time::sleep_until(end.unwrap_or(next)).await;
        } else {
            tokio::time::sleep_until(next).await;
        }
        match rounds.look(live, search.late).await {
            Ok((events, gap)) => {
                if std::mem::take(&mut is_away) {
                    note("it answers again");
                }
                report(gap);
                print(events, search, args.source.json, out)?;
            }
            Err(error) if !is_away => {
                is_away = true;
                note(&format!("{error:#}; the lines go on when it answers again"));
            }
            Err(_) => {}
        }
        if end.is_some_and(|end| end <= Instant::now()) {
            return Ok(());
        }
    }
}

/// Says on standard error what is no line.
fn note(text: &str) {
    // It may be closed; the lines go on.
    let _closed = writeln!(std::io::stderr(), "{text}");
}

fn report(gap: Option<Gap>) {
    match gap {
        Some(Gap::New(most)) => {
            note(&format!("more than {most} jobs came at once: older ones of them are left out"));
        }
        Some(Gap::Known(lost)) => {
            note(&format!("{lost} jobs that wait are not followed any more: narrow the filter"));
        }
        None => {}
    }
}

/// Prints the events that the filter lets pass, in their order.
fn print(
    events: Vec<Event>,
    search: &JobSearch,
    as_json: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let passes = events.into_iter().filter(|event| matches(event, search, now));
    let mut timed: Vec<(Timestamp, Event)> =
        passes.map(|event| (moment(&event).unwrap_or(now), event)).collect();
    timed.sort_by_key(|(at, _)| *at);
    for (at, event) in &timed {
        if as_json {
            let line =
                json!({ "event": event.what.name(), "at": at.to_string(), "job": event.job });
            print_json(&line, out)?;
        } else {
            writeln!(out, "{}", printable(&line(*at, event)))?;
        }
    }
    Ok(out.flush()?)
}

/// When it happened on the store's clock, where the job's row has that.
fn moment(event: &Event) -> Option<Timestamp> {
    let job = &event.job;
    let text = match event.what {
        Happening::Accepted => &job.first_at,
        Happening::Started => &job.started_at,
        Happening::Succeeded
        | Happening::Died
        | Happening::Cancelled
        | Happening::Absorbed
        | Happening::Unreadable => &job.ended_at,
        Happening::Failed
        | Happening::Released
        | Happening::Late
        | Happening::Redriven
        | Happening::Removed => &None,
    };
    text.as_ref()?.parse().ok()
}

/// Whether the members of the filter that change with a job let an event pass.
fn matches(event: &Event, search: &JobSearch, now: Timestamp) -> bool {
    let Event { what, job } = event;
    let is_old = |age: Duration| {
        let first_at = job.first_at.as_ref().and_then(|at| at.parse::<Timestamp>().ok());
        first_at.is_some_and(|at| longer_ago(at, now, age))
    };
    let has_error = |text: &String| {
        let error = job.error.as_deref().unwrap_or_default().to_ascii_lowercase();
        error.contains(&text.to_ascii_lowercase())
    };
    search.filter.state.is_none_or(|state| what.state() == Some(state))
        && search.partition.as_ref().is_none_or(|one| Some(one) == job.partition.as_ref())
        && search.error.as_ref().is_none_or(has_error)
        && search.age.is_none_or(is_old)
        && search.late.is_some() == (*what == Happening::Late)
}

/// Whether a moment was longer ago than this.
fn longer_ago(at: Timestamp, now: Timestamp, length: Duration) -> bool {
    SignedDuration::try_from(length).is_ok_and(|length| now.duration_since(at) > length)
}

fn line(at: Timestamp, event: &Event) -> String {
    let Event { what, job } = event;
    let key = job.key.as_ref().map_or("-", |key| key.as_str()).replace('\n', "\\n");
    let at = at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ");
    let head = format!("{at}  {:<10}  job {}  {}  {key}", what.name(), job.id, job.task);
    let error = || {
        let error = job.error.as_deref().unwrap_or_default();
        let line = error.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown: String = line.chars().take(SHOWN_ERROR).collect();
        if shown.len() < line.len() { shown + "…" } else { shown }
    };
    let due = || job.due_at.as_deref().unwrap_or("-");
    let more = match what {
        Happening::Accepted => format!("due {}", due()),
        Happening::Started => {
            let worker = job.worker.as_ref().map_or("-", |worker| worker.as_str());
            format!("attempt {} on {worker}", job.attempt)
        }
        Happening::Failed => format!("retried {}: {}", due(), error()),
        Happening::Late => format!("due since {}", due()),
        Happening::Died | Happening::Cancelled | Happening::Unreadable => error(),
        Happening::Absorbed => {
            let by = job.absorbed_by.map_or_else(|| "-".to_owned(), |by| by.to_string());
            format!("by job {by}")
        }
        Happening::Released | Happening::Redriven => format!("due {}", due()),
        Happening::Succeeded | Happening::Removed => String::new(),
    };
    format!("{head}  {more}").trim_end().to_owned()
}
