//! The picture as characters: one mark for each point, a line to its 99th percentile.

use std::io::{Result, Write};

use super::axes::Axes;
use super::{Picture, Screen};

/// Lines of the plot.
const HEIGHT: usize = 14;
/// The space of the labels of the upward axis: `100% ┤`.
const LEFT: usize = 6;

/// Draws the picture.
pub(super) fn draw(picture: &Picture, screen: &Screen, out: &mut dyn Write) -> Result<()> {
    let axes = Axes::of(picture);
    let width = screen.width.saturating_sub(LEFT + 2).max(20);
    let mut plot = Plot { cells: vec![vec![' '; width]; HEIGHT] };
    for point in &picture.points {
        let row = HEIGHT - 1 - cell(axes.up(point.saved), HEIGHT);
        let (from, to) =
            (cell(axes.across(point.median), width), cell(axes.across(point.p99), width));
        plot.line(row, from, to);
    }
    for point in &picture.points {
        let row = HEIGHT - 1 - cell(axes.up(point.saved), HEIGHT);
        plot.mark(row, cell(axes.across(point.median), width), point.mark);
    }
    let mut names = vec![String::new(); HEIGHT];
    for (place, name) in axes.saved_ticks() {
        if let Some(slot) = names.get_mut(HEIGHT - 1 - cell(place, HEIGHT)) {
            *slot = name;
        }
    }
    let (dim, bold, plain) =
        if screen.colour { ("\u{1b}[2m", "\u{1b}[1m", "\u{1b}[0m") } else { ("", "", "") };
    writeln!(out, "{bold}runs saved{plain}")?;
    for (row, name) in plot.cells.iter().zip(&names) {
        let axis = if name.is_empty() { '│' } else { '┤' };
        let line: String = row.iter().collect();
        let line = coloured(line.trim_end(), screen);
        writeln!(out, "{name:>4} {dim}{axis}{plain}{line}")?;
    }
    write_delays(&axes, width, screen, out)
}

/// The delay's axis, its names, and how to read a point.
fn write_delays(axes: &Axes, width: usize, screen: &Screen, out: &mut dyn Write) -> Result<()> {
    let (dim, bold, plain) =
        if screen.colour { ("\u{1b}[2m", "\u{1b}[1m", "\u{1b}[0m") } else { ("", "", "") };
    let mut axis = vec!['─'; width];
    let mut names = vec![' '; width + LEFT];
    #[expect(clippy::cast_precision_loss, reason = "a width of some hundred characters")]
    let gap = 8.0 / width as f64;
    for (place, name) in axes.delay_ticks(gap) {
        let column = cell(place, width);
        put(&mut axis, column, '┬');
        let begin = (column + 1).saturating_sub(name.chars().count() / 2);
        for (offset, character) in name.chars().enumerate() {
            put(&mut names, begin + offset, character);
        }
    }
    let axis: String = axis.into_iter().collect();
    let names: String = names.into_iter().collect();
    writeln!(out, "     {dim}└{axis}{plain}")?;
    writeln!(out, "     {}", names.trim_end())?;
    writeln!(out, "     {bold}delay added{plain} (mark: median, line: up to the 99th percentile)")
}

/// Marks are bold, lines are dim.
fn coloured(line: &str, screen: &Screen) -> String {
    if !screen.colour {
        return line.to_owned();
    }
    let paint = |cell: char| match cell {
        '─' | '┤' => format!("\u{1b}[2m{cell}\u{1b}[0m"),
        ' ' => " ".to_owned(),
        _ => format!("\u{1b}[1;36m{cell}\u{1b}[0m"),
    };
    line.chars().map(paint).collect()
}

struct Plot {
    cells: Vec<Vec<char>>,
}

impl Plot {
    fn line(&mut self, row: usize, from: usize, to: usize) {
        let Some(row) = self.cells.get_mut(row) else { return };
        for column in from..to {
            put(row, column, '─');
        }
        if to > from {
            put(row, to, '┤');
        }
    }

    /// Puts a mark at its place, or at the next one that no other mark has.
    fn mark(&mut self, row: usize, column: usize, mark: char) {
        let Some(row) = self.cells.get_mut(row) else { return };
        let is_free = |cell: &char| matches!(cell, ' ' | '─' | '┤');
        let free = row.iter().skip(column).position(is_free);
        put(row, column + free.unwrap_or_default(), mark);
    }
}

fn put(row: &mut [char], column: usize, mark: char) {
    if let Some(cell) = row.get_mut(column) {
        *cell = mark;
    }
}

/// The cell of `cells` that a part of the axis lies in.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a part of 1 times some hundred cells, clamped"
)]
fn cell(part: f64, cells: usize) -> usize {
    let last = cells.saturating_sub(1);
    ((part.clamp(0.0, 1.0) * last as f64).round() as usize).min(last)
}
