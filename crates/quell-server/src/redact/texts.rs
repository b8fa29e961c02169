//! Values that are hidden wherever they stand in a text: an error, a log line, an output.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use serde::de::IgnoredAny;

use super::MASK;

/// A shorter value is no secret: hiding `no` would hide half of every text.
const SHORTEST: usize = 4;
/// The most bytes of values that are looked for; with more, a text is hidden as a whole.
const MAX_BYTES: usize = 256 << 10;

/// Hides values in texts.
#[derive(Clone, Debug, Default)]
pub struct Texts(Found);

#[derive(Clone, Debug, Default)]
enum Found {
    #[default]
    None,
    Some(Arc<[String]>, Arc<AhoCorasick>),
    TooMany,
}

impl Texts {
    /// Hides these values, and how JSON and URLs spell them.
    pub(super) fn new(values: &[String]) -> Self {
        let mut all: Vec<String> = Vec::new();
        for value in values.iter().filter(|value| value.len() >= SHORTEST) {
            all.push(value.clone());
            let json = serde_json::to_string(value).unwrap_or_default();
            all.extend(json.get(1..json.len().saturating_sub(1)).map(str::to_owned));
            all.push(form_urlencoded::byte_serialize(value.as_bytes()).collect());
        }
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            return Texts(Found::None);
        }
        let bytes = all.iter().map(String::len).fold(0, usize::saturating_add);
        let built = (bytes <= MAX_BYTES)
            .then(|| AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&all));
        match built {
            Some(Ok(finder)) => Texts(Found::Some(all.into(), Arc::new(finder))),
            Some(Err(_)) | None => Texts(Found::TooMany),
        }
    }

    /// The values of both.
    pub(super) fn and(&self, other: &Texts) -> Texts {
        match (&self.0, &other.0) {
            (Found::None, _) => other.clone(),
            (_, Found::None) => self.clone(),
            (Found::Some(own, _), Found::Some(others, _)) => {
                Texts::new(&own.iter().chain(others.iter()).cloned().collect::<Vec<_>>())
            }
            (Found::TooMany, _) | (_, Found::TooMany) => Texts(Found::TooMany),
        }
    }

    /// Whether it hides nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Found::None)
    }

    /// A text without the values.
    #[must_use]
    pub fn hide(&self, text: String) -> String {
        match &self.0 {
            Found::None => text,
            Found::Some(values, finder) if finder.is_match(&text) => {
                finder.replace_all(&text, &vec![MASK; values.len()])
            }
            Found::Some(..) => text,
            Found::TooMany => MASK.to_owned(),
        }
    }

    /// Lines without the values.
    pub fn hide_all(&self, lines: impl IntoIterator<Item = String>) -> Vec<String> {
        lines.into_iter().map(|line| self.hide(line)).collect()
    }

    /// A JSON document without the values; where they are parts of its grammar, nothing of it is left.
    #[must_use]
    pub fn document(&self, text: &str) -> String {
        let hidden = self.hide(text.to_owned());
        if serde_json::from_str::<IgnoredAny>(&hidden).is_ok() {
            return hidden;
        }
        serde_json::to_string(MASK).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(values: &[&str]) -> Texts {
        Texts::new(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn values_are_hidden_however_they_are_spelt() {
        let texts = texts(&["a \"b\" c", "4711", "no", "47"]);
        for (text, shown) in [
            ("it was a \"b\" c", "it was [redacted]"),
            (r#"{"x":"a \"b\" c"}"#, r#"{"x":"[redacted]"}"#),
            ("/?x=a+%22b%22+c", "/?x=[redacted]"),
            ("card 4711, no 47", "card [redacted], no 47"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(texts.hide(text.to_owned()), shown);
        }
        assert_eq!(Texts::default().hide("4711".to_owned()), "4711");
    }

    #[test]
    fn a_document_stays_json() {
        let numbers = texts(&["4711", "true"]);
        assert_eq!(numbers.document(r#"{"sent":"to 4711"}"#), r#"{"sent":"to [redacted]"}"#);
        for broken in [r#"{"sent":14711}"#, r#"{"sent":true}"#] {
            assert_eq!(numbers.document(broken), "\"[redacted]\"");
        }
    }

    #[test]
    fn more_values_than_can_be_looked_for_hide_the_whole_text() {
        let of = |bytes: usize| Texts::new(&["x".repeat(bytes)]);
        assert_eq!(of(MAX_BYTES / 3).hide("plain".to_owned()), "plain");
        let both = of(MAX_BYTES + 1);
        assert_eq!(both.hide("plain".to_owned()), MASK);
        assert_eq!(both.and(&texts(&["4711"])).hide("plain".to_owned()), MASK);
        assert_eq!(
            texts(&["4711"]).and(&texts(&["4712"])).hide("4711 4712".to_owned()),
            "[redacted] [redacted]"
        );
    }
}
