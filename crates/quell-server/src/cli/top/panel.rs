//! The panels of `quell top`: what each shows of a snapshot, as rows of text.

use jiff::Timestamp;

use super::snapshot::{QueueNow, Snapshot};
use crate::cli::numbers::grouped;
use crate::cli::text::printable;
use crate::view::Job;

/// The longest cell, in characters.
const MAX_CELL: usize = 48;
/// Why a panel has no rows.
const LIMITED: &str = "not for a token that is limited to some tasks or queues";
/// How much of an error a cell shows.
const MAX_ERROR: usize = 100;

/// What a panel is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Queues,
    Windows,
    Running,
    Dead,
    Workers,
    Alerts,
}

impl Subject {
    /// All, in the order of the screen.
    pub(super) const ALL: [Subject; 6] = [
        Subject::Queues,
        Subject::Windows,
        Subject::Running,
        Subject::Dead,
        Subject::Workers,
        Subject::Alerts,
    ];
}

/// How a row is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mark {
    #[default]
    Plain,
    /// An operator may want to know.
    Notice,
    /// Something is wrong.
    Bad,
}

/// A row of cells.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    pub(super) mark: Mark,
}

/// A table with a title.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: Vec<Row>,
}

impl Panel {
    /// The panel of a subject.
    pub(super) fn of(subject: Subject, snapshot: &Snapshot) -> Self {
        match subject {
            Subject::Queues => queues(snapshot),
            Subject::Windows => windows(snapshot),
            Subject::Running => running(snapshot),
            Subject::Dead => dead(snapshot),
            Subject::Workers => workers(snapshot),
            Subject::Alerts => alerts(snapshot),
        }
    }

    /// Its lines, the header first: cells in columns as wide as they must be.
    pub(super) fn lines(&self) -> Vec<(String, Mark)> {
        let header = self.columns.iter().map(|column| (*column).to_owned()).collect();
        let rows = std::iter::once((header, Mark::Plain))
            .chain(self.rows.iter().map(|row| (row.cells.clone(), row.mark)));
        let rows: Vec<(Vec<String>, Mark)> = rows.collect();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|(cells, _)| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| {
            let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        rows.iter().map(|(cells, mark)| (line(cells), *mark)).collect()
    }
}

fn row(mark: Mark, cells: impl IntoIterator<Item = String>) -> Row {
    Row { cells: cells.into_iter().map(|text| cut(&text, MAX_ERROR)).collect(), mark }
}

/// A text on one line that steers no terminal and is not too long.
fn cut(text: &str, most: usize) -> String {
    let line = printable(text).replace(['\n', '\t'], " ");
    let mut shown: String = line.chars().take(most).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    shown
}

fn short(text: &str) -> String {
    cut(text, MAX_CELL)
}

fn or_dash<T: ToString>(part: Option<T>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| part.to_string())
}

/// How far a time is from that of the snapshot: `in 12s`, `3m5s ago`.
fn relative(snapshot: &Snapshot, at: Option<&String>) -> String {
    let times = at.and_then(|at| Some((snapshot.at.parse().ok()?, at.parse().ok()?)));
    let Some((now, at)): Option<(Timestamp, Timestamp)> = times else { return "-".to_owned() };
    let seconds = at.as_second().saturating_sub(now.as_second());
    let length = span(seconds.unsigned_abs());
    if seconds > 0 { format!("in {length}") } else { format!("{length} ago") }
}

/// Seconds in the two largest units.
fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m{}s", seconds % 60),
        3_600..86_400 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

fn queues(snapshot: &Snapshot) -> Panel {
    let show = |now: &QueueNow| {
        let QueueNow { queue, waiting, running, dead } = now;
        let rate = queue.rate.as_ref().map(|rate| format!("{}/{}", rate.limit, rate.period));
        let paused = match (queue.pause.paused, &queue.pause.paused_by) {
            (true, Some(by)) => format!("paused by {by}"),
            (true, None) => "paused".to_owned(),
            (false, _) => String::new(),
        };
        let mark = if queue.pause.paused { Mark::Notice } else { Mark::Plain };
        let limit = or_dash(queue.concurrency);
        let [waiting, running, dead] = [*waiting, *running, *dead].map(grouped);
        let name = short(queue.name.as_str());
        row(mark, [name, running, limit, or_dash(rate), waiting, dead, short(&paused)])
    };
    Panel {
        title: format!("queues {}", snapshot.queues.len()),
        columns: &["QUEUE", "RUNNING", "LIMIT", "RATE", "WAITING", "DEAD", ""],
        rows: snapshot.queues.iter().map(show).collect(),
    }
}

/// A panel in place of what the token does not permit.
fn hidden(title: String, columns: &'static [&'static str]) -> Panel {
    Panel { title, columns, rows: Vec::new() }
}

