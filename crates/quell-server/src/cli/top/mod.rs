//! `quell top`: a live view of a server or a store.
//!
//! `snapshot` reads, `panel` makes rows of text, `draw` puts them on the screen, `terminal` has the keys.

mod draw;
mod panel;
mod snapshot;
mod terminal;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::exit::Misuse;
use super::live::{Live, interval};
use super::source::{Source, print_json};
use crate::serve::without_password;
use draw::View;
use snapshot::{Reader, Snapshot};

/// The width of a frame as text, where the output is no terminal.
const PLAIN_WIDTH: u16 = 120;

/// `quell top`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How often to read, 100ms at least.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    every: Duration,
    /// Print one frame as text and end.
    #[arg(long)]
    once: bool,
    /// A server or a store.
    #[command(flatten)]
    source: Source,
}

/// Runs `quell top`. `--json` prints one snapshot.
///
/// # Errors
/// Why the first reading failed, and what is wrong with the terminal; later readings are repeated.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.source.json || args.once {
        let snapshot = read_once(&args.source)?;
        if args.source.json {
            return print_json(&snapshot, out);
        }
        let width = ratatui::crossterm::terminal::size().map_or(PLAIN_WIDTH, |(width, _)| width);
        let width = if std::io::stdout().is_terminal() { width } else { PLAIN_WIDTH };
        return Ok(out.write_all(draw::plain(&View::new(snapshot), width)?.as_bytes())?);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Misuse::error("the live view needs a terminal: give --once or --json"));
    }
    terminal::show(&args.source, args.every)
}

/// A reader of the server or the store, opened.
async fn reader(source: &Source) -> anyhow::Result<Reader> {
    let live = Live::open(source).await?;
    let shown = match (&live, &source.store) {
        (Live::Server(remote), _) => without_password(remote.url().as_str()),
        (Live::Store(_), url) => without_password(url.as_deref().unwrap_or_default()),
    };
    Ok(Reader::new(live, shown))
}

fn read_once(source: &Source) -> anyhow::Result<Snapshot> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut reader = reader(source).await?;
        let snapshot = reader.read().await?;
        reader.close().await?;
        Ok(snapshot)
    })
}
