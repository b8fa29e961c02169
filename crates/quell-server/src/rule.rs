//! The debounce rule that `simulate` and `replay` try on a trace, as the command line names it.

use quell_core::Fold;
use quell_core::Timestamp;
use quell_core::payload::COLLECT_CAP;
use quell_core::window::{Debounce, Step, Thresholds};

/// The parts of the rule that all pairs of thresholds share.
#[derive(Clone, Debug, clap::Args)]
pub struct RuleArgs {
    /// Run a window at once when it has gathered this many triggers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_triggers: Option<u32>,
    /// How the payloads of a window become one: last, first, merge, collect, collect:CAP or
    /// accumulate:FIELD,... (a full collect runs at once).
    #[arg(long, value_name = "FOLD", default_value = "last", value_parser = parse_fold)]
    pub payload: Fold,
}

impl RuleArgs {
    /// The rule with these thresholds.
    #[must_use]
    pub fn debounce(&self, thresholds: Thresholds) -> Debounce {
        Debounce { max_triggers: self.max_triggers, ..Debounce::new(thresholds) }
    }

    /// Whether the number of triggers alone can make a window due.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.max_triggers.is_some() || matches!(self.payload, Fold::Collect { .. })
    }

    /// One trigger at `at`, as a window sees it.
    #[must_use]
    pub fn step(&self, thresholds: Thresholds, at: Timestamp) -> Step {
        let collect_cap = match self.payload {
            Fold::Collect { cap } => Some(cap),
            _ => None,
        };
        let (asked, max_triggers) = (Timestamp::MIN, self.max_triggers);
        Step { at, asked, thresholds, max_triggers, collect_cap }
    }
}

/// Reads the name of a fold (R10).
///
/// # Errors
/// A message that says what is wrong with `text` and what to write; the caller adds the field.
pub fn parse_fold(text: &str) -> Result<Fold, String> {
    let (name, detail) = match text.split_once(':') {
        Some((name, detail)) => (name, Some(detail)),
        None => (text, None),
    };
    match (name, detail) {
        ("last", None) => Ok(Fold::Last),
        ("first", None) => Ok(Fold::First),
        ("merge", None) => Ok(Fold::Merge),
        ("collect", None) => Ok(Fold::Collect { cap: COLLECT_CAP }),
        ("collect", Some(cap)) => match cap.parse() {
            Ok(cap) if cap > 0 => Ok(Fold::Collect { cap }),
            Ok(_) | Err(_) => Err(format!("the cap {cap:?} is not a number above zero")),
        },
        ("accumulate", Some(names)) if names.split(',').all(|name| !name.trim().is_empty()) => {
            Ok(Fold::Accumulate { fields: names.split(',').map(|f| f.trim().to_owned()).collect() })
        }
        ("accumulate", _) => Err("accumulate needs fields: accumulate:FIELD,...".to_owned()),
        (_, _) => Err(format!(
            "{text:?} is unknown: give last, first, merge, collect[:CAP] or accumulate:FIELD,..."
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_folds_are_read_by_name() {
        let fields = ["a".to_owned(), "b".to_owned()].into();
        let table = [
            ("last", Some(Fold::Last)),
            ("first", Some(Fold::First)),
            ("merge", Some(Fold::Merge)),
            ("collect", Some(Fold::Collect { cap: COLLECT_CAP })),
            ("collect:5", Some(Fold::Collect { cap: 5 })),
            ("accumulate:a, b", Some(Fold::Accumulate { fields })),
            ("collect:0", None),
            ("collect:x", None),
            ("accumulate", None),
            ("accumulate:a,,b", None),
            ("last:1", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_fold(text).ok(), expected, "{text}");
        }
    }
}
