//! Texts for a terminal: tables of JSON rows, and strings without control characters.

use std::io::Write;

use serde::Serialize;
use serde_json::Value;

use crate::view::Document;

/// Rows of a table, by the names of their fields.
pub(crate) fn rows<T: Serialize>(all: &[T]) -> Vec<Value> {
    // What a JSON value of this program cannot hold, no table shows.
    all.iter().map(|one| serde_json::to_value(one).unwrap_or_default()).collect()
}

/// Puts the texts of lists, one after the other, in place of these columns.
pub(crate) fn join_lists(rows: &mut [Value], columns: &[&str]) {
    for row in rows {
        for column in columns {
            let texts = row[*column].as_array().into_iter().flatten().filter_map(Value::as_str);
            row[*column] = texts.collect::<Vec<_>>().join(",").into();
        }
    }
}

/// Rows in aligned columns.
pub(crate) fn table<const N: usize>(columns: [&str; N], rows: &[Value]) -> String {
    let cell = |row: &Value, column: &str| match row.get(column) {
        Some(Value::String(text)) => printable(text).replace('\n', "\\n"),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    };
    let heads = columns.map(|column| column.trim_end_matches("_at").to_uppercase());
    let rows: Vec<[String; N]> = std::iter::once(heads)
        .chain(rows.iter().map(|row| columns.map(|column| cell(row, column))))
        .collect();
    let mut widths = [0; N];
    for row in &rows {
        widths
            .iter_mut()
            .zip(row)
            .for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Keys, payloads and outputs come from anywhere: what would steer the terminal is shown as code.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Prints what a handler returned, if it did.
pub(crate) fn print_output(output: Option<&Document>, out: &mut dyn Write) -> anyhow::Result<()> {
    match output {
        Some(output) => Ok(writeln!(out, "{}", printable(output.as_str()))?),
        None => Ok(()),
    }
}
