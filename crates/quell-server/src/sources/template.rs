//! Templates and expressions over a delivery: `body`, `headers`, `query`, `source` and `digest`.

use std::cell::OnceCell;

use minijinja::value::Value as Field;
use minijinja::{Environment, ErrorKind};

use super::document::Document;
use super::{Digested, Request};
use crate::config::engine::{
    Capped, TemplateError, any_texts, engine, for_check, located, names_nothing, short_enough,
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

    /// Whether it is true of a delivery.
    pub(crate) fn is_true(&self, scope: &Scope<'_>) -> Result<bool, String> {
        Ok(self.eval(scope)?.is_true())
    }

    /// Its value as JSON text. A body with a number that would be rounded is refused: no payload is altered.
    pub(crate) fn json(&self, scope: &Scope<'_>) -> Result<String, String> {
        if let Some(number) = scope.document.inexact() {
            let shown: String = number.chars().take(40).collect();
            return Err(format!(
                "the body has the number {shown}, which an expression would round: leave `payload` out \
                 to pass the body on as it is"
            ));
        }
        let value = self.eval(scope)?;
        if value.is_undefined() {
            return Err(format!("`{}` is undefined", self.text));
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
    request: Request<'r>,
    document: &'r Document<'r>,
    digest: &'r Digested<'r>,
    headers: OnceCell<Field>,
}

impl<'r> Scope<'r> {
    pub(super) fn new(
        source: &'r str,
        request: Request<'r>,
        document: &'r Document<'r>,
        digest: &'r Digested<'r>,
    ) -> Self {
        Scope { source, request, document, digest, headers: OnceCell::new() }
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
                "query" => query(self.request.query),
                "source" => Field::from(self.source),
                _ => Field::from(self.digest.hex()),
            };
            parts.push((name, part));
        }
        Ok(Field::from_pairs(parts))
    }

    /// Headers by their names in lower case; the values of one that comes more than once, joined.
    fn header_fields(&self) -> Field {
        let headers = self.request.headers;
        Field::from_pairs(headers.keys().map(|name| {
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
                names.filter_map(|name| name.as_str().map(|name| format!("body.{name}"))).collect()
            }
            _ => Vec::new(),
        };
        let members: Vec<&str> = members.iter().map(String::as_str).take(20).collect();
        located(error, text, &members).to_string()
    }
}

/// The parameters of a URL's query; the last of each name.
fn query(text: &str) -> Field {
    Field::from_pairs(
        form_urlencoded::parse(text.as_bytes())
            .map(|(name, value)| (name.into_owned(), Field::from(value.into_owned()))),
    )
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use quell::Timestamp;

    use super::*;

    fn with_scope<R>(body: &str, then: impl FnOnce(&Scope<'_>) -> R) -> R {
        let headers: HeaderMap =
            HeaderMap::from_iter([("x-github-event".parse().unwrap(), "push".parse().unwrap())]);
        let (query, bytes) = ("a=1&a=2&b=x%20y", body.as_bytes());
        let request = Request { headers: &headers, query, body: bytes, at: Timestamp::MIN };
        let document = Document::read(&headers, bytes).unwrap();
        then(&Scope::new("hub", request, &document, &Digested(bytes)))
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
        assert!(json("body.nosuch", "{}").unwrap_err().contains("undefined"));
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