fn windows(snapshot: &Snapshot) -> Panel {
    let columns = &["JOB", "TASK", "KEY", "TRIGGERS", "DUE"];
    let Some(windows) = &snapshot.windows else {
        return hidden(format!("open windows: {LIMITED}"), columns);
    };
    let show = |job: &Job| {
        let key = job.key.as_ref().map(|key| short(key.as_str()));
        let due = relative(snapshot, job.due_at.as_ref());
        let triggers = grouped(job.triggers);
        row(
            Mark::Plain,
            [job.id.to_string(), short(job.task.as_str()), or_dash(key), triggers, due],
        )
    };
    let open = grouped(windows.open as u64);
    let title = if windows.complete {
        format!("open windows {open}, next due first")
    } else {
        format!("open windows {open} of the newest jobs that wait, next due first")
    };
    Panel { title, columns, rows: windows.next_due.iter().map(show).collect() }
}

fn running(snapshot: &Snapshot) -> Panel {
    let show = |job: &Job| {
        let key = job.key.as_ref().map(|key| short(key.as_str()));
        let worker = job.worker.as_ref().map(|worker| short(worker.as_str()));
        let since = relative(snapshot, job.started_at.as_ref());
        let (task, attempt) = (short(job.task.as_str()), job.attempt.to_string());
        let mark = if job.attempt > 1 { Mark::Notice } else { Mark::Plain };
        row(mark, [job.id.to_string(), task, or_dash(key), attempt, since, or_dash(worker)])
    };
    let columns = &["JOB", "TASK", "KEY", "ATTEMPT", "STARTED", "WORKER"];
    let total = grouped(snapshot.running.total);
    let Some(jobs) = &snapshot.running.jobs else {
        return hidden(format!("running {total}: {LIMITED}"), columns);
    };
    Panel { title: format!("running {total}"), columns, rows: jobs.iter().map(show).collect() }
}

fn dead(snapshot: &Snapshot) -> Panel {
    let total = grouped(snapshot.dead.total);
    let rows = snapshot.dead.causes.iter().flat_map(|causes| &causes.causes).map(|cause| {
        let last = relative(snapshot, Some(&cause.last_died_at));
        let task = short(cause.task.as_str());
        row(
            Mark::Bad,
            [grouped(cause.jobs), task, cause.example.to_string(), last, cause.cause.clone()],
        )
    });
    let columns = &["JOBS", "TASK", "EXAMPLE", "LAST", "CAUSE"];
    if snapshot.dead.causes.is_none() {
        return hidden(format!("dead {total}: {LIMITED}"), columns);
    }
    Panel { title: format!("dead {total}"), columns, rows: rows.collect() }
}

fn workers(snapshot: &Snapshot) -> Panel {
    let columns = &["WORKER", "STATE", "HOST", "BUSY", "SLOTS", "HEARTBEAT", "VERSION"];
    let Some(workers) = &snapshot.workers else {
        return hidden(format!("workers: {LIMITED}"), columns);
    };
    let show = |worker: &crate::view::Worker| {
        let mark = if worker.state != "unseen" { Mark::Plain } else { Mark::Bad };
        let heartbeat = relative(snapshot, Some(&worker.seen_at));
        let (name, host) = (short(worker.worker.as_str()), short(&worker.host));
        let (busy, slots) = (worker.busy.to_string(), worker.slots.to_string());
        row(
            mark,
            [name, worker.state.clone(), host, busy, slots, heartbeat, short(&worker.version)],
        )
    };
    Panel {
        title: format!("workers {}", workers.len()),
        columns,
        rows: workers.iter().map(show).collect(),
    }
}

fn alerts(snapshot: &Snapshot) -> Panel {
    let columns = &["ALERT", "STATE", "SINCE", "MEASURED", "ON", "QUEUE", "TASK"];
    let Some(alerts) = &snapshot.alerts else {
        return hidden(format!("alerts: {LIMITED}"), columns);
    };
    let raised = alerts.iter().filter(|alert| alert.state == "raised").count();
    let show = |alert: &crate::view::Alert| {
        let mark = if alert.state == "raised" { Mark::Bad } else { Mark::Plain };
        let since = relative(snapshot, alert.since.as_ref());
        row(
            mark,
            [
                short(&or_dash(alert.name.as_ref())),
                alert.state.clone(),
                since,
                or_dash(alert.measured.as_ref()),
                or_dash(alert.on.as_ref()),
                short(&or_dash(alert.queue.as_ref())),
                short(&or_dash(alert.task.as_ref())),
            ],
        )
    };
    Panel {
        title: format!("alerts {}, raised {raised}", alerts.len()),
        columns,
        rows: alerts.iter().map(show).collect(),
    }
}
