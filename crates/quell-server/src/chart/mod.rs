//! Pictures of what thresholds save and cost: SVG for files and pages, text for a terminal.
//!
//! Both draw the same [`Picture`] on the same axes: delay added on a logarithmic scale to the
//! right, runs saved upwards; a point at the median delay, a line from it to the 99th percentile.

mod axes;
pub mod svg;
pub mod table;
pub mod text;

use std::io::IsTerminal;
use std::time::Duration;

/// What to draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The headline.
    pub title: String,
    /// What the data are.
    pub subtitle: String,
    /// One point per pair of thresholds.
    pub points: Vec<Point>,
}

/// One pair of thresholds.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What stands for it where there is no room for its label.
    pub mark: char,
    /// What it is, for example `10s–1m`.
    pub label: String,
    /// The part of the runs that it saves, from 0 to 1.
    pub saved: f64,
    /// The median delay it adds.
    pub median: Duration,
    /// The 99th percentile of the delay it adds.
    pub p99: Duration,
}

/// The terminal that text is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Characters in a line.
    pub width: usize,
    /// Whether it shows colours.
    pub colour: bool,
}

impl Screen {
    /// A file or pipe: 80 characters, no colours.
    pub const PLAIN: Screen = Screen { width: 80, colour: false };

    /// Standard output: its width where it is a terminal, and colours unless `NO_COLOR` is set.
    #[must_use]
    pub fn of_stdout() -> Screen {
        if !std::io::stdout().is_terminal() {
            return Screen::PLAIN;
        }
        let width = ratatui::crossterm::terminal::size().map_or(80, |(columns, _)| columns);
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Screen { width: usize::from(width.clamp(40, 140)), colour: !no_colour }
    }
}
