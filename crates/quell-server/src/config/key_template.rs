//! The template that makes a debounce key of a payload, in minijinja: `{{ repository.full_name }}`.
//!
//! Traces and the server's configuration share it. A template is checked when it is made; what a
//! payload can make it do is bounded: steps by fuel, output by the largest key there is.

use minijinja::Environment;
use minijinja::value::{Serde, Value as Field};
use quell_core::{Key, MAX_KEY_BYTES};
use serde_json::Value;

pub use super::engine::TemplateError;
use super::engine::{Capped, any_texts, engine, for_check, located, names_nothing, short_enough};

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

impl KeyTemplate {
    /// Checks a template.
    ///
    /// # Errors
    /// Names the line and column at fault.
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        short_enough(text)?;
        let mut engine = engine();
        engine
            .add_template_owned(NAME, text.to_owned())
            .map_err(|error| located(&error, text, &[]))?;
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
        let text = text.map_err(|error| located(&error, &self.text, &members(payload)))?;
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
        let mut output = Capped::new(MAX_OUTPUT_BYTES);
        match template.render_captured_to(context, &mut output) {
            Ok(_) => {}
            Err(_) if output.is_full() => {
                let limit = MAX_KEY_BYTES;
                let text =
                    format!("made a key of more than {limit} bytes, the limit: hash the long part");
                return Err(TemplateError(text));
            }
            Err(error) => return Ok(Err(error)),
        }
        let text = String::from_utf8(output.bytes);
        text.map(Ok).map_err(|_| TemplateError("made a key that is not text".to_owned()))
    }

    /// Finds filters, tests and functions that do not exist, before a payload comes: the engine
    /// looks them up as late as it meets them.
    fn check_names(&self) -> Result<(), TemplateError> {
        let engine = for_check(&self.engine);
        let named = engine.get_template(NAME).map(|template| template.undeclared_variables(false));
        match self.render(&engine, any_texts(named.into_iter().flatten()))? {
            Err(error) if names_nothing(error.kind()) => Err(located(&error, &self.text, &[])),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// Some of a payload's members, for the text of an error.
fn members(payload: &Value) -> Vec<&str> {
    let names = payload.as_object().into_iter().flat_map(|object| object.keys());
    names.map(String::as_str).take(20).collect()
}

/// Plain texts are most fields, and need no detour through the engine's serializer.
fn field(value: &Value) -> Field {
    match value {
        Value::String(text) => Field::from(text.as_str()),
        other => Field::from(Serde(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::MAX_TEMPLATE_BYTES;
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
