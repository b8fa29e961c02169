//! What one part finds: a table, printed line by line as it is measured, and at last the verdict on
//! the goal.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

/// The rows so far.
#[derive(Debug)]
pub(crate) struct Part {
    rows: Vec<Vec<Option<f64>>>,
}

/// A line of JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'l> {
    Columns(&'l [&'l str]),
    Row(&'l str, &'l [Option<f64>]),
    Verdict(&'l str),
}

fn print(line: &Line<'_>) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(line)?)?)
}

impl Part {
    pub(crate) fn new(columns: &[&str]) -> Result<Self> {
        print(&Line::Columns(columns))?;
        Ok(Part { rows: Vec::new() })
    }

    /// Adds a row.
    pub(crate) fn add(
        &mut self,
        case: &str,
        cells: impl IntoIterator<Item = impl Into<Option<f64>>>,
    ) -> Result<()> {
        let cells: Vec<Option<f64>> = cells.into_iter().map(Into::into).collect();
        print(&Line::Row(case, &cells))?;
        self.rows.push(cells);
        Ok(())
    }

    /// A cell; not a number where it is empty or not there.
    pub(crate) fn cell(&self, row: usize, column: usize) -> f64 {
        let cell = self.rows.get(row).and_then(|cells| cells.get(column));
        cell.copied().flatten().unwrap_or(f64::NAN)
    }

    /// The last row's cell.
    pub(crate) fn last(&self, column: usize) -> f64 {
        self.cell(self.rows.len().saturating_sub(1), column)
    }

    /// Prints the verdict.
    pub(crate) fn conclude(self, verdict: &str) -> Result<()> {
        print(&Line::Verdict(verdict))
    }
}

/// `met`, where a number is at most the goal.
pub(crate) fn at_most(value: f64, goal: f64) -> &'static str {
    if value <= goal { "met" } else { "not met" }
}

/// A count as people write it: 10^6 where it is a power of ten.
pub(crate) fn power(count: usize) -> String {
    let digits = count.max(1).ilog10();
    if count == 10_usize.pow(digits) { format!("10^{digits}") } else { count.to_string() }
}
