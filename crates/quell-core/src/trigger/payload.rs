//! Payloads, and how the payloads of one window become one (R10).
//!
//! A payload is JSON text from end to end: checked once where it enters, parsed once by the
//! handler's type. Only `merge`, `collect` and `accumulate` look inside on the way.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::{Error, Result};

/// The default bound on a payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The default bound on how many payloads `collect` gathers.
pub const COLLECT_CAP: u32 = 1_000;
/// The bound on a folded payload that is imported or edited, in bytes.
pub const MAX_FOLDED_BYTES: usize = 64 << 20;
/// The default bound on the folded payload of a window, in bytes.
pub const WINDOW_BYTES: u32 = 1 << 20;
/// The highest bound that a task may set on the folded payloads of its windows, in bytes.
pub const MAX_WINDOW_BYTES: u32 = 16 << 20;
/// How deep `merge` looks into objects: as deep as a payload may be that comes over HTTP.
const MAX_MERGED_DEPTH: usize = 64;

/// One JSON document, as text.
///
/// ```
/// use quell_core::Payload;
///
/// let payload = Payload::encode(&serde_json::json!({ "id": 7 }))?;
/// assert_eq!(payload.as_str(), r#"{"id":7}"#);
/// assert!(Payload::from_text("{oops").is_err());
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payload(Arc<str>);

/// Reads a payload where there may be none: one of `null` is a payload.
pub(crate) fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Payload>, D::Error> {
    Payload::deserialize(from).map(Some)
}

impl Payload {
    /// The JSON of `value`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the value has no JSON form.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        let text = serde_json::to_string(value).map_err(|error| {
            Error::invalid("payload", format!("payload has no JSON form: {error}"))
        })?;
        Ok(Payload(text.into()))
    }

    /// Checks that `text` is one JSON document and keeps it as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the line and column at fault.
    pub fn from_text(text: impl Into<Arc<str>>) -> Result<Self> {
        let text = text.into();
        match serde_json::from_str::<&RawValue>(&text) {
            Ok(_) => Ok(Payload(text)),
            Err(error) => Err(Error::invalid("payload", format!("payload is not JSON: {error}"))),
        }
    }

    /// Takes text that a store wrote from a payload, without checking it again.
    #[must_use]
    pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
        Payload(text.into())
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the payload.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it does not fit `T`.
    pub fn decode<'de, T: Deserialize<'de>>(&'de self) -> Result<T> {
        serde_json::from_str(&self.0).map_err(|error| {
            Error::invalid("payload", format!("payload does not fit the task: {error}"))
        })
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Payload {
    /// The document itself where the format is JSON.
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<&RawValue>(&self.0) {
            Ok(raw) => raw.serialize(to),
            Err(_) => to.serialize_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        Ok(Payload(raw.get().into()))
    }
}

/// A payload as a string that holds its JSON text, for formats and enums that keep no raw JSON.
pub(crate) mod as_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Payload;

    pub(crate) fn serialize<S: Serializer>(
        payload: &Option<Payload>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        payload.as_ref().map(Payload::as_str).serialize(to)
    }

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<Payload>, D::Error>
    where
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(from)?;
        Ok(text.map(Payload::from_stored))
    }
}

/// How the payloads of one window become the payload of its job (R10).
///
/// `first` opens, each later one joins: see [`Fold::open`] and [`Fold::join`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fold")]
#[non_exhaustive]
pub enum Fold {
    /// The newest payload.
    #[default]
    Last,
    /// The oldest payload.
    First,
    /// JSON Merge Patch (RFC 7396), oldest first.
    Merge,
    /// An array of every payload in order; at `cap` payloads the window is due, and takes no more.
    Collect {
        /// How many payloads a window gathers.
        cap: u32,
    },
    /// The newest payload, with these top-level array fields concatenated over all payloads.
    Accumulate {
        /// The names of the array fields.
        fields: Arc<[String]>,
    },
}

impl Fold {
    /// The payload of a window that `trigger` opens.
    #[must_use]
    pub fn open(&self, trigger: &Payload) -> Payload {
        match self {
            Fold::Collect { .. } => Payload::from_stored(format!("[{}]", trigger.as_str())),
            Fold::Last | Fold::First | Fold::Merge | Fold::Accumulate { .. } => trigger.clone(),
        }
    }

    /// The payload of a window that held `window` once `trigger` joins it.
    #[must_use]
    pub fn join(&self, window: &Payload, trigger: &Payload) -> Payload {
        self.append(window, &self.open(trigger))
    }

    /// The payload of a window that held `newer` once the `older` job is absorbed by it (R12).
    #[must_use]
    pub fn absorb(&self, older: &Payload, newer: &Payload) -> Payload {
        self.append(older, newer)
    }

    /// Whether a window may hold this payload of several triggers, with this number of elements
    /// where it is collected (R10). The payloads of `last` and `first` are one trigger's each, which
    /// has a bound of its own.
    #[must_use]
    pub fn may_hold(&self, payload: &Payload, elements: u64, max_bytes: u32) -> bool {
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let fits = payload.as_str().len() <= max_bytes;
        match self {
            Fold::Collect { cap } => fits && elements <= u64::from(*cap),
            Fold::Merge | Fold::Accumulate { .. } => fits,
            Fold::Last | Fold::First => true,
        }
    }

