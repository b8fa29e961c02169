//! The body of a delivery as JSON: a form's fields become an object.
//!
//! Invariant: [`Document::text`] is valid JSON of bounded depth, byte for byte what the sender wrote, or an object
//! of a form's texts.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashSet;
use std::fmt;

use axum::http::HeaderMap;
use minijinja::value::Value as Field;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Refusal;
use crate::config::exact::carry;
use crate::http::{MAX_DEPTH, depth, outside_texts};

/// The most values of a body that templates read: each takes some hundred bytes.
const MAX_VALUES: usize = 500_000;
/// How the error of a repeated member begins.
const REPEATED: &str = "repeated member ";

/// A body that was read.
#[derive(Debug)]
pub(super) struct Document<'b> {
    text: Cow<'b, str>,
    /// The text for templates, with numbers that they cannot carry as texts; and the first of these.
    carried: OnceCell<(Cow<'b, str>, Option<String>)>,
    value: OnceCell<Result<Field, String>>,
    /// A member that an object has twice.
    repeated: OnceCell<Option<String>>,
}

impl<'b> Document<'b> {
    /// Reads a body by its content type; one without a type is JSON, one without bytes is `null`.
    pub(super) fn read(headers: &HeaderMap, body: &'b [u8]) -> Result<Self, Refusal> {
        let kind = headers.get("content-type").map(|kind| kind.to_str().unwrap_or("?"));
        let kind = kind.map(|kind| kind.split(';').next().unwrap_or_default().trim());
        let kind = kind.map(str::to_ascii_lowercase);
        let not_text = |_| Refusal::Unreadable("the body is not UTF-8".to_owned());
        let text = std::str::from_utf8(body).map_err(not_text)?;
        match kind.as_deref() {
            _ if text.trim_ascii().is_empty() => json(Cow::Borrowed("null")),
            None | Some("" | "application/json" | "text/json") => json(Cow::Borrowed(text)),
            Some(kind) if kind.ends_with("+json") => json(Cow::Borrowed(text)),
            Some("application/x-www-form-urlencoded") => json(Cow::Owned(form(text)?)),
            Some(_) => Err(Refusal::MediaType),
        }
    }

    /// The JSON text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The value for templates. A number that they would round is a text of its digits.
    pub(super) fn value(&self) -> Result<&Field, String> {
        let value = self.value.get_or_init(|| {
            let values = values(&self.text);
            if values > MAX_VALUES {
                return Err(format!("the body has {values} values, templates read {MAX_VALUES}"));
            }
            let value = serde_json::from_str::<Field>(&self.carried().0);
            value.map_err(|error| format!("the body cannot be read: {error}"))
        });
        value.as_ref().map_err(String::clone)
    }

    /// A number of the body that templates cannot carry exactly.
    pub(super) fn inexact(&self) -> Option<&str> {
        self.carried().1.as_deref()
    }

    /// A member that one of the body's objects has twice: templates see the last one alone.
    pub(super) fn repeated(&self) -> Option<&str> {
        let find = || match serde_json::from_str::<Unique>(&self.text) {
            Err(error) if error.is_data() => error.to_string().strip_prefix(REPEATED).map(|rest| {
                let name = rest.rsplit_once(" at line").map_or(rest, |(name, _)| name);
                name.chars().take(40).collect()
            }),
            Ok(_) | Err(_) => None,
        };
        self.repeated.get_or_init(find).as_deref()
    }

    fn carried(&self) -> &(Cow<'b, str>, Option<String>) {
        self.carried.get_or_init(|| match carry(&self.text) {
            (Cow::Borrowed(_), _) => (self.text.clone(), None),
            (Cow::Owned(text), first) => (Cow::Owned(text), first),
        })
    }
}

fn json(text: Cow<'_, str>) -> Result<Document<'_>, Refusal> {
    if depth(text.as_bytes()) > MAX_DEPTH {
        let why = format!("the body has more than {MAX_DEPTH} nested levels, the limit");
        return Err(Refusal::Unreadable(why));
    }
    if let Err(error) = serde_json::from_str::<&RawValue>(&text) {
        return Err(Refusal::Unreadable(format!("the body is not JSON: {error}")));
    }
    let text = match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim_ascii()),
        owned @ Cow::Owned(_) => owned,
    };
    let (carried, value, repeated) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
    Ok(Document { text, carried, value, repeated })
}

/// How many values a JSON text has, at most.
fn values(text: &str) -> usize {
    1 + outside_texts(text.as_bytes()).filter(|byte| matches!(byte, b',' | b'[' | b'{')).count()
}

/// JSON in which no object has a member twice.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Unique)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Unique, A::Error> {
        while list.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Unique, A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = object.next_key::<String>()? {
            if names.contains(&name) {
                return Err(de::Error::custom(format!("{REPEATED}{name}")));
            }
            object.next_value::<Unique>()?;
            names.insert(name);
        }
        Ok(Unique)
    }
}

