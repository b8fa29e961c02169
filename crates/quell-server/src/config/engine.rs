//! The template engine, minijinja, as this server sets it up: without includes, bounded in steps and output.
//!
//! Key templates and webhook sources share it.

use std::fmt;
use std::io;

use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use sha2::{Digest, Sha256};

/// The longest template, in bytes.
pub(crate) const MAX_TEMPLATE_BYTES: usize = 4 << 10;
/// The most of a template that an error message repeats, in bytes.
const MAX_QUOTED: usize = 200;
/// The most engine steps for one text: far above any sensible template, far below a second.
const FUEL: u64 = 20_000;

/// What is wrong with a template, or with what it made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(pub(crate) String);

/// An engine without templates.
pub(crate) fn engine() -> Environment<'static> {
    let mut engine = Environment::new();
    engine.set_auto_escape_callback(|_| AutoEscape::None);
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.set_fuel(Some(FUEL));
    engine.add_filter("sha256", |text: String| sha256(text.as_bytes()));
    // A null field is an absent part, not the word "none" that all absent ones would share.
    engine.set_formatter(|out, state, value| {
        if value.is_none() {
            return Ok(());
        }
        minijinja::escape_formatter(out, state, value)
    });
    engine
}

/// A template or an expression for an error message: long ones are cut.
pub(crate) fn quoted(text: &str) -> String {
    let shown = text.get(..text.floor_char_boundary(MAX_QUOTED)).unwrap_or_default();
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("`{shown}{more}`")
}

/// Checks the length of a template's text.
pub(crate) fn short_enough(text: &str) -> Result<(), TemplateError> {
    if text.len() > MAX_TEMPLATE_BYTES {
        let length = text.len();
        let limit = MAX_TEMPLATE_BYTES;
        return Err(TemplateError(format!("has {length} bytes, the limit is {limit}")));
    }
    Ok(())
}

/// The same engine for the check of a template before there are values: anything that a name stands for may
/// be missing.
pub(crate) fn for_check(engine: &Environment<'static>) -> Environment<'static> {
    let mut engine = engine.clone();
    engine.set_undefined_behavior(UndefinedBehavior::Chainable);
    engine
}

/// Whether an error is that of a filter, test or function that does not exist: the engine looks them up as
/// late as it meets them.
pub(crate) fn names_nothing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction)
}

/// An engine error with its place in the template, and what could have been meant: the members that there are.
pub(crate) fn located(error: &minijinja::Error, text: &str, known: &[&str]) -> TemplateError {
    // The engine knows no place in an expression once it is evaluated.
    let place = error.range().map(|range| format!("{}: ", Place::at(text, range.start)));
    let place = place.unwrap_or_default();
    let source = error.range().and_then(|range| text.get(range));
    let source = source.map_or_else(|| "a part".to_owned(), |source| format!("`{source}`"));
    let said = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => {
            format!("more than {FUEL} steps, the limit: simplify the template")
        }
        (ErrorKind::UndefinedError, _) if known.is_empty() => format!("{source} is undefined"),
        (ErrorKind::UndefinedError, _) => {
            format!("{source} is undefined: there is {}", known.join(", "))
        }
        (kind, None) => kind.to_string(),
        (ErrorKind::SyntaxError, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
    };
    TemplateError(format!("{place}{said}"))
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

/// Output that ends with an error beyond its bound.
pub(crate) struct Capped {
    pub(crate) bytes: Vec<u8>,
    pub(crate) most: usize,
}

impl Capped {
    pub(crate) fn new(most: usize) -> Self {
        Capped { bytes: Vec::new(), most }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= self.most
    }
}

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.most.saturating_sub(self.bytes.len());
        if room == 0 && !bytes.is_empty() {
            return Err(io::Error::other("the output is longer than its limit"));
        }
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.bytes.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The SHA-256 digest, in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A context in which each of these names is a text.
pub(crate) fn any_texts(names: impl IntoIterator<Item = String>) -> Value {
    Value::from_pairs(names.into_iter().map(|name| (name, "x")))
}
