//! `quell openapi`: the description of the HTTP API, as servers of this version have it at `/v1/openapi.json`.

use std::io::Write;

/// Prints it.
///
/// # Errors
/// Where it cannot be written.
pub fn run(out: &mut dyn Write) -> anyhow::Result<()> {
    Ok(writeln!(out, "{}", crate::http::description().to_pretty_json()?)?)
}