/// A form as JSON: an object of texts, a list of them where a name comes more than once. A form with nothing but
/// `payload` is the JSON in it, as GitHub and Slack send it.
fn form(text: &str) -> Result<String, Refusal> {
    let mut fields: Map<String, Value> = Map::new();
    // The character that stands for bytes which are no text may be a character of the text itself.
    let written = text.contains(char::REPLACEMENT_CHARACTER) || {
        text.to_ascii_uppercase().contains("%EF%BF%BD")
    };
    let is_lost = |text: &str| !written && text.contains(char::REPLACEMENT_CHARACTER);
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        if is_lost(&name) || is_lost(&value) {
            return Err(Refusal::Unreadable(format!("the form's field {name:?} is not UTF-8")));
        }
        let value = Value::from(value.into_owned());
        match fields.get_mut(&*name) {
            None => drop(fields.insert(name.into_owned(), value)),
            Some(Value::Array(values)) => values.push(value),
            Some(one) => *one = Value::Array(vec![one.take(), value]),
        }
    }
    match (fields.len(), fields.get_mut("payload").map(Value::take)) {
        (1, Some(Value::String(payload))) => Ok(payload),
        (_, Some(payload)) => {
            fields.insert("payload".to_owned(), payload);
            Ok(Value::Object(fields).to_string())
        }
        (_, None) => Ok(Value::Object(fields).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'b>(kind: Option<&str>, body: &'b str) -> Result<Document<'b>, Refusal> {
        let kind = kind.map(|kind| ("content-type".parse().unwrap(), kind.parse().unwrap()));
        Document::read(&HeaderMap::from_iter(kind), body.as_bytes())
    }

    const FORM: Option<&str> = Some("application/x-www-form-urlencoded; charset=utf-8");

    #[test]
    fn r40_a_body_is_kept_byte_for_byte() {
        let bodies = [
            r#"{"id":123456789012345678901234567890,"p":1.10,"z":1e400}"#,
            r#"{"b":1,"a":2,"b":3}"#,
            r#"{"s":"\ud800"}"#,
            r#"[ 1 , 2 ]"#,
        ];
        for body in bodies {
            assert_eq!(read(Some("application/json"), body).unwrap().text(), body);
        }
        assert_eq!(read(None, " {}\n").unwrap().text(), "{}");
        assert_eq!(read(Some("application/cloudevents+json"), "1").unwrap().text(), "1");
        assert_eq!(read(None, "").unwrap().text(), "null");
    }

    #[test]
    fn a_form_is_an_object_of_texts_or_the_json_of_its_payload() {
        let table = [
            ("a=1&b=x+y%26", r#"{"a":"1","b":"x y&"}"#),
            ("a=1&a=2&a=3", r#"{"a":["1","2","3"]}"#),
            ("payload=%7B%22n%22%3A1.10%7D", r#"{"n":1.10}"#),
            ("payload=x&a=1", r#"{"a":"1","payload":"x"}"#),
            ("a=%EF%BF%BD", "{\"a\":\"\u{fffd}\"}"),
        ];
        for (form, json) in table {
            assert_eq!(read(FORM, form).unwrap().text(), json, "{form}");
        }
        assert!(
            matches!(read(FORM, "a=%FF"), Err(Refusal::Unreadable(why)) if why.contains("\"a\""))
        );
        assert!(matches!(read(FORM, "payload=x"), Err(Refusal::Unreadable(_))));
    }

    #[test]
    fn r40_what_is_no_json_is_refused() {
        for body in ["{", "{}{}", "nul", &"[".repeat(65)] {
            assert!(matches!(read(None, body), Err(Refusal::Unreadable(_))), "{body}");
        }
        assert!(matches!(Document::read(&HeaderMap::new(), b"\xff"), Err(Refusal::Unreadable(_))));
        assert_eq!(read(Some("text/plain"), "x").unwrap_err(), Refusal::MediaType);
    }

    #[test]
    fn a_repeated_member_and_too_many_values_are_found() {
        let repeated = |body: &str| read(None, body).unwrap().repeated().map(str::to_owned);
        assert_eq!(repeated(r#"{"a":{"x":1,"y":{"x":1}},"b":[{"x":1},{"x":2}]}"#), None);
        assert_eq!(repeated(r#"[{"a":{"x":1,"x":2}}]"#).as_deref(), Some("x"));
        assert_eq!(repeated(r#"{"a":1,"\u0061":2}"#).as_deref(), Some("a"));
        let many = format!("[{}0]", "0,".repeat(MAX_VALUES));
        assert!(read(None, &many).unwrap().value().unwrap_err().contains("values"));
    }

    #[test]
    fn a_lone_surrogate_is_no_value_for_a_template() {
        let document = read(None, r#"{"s":"\ud800"}"#).unwrap();
        assert!(document.value().unwrap_err().contains("cannot be read"));
    }
}