    /// Whether it gathers payloads in an array.
    #[must_use]
    pub fn collects(&self) -> bool {
        matches!(self, Fold::Collect { .. })
    }

    /// Whether it is [`Fold::Last`].
    #[must_use]
    pub fn is_last(&self) -> bool {
        *self == Fold::Last
    }

    /// What a job without a debounce key keeps of it: no other payload joins, so only whether it is
    /// an array counts.
    #[must_use]
    pub fn alone(&self) -> Fold {
        match self {
            Fold::Collect { cap } => Fold::Collect { cap: *cap },
            Fold::Last | Fold::First | Fold::Merge | Fold::Accumulate { .. } => Fold::Last,
        }
    }

    /// Whether joins need the window's payload; where not, a store can leave it unread.
    #[must_use]
    pub fn reads_payload(&self) -> bool {
        matches!(self, Fold::Merge | Fold::Collect { .. } | Fold::Accumulate { .. })
    }

    /// Folds two window payloads, `older` before `newer`.
    fn append(&self, older: &Payload, newer: &Payload) -> Payload {
        match self {
            Fold::Last => newer.clone(),
            Fold::First => older.clone(),
            Fold::Merge => {
                Payload::from_stored(merge_patch(older.as_str(), newer.as_str(), MAX_MERGED_DEPTH))
            }
            Fold::Collect { .. } => {
                Payload::from_stored(concat_arrays(older.as_str(), newer.as_str()))
            }
            Fold::Accumulate { fields } => accumulate(older, newer, fields),
        }
    }
}

/// How many elements a payload has once it is collected: those of an array, or itself.
pub(crate) fn elements_of(payload: &Payload) -> u64 {
    let elements = serde_json::from_str::<Vec<IgnoredAny>>(payload.as_str());
    elements.map_or(1, |elements| u64::try_from(elements.len()).unwrap_or(u64::MAX))
}

/// Joins two JSON array texts without parsing their members.
fn concat_arrays(older: &str, newer: &str) -> String {
    let inside = |text: &str| -> String {
        let text = text.trim();
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inner.map_or_else(|| text.to_owned(), |inner| inner.trim().to_owned())
    };
    let parts: Vec<String> =
        [inside(older), inside(newer)].into_iter().filter(|part| !part.is_empty()).collect();
    format!("[{}]", parts.join(","))
}

/// The members of an object, each as the text that it is: a number keeps all its digits.
fn members(text: &str) -> Option<BTreeMap<String, Cow<'_, RawValue>>> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    Some(members.into_iter().map(|(name, value)| (name, Cow::Borrowed(value))).collect())
}

/// JSON Merge Patch, RFC 7396 section 2, on texts. Objects in objects are merged `depth` levels
/// down; below that the patch's replaces the target's.
fn merge_patch(target: &str, patch: &str, depth: usize) -> String {
    let Some(patched) = members(patch).filter(|_| depth > 0) else { return patch.to_owned() };
    let mut merged = members(target).unwrap_or_default();
    for (name, value) in patched {
        if value.get() == "null" {
            merged.remove(&name);
        } else if value.get().starts_with('{') {
            let old = merged.get(&name).map_or("null", |old| old.get());
            let new = RawValue::from_string(merge_patch(old, value.get(), depth.saturating_sub(1)));
            merged.insert(name, new.map_or(value, Cow::Owned));
        } else {
            merged.insert(name, value);
        }
    }
    serde_json::to_string(&merged).unwrap_or_else(|_| patch.to_owned())
}

