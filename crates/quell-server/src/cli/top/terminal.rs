//! The terminal of `quell top`: one thread reads snapshots, this one draws them and reads keys.
//!
//! Invariant: the terminal is restored on every way out: a key, a signal, an error, a panic.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::draw::{View, draw};
use super::reader;
use super::snapshot::Snapshot;
use crate::cli::source::Source;

/// How long keys are waited for before the news are looked at.
const KEYS_FOR: Duration = Duration::from_millis(50);
/// The rows of a page.
const PAGE: isize = 10;

/// What the reading thread sends.
enum News {
    Read(Box<Snapshot>),
    Away(String),
    /// A signal ends the program.
    Stopped,
}

/// Shows snapshots until a key or a signal ends it.
pub(super) fn show(source: &Source, every: Duration) -> anyhow::Result<()> {
    let (send, receive) = channel();
    let stop = CancellationToken::new();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| read_on(source, every, &stop, &send));
        let shown = first(&receive).and_then(|first| match first {
            Some(snapshot) => watch(View::new(snapshot), &receive),
            None => Ok(()),
        });
        stop.cancel();
        let read = reading.join();
        match (shown, read) {
            (Err(error), _) => Err(error),
            (Ok(()), Ok(read)) => read,
            (Ok(()), Err(_)) => anyhow::bail!("the thread that reads has panicked"),
        }
    })
}

/// The first snapshot, before anything is drawn: an error of it is one of the command.
fn first(news: &Receiver<News>) -> anyhow::Result<Option<Snapshot>> {
    match news.recv() {
        Ok(News::Read(snapshot)) => Ok(Some(*snapshot)),
        Ok(News::Away(error)) => anyhow::bail!(error),
        // The thread's own result says more.
        Ok(News::Stopped) | Err(_) => Ok(None),
    }
}

/// Reads snapshots until it is stopped.
fn read_on(
    source: &Source,
    every: Duration,
    stop: &CancellationToken,
    news: &Sender<News>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let [mut interrupt, mut terminate, mut hangup, mut quit] = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::quit(),
        ]
        .map(signal);
        let stopped = async {
            tokio::select! {
                () = received(&mut interrupt) => {}
                () = received(&mut terminate) => {}
                () = received(&mut hangup) => {}
                () = received(&mut quit) => {}
            }
        };
        tokio::select! {
            ended = repeat(source, every, news) => ended,
            () = stop.cancelled() => Ok(()),
            () = stopped => {
                // The other end is gone where the view has ended already.
                let _gone = news.send(News::Stopped);
                Ok(())
            }
        }
    })
}

/// Completes at a signal; never where its handler could not be installed.
async fn received(signal: &mut std::io::Result<tokio::signal::unix::Signal>) {
    match signal {
        Ok(signal) => {
            signal.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}

async fn repeat(source: &Source, every: Duration, news: &Sender<News>) -> anyhow::Result<()> {
    let mut reader = reader(source).await?;
    loop {
        let next = tokio::time::Instant::now() + every;
        let read = match reader.read().await {
            Ok(snapshot) => News::Read(Box::new(snapshot)),
            Err(error) => News::Away(format!("{error:#}")),
        };
        if news.send(read).is_err() {
            return Ok(());
        }
        tokio::time::sleep_until(next).await;
    }
}

/// A terminal that is drawn on, until it is dropped.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> anyhow::Result<Self> {
        // It restores the terminal before the message of a panic, too.
        Ok(Screen(ratatui::try_init()?))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn watch(mut view: View, news: &Receiver<News>) -> anyhow::Result<()> {
    let mut screen = Screen::open()?;
    let mut is_new = true;
    loop {
        if std::mem::take(&mut is_new) {
            screen.0.draw(|frame| draw(frame, &view))?;
        }
        if poll(KEYS_FOR)? {
            is_new = true;
            if !handle(&read()?, &mut view) {
                return Ok(());
            }
        }
        loop {
            match news.try_recv() {
                Ok(News::Read(snapshot)) => view.refresh(*snapshot),
                Ok(News::Away(error)) => view.trouble = Some(error),
                Ok(News::Stopped) | Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => break,
            }
            is_new = true;
        }
    }
}

/// Changes the view by an event; false ends it. A resized terminal is drawn again by itself.
fn handle(event: &Event, view: &mut View) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return true };
    if *kind == KeyEventKind::Release {
        return true;
    }
    match code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        // A raw terminal makes no signal of it.
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Tab | KeyCode::Right => view.turn(true),
        KeyCode::BackTab | KeyCode::Left => view.turn(false),
        KeyCode::Down => view.scroll(1),
        KeyCode::Up => view.scroll(-1),
        KeyCode::PageDown => view.scroll(PAGE),
        KeyCode::PageUp => view.scroll(-PAGE),
        KeyCode::Home => view.scroll(isize::MIN),
        KeyCode::End => view.scroll(isize::MAX),
        _ => {}
    }
    true
}
