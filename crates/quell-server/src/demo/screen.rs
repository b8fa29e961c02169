//! The terminal's picture: per key a line of time, triggers as ticks, windows as bars, runs as dots.

use std::io::Write;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::feed::{Feed, Lane, PAST};
use crate::cli::numbers::percent;

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(100);
/// Between two lines where there is no picture.
const HEADLESS_LINE: Duration = Duration::from_secs(5);
/// The longest key that is shown whole.
const KEY_WIDTH: usize = 20;

/// A terminal that is drawn on, or lines now and then.
pub(super) struct Screen(Option<DefaultTerminal>);

impl Screen {
    pub(super) fn open() -> std::io::Result<Self> {
        ratatui::try_init().map(|terminal| Screen(Some(terminal)))
    }

    pub(super) fn headless() -> Self {
        Screen(None)
    }

    /// Gives the terminal back as it was.
    pub(super) fn close(&mut self) {
        if self.0.take().is_some() {
            ratatui::restore();
        }
    }

    /// Draws until the stream is over and its last runs were seen, or `end` has come.
    pub(super) async fn draw_until(
        &mut self,
        feed: &Feed,
        out: &mut dyn Write,
        end: Option<Instant>,
    ) -> anyhow::Result<()> {
        let mut printed = Instant::now();
        let mut over_since = None;
        loop {
            tokio::time::sleep(FRAME).await;
            match &mut self.0 {
                Some(terminal) => {
                    terminal.draw(|frame| draw(frame, feed))?;
                    if asked_to_end()? {
                        return Ok(());
                    }
                }
                None if printed.elapsed() >= HEADLESS_LINE => {
                    printed = Instant::now();
                    writeln!(out, "{}", status(feed))?;
                    out.flush()?;
                }
                None => {}
            }
            let over = *over_since.get_or_insert_with(Instant::now);
            if !feed.is_over() {
                over_since = None;
            } else if over.elapsed() > Duration::from_secs(2) {
                return Ok(());
            }
            if end.is_some_and(|end| end <= Instant::now()) {
                return Ok(());
            }
        }
    }
}

/// Whether someone pressed q, Escape or Ctrl-C: a raw terminal sends no signal.
fn asked_to_end() -> std::io::Result<bool> {
    use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers, poll, read};
    while poll(Duration::ZERO)? {
        if let Event::Key(key) = read()? {
            let interrupt =
                key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn status(feed: &Feed) -> String {
    let totals = feed.totals();
    format!(
        "{:>5.0} s  {} triggers, {} runs, {} windows open, {} saved",
        feed.now(),
        totals.triggers,
        totals.runs,
        totals.open,
        percent(totals.saved())
    )
}

fn draw(frame: &mut ratatui::Frame<'_>, feed: &Feed) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(status(feed)).bold(), head);
    let width = usize::from(body.width).saturating_sub(KEY_WIDTH + 14);
    let lanes = feed.lanes(usize::from(body.height / 2));
    let lines: Vec<Line<'_>> = lanes
        .iter()
        .flat_map(|(key, lane)| lane_lines(key.as_str(), lane, feed.now(), width))
        .collect();
    frame.render_widget(Paragraph::new(lines), body);
    let legend = "╵ trigger   ▬ window   ● run     q ends";
    frame.render_widget(Paragraph::new(legend).dim(), foot);
}

/// Two lines of one key: its triggers, and below them its windows and runs.
fn lane_lines<'l>(key: &str, lane: &Lane, now: f64, width: usize) -> [Line<'l>; 2] {
    let mut ticks = vec![' '; width];
    let mut bars = vec![' '; width];
    let column = |at: f64| column_of(at, now, width);
    for at in &lane.triggers {
        put(&mut ticks, column(*at), '╵');
    }
    let open = lane.opened.map(|opened| (opened, now));
    for (opened, ran) in lane.runs.iter().copied().chain(open) {
        let (from, to) = (column(opened).unwrap_or(0), column(ran));
        if let Some(to) = to {
            bars.iter_mut().skip(from).take(to.saturating_sub(from)).for_each(|cell| *cell = '▬');
        }
    }
    for (_, ran) in &lane.runs {
        put(&mut bars, column(*ran), '●');
    }
    let name: String = key.chars().take(KEY_WIDTH).collect();
    let counts = format!(" {:>5}→{:<5} ", lane.total_triggers, lane.total_runs);
    let text = |cells: Vec<char>| cells.into_iter().collect::<String>();
    [
        Line::from(vec![
            Span::raw(format!("{name:<KEY_WIDTH$}")),
            Span::styled(counts, Style::new().dim()),
            Span::styled(text(ticks), Style::new().yellow()),
        ]),
        Line::from(vec![
            Span::raw(" ".repeat(KEY_WIDTH + 13)),
            Span::styled(text(bars), Style::new().green()),
        ]),
    ]
}

/// The column of a moment; none for one that is too long ago.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share is between 0 and 1, the width a terminal's"
)]
fn column_of(at: f64, now: f64, width: usize) -> Option<usize> {
    let share = 1.0 - (now - at) / PAST.as_secs_f64();
    let last = width.checked_sub(1)?;
    (0.0..=1.0).contains(&share).then(|| (share * last as f64).round() as usize)
}

fn put(cells: &mut [char], column: Option<usize>, mark: char) {
    if let Some(cell) = column.and_then(|column| cells.get_mut(column)) {
        *cell = mark;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_shows_ticks_bars_and_dots() {
        let lane = Lane {
            triggers: vec![0.0, 3.0, 30.0],
            opened: Some(27.0),
            runs: vec![(0.0, 10.0)],
            total_triggers: 3,
            total_runs: 1,
        };
        let [ticks, bars] = lane_lines("docs", &lane, 30.0, 31).map(|line| line.to_string());
        let drawn = |line: &str| line.chars().skip(KEY_WIDTH + 13).collect::<String>();
        assert_eq!(drawn(&ticks), "╵  ╵                          ╵");
        assert_eq!(drawn(&bars).trim_end(), "▬▬▬▬▬▬▬▬▬▬●                ▬▬▬");
    }
}
