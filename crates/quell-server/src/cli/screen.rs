//! The terminal of a command: its width and colours, and tables of texts.

use std::io::{IsTerminal, Result, Write};

use quell_lab::chart::Screen;

/// Standard output: its width where it is a terminal, and colours unless `NO_COLOR` is set.
pub(super) fn stdout() -> Screen {
    if !std::io::stdout().is_terminal() {
        return Screen::PLAIN;
    }
    let width = ratatui::crossterm::terminal::size().map_or(80, |(columns, _)| columns);
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Screen { width: usize::from(width.clamp(40, 140)), colour: !no_colour }
}

/// Texts in columns as wide as they must be, aligned to the right.
#[derive(Clone, Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this header row.
    pub(super) fn new<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Table {
        Table { rows: vec![header.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row.
    pub(super) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Prints it.
    pub(super) fn write(&self, screen: &Screen, out: &mut dyn Write) -> Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            let line = cells.join("  ");
            let line = line.trim_end();
            if number == 0 && screen.colour {
                writeln!(out, "\u{1b}[1m{line}\u{1b}[0m")?;
            } else {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }
}
