//! `quell result`: a job's state, output and error (R19).
//!
//! Invariant: the exit status is 0 only for a job that succeeded, or one that has not ended and was not waited
//! for. A job that outlasts `--wait` has a status of its own.

use std::io::Write;
use std::time::{Duration, Instant};

use quell::{JobId, JobState};

use crate::cli::exit::NotEnded;
use crate::cli::source::{Source, ask, join, print_json, read_store};
use crate::cli::text::{print_output, printable};
use crate::view::ResultOfJob;

/// How long one request waits at the server.
const PER_REQUEST: Duration = Duration::from_secs(20);

/// `quell result JOB`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job's number.
    id: JobId,
    /// Wait until it has ended, but no longer than this, such as 10s.
    #[arg(long, value_name = "DURATION", value_parser = crate::config::duration::parse)]
    wait: Option<Duration>,
    #[command(flatten)]
    source: Source,
}

/// Runs `quell result`.
///
/// # Errors
/// The error of the server or the store, such as an unknown job, and a job that ended without a
/// success.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let wait = args.wait.unwrap_or_default();
    let answer = match &args.source.store {
        Some(url) => read_store(url, async |quell| {
            Ok(ResultOfJob::from(&quell.result(args.id, wait).await?))
        })?,
        None => asked(&args, wait)?,
    };
    let (job, state) = (answer.job, answer.state);
    if args.source.json {
        print_json(&answer, out)?;
    } else {
        match &answer.error {
            Some(error) => writeln!(out, "job {job} is {state}: {}", printable(error))?,
            None => writeln!(out, "job {job} is {state}")?,
        }
        print_output(answer.output.as_ref(), out)?;
    }
    let failed = answer.ended && state != JobState::Succeeded;
    anyhow::ensure!(!failed, "job {job} is {state}, not succeeded");
    match args.wait {
        Some(wait) if !answer.ended => {
            let waited = crate::config::duration::exact(wait);
            Err(NotEnded::error(format!("job {job} is {state}: it has not ended within {waited}")))
        }
        Some(_) | None => Ok(()),
    }
}

/// Asks the server, again while there is time left: it holds no request for long.
fn asked(args: &Args, wait: Duration) -> anyhow::Result<ResultOfJob> {
    let begun = Instant::now();
    loop {
        let left = wait.saturating_sub(begun.elapsed()).min(PER_REQUEST);
        let mut url = join(&args.source.server, &["v1", "jobs", &args.id.to_string(), "result"])?;
        if left > Duration::ZERO {
            let millis = left.as_millis().max(1);
            url.query_pairs_mut().append_pair("wait", &format!("{millis}ms"));
        }
        let answer: ResultOfJob = ask(&args.source.server, |client| client.get(url))?;
        if answer.ended || begun.elapsed() >= wait {
            return Ok(answer);
        }
    }
}
