//! A JSON document without the members that paths name. All else stays byte for byte, but for the spaces
//! between members.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use quell::Payload;
use quell::trigger::Fingerprint;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::MASK;
use super::path::Path;
use crate::http::MAX_DEPTH;

/// The members of an object in order; a name may repeat.
struct Members<'d>(Vec<(Cow<'d, str>, &'d RawValue)>);

impl<'de: 'd, 'd> Deserialize<'de> for Members<'d> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Name(name), value)) =
                    map.next_entry::<Name<'de>, &'de RawValue>()?
                {
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }

        from.deserialize_map(All)
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Name<'d>(#[serde(borrow)] Cow<'d, str>);

/// The parts of an array or object.
enum Parts<'d> {
    Object(Vec<(Cow<'d, str>, &'d RawValue)>),
    Array(Vec<&'d RawValue>),
    /// A value without parts.
    Plain,
    /// An array or object that cannot be read, such as one with half a surrogate pair in a name.
    Unknown,
}

impl<'d> Parts<'d> {
    fn of(text: &'d str) -> Self {
        let text = text.trim_start();
        let parts = match text.as_bytes().first() {
            Some(b'{') => serde_json::from_str(text).map(|Members(members)| Parts::Object(members)),
            Some(b'[') => serde_json::from_str(text).map(Parts::Array),
            _ => Ok(Parts::Plain),
        };
        parts.unwrap_or(Parts::Unknown)
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

fn mask() -> String {
    quoted(MASK)
}

/// What is left of all paths below a member; none where one ends there.
fn below(paths: &[Path], name: &str) -> Option<Vec<Path>> {
    let mut below: Vec<Path> = Vec::new();
    for path in paths.iter().flat_map(|path| path.below(name)) {
        if path.is_end() {
            return None;
        }
        if !below.contains(&path) {
            below.push(path);
        }
    }
    Some(below)
}

/// A document with the mask in each place that a path leads to. What is too deep to look into is masked.
pub(super) fn redacted(text: &str, paths: &[Path]) -> String {
    let hide = |_: &str, _: Option<&str>| Some(mask());
    rewritten(text, None, paths, MAX_DEPTH, &hide).unwrap_or_else(mask)
}

/// A document where each mask in such a place is what another document has there; none where that has nothing.
pub(super) fn restored(text: &str, before: &str, paths: &[Path]) -> Option<String> {
    let mask = mask();
    let restore = |own: &str, before: Option<&str>| {
        if own.trim() == mask { before.map(str::to_owned) } else { Some(own.to_owned()) }
    };
    rewritten(text, Some(before), paths, MAX_DEPTH, &restore)
}

/// The values in the places that paths lead to: those without parts, and all below the others.
pub(super) fn hidden(text: &str, paths: &[Path]) -> Vec<String> {
    let found = std::cell::RefCell::new(Vec::new());
    let note = |own: &str, _: Option<&str>| {
        leaves(own, MAX_DEPTH, &mut found.borrow_mut());
        Some(String::new())
    };
    rewritten(text, None, paths, MAX_DEPTH, &note);
    found.into_inner()
}

/// All values without parts in a document: texts as they read, numbers as they are written.
fn leaves(text: &str, depth: usize, found: &mut Vec<String>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match Parts::of(text) {
        Parts::Object(members) => {
            members.iter().for_each(|(_, value)| leaves(value.get(), depth, found));
        }
        Parts::Array(elements) => {
            elements.iter().for_each(|value| leaves(value.get(), depth, found));
        }
        Parts::Plain | Parts::Unknown => found.extend(read(text)),
    }
}

/// A text as it reads, a number as it is written. What cannot be read, such as half a surrogate pair, splits a text.
fn read(text: &str) -> Vec<String> {
    match serde_json::from_str(text) {
        Ok(text) => vec![text],
        Err(_) => {
            let parts = text.trim().trim_matches('"').split("\\u").enumerate();
            // What follows the first is the four digits of a code, and the rest.
            let rest = |(number, part): (usize, &str)| match number {
                0 => part.to_owned(),
                _ => part.get(4..).unwrap_or_default().to_owned(),
            };
            parts.map(rest).collect()
        }
    }
}

/// The elements of the array before an edit, by what was shown of them.
struct Before<'d> {
    elements: Vec<&'d str>,
    shown: HashMap<Option<Fingerprint>, Vec<usize>>,
    /// The values of the elements after the edit.
    edited: Vec<Option<Fingerprint>>,
}

impl<'d> Before<'d> {
    fn new(elements: &[&'d RawValue], edited: &[&RawValue], paths: &[Path]) -> Self {
        let edited = edited.iter().map(|element| value(element.get())).collect();
        let elements: Vec<&'d str> = elements.iter().map(|element| element.get()).collect();
        let mut shown: HashMap<_, Vec<usize>> = HashMap::new();
        for (place, text) in elements.iter().enumerate() {
            let left = below(paths, &place.to_string());
            let text = left.map_or_else(mask, |left| redacted(text, &left));
            shown.entry(value(&text)).or_default().push(place);
        }
        Before { elements, shown, edited }
    }

    /// The element that an edited one was: the one that shows the same, or that of its place where none does and both
    /// arrays are as long. By its place alone, an element could get the values of another.
    fn of(&self, edited: &str, place: usize) -> Option<&'d str> {
        let at = |place: usize| self.elements.get(place).copied();
        if !edited.contains(MASK) {
            return at(place);
        }
        let own = self.edited.get(place).copied().flatten();
        match self.shown.get(&own).map(Vec::as_slice) {
            Some(same) if same.contains(&place) => at(place),
            // It moved, and is not there twice.
            Some([one]) if self.edited.get(*one) != Some(&own) => at(*one),
            Some(_) => None,
            None if self.edited.len() == self.elements.len() => at(place),
            None => None,
        }
    }
}

/// The value of a text, however it is written.
fn value(text: &str) -> Option<Fingerprint> {
    Payload::from_text(text).ok().map(|payload| Fingerprint::of(&payload))
}

/// A document with `change` made of what each path leads to; `change` is also given what stands in the same
/// place of `beside`. None where `change` has no answer.
fn rewritten(
    text: &str,
    beside: Option<&str>,
    paths: &[Path],
    depth: usize,
    change: &dyn Fn(&str, Option<&str>) -> Option<String>,
) -> Option<String> {
    if paths.is_empty() {
        return Some(text.to_owned());
    }
    let Some(depth) = depth.checked_sub(1) else { return change(text, None) };
    let part = |name: &str, value: &str, beside: Option<&str>| match below(paths, name) {
        Some(left) => rewritten(value, beside, &left, depth, change),
        None => change(value, beside),
    };
    let other = beside.map(Parts::of);
    match Parts::of(text) {
        Parts::Object(members) => {
            let of_other = |name: &str| match &other {
                Some(Parts::Object(others)) => {
                    others.iter().find(|(own, _)| own == name).map(|(_, value)| value.get())
                }
                _ => None,
            };
            let parts = members.iter().map(|(name, value)| {
                let made = part(name, value.get(), of_other(name))?;
                Some(format!("{}:{made}", quoted(name)))
            });
            Some(format!("{{{}}}", parts.collect::<Option<Vec<_>>>()?.join(",")))
        }
        Parts::Array(elements) => {
            let before = match &other {
                Some(Parts::Array(others)) => Some(Before::new(others, &elements, paths)),
                _ => None,
            };
            let parts = elements.iter().enumerate().map(|(place, value)| {
                let beside = before.as_ref().and_then(|before| before.of(value.get(), place));
                part(&place.to_string(), value.get(), beside)
            });
            Some(format!("[{}]", parts.collect::<Option<Vec<_>>>()?.join(",")))
        }
        Parts::Plain => Some(text.to_owned()),
        Parts::Unknown => change(text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(texts: &[&str]) -> Vec<Path> {
        texts.iter().map(|text| Path::new(text).unwrap()).collect()
    }

    #[test]
    fn what_a_path_leads_to_is_masked_and_all_else_stays() {
        for (text, path, expected) in [
            (r#"{"a":1,"b":{"c":2}}"#, "/b/c", r#"{"a":1,"b":{"c":"[redacted]"}}"#),
            (r#"{"b":1.0e400,"a":[1, 2]}"#, "/a", r#"{"b":1.0e400,"a":"[redacted]"}"#),
            (r#"{"a":[1,{"t":2},3]}"#, "/a/*/t", r#"{"a":[1,{"t":"[redacted]"},3]}"#),
            (r#"{"a":[1,2]}"#, "/a/1", r#"{"a":[1,"[redacted]"]}"#),
            (
                r#"{"p":1,"a":[{"b":{"p":[]}}]}"#,
                "/**/p",
                r#"{"p":"[redacted]","a":[{"b":{"p":"[redacted]"}}]}"#,
            ),
            (r#"{"a/b":1,"c~d":2}"#, "/a~1b", r#"{"a/b":"[redacted]","c~d":2}"#),
            (r#"{"a":1,"a":2}"#, "/a", r#"{"a":"[redacted]","a":"[redacted]"}"#),
            (r#"{"\u0061":1}"#, "/a", r#"{"a":"[redacted]"}"#),
            (r#"{"":1}"#, "/", r#"{"":"[redacted]"}"#),
            ("7", "/a", "7"),
            ("null", "/**/a", "null"),
            (
                r#"{"x":{"a":{"y":{"b":1}}}}"#,
                "/**/a/**/b",
                r#"{"x":{"a":{"y":{"b":"[redacted]"}}}}"#,
            ),
        ] {
            assert_eq!(redacted(text, &paths(&[path])), expected, "{path}");
        }
        assert_eq!(
            redacted(r#"{"a":1,"b":2,"c":3}"#, &paths(&["/a", "/c"])),
            r#"{"a":"[redacted]","b":2,"c":"[redacted]"}"#
        );
    }

    #[test]
    fn what_is_too_deep_to_look_into_is_masked() {
        let deep =
            |levels: usize| format!("{}{{\"p\":1}}{}", "[".repeat(levels), "]".repeat(levels));
        let shown = redacted(&deep(MAX_DEPTH - 1), &paths(&["/**/p"]));
        assert!(shown.contains("\"p\":\"[redacted]\""), "{shown}");
        let shown = redacted(&deep(10_000), &paths(&["/**/p"]));
        assert!(shown.contains("[redacted]") && !shown.contains("\"p\""), "{shown}");
    }

    /// Producers send half a surrogate pair, and a store keeps it.
    #[test]
    fn what_cannot_be_read_is_masked() {
        let odd = r#"{"\ud800":0,"card":"4111"}"#;
        assert_eq!(redacted(odd, &paths(&["/card"])), "\"[redacted]\"");
        assert!(hidden(odd, &paths(&["/card"])).iter().any(|value| value.contains("4111")));
        let value = r#"{"card":"4111\ud800 4112"}"#;
        assert_eq!(redacted(value, &paths(&["/card"])), r#"{"card":"[redacted]"}"#);
        assert_eq!(hidden(value, &paths(&["/card"])), ["4111", " 4112"]);
    }

    #[test]
    fn the_values_that_are_hidden_are_found() {
        let text = r#"{"card":{"number":"4111 \u0031","year":2031},"note":"plain"}"#;
        assert_eq!(hidden(text, &paths(&["/card"])), ["4111 1", "2031"]);
        assert_eq!(hidden(text, &paths(&["/nothing"])), [""; 0]);
    }

    #[test]
    fn a_mask_that_comes_back_is_the_value_that_it_hid() {
        let before = r#"{"a":{"t":"secret"},"n":1,"l":[{"t":"x"},{"t":"y"}]}"#;
        let rules = paths(&["/a/t", "/l/*/t"]);
        let edited = r#"{"a":{"t":"[redacted]"},"n":2,"l":[{"t":"new"},{"t":"[redacted]"}]}"#;
        assert_eq!(
            restored(edited, before, &rules).unwrap(),
            r#"{"a":{"t":"secret"},"n":2,"l":[{"t":"new"},{"t":"y"}]}"#
        );
        let more = r#"{"l":[{"t":"[redacted]"},{"t":"[redacted]"},{"t":"[redacted]"}]}"#;
        assert_eq!(restored(more, before, &rules), None);
        // An element that moved keeps its own value, and one that could be several has none.
        let moved = r#"{"l":[{"t":"[redacted]","n":2},{"t":"[redacted]","n":1}]}"#;
        let numbered = r#"{"l":[{"t":"x","n":1},{"t":"y","n":2},{"t":"z","n":3}]}"#;
        assert_eq!(
            restored(moved, numbered, &rules).unwrap(),
            r#"{"l":[{"t":"y","n":2},{"t":"x","n":1}]}"#
        );
        let changed = r#"{"l":[{"t":"[redacted]","n":9},{"t":"[redacted]","n":1}]}"#;
        assert_eq!(restored(changed, numbered, &rules), None);
        let elsewhere = r#"{"n":"[redacted]"}"#;
        assert_eq!(restored(elsewhere, before, &rules).unwrap(), elsewhere);
    }
}
