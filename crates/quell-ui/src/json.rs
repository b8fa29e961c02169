//! JSON as people read it, with every number and text as it was.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The members of an object, as the texts that they are: a number may be one that no program keeps.
pub(crate) type Members = BTreeMap<String, Box<RawValue>>;

/// The members as values.
pub(crate) fn values(members: Members) -> Result<Map<String, Value>, serde_json::Error> {
    members.into_iter().map(|(name, text)| Ok((name, serde_json::from_str(text.get())?))).collect()
}

/// The deepest indentation; what is deeper stays on its line.
const DEEPEST: usize = 32;

/// Puts each member on a line of its own. A text that is no JSON is the same with other white space.
pub(crate) fn indented(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if in_text {
            out.push(letter);
            in_text = is_escaped || letter != '"';
            is_escaped = !is_escaped && letter == '\\';
            continue;
        }
        match letter {
            '"' => {
                in_text = true;
                out.push(letter);
            }
            '{' | '[' => {
                while letters.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                out.push(letter);
                if let Some(end) = letters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(letter);
            }
            ',' => {
                out.push(letter);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            space if space.is_ascii_whitespace() => {}
            other => out.push(other),
        }
    }
    out
}

fn line(out: &mut String, depth: usize) {
    if depth <= DEEPEST {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_lines_and_no_number_or_text_changes() {
        let text = r#"{"a":[1e400,{}, [ ]],"b":"x: {\"y\", \\","n":12345678901234567890.10}"#;
        let shown = "{\n  \"a\": [\n    1e400,\n    {},\n    []\n  ],\n  \"b\": \"x: {\\\"y\\\", \\\\\",\n  \
                     \"n\": 12345678901234567890.10\n}";
        assert_eq!(indented(text), shown);
        assert_eq!(indented("7"), "7");
        let deep = "[".repeat(10_000);
        assert!(indented(&deep).len() < 20_000, "depth costs no more than its square's beginning");
    }
}
