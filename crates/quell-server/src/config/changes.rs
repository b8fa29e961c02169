//! What differs between two texts of a configuration, field by field, for the log of a reload.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

/// The most bytes of a value that the log repeats.
const MAX_SHOWN: usize = 200;

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
    let change = |field: &String| Change {
        field: field.clone(),
        before: before.get(field).cloned(),
        after: after.get(field).cloned(),
    };
    differing.map(change).collect()
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
