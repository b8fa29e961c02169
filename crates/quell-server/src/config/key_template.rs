//! The template that makes a debounce key of a payload, in minijinja: `{{ repository.full_name }}`.
//!
//! Traces and the server's configuration share it. A template is checked when it is made; what a
//! payload can make it do is bounded: steps by fuel, output by the largest key there is.

use std::fmt;
use std::io;

use minijinja::value::{Serde, Value as Field};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use quell_core::{Key, MAX_KEY_BYTES};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The longest template, in bytes.
const MAX_TEMPLATE_BYTES: usize = 4 << 10;
/// The most engine steps for one key: far above any sensible template, far below a second.
const FUEL: u64 = 20_000;
/// More output than this cannot become a key; it is cut here so that the key's own check refuses it.
const MAX_OUTPUT_BYTES: usize = 4 * MAX_KEY_BYTES;
const NAME: &str = "key";

/// A checked key template.
///
/// ```
/// use quell_server::config::key_template::KeyTemplate;
/// use serde_json::json;
///
/// let template = KeyTemplate::new("{{ repo }}/{{ path | split('/') | first }}")?;
/// let key = template.key(&json!({ "repo": "quell", "path": "docs/guide.md" }))?;
/// assert_eq!(key.unwrap().as_str(), "quell/docs");
/// assert!(KeyTemplate::new("{{ repo").is_err());
/// # Ok::<(), quell_server::config::key_template::TemplateError>(())
/// ```
#[derive(Debug)]
pub struct KeyTemplate {
    engine: Environment<'static>,
    text: String,
}

/// What is wrong with a key template, or with what it made of a payload.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

impl KeyTemplate {
    /// Checks a template.
    ///
    /// # Errors
    /// Names the line and column at fault.
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MAX_TEMPLATE_BYTES {
            let length = text.len();
            let limit = MAX_TEMPLATE_BYTES;
            return Err(TemplateError(format!("has {length} bytes, the limit is {limit}")));
        }
        let mut engine = Environment::new();
        engine.set_auto_escape_callback(|_| AutoEscape::None);
        engine.set_undefined_behavior(UndefinedBehavior::Strict);
        engine.set_fuel(Some(FUEL));
        engine.add_filter("sha256", |text: String| hex(&Sha256::digest(text.as_bytes())));
        // A null field is an absent part, not the word "none" that all absent ones would share.
        engine.set_formatter(|out, state, value| {
            if value.is_none() {
                return Ok(());
            }
            minijinja::escape_formatter(out, state, value)
        });
        engine
            .add_template_owned(NAME, text.to_owned())
            .map_err(|error| located(&error, text, None))?;
        let template = KeyTemplate { engine, text: text.to_owned() };
        template.check_names()?;
        Ok(template)
    }

    /// The template's text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The key of a payload; none where the template yields an empty text (R9).
    ///
    /// # Errors
    /// A field that the payload lacks, a key that is too long: named, with its place.
    pub fn key(&self, payload: &Value) -> Result<Option<Key>, TemplateError> {
        let text = self.render(&self.engine, self.context(payload))?;
        let text = text.map_err(|error| located(&error, &self.text, Some(payload)))?;
        if text.is_empty() {
            return Ok(None);
        }
        Key::new(&text)
            .map(Some)
            .map_err(|error| TemplateError(format!("made an invalid key: {error}")))
    }

    /// Only fields that the template may name go to the engine: a payload has many, a key few.
    fn context(&self, payload: &Value) -> Field {
        let fields = payload.as_object().into_iter().flatten();
        let named = fields.filter(|(name, _)| self.text.contains(name.as_str()));
        Field::from_pairs(named.map(|(name, value)| (name.as_str(), field(value))))
    }

    fn render(
        &self,
        engine: &Environment<'_>,
        context: Field,
    ) -> Result<Result<String, minijinja::Error>, TemplateError> {
        let template = match engine.get_template(NAME) {
            Ok(template) => template,
            Err(error) => return Ok(Err(error)),
        };
        let mut output = Capped(Vec::new());
        match template.render_captured_to(context, &mut output) {
            Ok(_) => {}
            Err(_) if output.0.len() >= MAX_OUTPUT_BYTES => {
                let limit = MAX_KEY_BYTES;
                let text =
                    format!("made a key of more than {limit} bytes, the limit: hash the long part");
                return Err(TemplateError(text));
            }
            Err(error) => return Ok(Err(error)),
        }
        let text = String::from_utf8(output.0);
        text.map(Ok).map_err(|_| TemplateError("made a key that is not text".to_owned()))
    }

    /// Finds filters, tests and functions that do not exist, before a payload comes: the engine
    /// looks them up as late as it meets them.
    fn check_names(&self) -> Result<(), TemplateError> {
        let mut engine = self.engine.clone();
        engine.set_undefined_behavior(UndefinedBehavior::Chainable);
        let named = engine.get_template(NAME).map(|template| template.undeclared_variables(false));
        let context = named.into_iter().flatten().map(|name| (name, "x"));
        match self.render(&engine, Field::from_pairs(context))? {
            Err(error) if names_nothing(error.kind()) => Err(located(&error, &self.text, None)),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

fn names_nothing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction)
}

