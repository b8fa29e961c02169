//! Values that are hidden wherever they stand in a text: an error, a log line, an output.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use serde::de::IgnoredAny;

use super::MASK;

/// A shorter value is no secret: hiding `no` would hide half of every text.
const SHORTEST: usize = 4;
/// The most bytes of values that are looked for together; with more, a text is hidden as a whole.
const MAX_BYTES: usize = 64 << 10;
/// A longer value is looked for in blocks: a text may be cut within it, as the output of a command is.
const LONG: usize = 256;
/// A shorter line of a value is no secret by itself.
const LINE: usize = 8;
/// The bytes of a block.
const BLOCK: usize = 32;

/// Hides values in texts.
#[derive(Clone, Debug, Default)]
pub struct Texts(Found);

#[derive(Clone, Debug, Default)]
enum Found {
    #[default]
    None,
    Some(Arc<Values>),
    TooMany,
}

/// What is looked for.
#[derive(Debug)]
struct Values {
    all: Vec<String>,
    finder: AhoCorasick,
}

impl Values {
    /// None where there are too many.
    fn new(values: &[String]) -> Option<Self> {
        let mut all: Vec<String> = values.iter().flat_map(|value| blocks(value)).collect();
        all.sort_unstable();
        all.dedup();
        let bytes = all.iter().map(String::len).fold(0, usize::saturating_add);
        if bytes > MAX_BYTES {
            return None;
        }
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&all);
        Some(Values { finder: finder.ok()?, all })
    }

    fn hide(&self, text: String) -> String {
        if !self.finder.is_match(&text) {
            return text;
        }
        let mut hidden = self.finder.replace_all(&text, &vec![MASK; self.all.len()]);
        // Blocks that follow each other are one value.
        let twice = MASK.repeat(2);
        while hidden.contains(&twice) {
            hidden = hidden.replace(&twice, MASK);
        }
        hidden
    }
}

/// A text of a URL with the codes of its characters in lower case: `%2b`.
fn lower(encoded: &str) -> String {
    let mut parts = encoded.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        text.push('%');
        text.push_str(&code.to_ascii_lowercase());
        text.push_str(rest);
    }
    text
}

/// A value, or the blocks of a long one. The last has what is left, if that is enough to look for.
fn blocks(value: &str) -> Vec<String> {
    if value.len() <= LONG {
        return vec![value.to_owned()];
    }
    let (mut blocks, mut rest) = (Vec::new(), value);
    while rest.len() >= BLOCK + SHORTEST {
        let (block, after) = rest.split_at(rest.floor_char_boundary(BLOCK));
        blocks.push(block.to_owned());
        rest = after;
    }
    blocks.push(rest.to_owned());
    blocks
}

impl Texts {
    /// Hides these values, and how JSON and URLs spell them.
    pub(super) fn new(values: &[String]) -> Self {
        let mut all: Vec<String> = Vec::new();
        for value in values.iter().filter(|value| value.len() >= SHORTEST) {
            all.push(value.clone());
            let json = serde_json::to_string(value).unwrap_or_default();
            all.extend(json.get(1..json.len().saturating_sub(1)).map(str::to_owned));
            let form: String = form_urlencoded::byte_serialize(value.as_bytes()).collect();
            let percent = form.replace('+', "%20");
            all.extend([lower(&percent), lower(&form), percent, form]);
            // A log has the lines of a key one by one.
            let lines = value.lines().filter(|line| line.len() >= LINE && line.len() < value.len());
            all.extend(lines.map(str::to_owned));
        }
        if all.is_empty() {
            return Texts(Found::None);
        }
        Texts(Values::new(&all).map_or(Found::TooMany, |values| Found::Some(Arc::new(values))))
    }

    /// The values of both.
    pub(super) fn and(&self, other: &Texts) -> Texts {
        match (&self.0, &other.0) {
            (Found::None, _) => other.clone(),
            (_, Found::None) => self.clone(),
            (Found::Some(own), Found::Some(others)) => {
                let all: Vec<String> = own.all.iter().chain(&others.all).cloned().collect();
                Texts(Values::new(&all).map_or(Found::TooMany, |both| Found::Some(Arc::new(both))))
            }
            (Found::TooMany, _) | (_, Found::TooMany) => Texts(Found::TooMany),
        }
    }

    /// A text without the values.
    #[must_use]
    pub fn hide(&self, text: String) -> String {
        match &self.0 {
            Found::None => text,
            Found::Some(values) => values.hide(text),
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
            ("/a%20%22b%22%20c", "/[redacted]"),
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

    /// As where the output of a command is cut to its end.
    #[test]
    fn a_part_of_a_long_value_is_hidden_but_for_less_than_a_block() {
        let key: String = (0..1_000).map(|n| format!("{n:03}\u{e9}")).collect();
        let texts = texts(&[&key]);
        assert_eq!(texts.hide(format!("a {key} b")), format!("a {MASK} b"));
        for cut in [1, 7, 40, 4_990] {
            let part = key.get(key.ceil_char_boundary(cut)..).unwrap();
            let shown = texts.hide(format!("…{part}"));
            assert!(shown.len() < MASK.len() + BLOCK + 5, "{cut}: {shown}");
        }
    }

    #[test]
    fn more_values_than_can_be_looked_for_hide_the_whole_text() {
        // Each of 4 bytes, and each spelt in one way.
        let short = |count: usize| {
            let all: Vec<String> = (0..count).map(|n| format!("{n:04x}")).collect();
            Texts::new(&all)
        };
        assert_eq!(short(MAX_BYTES / 4).hide("plain 0007".to_owned()), format!("plain {MASK}"));
        let both = short(MAX_BYTES / 4 + 1);
        assert_eq!(both.hide("plain".to_owned()), MASK);
        assert_eq!(both.and(&texts(&["4711"])).hide("plain".to_owned()), MASK);
        assert_eq!(
            texts(&["4711"]).and(&texts(&["4712"])).hide("4711 4712".to_owned()),
            "[redacted] [redacted]"
        );
    }
}
