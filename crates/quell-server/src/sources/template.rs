//! Templates and expressions over a delivery: `body`, `headers`, `query`, `source` and `digest`.

use std::cell::OnceCell;

use minijinja::value::{Value as Field, ValueKind};
use minijinja::{Environment, ErrorKind};

use super::Request;
use super::document::Document;
use crate::config::engine::{
    Capped, TemplateError, any_texts, engine, for_check, located, names_nothing, quoted, sha256,
    short_enough,
};

/// The names that a template may use.
const NAMES: [&str; 5] = ["body", "headers", "query", "source", "digest"];
/// The longest text that a template makes.
const MAX_TEXT_BYTES: usize = 8 << 10;
const NAME: &str = "template";

/// A template of a text: `{{ body.repository.full_name }}`.
#[derive(Debug)]
pub(crate) struct Template {
    engine: Environment<'static>,
    text: String,
}

impl Template {
    /// Checks a template.
    ///
    /// # Errors
    /// Names the line and column at fault, or a name that no delivery has.
    pub(crate) fn new(text: &str) -> Result<Self, TemplateError> {
        short_enough(text)?;
        let mut engine = engine();
        let added = engine.add_template_owned(NAME, text.to_owned());
        added.map_err(|error| located(&error, text, &[]))?;
        let made = Template { engine, text: text.to_owned() };
        let template = made.engine.get_template(NAME).map_err(|e| located(&e, text, &[]))?;
        known(&made.engine, template.undeclared_variables(false))?;
        let checked = for_check(&made.engine);
        let rendered = checked
            .get_template(NAME)
            .and_then(|template| template.render(any_texts(NAMES.map(str::to_owned))).map(drop));
        refuse_unknown(rendered, text)?;
        Ok(made)
    }

    /// Its text.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The text, if it depends on no delivery.
    pub(crate) fn fixed(&self) -> Option<&str> {
        (!self.text.contains("{{") && !self.text.contains("{%")).then_some(&*self.text)
    }

    /// What it makes of a delivery.
    pub(crate) fn render(&self, scope: &Scope<'_>) -> Result<String, String> {
        if let Some(text) = self.fixed() {
            return Ok(text.to_owned());
        }
        let context = scope.names(&self.text)?;
        let mut output = Capped::new(MAX_TEXT_BYTES);
        let rendered = self
            .engine
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(context, &mut output).map(drop));
        match rendered {
            Ok(()) => {}
            Err(_) if output.is_full() => {
                return Err(format!("made more than {MAX_TEXT_BYTES} bytes, the limit"));
            }
            Err(error) => return Err(scope.explain(&error, &self.text)),
        }
        String::from_utf8(output.bytes).map_err(|_| "made what is not text".to_owned())
    }
}

/// An expression: `body.ref == 'refs/heads/main'`.
#[derive(Debug)]
pub(crate) struct Expression {
    engine: Environment<'static>,
    text: String,
}

impl Expression {
    /// Checks an expression.
    ///
    /// # Errors
    /// As for [`Template::new`].
    pub(crate) fn new(text: &str) -> Result<Self, TemplateError> {
        short_enough(text)?;
        let engine = engine();
        let compiled = engine.compile_expression(text).map_err(|e| located(&e, text, &[]))?;
        known(&engine, compiled.undeclared_variables(false))?;
        drop(compiled);
        let checked = for_check(&engine);
        let evaluated = checked
            .compile_expression(text)
            .and_then(|expression| expression.eval(any_texts(NAMES.map(str::to_owned))).map(drop));
        refuse_unknown(evaluated, text)?;
        Ok(Expression { engine, text: text.to_owned() })
    }

    /// Its text for an error message.
    pub(crate) fn quoted(&self) -> String {
        quoted(&self.text)
    }

    /// Whether it is true of a delivery.
    pub(crate) fn is_true(&self, scope: &Scope<'_>) -> Result<bool, String> {
        if self.text.contains("body")
            && let Some(number) = scope.document.inexact()
        {
            return Err(format!("{}, so no comparison with it holds", rounds(number)));
        }
        let value = self.eval(scope)?;
        if value.is_undefined() {
            return Err(format!("`{}` is undefined: test with `is defined`", self.text));
        }
        Ok(value.is_true())
    }

    /// Its value as JSON text. What it would alter is refused: a number that it would round, a member that comes
    /// twice, and a part that is not there.
    pub(crate) fn json(&self, scope: &Scope<'_>) -> Result<String, String> {
        let instead = "leave `payload` out to pass the body on as it is";
        if let Some(number) = scope.document.inexact() {
            return Err(format!("{}: {instead}", rounds(number)));
        }
        if let Some(name) = scope.document.repeated() {
            return Err(format!("an object of the body has the member {name:?} twice: {instead}"));
        }
        let value = self.eval(scope)?;
        if has_undefined(&value) {
            return Err(format!("a part of `{}` is undefined", self.text));
        }
        serde_json::to_string(&value).map_err(|error| format!("made no JSON: {error}"))
    }