/// Plain texts are most fields, and need no detour through the engine's serializer.
fn field(value: &Value) -> Field {
    match value {
        Value::String(text) => Field::from(text.as_str()),
        other => Field::from(Serde(other)),
    }
}

/// An engine error with its place in the template, and what could have been meant.
fn located(error: &minijinja::Error, text: &str, payload: Option<&Value>) -> TemplateError {
    let place = match error.range() {
        Some(range) => Place::at(text, range.start).to_string(),
        None => "unknown place".to_owned(),
    };
    let source = error.range().and_then(|range| text.get(range)).unwrap_or_default();
    let said = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => {
            format!("more than {FUEL} steps, the limit: simplify the template")
        }
        (ErrorKind::UndefinedError, _) => {
            let known = payload.and_then(Value::as_object).map(|object| {
                let names: Vec<&str> = object.keys().map(String::as_str).take(20).collect();
                format!(": there is {}", names.join(", "))
            });
            format!("`{source}` is undefined{}", known.unwrap_or_default())
        }
        (kind, None) => kind.to_string(),
        (ErrorKind::SyntaxError, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
    };
    TemplateError(format!("{place}: {said}"))
}

struct Place {
    line: usize,
    column: usize,
}

impl Place {
    fn at(text: &str, offset: usize) -> Place {
        let before = text.get(..offset).unwrap_or(text);
        let last_line = before.rsplit('\n').next().unwrap_or_default();
        Place { line: before.matches('\n').count() + 1, column: last_line.chars().count() + 1 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            1 => write!(f, "column {}", self.column),
            line => write!(f, "line {line} column {}", self.column),
        }
    }
}

/// Output that ends with an error where no key could be that long.
struct Capped(Vec<u8>);

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_OUTPUT_BYTES.saturating_sub(self.0.len());
        if room == 0 && !bytes.is_empty() {
            return Err(io::Error::other("no key is that long"));
        }
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.0.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn r09_a_key_is_what_the_template_makes_and_an_empty_one_is_none() {
        let row = json!({ "repo": "a", "path": "src/x/y.rs", "n": 7, "no": null, "o": {"p": "q"} });
        let table = [
            ("{{ repo }}/{{ path | split('/') | first }}", Some("a/src")),
            ("{{ n }}", Some("7")),
            ("{{ o.p }}", Some("q")),
            ("{{ repo }}<&>", Some("a<&>")),
            ("{{ no }}", None),
            ("", None),
            ("{% if n > 9 %}big{% endif %}", None),
            ("{{ (repo | sha256)[:8] }}", Some("ca978112")),
            ("fixed", Some("fixed")),
        ];
        for (text, expected) in table {
            let key = KeyTemplate::new(text).and_then(|template| template.key(&row));
            let key = key.unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(key.as_ref().map(Key::as_str), expected, "{text}");
        }
    }

    #[test]
    fn r40_a_bad_template_is_refused_with_its_place() {
        let table = [
            ("{{ repo", "column"),
            ("{{ repo }}\n{{ 1 + }}", "line 2 column"),
            ("{{ repo | nosuch }}", "unknown filter"),
            ("{{ path | split('/') | nosuch }}", "unknown filter"),
            ("{% include 'x' %}", "column"),
        ];
        for (text, expected) in table {
            let error = KeyTemplate::new(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let long = "x".repeat(MAX_TEMPLATE_BYTES + 1);
        assert!(KeyTemplate::new(&long).unwrap_err().to_string().contains("limit"));
    }

    #[test]
    fn r40_what_a_payload_lacks_or_overdoes_is_named() {
        let row = json!({ "repo": "a", "long": "x".repeat(9_999), "nul": "\0" });
        let table = [
            ("{{ nosuch }}", "column 4: `nosuch` is undefined: there is long, nul, repo"),
            ("a{{ repo.name.first }}", "is undefined"),
            ("{{ long }}", "bytes"),
            ("{{ nul }}", "NUL"),
            ("{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}", "steps"),
        ];
        for (text, expected) in table {
            let template = KeyTemplate::new(text).unwrap();
            let error = template.key(&row).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
