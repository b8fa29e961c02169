//! Payloads, and how the payloads of one window become one (R10).
//!
//! A payload is JSON text from end to end: checked once where it enters, parsed once by the
//! handler's type. Only `merge`, `collect` and `accumulate` look inside on the way.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The default bound on a payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The default bound on how many payloads `collect` gathers.
pub const COLLECT_CAP: u32 = 1_000;

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
    /// An array of every payload in order; at `cap` payloads the window becomes due.
    Collect {
        /// How many payloads a window gathers before it becomes due.
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
            Fold::Merge => both(older, newer, |mut old, new| {
                merge_patch(&mut old, new);
                old
            }),
            Fold::Collect { .. } => concat_arrays(older, newer),
            Fold::Accumulate { fields } => {
                both(older, newer, |old, new| accumulate(old, new, fields))
            }
        }
    }
}

/// Joins two JSON array texts without parsing their members.
fn concat_arrays(older: &Payload, newer: &Payload) -> Payload {
    let inside = |payload: &Payload| -> String {
        let text = payload.as_str().trim();
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inner.map_or_else(|| text.to_owned(), |inner| inner.trim().to_owned())
    };
    let parts: Vec<String> =
        [inside(older), inside(newer)].into_iter().filter(|part| !part.is_empty()).collect();
    Payload::from_stored(format!("[{}]", parts.join(",")))
}

/// Parses both, folds, and writes the result; text that is not JSON yields the newer one.
fn both(older: &Payload, newer: &Payload, fold: impl FnOnce(Value, Value) -> Value) -> Payload {
    match (serde_json::from_str(older.as_str()), serde_json::from_str(newer.as_str())) {
        (Ok(old), Ok(new)) => Payload::from_stored(fold(old, new).to_string()),
        (Err(_), _) | (_, Err(_)) => newer.clone(),
    }
}

/// JSON Merge Patch, RFC 7396 section 2.
fn merge_patch(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(object) = target.as_object_mut() else { return };
    for (name, value) in patch {
        if value.is_null() {
            object.remove(&name);
        } else {
            merge_patch(object.entry(name).or_insert(Value::Null), value);
        }
    }
}

/// The newer document, with the named arrays of the older one put before its own.
fn accumulate(old: Value, new: Value, fields: &[String]) -> Value {
    let (Value::Object(mut old), Value::Object(mut new)) = (old, new.clone()) else { return new };
    for field in fields {
        let Some(Value::Array(mut items)) = old.remove(field) else { continue };
        match new.get_mut(field) {
            Some(Value::Array(newer)) => {
                items.append(newer);
                *newer = items;
            }
            Some(_) => {}
            None => {
                new.insert(field.clone(), Value::Array(items));
            }
        }
    }
    Value::Object(new)
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
    fn r10_only_folds_that_look_inside_read_the_window() {
        let lists = Fold::Accumulate { fields: ["ids".to_owned()].into() };
        for fold in [Fold::Merge, Fold::Collect { cap: 1 }, lists] {
            assert!(fold.reads_payload(), "{fold:?}");
        }
        assert!(!Fold::Last.reads_payload() && !Fold::First.reads_payload());
        assert!(format!("{:?}", Payload::from_stored("[7]")).contains("[7]"));
    }
}
