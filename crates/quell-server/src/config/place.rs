//! The places of fields in the text of a configuration, and of the mistakes there.
//!
//! [`Document::read`] deserialises the whole file. A mistake is noted with its line and field, removed
//! from the document, and the rest is read again, so that one run reports all mistakes.

use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The most mistakes that one run reports.
const MAX_PROBLEMS: usize = 50;

/// A mistake and its place.
#[derive(Debug)]
pub(super) struct Problem {
    line: usize,
    field: String,
    message: String,
}

impl Problem {
    pub(super) fn show(&self, path: &Path) -> String {
        let Problem { line, field, message } = self;
        let field = if field.is_empty() { String::new() } else { format!(" {field}:") };
        format!("{}:{line}:{field} {message}", path.display())
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Whether it is about `path` or something below it.
    pub(super) fn is_below(&self, path: &str) -> bool {
        self.field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// A parsed configuration file with the places of its fields.
pub(super) struct Document<'t> {
    text: &'t str,
    root: Spanned<DeTable<'t>>,
}

impl<'t> Document<'t> {
    /// Parses the text.
    pub(super) fn new(text: &'t str) -> Result<Self, Problem> {
        match DeTable::parse(text) {
            Ok(root) => Ok(Document { text, root }),
            Err(error) => {
                let line = line_of(text, error.span().map_or(0, |span| span.start));
                Err(Problem { line, field: String::new(), message: one_line(error.message()) })
            }
        }
    }

    /// The valid part of the file as `T`, and the mistakes. No `T` where its mistakes could not be
    /// separated.
    pub(super) fn read<T: DeserializeOwned>(&self) -> (Option<T>, Vec<Problem>) {
        let mut root = self.root.clone();
        let mut problems = Vec::new();
        let mut removed: Vec<String> = Vec::new();
        while problems.len() < MAX_PROBLEMS {
            let error = match T::deserialize(toml::de::Deserializer::from(root.clone())) {
                Ok(read) => return (Some(read), problems),
                Err(error) => error,
            };
            let offset = error.span().map_or(0, |span| span.start);
            let path = take_out(root.get_mut(), offset);
            let (field, message) = explain(&path, error.message());
            // What was taken out is missing only because of that.
            if !removed.contains(&field) {
                problems.push(Problem { line: line_of(self.text, offset), field, message });
            }
            if path.is_empty() {
                break;
            }
            removed.push(path);
        }
        (None, problems)
    }

    /// A mistake in a field, or in as much of its path as there is.
    pub(super) fn problem(&self, field: &str, message: String) -> Problem {
        let line = line_of(self.text, self.offset_of(field));
        Problem { line, field: field.to_owned(), message }
    }

    fn offset_of(&self, field: &str) -> usize {
        let (mut offset, mut table) = (0, Some(self.root.get_ref()));
        let mut rest = field;
        while let Some(fields) = table.take() {
            // Names may hold dots: the longest one that fits is meant.
            let fitting = fields.iter().filter(|(name, _)| begins(rest, name.get_ref()));
            let longest = fitting.max_by_key(|(name, _)| name.get_ref().len());
            let Some((name, value)) = longest else { break };
            offset = name.span().start;
            rest = rest.get(name.get_ref().len()..).unwrap_or_default().trim_start_matches('.');
            if let DeValue::Table(inner) = value.get_ref() {
                table = Some(inner);
            }
        }
        offset
    }
}

/// Mistakes in fields of a text, as lines with their places, in order.
pub(super) fn show(text: &str, path: &Path, mistakes: Vec<(String, String)>) -> Vec<String> {
    let Ok(document) = Document::new(text) else {
        return mistakes
            .into_iter()
            .map(|(field, message)| format!("{field}: {message}"))
            .collect();
    };
    let problem = |(field, message): (String, String)| document.problem(&field, message);
    let mut problems: Vec<Problem> = mistakes.into_iter().map(problem).collect();
    problems.sort_by_key(Problem::line);
    problems.iter().map(|problem| problem.show(path)).collect()
}

/// Whether a dotted path begins with a name.
fn begins(path: &str, name: &str) -> bool {
    path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
}

/// Takes the innermost field at an offset out of the table; its dotted path.
fn take_out(table: &mut DeTable<'_>, offset: usize) -> String {
    let found = table.iter_mut().find(|(name, value)| stands_at(name, value, offset));
    let Some((name, value)) = found else { return String::new() };
    let name = name.clone();
    if let DeValue::Table(inner) = value.get_mut()
        && !name.span().contains(&offset)
    {
        let below = take_out(inner, offset);
        if !below.is_empty() {
            return format!("{}.{below}", name.get_ref());
        }
    }
    table.remove(&name);
    name.get_ref().to_string()
}

/// Whether a field, or a table written under headers of its own, holds the offset.
fn stands_at(name: &Spanned<impl Sized>, value: &Spanned<DeValue<'_>>, offset: usize) -> bool {
    let inside = match value.get_ref() {
        DeValue::Table(fields) => fields.iter().any(|(n, v)| stands_at(n, v, offset)),
        _ => false,
    };
    inside || name.span().contains(&offset) || value.span().contains(&offset)
}

/// The field that a message is about, and the message with what could have been meant.
fn explain(path: &str, message: &str) -> (String, String) {
    let mut quoted = message.split('`').skip(1).step_by(2);
    if message.starts_with("missing field") {
        let name = quoted.next().unwrap_or_default();
        let field = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        return (field, "is missing".to_owned());
    }
    let kind = ["unknown field", "unknown variant"].iter().find(|kind| message.starts_with(**kind));
    let (Some(kind), Some(wrong)) = (kind, quoted.next()) else {
        return (path.to_owned(), one_line(message));
    };
    let known: Vec<&str> = quoted.collect();
    let what = if *kind == "unknown field" { "field" } else { "value" };
    let near =
        nearest(wrong, &known).map_or_else(String::new, |name| format!(": did you mean `{name}`?"));
    let list = known.join(", ");
    (path.to_owned(), format!("{wrong:?} is not a known {what}{near} (known: {list})"))
}

/// The known name that a typo most likely stands for.
fn nearest<'n>(wrong: &str, known: &[&'n str]) -> Option<&'n str> {
    let distance = |name: &str| strsim::damerau_levenshtein(wrong, name);
    let best = known.iter().copied().min_by_key(|name| distance(name))?;
    (distance(best) <= 1 + wrong.len() / 4).then_some(best)
}

fn line_of(text: &str, offset: usize) -> usize {
    text.get(..offset).map_or(1, |before| before.matches('\n').count().saturating_add(1))
}

fn one_line(message: &str) -> String {
    message.replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_near_only_when_it_is_near() {
        let known = ["command", "cwd", "env", "pass_env"];
        let table = [
            ("comand", Some("command")),
            ("cmd", Some("cwd")),
            ("pass-env", Some("pass_env")),
            ("shell", None),
            ("", None),
        ];
        for (wrong, expected) in table {
            assert_eq!(nearest(wrong, &known), expected, "{wrong}");
        }
    }
}
