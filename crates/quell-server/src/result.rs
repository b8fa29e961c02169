//! The command that tells what came of a job: `result` (R19).

use std::io::Write;
use std::time::{Duration, Instant};

use quell::JobId;
use serde_json::Value;

use crate::client::{Source, ask, join, print_output, printable, read_store};
use crate::view;

/// How long one request waits at the server.
const PER_REQUEST: Duration = Duration::from_secs(20);

/// `quell result JOB`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job's number.
    id: JobId,
    /// Wait until it has ended, but no longer than this, such as 10s.
    #[arg(long, value_name = "DURATION", value_parser = crate::duration::parse)]
    wait: Option<Duration>,
    #[command(flatten)]
    source: Source,
}

/// Runs `quell result`.
///
/// # Errors
/// What the server or the store says; a job of which nothing is known any more.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let wait = args.wait.unwrap_or_default();
    let answer = match &args.source.store {
        Some(url) => {
            read_store(url, async |quell| Ok(view::result(&quell.result(args.id, wait).await?)))?
        }
        None => asked(&args, wait)?,
    };
    if args.source.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(printable);
    let (job, state) = (text("job").unwrap_or_default(), text("state").unwrap_or_default());
    match text("error") {
        Some(error) => writeln!(out, "job {job} is {state}: {error}")?,
        None => writeln!(out, "job {job} is {state}")?,
    }
    print_output(&answer, out)
}

/// Asks the server, again while there is time left: it holds no request for long.
fn asked(args: &Args, wait: Duration) -> anyhow::Result<Value> {
    let begun = Instant::now();
    loop {
        let left = wait.saturating_sub(begun.elapsed()).min(PER_REQUEST);
        let mut url = join(&args.source.server, &["v1", "jobs", &args.id.to_string(), "result"])?;
        if left > Duration::ZERO {
            let millis = left.as_millis().max(1);
            url.query_pairs_mut().append_pair("wait", &format!("{millis}ms"));
        }
        let answer = ask(&args.source.server, |client| client.get(url))?;
        let ended = answer.get("ended").and_then(Value::as_bool).unwrap_or(true);
        if ended || begun.elapsed() >= wait {
            return Ok(answer);
        }
    }
}
