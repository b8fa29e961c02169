//! The first trip of a call that joins windows: it begins, locks the windows and reads the time, all
//! at once. The windows' keys stand in the text of the statement, because only a text holds several
//! statements; what reads them is prepared with each connection.

use quell_core::touched::Needs;

use crate::hot::accept::WINDOWS;
use crate::names::Names;
use crate::sql::Sql;
use crate::tx::Asked;

/// What each connection that keeps its session prepares.
pub(crate) fn prepared(sql: &Sql) -> String {
    sql.rewrite(&format!("prepare quell_windows (int[], text[], int[]) as {WINDOWS}"))
}

/// The statements that go with a begin: the open windows that are needed, locked, and then the time.
/// None where more than windows decides, or the session does not stay.
pub(crate) fn opening(sql: &Sql, names: &Names, asked: Asked, needs: &Needs<'_>) -> Option<String> {
    let only_windows =
        needs.holds.is_empty() && needs.records.is_empty() && needs.memories.is_empty();
    if !sql.is_persistent() || !only_windows || needs.windows.is_empty() {
        return None;
    }
    let (tasks, keys) = names.task_keys(&needs.windows);
    let reads = names.readers(needs);
    let windows = [numbers(&tasks), texts(&keys)?, numbers(&reads)].join(", ");
    // Keys may hold anything, so they are no part of what is rewritten.
    let time = sql.rewrite(&format!("select quell.tick({})", asked.literals()));
    Some(format!("; execute quell_windows ({windows}); {time}"))
}

fn numbers(numbers: &[i32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(i32::to_string).collect();
    format!("'{{{}}}'", numbers.join(","))
}

/// Texts as a literal of an array, quoted for the array and then for the statement, in the form that
/// means the same whatever the server's settings. None for a text that would end the statement.
fn texts(texts: &[String]) -> Option<String> {
    let mut literal = "E'{".to_owned();
    for (index, text) in texts.iter().enumerate() {
        literal.push_str(if index == 0 { "\"" } else { ",\"" });
        for c in text.chars() {
            match c {
                '\0' => return None,
                // A backslash before it in the array, each twice in the statement.
                '"' => literal.push_str("\\\\\""),
                '\\' => literal.push_str("\\\\\\\\"),
                '\'' => literal.push_str("''"),
                c => literal.push(c),
            }
        }
        literal.push('"');
    }
    literal.push_str("}'");
    Some(literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_twice_and_never_end_the_statement() {
        let quoted = |text: &str| texts(&[text.to_owned()]);
        assert_eq!(quoted("k").as_deref(), Some(r#"E'{"k"}'"#));
        assert_eq!(quoted("'; drop").as_deref(), Some(r#"E'{"''; drop"}'"#));
        assert_eq!(quoted("\\").as_deref(), Some(r#"E'{"\\\\"}'"#));
        assert_eq!(quoted("\"").as_deref(), Some(r#"E'{"\\""}'"#));
        assert_eq!(quoted("a\0b"), None);
    }
}