    fn eval(&self, scope: &Scope<'_>) -> Result<Field, String> {
        let context = scope.names(&self.text)?;
        let value = self.engine.compile_expression(&self.text);
        let value = value.and_then(|expression| expression.eval(context));
        value.map_err(|error| scope.explain(&error, &self.text))
    }
}

fn rounds(number: &str) -> String {
    let shown: String = number.chars().take(40).collect();
    format!("the body has the number {shown}, which an expression would round")
}

/// Whether a value is undefined, or has a part that is.
fn has_undefined(value: &Field) -> bool {
    match value.kind() {
        ValueKind::Undefined => true,
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter().is_ok_and(|mut items| items.any(|item| has_undefined(&item)))
        }
        ValueKind::Map => value.try_iter().is_ok_and(|mut names| {
            names.any(|name| value.get_item(&name).is_ok_and(|item| has_undefined(&item)))
        }),
        _ => false,
    }
}

/// Refuses names that no delivery has and that are no functions.
fn known(
    engine: &Environment<'_>,
    names: impl IntoIterator<Item = String>,
) -> Result<(), TemplateError> {
    let is_function = |name: &str| engine.globals().any(|(global, _)| global == name);
    let is_known = |name: &str| NAMES.contains(&name) || is_function(name);
    match names.into_iter().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => {
            let known = NAMES.join(", ");
            Err(TemplateError(format!("`{name}` is not known: there is {known}")))
        }
    }
}

/// Refuses filters, tests and functions that do not exist.
fn refuse_unknown(tried: Result<(), minijinja::Error>, text: &str) -> Result<(), TemplateError> {
    match tried {
        Err(error) if names_nothing(error.kind()) => Err(located(&error, text, &[])),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// What templates know of a delivery. Each part is made when the first template names it.
pub(crate) struct Scope<'r> {
    source: &'r str,
    /// The header or parameter with the proof, which no template sees.
    hidden: &'r str,
    request: Request<'r>,
    document: &'r Document<'r>,
    headers: OnceCell<Field>,
}

impl<'r> Scope<'r> {
    pub(super) fn new(
        source: &'r str,
        hidden: &'r str,
        request: Request<'r>,
        document: &'r Document<'r>,
    ) -> Self {
        Scope { source, hidden, request, document, headers: OnceCell::new() }
    }

    pub(super) fn document(&self) -> &Document<'r> {
        self.document
    }

    /// The parts that a text names.
    fn names(&self, text: &str) -> Result<Field, String> {
        let mut parts = Vec::new();
        for name in NAMES.into_iter().filter(|name| text.contains(name)) {
            let part = match name {
                "body" => self.document.value()?.clone(),
                "headers" => self.headers.get_or_init(|| self.header_fields()).clone(),
                "query" => query(self.request.query, self.hidden),
                "source" => Field::from(self.source),
                _ => Field::from(sha256(self.request.body)),
            };
            parts.push((name, part));
        }
        Ok(Field::from_pairs(parts))
    }

    /// Headers by their names in lower case; the values of one that comes more than once, joined.
    fn header_fields(&self) -> Field {
        let headers = self.request.headers;
        let shown = headers.keys().filter(|name| name.as_str() != self.hidden);
        Field::from_pairs(shown.map(|name| {
            let values = headers.get_all(name).iter();
            let values: Vec<_> =
                values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
            (name.as_str().to_owned(), Field::from(values.join(", ")))
        }))
    }

    fn explain(&self, error: &minijinja::Error, text: &str) -> String {
        let members: Vec<String> = match error.kind() {
            ErrorKind::UndefinedError => {
                let body = self.document.value().ok();
                let names = body.and_then(|body| body.try_iter().ok()).into_iter().flatten();
                names
                    .filter_map(|name| name.as_str().map(|name| format!("body.{}", short(name))))
                    .take(20)
                    .collect()
            }
            _ => Vec::new(),
        };
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        located(error, text, &members).to_string()
    }
}

/// The beginning of a name, which may be a megabyte long.
fn short(name: &str) -> &str {
    name.get(..name.floor_char_boundary(64)).unwrap_or_default()
}

