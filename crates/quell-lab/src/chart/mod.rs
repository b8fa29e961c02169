//! Pictures of what thresholds save and cost: SVG for files and pages, text for a terminal.
//!
//! Both draw the same [`Picture`] on the same axes: delay added on a logarithmic scale to the
//! right, runs saved upwards; a point at the median delay, a line from it to the 99th percentile.

mod axes;
mod svg;
mod text;

use std::io::{Result, Write};
use std::time::Duration;

use crate::summary::Summary;

/// A chart: results of one trace, one point for each pair of thresholds.
///
/// ```
/// use std::time::Duration;
/// use quell_lab::chart::{Picture, Point, Screen};
///
/// # fn main() -> std::io::Result<()> {
/// let point = Point {
///     mark: 'a',
///     label: "10s–1m".to_owned(),
///     saved: 0.75,
///     median: Duration::from_secs(12),
///     p99: Duration::from_secs(60),
/// };
/// let picture = Picture {
///     title: "Runs saved against delay added".to_owned(),
///     subtitle: "webhooks of a day".to_owned(),
///     points: vec![point],
/// };
/// assert!(picture.svg().starts_with("<svg"));
/// let mut text = Vec::new();
/// picture.write(&Screen::PLAIN, &mut text)?;
/// assert!(String::from_utf8_lossy(&text).contains("runs saved"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The headline.
    pub title: String,
    /// The data's origin.
    pub subtitle: String,
    /// One point for each pair of thresholds.
    pub points: Vec<Point>,
}

impl Picture {
    /// The picture as SVG: one file that loads nothing else, light or dark as its reader prefers.
    #[must_use]
    pub fn svg(&self) -> String {
        svg::draw(self)
    }

    /// Writes the picture as characters, 14 lines high.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write(&self, screen: &Screen, out: &mut dyn Write) -> Result<()> {
        text::draw(self, screen, out)
    }
}

/// One pair of thresholds.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its character in text, which has no space for the label.
    pub mark: char,
    /// Its name, for example `10s–1m`.
    pub label: String,
    /// The share of the runs that it saves, from 0 to 1.
    pub saved: f64,
    /// The median delay that it adds.
    pub median: Duration,
    /// The 99th percentile of the delay that it adds.
    pub p99: Duration,
}

impl Point {
    /// The point of a result.
    #[must_use]
    pub fn of(summary: &Summary, mark: char, label: String) -> Point {
        let (median, p99) = (summary.delay.p50, summary.delay.p99);
        Point { mark, label, saved: summary.saved(), median, p99 }
    }
}

/// The terminal or file that text is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Characters in a line.
    pub width: usize,
    /// Whether it shows colours.
    pub colour: bool,
}

impl Screen {
    /// A file or a pipe: 80 characters, no colours.
    pub const PLAIN: Screen = Screen { width: 80, colour: false };
}
