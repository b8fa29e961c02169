//! A table of texts for a terminal: columns as wide as they must be, aligned to the right.

use std::io::{Result, Write};

use super::Screen;

/// A table under construction.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this header row.
    pub fn new<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Table {
        Table { rows: vec![header.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Prints it.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write(&self, screen: &Screen, out: &mut dyn Write) -> Result<()> {
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
