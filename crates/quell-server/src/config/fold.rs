//! The name of a fold, on the command line and in the configuration: `last`, `collect:100`.

use quell_core::Fold;
use quell_core::payload::COLLECT_CAP;

/// Reads the name of a fold (R10).
///
/// # Errors
/// A message with the text and what to write instead; the caller adds the field.
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
