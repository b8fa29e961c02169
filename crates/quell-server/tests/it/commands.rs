//! Runs commands in this process, from their command line to what they print.

use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct Line<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

fn parsed<A: clap::Args>(args: &[&str]) -> Result<A, String> {
    let line = std::iter::once("quell").chain(args.iter().copied());
    Line::try_parse_from(line).map(|line| line.args).map_err(|error| error.to_string())
}

/// What `quell simulate` prints, or its error.
pub(crate) fn simulate(args: &[&str]) -> Result<String, String> {
    let mut out = Vec::new();
    let done = quell_server::cli::simulate::run(parsed(args)?, &mut out);
    done.map_err(|error| format!("{error:#}"))?;
    Ok(String::from_utf8(out).unwrap())
}

/// What `quell replay` prints, or its error.
pub(crate) fn replay(args: &[&str]) -> Result<String, String> {
    let mut out = Vec::new();
    let done = quell_server::cli::replay::run(parsed(args)?, &mut out);
    done.map_err(|error| format!("{error:#}"))?;
    Ok(String::from_utf8(out).unwrap())
}

/// What `quell check` prints, or its error.
pub(crate) fn check(args: &[&str]) -> Result<String, String> {
    let mut out = Vec::new();
    let done = quell_server::cli::check::run(parsed(args)?, &mut out);
    done.map_err(|error| format!("{error:#}"))?;
    Ok(String::from_utf8(out).unwrap())
}

/// What a `quell check` that fails prints before its error.
pub(crate) fn check_fails(args: &[&str]) -> (String, String) {
    let mut out = Vec::new();
    let done = quell_server::cli::check::run(parsed(args).unwrap(), &mut out);
    (String::from_utf8(out).unwrap(), format!("{:#}", done.unwrap_err()))
}

/// What a command printed, as JSON.
pub(crate) fn json(printed: Result<String, String>) -> Value {
    let printed = printed.unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}
