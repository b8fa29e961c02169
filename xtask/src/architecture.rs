//! ARCHITECTURE.md says for each rule which file of the core has it.
//!
//! Invariant: the table has every rule of docs/semantics.md, and no file that does not exist.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;

/// The page with the table.
const PAGE: &str = "ARCHITECTURE.md";
/// Where the files of its second column are.
const CORE: &str = "crates/quell-core/src";
/// The highest number of a rule of docs/semantics.md.
pub(crate) const MAX_RULE: u32 = 42;
/// A number that no rule has yet.
const FREE: u32 = 41;

/// The rules of docs/semantics.md.
pub(crate) fn rules() -> impl Iterator<Item = u32> {
    (1..=MAX_RULE).filter(|rule| *rule != FREE)
}

/// Adds each rule that the table lacks, and each file of it that does not exist.
pub(crate) fn check(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let rows: Vec<Row> = text.lines().filter_map(row).collect();
    let known: BTreeSet<u32> = rows.iter().flat_map(|row| row.rules.iter().copied()).collect();
    for rule in rules().filter(|rule| !known.contains(rule)) {
        wrong.push(format!("{PAGE}: the table of rules has no row for R{rule}"));
    }
    let core = root.join(CORE);
    for file in rows.iter().flat_map(|row| &row.files).filter(|file| !core.join(file).exists()) {
        wrong.push(format!("{PAGE}: {CORE}/{file} does not exist: name the rule's file"));
    }
    Ok(())
}

/// A row of the table: its rules, and the files of the core that have them.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    rules: Vec<u32>,
    files: Vec<String>,
}

/// The row of a line that begins with a rule, such as `` | R8 bound | `trigger/window.rs` | … ``.
fn row(line: &str) -> Option<Row> {
    let mut cells = line.strip_prefix("| R")?.split('|');
    let first = format!("R{}", cells.next()?);
    let names = first.split(|c: char| !c.is_ascii_alphanumeric());
    let rules = names.filter_map(|name| name.strip_prefix('R')?.parse().ok()).collect();
    let spans = cells.next()?.split('`').skip(1).step_by(2);
    let files = spans.filter(|span| span.contains(['/', '.'])).map(str::to_owned).collect();
    Some(Row { rules, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_rules_and_files() {
        let of = |rules: &[u32], files: &[&str]| {
            let files = files.iter().map(|file| (*file).to_owned()).collect();
            Some(Row { rules: rules.to_vec(), files })
        };
        let table = [
            ("| R8 bound | `trigger/window.rs` | `load.rs` |", of(&[8], &["trigger/window.rs"])),
            ("| R1 a, R2 b | `a.rs`, `dead/` | - |", of(&[1, 2], &["a.rs", "dead/"])),
            ("| R40 bad input | `validate` of each type | - |", of(&[40], &[])),
            ("| rule | core | store |", None),
            ("R8 in a sentence", None),
        ];
        for (line, expected) in table {
            assert_eq!(row(line), expected, "{line}");
        }
    }

    #[test]
    fn a_missing_rule_and_a_missing_file_are_found() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join(CORE)).unwrap();
        std::fs::write(root.path().join(CORE).join("here.rs"), "").unwrap();
        let rows = rules().skip(1).map(|rule| format!("| R{rule} | `here.rs` | - |\n"));
        let text: String = rows.chain(["| R2 | `gone.rs` | - |\n".to_owned()]).collect();
        std::fs::write(root.path().join(PAGE), text).unwrap();
        let mut wrong = Vec::new();
        check(root.path(), &mut wrong).unwrap();
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].ends_with("no row for R1"), "{wrong:?}");
        assert!(wrong[1].contains("gone.rs does not exist"), "{wrong:?}");
    }
}
