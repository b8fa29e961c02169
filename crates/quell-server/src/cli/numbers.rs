//! Numbers as people read them, and measured results as JSON.

use quell_lab::{Spread, Summary};
use serde_json::{Map, Value, json};

/// A count with separators: `135,528`.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share of 1 as a percentage: `74.8%`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// The fields that `simulate` and `replay` share.
pub(super) fn summary_fields(summary: &Summary) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("min_s".into(), json!(summary.thresholds.min().as_secs_f64()));
    fields.insert("max_s".into(), json!(summary.thresholds.max().as_secs_f64()));
    fields.insert("triggers".into(), json!(summary.triggers));
    fields.insert("runs".into(), json!(summary.runs));
    fields.insert("covered".into(), json!(summary.covered));
    fields.insert("saved".into(), json!((summary.saved() * 1e4).round() / 1e4));
    add_spread("delay", &summary.delay, &mut fields);
    fields
}

/// Adds the fields `{name}_p50_s`, `{name}_p99_s` and `{name}_max_s`.
pub(super) fn add_spread(name: &str, spread: &Spread, fields: &mut Map<String, Value>) {
    for (percentile, value) in [("p50", spread.p50), ("p99", spread.p99), ("max", spread.max)] {
        fields.insert(format!("{name}_{percentile}_s"), json!(value.as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