/// The parameters of a URL's query; the last of each name.
fn query(text: &str, hidden: &str) -> Field {
    Field::from_pairs(
        form_urlencoded::parse(text.as_bytes())
            .filter(|(name, _)| name != hidden)
            .map(|(name, value)| (name.into_owned(), Field::from(value.into_owned()))),
    )
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use quell::Timestamp;

    use super::*;

    fn with_scope<R>(body: &str, then: impl FnOnce(&Scope<'_>) -> R) -> R {
        let headers = [("x-github-event", "push"), ("x-proof", "canary")];
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = HeaderMap::from_iter(headers);
        let (query, bytes) = ("a=1&a=2&b=x%20y&x-proof=canary", body.as_bytes());
        let request = Request { headers: &headers, query, body: bytes, at: Timestamp::MIN };
        let document = Document::read(&headers, bytes).unwrap();
        then(&Scope::new("hub", "x-proof", request, &document))
    }

    fn render(text: &str, body: &str) -> Result<String, String> {
        with_scope(body, |scope| Template::new(text).unwrap().render(scope))
    }

    fn json(text: &str, body: &str) -> Result<String, String> {
        with_scope(body, |scope| Expression::new(text).unwrap().json(scope))
    }

    #[test]
    fn a_template_sees_body_headers_query_and_source() {
        let body = r#"{"repo":{"name":"a"},"n":7,"no":null,"big":123456789012345678901}"#;
        let table = [
            ("{{ body.repo.name }}", "a"),
            ("{{ body['repo'].name }}/{{ headers['x-github-event'] }}", "a/push"),
            ("{{ query.a }}{{ query.b }}", "2x y"),
            ("{{ source }}{{ body.no }}{{ body.n + 1 }}", "hub8"),
            ("{{ body.big }}", "123456789012345678901"),
            ("{{ digest[:8] }}", &super::super::sha256(body.as_bytes())[..8]),
            ("fixed", "fixed"),
        ];
        for (text, made) in table {
            assert_eq!(render(text, body).as_deref(), Ok(made), "{text}");
        }
    }

    #[test]
    fn an_expression_makes_json_and_never_rounds() {
        let table = [
            ("body.a", r#"{"a":{"b":[1,2.5,"x",null,true]}}"#, r#"{"b":[1,2.5,"x",null,true]}"#),
            ("{'k': body.n, 'h': headers['x-github-event']}", r#"{"n":18446744073709551615}"#, ""),
            ("body", "[1]", "[1]"),
        ];
        for (text, body, made) in table {
            let got = json(text, body).unwrap();
            if made.is_empty() {
                let value: serde_json::Value = serde_json::from_str(&got).unwrap();
                assert_eq!(value, serde_json::json!({"k": u64::MAX, "h": "push"}));
            } else {
                assert_eq!(got, made, "{text}");
            }
        }
        let rounded = json("body.a", r#"{"a":1,"b":1e400}"#).unwrap_err();
        assert!(rounded.contains("1e400") && rounded.contains("leave `payload` out"), "{rounded}");
        for (text, body, why) in [
            ("body.nosuch", "{}", "undefined"),
            ("{'a': body.a, 'b': [body.nosuch]}", r#"{"a":1}"#, "undefined"),
            ("body.a", r#"{"a":{"x":1,"x":2}}"#, "\"x\" twice"),
        ] {
            let error = json(text, body).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_filter_is_true_or_false_and_never_guesses() {
        let is_true = |text: &str, body: &str| {
            with_scope(body, |scope| Expression::new(text).unwrap().is_true(scope))
        };
        assert_eq!(is_true("body.n > 1", r#"{"n":2}"#), Ok(true));
        assert_eq!(is_true("body.n > 1", r#"{"n":1}"#), Ok(false));
        assert_eq!(is_true("body.n is defined and body.n", "{}"), Ok(false));
        for (text, body) in [("body.n", "{}"), ("body.n < 100", r#"{"n":12.345678901234567890}"#)] {
            assert!(is_true(text, body).is_err(), "{text}");
        }
        assert_eq!(is_true("headers['x-github-event'] == 'push'", r#"{"n":1e400}"#), Ok(true));
    }

    #[test]
    fn the_proof_of_a_delivery_is_hidden() {
        let shown = json("{'h': headers, 'q': query}", "{}").unwrap();
        assert!(shown.contains("push") && !shown.contains("canary"), "{shown}");
    }

    #[test]
    fn r40_what_can_never_work_is_refused_at_the_start() {
        for (text, why) in [
            ("{{ body.x", "column"),
            ("{{ payload.x }}", "`payload` is not known: there is body, headers"),
            ("{{ body.x | nosuch }}", "unknown filter"),
        ] {
            let error = Template::new(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        for (text, why) in [
            ("body.ref ==", "unexpected"),
            ("event == 'push'", "`event` is not known"),
            ("nosuch(body)", "`nosuch` is not known"),
        ] {
            let error = Expression::new(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn r40_what_a_delivery_lacks_or_overdoes_is_named() {
        let error = render("{{ body.repo.name }}", r#"{"ref":1,"sha":2}"#).unwrap_err();
        assert!(error.contains("undefined: there is body.ref, body.sha"), "{error}");
        let long = format!("\"{}\"", "x".repeat(MAX_TEXT_BYTES + 1));
        assert!(render("{{ body }}", &long).unwrap_err().contains("limit"));
        let endless = "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}";
        assert!(render(endless, "1").unwrap_err().contains("steps"));
    }
}
