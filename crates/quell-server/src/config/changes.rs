//! What differs between two texts of a configuration, field by field, for the log of a reload.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

/// The most bytes of a value that the log repeats.
const MAX_SHOWN: usize = 200;

/// What stands for a value that the log does not repeat.
const HIDDEN: &str = "(hidden)";

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its dotted path.
    pub field: String,
    /// What it was; none where it was left out.
    pub before: Option<String>,
    /// What it is.
    pub after: Option<String>,
}

/// The fields that differ, by path.
#[must_use]
pub fn changes(before: &str, after: &str) -> Vec<Change> {
    let (before, after) = (fields(before), fields(after));
    let all: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differing = all.into_iter().filter(|field| before.get(*field) != after.get(*field));
    let shown = |field: &String, of: &BTreeMap<String, String>| {
        let value = of.get(field)?;
        Some(if is_private(field) { HIDDEN.to_owned() } else { value.clone() })
    };
    let change = |field: &String| Change {
        field: field.clone(),
        before: shown(field, &before),
        after: shown(field, &after),
    };
    differing.map(change).collect()
}

/// Whether a value may be a secret or a payload: headers, variables of commands, payloads of schedules.
fn is_private(field: &str) -> bool {
    let mut parts = field.split('.');
    let is_of_schedule = parts.next() == Some("schedules");
    let private =
        |part: &str| matches!(part, "headers" | "env") || (is_of_schedule && part == "payload");
    parts.any(private)
}

fn fields(text: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    // A text that cannot be read was refused before.
    let table = text.parse::<Table>().unwrap_or_default();
    flatten("", &Value::Table(table), &mut all);
    all
}

fn flatten(path: &str, value: &Value, all: &mut BTreeMap<String, String>) {
    let Value::Table(table) = value else {
        let text = value.to_string();
        let shown = text.get(..text.floor_char_boundary(MAX_SHOWN)).unwrap_or_default();
        let more = if shown.len() < text.len() { "…" } else { "" };
        all.insert(path.to_owned(), format!("{shown}{more}"));
        return;
    };
    for (name, value) in table {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        flatten(&path, value, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_may_be_secrets_or_payloads_are_not_repeated() {
        let text = |value: &str| {
            format!(
                "[tasks.a]\npayload = \"last\"\n[tasks.a.http]\nheaders = {{ authorization = \"{value}\" }}\n\
                 [tasks.b.exec.env]\nTOKEN = \"{value}\"\n[schedules.c]\npayload = {{ text = \"{value}\" }}\n"
            )
        };
        let found = changes(&text("CANARY-1"), &text("CANARY-2"));
        let fields: Vec<_> = found.iter().map(|change| change.field.as_str()).collect();
        let expected = [
            "schedules.c.payload.text",
            "tasks.a.http.headers.authorization",
            "tasks.b.exec.env.TOKEN",
        ];
        assert_eq!(fields, expected);
        assert!(!format!("{found:?}").contains("CANARY"), "{found:?}");
        let fold = changes(&text("x"), &text("x").replace("last", "first"));
        assert_eq!(fold[0].after.as_deref(), Some("\"first\""));
    }

    #[test]
    fn what_differs_is_listed_by_its_path() {
        let before =
            "[server]\nmax_body = \"1MiB\"\n[tasks.a]\nqueue = \"q\"\n[tasks.b]\npull = true";
        let after =
            "[server]\nmax_body = \"2MiB\"\n[tasks.a]\nqueue = \"q\"\n[tasks.c]\npull = true";
        let found = changes(before, after);
        let shown: Vec<_> = found
            .iter()
            .map(|change| {
                (change.field.as_str(), change.before.as_deref(), change.after.as_deref())
            })
            .collect();
        let expected = [
            ("server.max_body", Some("\"1MiB\""), Some("\"2MiB\"")),
            ("tasks.b.pull", Some("true"), None),
            ("tasks.c.pull", None, Some("true")),
        ];
        assert_eq!(shown, expected);
        assert_eq!(changes(before, before), []);
    }
}
