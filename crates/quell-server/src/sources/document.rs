//! The body of a delivery as JSON: a form's fields become an object.
//!
//! Invariant: [`Document::text`] is valid JSON of bounded depth, byte for byte what the sender wrote, or an object
//! of a form's texts.

use std::borrow::Cow;
use std::cell::OnceCell;

use axum::http::HeaderMap;
use minijinja::value::Value as Field;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Refusal;
use crate::http::depth;

/// How deep a body may nest.
const MAX_DEPTH: usize = 64;

/// A body that was read.
#[derive(Debug)]
pub(super) struct Document<'b> {
    text: Cow<'b, str>,
    /// The text for templates, with numbers that they cannot carry as texts; and the first of these.
    carried: OnceCell<(Cow<'b, str>, Option<String>)>,
    value: OnceCell<Result<Field, String>>,
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
            let value = serde_json::from_str::<Field>(&self.carried().0);
            value.map_err(|error| format!("the body cannot be read: {error}"))
        });
        value.as_ref().map_err(String::clone)
    }

    /// A number of the body that templates cannot carry exactly.
    pub(super) fn inexact(&self) -> Option<&str> {
        self.carried().1.as_deref()
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
    Ok(Document { text, carried: OnceCell::new(), value: OnceCell::new() })
}

/// A form as JSON: an object of texts, a list of them where a name comes more than once. A form with nothing but
/// `payload` is the JSON in it, as GitHub and Slack send it.
fn form(text: &str) -> Result<String, Refusal> {
    let mut fields: Map<String, Value> = Map::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        if name.contains(char::REPLACEMENT_CHARACTER) || value.contains(char::REPLACEMENT_CHARACTER)
        {
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

/// Quotes each number of a JSON text that would be rounded; and the first of them.
fn carry(text: &str) -> (Cow<'_, str>, Option<String>) {
    let (mut carried, mut first) = (String::new(), None);
    let (mut rest, mut done) = (text.char_indices().peekable(), 0);
    let (mut in_text, mut escaped) = (false, false);
    while let Some((start, c)) = rest.next() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            '-' | '0'..='9' if !in_text => {
                let mut end = start + 1;
                while let Some((at, _)) = rest.next_if(|(_, c)| is_of_number(*c)) {
                    end = at + 1;
                }
                let number = text.get(start..end).unwrap_or_default();
                if !is_exact(number) {
                    carried.push_str(text.get(done..start).unwrap_or_default());
                    carried.push_str(&format!("\"{number}\""));
                    done = end;
                    first.get_or_insert_with(|| number.to_owned());
                }
            }
            _ => {}
        }
    }
    if first.is_none() {
        return (Cow::Borrowed(text), None);
    }
    carried.push_str(text.get(done..).unwrap_or_default());
    (Cow::Owned(carried), first)
}

fn is_of_number(c: char) -> bool {
    matches!(c, '0'..='9' | '.' | 'e' | 'E' | '+' | '-')
}

/// Whether a JSON number has the same value as a 64-bit integer or float.
fn is_exact(number: &str) -> bool {
    if number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return true;
    }
    let Some(written) = Decimal::of(number) else { return false };
    let float = number.parse::<f64>().ok().filter(|float| float.is_finite());
    // The shortest digits that stand for the float.
    float.is_some_and(|float| Decimal::of(&format!("{float:e}")) == Some(written))
}

/// A decimal number by its digits, without zeros at either end, and the power of ten of the last one.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: String,
    power: i64,
}

impl Decimal {
    fn of(number: &str) -> Option<Decimal> {
        let (negative, number) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number),
        };
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let kept = digits.trim_end_matches('0');
        let cut = i64::try_from(digits.len() - kept.len()).ok()?;
        let kept = kept.trim_start_matches('0');
        if kept.is_empty() {
            return Some(Decimal { negative, digits: String::new(), power: 0 });
        }
        let exponent: i64 = exponent.parse().ok()?;
        let power = exponent.checked_add(cut)?;
        let power = power.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        Some(Decimal { negative, digits: kept.to_owned(), power })
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
    fn numbers_that_a_template_would_round_are_texts_there() {
        let exact = ["0", "-0", "7", "1.10", "1e3", "18446744073709551615", "-9223372036854775808"];
        let exact = exact.into_iter().chain(["100000000000000000000", "0.1", "5e-324", "0e99999"]);
        for number in exact {
            assert!(is_exact(number), "{number}");
            assert_eq!(read(None, number).unwrap().inexact(), None);
        }
        let rounded = [
            "123456789012345678901234567890",
            "1e400",
            "1e99999999999999999999",
            "0.1000000000000000000001",
            "18446744073709551617",
        ];
        for number in rounded {
            let body = format!(r#"{{"1":[{number},"{number}\"",2]}}"#);
            let document = read(None, &body).unwrap();
            assert_eq!(document.inexact(), Some(number));
            let list = document.value().unwrap().get_attr("1").unwrap();
            assert_eq!(list.get_item_by_index(0).unwrap().as_str(), Some(number));
            assert_eq!(list.get_item_by_index(2).unwrap().as_i64(), Some(2));
        }
    }

    #[test]
    fn a_lone_surrogate_is_no_value_for_a_template() {
        let document = read(None, r#"{"s":"\ud800"}"#).unwrap();
        assert!(document.value().unwrap_err().contains("cannot be read"));
    }
}