/// The newer document, with the named arrays of the older one put before its own.
fn accumulate(older: &Payload, newer: &Payload, fields: &[String]) -> Payload {
    let (Some(mut old), Some(mut new)) = (members(older.as_str()), members(newer.as_str())) else {
        return newer.clone();
    };
    let is_array = |value: &RawValue| value.get().starts_with('[');
    for field in fields {
        let Some(items) = old.remove(field).filter(|items| is_array(items)) else { continue };
        let joined = match new.get(field) {
            Some(own) if is_array(own) => concat_arrays(items.get(), own.get()),
            Some(_) => continue,
            None => items.get().to_owned(),
        };
        if let Ok(joined) = RawValue::from_string(joined) {
            new.insert(field.clone(), Cow::Owned(joined));
        }
    }
    serde_json::to_string(&new).map_or_else(|_| newer.clone(), Payload::from_stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(fold: &Fold, payloads: &[&str]) -> String {
        let mut payloads = payloads.iter().map(|text| Payload::from_text(*text).unwrap());
        let first = fold.open(&payloads.next().unwrap());
        payloads.fold(first, |window, next| fold.join(&window, &next)).as_str().to_owned()
    }

    #[test]
    fn r10_each_fold_keeps_what_it_says() {
        let lists = Fold::Accumulate { fields: ["ids".to_owned()].into() };
        let table: [(&Fold, &[&str], &str); 10] = [
            (&Fold::Last, &["1", "2", "3"], "3"),
            (&Fold::First, &["1", "2", "3"], "1"),
            (&Fold::Merge, &[r#"{"a":1,"b":2}"#, r#"{"b":null,"c":3}"#], r#"{"a":1,"c":3}"#),
            (&Fold::Merge, &[r#"{"a":{"b":1}}"#, r#"{"a":{"c":2}}"#], r#"{"a":{"b":1,"c":2}}"#),
            (&Fold::Merge, &["[1,2]", r#"{"a":1}"#], r#"{"a":1}"#),
            (&Fold::Collect { cap: 9 }, &["1", "[2]", "{}"], "[1,[2],{}]"),
            (&Fold::Collect { cap: 9 }, &["[]"], "[[]]"),
            (&lists, &[r#"{"ids":[1],"n":1}"#, r#"{"ids":[2],"n":2}"#], r#"{"ids":[1,2],"n":2}"#),
            (&lists, &[r#"{"ids":[1]}"#, r#"{"n":2}"#], r#"{"ids":[1],"n":2}"#),
            (&lists, &[r#"{"ids":[1]}"#, "7"], "7"),
        ];
        for (fold, payloads, expected) in table {
            assert_eq!(folded(fold, payloads), expected, "{fold:?} over {payloads:?}");
        }
    }

    /// The examples of RFC 7396, appendix A.
    #[test]
    fn r10_merge_follows_rfc_7396() {
        let table = [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, r"{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"a":1,"e":null}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ];
        for (target, patch, expected) in table {
            assert_eq!(folded(&Fold::Merge, &[target, patch]), expected, "{target} + {patch}");
        }
    }

    #[test]
    fn r12_an_absorbed_payload_is_folded_in_as_older() {
        let text = |text: &str| Payload::from_text(text).unwrap();
        let collect = Fold::Collect { cap: 9 };
        assert_eq!(collect.absorb(&text("[1,2]"), &text("[3]")).as_str(), "[1,2,3]");
        assert_eq!(Fold::Last.absorb(&text("1"), &text("2")).as_str(), "2");
        assert_eq!(Fold::First.absorb(&text("1"), &text("2")).as_str(), "1");
    }

    #[test]
    fn r10_folds_keep_every_digit_and_look_no_deeper_than_they_may() {
        let digits = "88888888884888888888.10000000000000000000000001e400";
        let lists = Fold::Accumulate { fields: ["ids".to_owned()].into() };
        let one = format!(r#"{{"a":{{"n":{digits}}},"ids":[{digits}]}}"#);
        let two = r#"{"a":{"b":1},"ids":[2]}"#;
        let merged = format!(r#"{{"a":{{"b":1,"n":{digits}}},"ids":[2]}}"#);
        assert_eq!(folded(&Fold::Merge, &[&one, two]), merged);
        let both = format!(r#"{{"a":{{"b":1}},"ids":[{digits},2]}}"#);
        assert_eq!(folded(&lists, &[&one, two]), both);

        let nested = |depth: usize, inner: &str| {
            format!("{}{inner}{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
        };
        let (old, new) = (r#"{"b":1}"#, r#"{"c":2}"#);
        let at = |depth| folded(&Fold::Merge, &[&nested(depth, old), &nested(depth, new)]);
        assert_eq!(at(63), nested(63, r#"{"b":1,"c":2}"#));
        assert_eq!(at(64), nested(64, new));
        assert_eq!(at(9_000), nested(9_000, new));
    }

    #[test]
    fn r10_a_window_holds_its_limit_and_no_byte_or_element_more() {
        let text = |text: &str| Payload::from_text(text).unwrap();
        let lists = Fold::Accumulate { fields: ["ids".to_owned()].into() };
        let collect = Fold::Collect { cap: 3 };
        for fold in [&Fold::Merge, &collect, &lists] {
            assert!(fold.may_hold(&text("[1,2]"), 2, 5), "{fold:?}");
            assert!(!fold.may_hold(&text("[1,2]"), 2, 4), "{fold:?}");
        }
        assert!(collect.may_hold(&text("[1,2,3]"), 3, 9));
        assert!(!collect.may_hold(&text("[1,2,3,4]"), 4, 9));
        for fold in [Fold::Last, Fold::First] {
            assert!(fold.may_hold(&text("[1,2]"), 2, 1), "{fold:?}");
        }
        assert_eq!([elements_of(&text(" [1, [2,3], {}] ")), elements_of(&text("[]"))], [3, 0]);
        assert_eq!([elements_of(&text("7")), elements_of(&text(r#"{"a":[1,2]}"#))], [1, 1]);
    }

    #[test]
    fn r10_only_folds_that_look_inside_read_the_window() {
        let lists = Fold::Accumulate { fields: ["ids".to_owned()].into() };
        for fold in [Fold::Merge, Fold::Collect { cap: 1 }, lists] {
            assert!(fold.reads_payload(), "{fold:?}");
        }
        assert!(!Fold::Last.reads_payload() && !Fold::First.reads_payload());
        assert!(format!("{:?}", Payload::from_stored("[7]")).contains("[7]"));
    }
}
