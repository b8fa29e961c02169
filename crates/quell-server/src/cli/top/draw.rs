//! Draws a snapshot: a line about all, and a panel for each subject.
//!
//! A wide terminal has two columns of panels. The panel with the focus gets most of the room where there is not
//! enough for all, and scrolls.

use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph};

use super::panel::{Mark, Panel, Subject};
use super::snapshot::Snapshot;
use crate::cli::numbers::grouped;

/// From this width on, panels are in two columns.
const TWO_COLUMNS: u16 = 140;
/// What a panel has besides its rows: a border above and below, and a header.
const AROUND: u16 = 3;

/// What is shown, and where the user is.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    /// Why the newest reading failed; the snapshot is an older one then.
    pub(super) trouble: Option<String>,
    /// The panel with the focus, as an index of [`Subject::ALL`].
    pub(super) focus: usize,
    /// The first row that it shows.
    pub(super) offset: usize,
}

impl View {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        View { snapshot, trouble: None, focus: 0, offset: 0 }
    }

    /// Moves the focus to the next panel, or the one before.
    pub(super) fn turn(&mut self, forward: bool) {
        let count = Subject::ALL.len();
        let step = if forward { 1 } else { count - 1 };
        self.focus = (self.focus + step) % count;
        self.offset = 0;
    }

    /// Scrolls the panel with the focus.
    pub(super) fn scroll(&mut self, rows: isize) {
        self.offset = self.offset.saturating_add_signed(rows).min(self.last_row());
    }

    fn last_row(&self) -> usize {
        let subject = Subject::ALL.get(self.focus).copied().unwrap_or(Subject::Queues);
        Panel::of(subject, &self.snapshot).rows.len().saturating_sub(1)
    }

    /// Takes a newer snapshot.
    pub(super) fn refresh(&mut self, snapshot: Snapshot) {
        self.snapshot = snapshot;
        self.trouble = None;
        self.offset = self.offset.min(self.last_row());
    }
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(head_line(view), head);
    let panels: Vec<Panel> =
        Subject::ALL.into_iter().map(|subject| Panel::of(subject, &view.snapshot)).collect();
    for (number, area) in areas(&panels, view.focus, body).into_iter().enumerate() {
        if let Some(panel) = panels.get(number) {
            let offset = (number == view.focus).then_some(view.offset);
            draw_panel(frame, panel, offset, area);
        }
    }
    let keys = "q ends   tab, shift-tab panels   up, down, page up, page down rows";
    frame.render_widget(Paragraph::new(keys).dim(), foot);
}

fn head_line(view: &View) -> Paragraph<'_> {
    let snapshot = &view.snapshot;
    match &view.trouble {
        Some(trouble) => {
            let text = format!("quell top  away since {}: {trouble}", snapshot.at);
            Paragraph::new(text.replace('\n', " ")).red().bold()
        }
        None => Paragraph::new(title(snapshot)).bold(),
    }
}

fn title(snapshot: &Snapshot) -> String {
    let waiting: u64 = snapshot.queues.iter().map(|queue| queue.waiting).sum();
    let [running, waiting, dead] =
        [snapshot.running.total, waiting, snapshot.dead.total].map(grouped);
    let Snapshot { at, source, .. } = snapshot;
    format!("quell top  {source}  {at}  {running} running, {waiting} waiting, {dead} dead")
}

/// The areas of the panels, in their order.
fn areas(panels: &[Panel], focus: usize, body: Rect) -> Vec<Rect> {
    if body.width < TWO_COLUMNS {
        return stacked(panels, Some(focus), body);
    }
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(body);
    let half = panels.len() / 2;
    let (first, second) = panels.split_at(half);
    let mut areas = stacked(first, (focus < half).then_some(focus), left);
    areas.extend(stacked(second, focus.checked_sub(half), right));
    areas
}

fn stacked(panels: &[Panel], focus: Option<usize>, area: Rect) -> Vec<Rect> {
    let wanted: Vec<u16> = panels.iter().map(wanted_height).collect();
    let fits = wanted.iter().map(|height| u32::from(*height)).sum::<u32>() <= area.height.into();
    let constraints = wanted.iter().enumerate().map(|(number, height)| match (fits, focus) {
        (true, _) => Constraint::Length(*height),
        (false, Some(focused)) if focused == number => Constraint::Fill(4),
        (false, _) => Constraint::Fill(1),
    });
    Layout::vertical(constraints).split(area).to_vec()
}

fn wanted_height(panel: &Panel) -> u16 {
    u16::try_from(panel.rows.len()).unwrap_or(u16::MAX).max(1).saturating_add(AROUND)
}

