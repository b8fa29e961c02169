//! `quell demo`: a real server on a temporary file, a real history at speed, and a picture of how
//! bursts collapse, in the terminal and on the server's own pages.
//!
//! `stream` finds the events, `feed` gathers what the server's own event history says, `screen`
//! draws it. Invariant: nothing is drawn that the history did not say.

mod feed;
mod screen;
mod stream;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use quell::trigger::NewTrigger;
use quell::{Batch, TaskName};

use crate::config::Config;
use crate::config::duration;
use crate::serve::Server;
use feed::Feed;
use screen::Screen;
use stream::Stream;

/// How long the history plays where nothing else is asked for.
const PLAY: Duration = Duration::from_secs(25);
/// The demo's task: what a user would write, with thresholds that suit a history at speed.
const CONFIG: &str = r#"
[server]
listen = "127.0.0.1:0"

[tasks.reindex]
key = "{{ key }}"
debounce = { min = "800ms", max = "4s" }
exec = { command = ["true"] }
"#;

/// Watch bursts collapse: a real history, replayed at speed through a real server.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// End by itself after this long.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    length: Option<Duration>,
    /// Do not draw in the terminal: print a line now and then.
    #[arg(long)]
    headless: bool,
    /// The directory whose git history is replayed; a made-up webhook stream where it has none.
    #[arg(long, value_name = "DIR", default_value = ".")]
    history: PathBuf,
}

/// Runs the demo to its end. It makes its own runtime: call it from a thread that has none.
///
/// # Errors
/// When the temporary store or the page cannot be had.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(show(&args, folder.path(), out))
}

async fn show(args: &Args, folder: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let stop = crate::signal::shutdown()?;
    let stream = Stream::find(&args.history);
    let store = folder.join("demo.db");
    let text = format!("{CONFIG}\n[store]\nurl = \"sqlite://{}\"\n", store.display());
    let config = Config::parse(&text, Path::new("demo.toml"))?;
    let feed = Arc::new(Feed::new());
    let sink: quell::history::Sink = Arc::<Feed>::clone(&feed);
    let server = Server::start(config, Some(sink)).await?;
    writeln!(out, "Replaying {}: {} triggers.", stream.name, stream.events.len())?;
    writeln!(out, "Watch it at http://{}/timeline?task=reindex", server.address())?;
    out.flush()?;

    let live = std::io::stdout().is_terminal() && !args.headless;
    let mut screen = if live { Screen::open()? } else { Screen::headless() };
    let began = Instant::now();
    let play = args.length.map_or(PLAY, |length| length.mul_f64(0.8));
    let ended = {
        let feeding = send(&server, &stream, play);
        let drawing = screen.draw_until(&feed, out, args.length.map(|length| began + length));
        let mut stop = std::pin::pin!(stop);
        let mut feeding = std::pin::pin!(feeding);
        let mut drawing = std::pin::pin!(drawing);
        let mut fed = false;
        loop {
            tokio::select! {
                sent = &mut feeding, if !fed => {
                    sent?;
                    fed = true;
                    feed.all_sent();
                }
                drawn = &mut drawing => break drawn,
                () = &mut stop => break Ok(()),
            }
        }
    };
    screen.close();
    ended?;
    server.stop().await?;
    closing_words(&feed, &stream, out)
}

/// Sends the stream's events, its whole length squeezed into `play`.
async fn send(server: &Server, stream: &Stream, play: Duration) -> anyhow::Result<()> {
    let quell = server.quell();
    let task = TaskName::new("reindex")?;
    let policy =
        quell::Policy::default().debounce(Duration::from_millis(800)..=Duration::from_secs(4));
    let began = tokio::time::Instant::now();
    let mut next = 0;
    while let Some(first) = stream.events.get(next) {
        tokio::time::sleep_until(began + play.mul_f64(first.at)).await;
        let now = began.elapsed().as_secs_f64() / play.as_secs_f64();
        let due: Vec<NewTrigger> = stream
            .events
            .iter()
            .skip(next)
            .take_while(|event| event.at <= now)
            .take(1_000)
            .map(|event| {
                policy.trigger(task.clone(), event.payload.clone(), Some(event.key.clone()))
            })
            .collect::<quell::Result<_>>()?;
        next += due.len().max(1);
        if !due.is_empty() {
            quell.enqueue(Batch { triggers: due, dedup: None }).await?;
        }
    }
    Ok(())
}

fn closing_words(feed: &Feed, stream: &Stream, out: &mut dyn Write) -> anyhow::Result<()> {
    let totals = feed.totals();
    writeln!(
        out,
        "\n{} triggers of {} keys became {} runs: {} fewer.",
        totals.triggers,
        totals.keys,
        totals.runs,
        crate::cli::numbers::percent(totals.saved())
    )?;
    writeln!(out, "\nWhat to try next:")?;
    let file = stream.trace.as_deref().map_or("events.csv".into(), Path::to_string_lossy);
    let (key, pairs) = ("{{ path | split('/') | first }}", "--min 60s,300s --max 600s,3600s");
    writeln!(out, "  quell simulate {file} --key \"{key}\" {pairs}")?;
    writeln!(out, "      choose thresholds from your own history")?;
    writeln!(out, "  quell serve --config examples/quell.toml")?;
    writeln!(out, "      debounce your webhooks and run a script once per burst")?;
    writeln!(out, "  less docs/guide.md")?;
    writeln!(out, "      use it from Rust, inside your own process and transactions")?;
    Ok(())
}