/// A panel; one with the focus has an offset.
fn draw_panel(frame: &mut Frame<'_>, panel: &Panel, offset: Option<usize>, area: Rect) {
    let room = usize::from(area.height.saturating_sub(AROUND));
    let skipped = offset.unwrap_or_default().min(panel.rows.len().saturating_sub(room.max(1)));
    let hidden = panel.rows.len().saturating_sub(skipped).saturating_sub(room);
    let title = if hidden > 0 {
        format!(" {}, {} more below ", panel.title, grouped(hidden as u64))
    } else {
        format!(" {} ", panel.title)
    };
    let mut lines = panel.lines().into_iter();
    let header = lines.next().map(|(text, _)| Line::from(text).dim());
    let rows = lines.skip(skipped).take(room).map(|(text, mark)| {
        let style = match mark {
            Mark::Plain => Style::new(),
            Mark::Notice => Style::new().yellow(),
            Mark::Bad => Style::new().red(),
        };
        Line::styled(text, style)
    });
    let border = if offset.is_some() { Style::new().cyan() } else { Style::new().dim() };
    let block = Block::bordered().border_style(border).title(title);
    let lines: Vec<Line<'_>> = header.into_iter().chain(rows).collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A frame of this width as plain text, with all rows.
pub(super) fn plain(view: &View, width: u16) -> anyhow::Result<String> {
    let panels = Subject::ALL.into_iter().map(|subject| Panel::of(subject, &view.snapshot));
    let heights = panels.map(|panel| wanted_height(&panel));
    // The line at the top and that at the bottom, which is left out of the text.
    let height = heights.fold(2_u16, u16::saturating_add);
    let mut terminal = Terminal::new(TestBackend::new(width.min(TWO_COLUMNS - 1), height))?;
    terminal.draw(|frame| draw(frame, view))?;
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(usize::from(buffer.area.width).max(1));
    let lines = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    let lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
    let shown = lines.get(..lines.len().saturating_sub(1)).unwrap_or_default();
    Ok(shown.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::snapshot::{Dead, QueueNow, Running, Windows};
    use super::*;
    use crate::cli::live::sample_job;

    fn job(id: u64, key: &str) -> crate::view::Job {
        crate::view::Job {
            task: quell::TaskName::new("send").unwrap(),
            key: Some(quell::Key::new(key).unwrap()),
            worker: Some(serde_json::from_value(json!("host-1")).unwrap()),
            ..sample_job(id)
        }
    }

    fn snapshot(windows: u64) -> Snapshot {
        let read = |text: &str| serde_json::from_str(text).unwrap();
        let queue = r#"{"name":"mail","concurrency":8,"worker_concurrency":null,
            "partition_concurrency":null,"rate":{"limit":100,"period":"1m"},"partition_rate":null,
            "paused":true,"paused_by":"ann","debounce":null}"#;
        let worker = json!({
            "worker": "host-1", "incarnation": 1, "state": "unseen", "host": "host", "pid": 1,
            "version": "0.1.0", "queues": [], "slots": 4, "busy": 1, "lease": "30s",
            "started_at": "2026-11-27T00:00:00Z", "seen_at": "2026-11-27T22:00:00Z",
        });
        let alert = json!({
            "name": "late", "declared": true, "on": "lateness", "queue": null, "task": null,
            "threshold": "5m", "clear": "5m", "state": "raised", "since": "2026-11-27T23:00:00Z",
            "value": 1, "measured": "1h", "changes": 1, "notices_waiting": 0,
        });
        let causes = json!({
            "causes": [{
                "cause": "exit status 1", "task": "send", "queue": "mail", "jobs": 1234,
                "example": "7", "first_died_at": "2026-11-27T00:00:00Z",
                "last_died_at": "2026-11-25T20:00:00Z",
            }],
            "distinct": 1, "jobs": 1234, "next_before": null,
        });
        let next_due = (1..=windows).map(|id| job(id, "a\u{1b}[31m\nb")).collect();
        Snapshot {
            at: "2026-11-28T00:00:00Z".to_owned(),
            source: "http://127.0.0.1:7777/".to_owned(),
            queues: vec![QueueNow { queue: read(queue), waiting: windows, running: 1, dead: 1234 }],
            windows: Some(Windows { open: 2, complete: true, next_due }),
            running: Running { total: 1, jobs: Some(vec![job(9, "c")]) },
            dead: Dead { total: 1234, causes: Some(serde_json::from_value(causes).unwrap()) },
            workers: Some(vec![serde_json::from_value(worker).unwrap()]),
            alerts: Some(vec![serde_json::from_value(alert).unwrap()]),
        }
    }

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_frame_has_every_panel_and_steers_no_terminal() {
        let text = plain(&View::new(snapshot(2)), 110).unwrap();
        assert!(!text.contains('\u{1b}'), "{text:?}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_wide_screen_has_two_columns_and_a_small_one_draws_what_fits() {
        let view = View::new(snapshot(2));
        let wide = screen(&view, 160, 24);
        let first = wide.lines().nth(1).unwrap();
        assert!(first.contains("queues 1") && first.contains("dead 1,234"), "{wide}");
        for (width, height) in [(80, 24), (20, 5), (1, 1), (200, 3)] {
            assert_eq!(screen(&view, width, height).lines().count(), usize::from(height));
        }
    }

    #[test]
    fn the_panel_with_the_focus_scrolls_within_its_rows() {
        let mut view = View::new(snapshot(40));
        view.turn(true);
        assert!(screen(&view, 100, 40).contains("more below"));
        view.scroll(isize::MAX);
        assert_eq!(view.offset, 39);
        let end = screen(&view, 100, 40);
        assert!(end.contains("40   send") && !end.contains("more below"), "{end}");
        view.scroll(isize::MIN);
        assert_eq!(view.offset, 0);
        view.scroll(30);
        view.refresh(snapshot(3));
        assert_eq!(view.offset, 2, "the list is shorter now");
        view.turn(false);
        view.turn(false);
        assert_eq!((view.focus, view.offset), (5, 0));
    }

    #[test]
    fn a_server_that_is_away_is_named_above_what_was_read_last() {
        let mut view = View::new(snapshot(1));
        view.trouble = Some("no server answers there".to_owned());
        let text = screen(&view, 100, 40);
        assert!(
            text.contains("away since 2026-11-28T00:00:00Z: no server answers there"),
            "{text}"
        );
        assert!(text.contains("open windows 2"), "{text}");
    }

    #[test]
    fn what_a_token_does_not_permit_is_said() {
        let mut snapshot = snapshot(0);
        (snapshot.workers, snapshot.alerts, snapshot.dead.causes) = (None, None, None);
        (snapshot.windows, snapshot.running.jobs) = (None, None);
        let text = plain(&View::new(snapshot), 110).unwrap();
        assert_eq!(text.matches("not for a token that is limited").count(), 5, "{text}");
    }
}
