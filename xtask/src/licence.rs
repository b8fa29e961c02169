//! Licence expressions (SPDX), as far as crates use them: names, `WITH`, `AND`, `OR` and parentheses.
//!
//! `cargo xtask deny` asks cargo-deny, which reads the texts of licences, too. This check needs no
//! other program, so it is part of each run of `cargo xtask test`.

use std::iter::Peekable;
use std::str::SplitWhitespace;

/// The list `allow` of the section `[licenses]`.
pub(crate) fn allowed(deny: &str) -> Vec<&str> {
    let list = deny.lines().skip_while(|line| *line != "allow = [").skip(1);
    let entries = list.take_while(|line| *line != "]");
    entries.filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\",")).collect()
}

/// Whether the expression can be met with these licences alone. What cannot be parsed is not allowed.
pub(crate) fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    // Some old crates write `MIT/Apache-2.0`, which means `OR`.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words, allowed) == Some(true) && words.next().is_none()
}

type Words<'t> = Peekable<SplitWhitespace<'t>>;

fn any(words: &mut Words<'_>, allowed: &[&str]) -> Option<bool> {
    let mut met = all(words, allowed)?;
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, allowed)?;
    }
    Some(met)
}

fn all(words: &mut Words<'_>, allowed: &[&str]) -> Option<bool> {
    let mut met = one(words, allowed)?;
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed)?;
    }
    Some(met)
}

fn one(words: &mut Words<'_>, allowed: &[&str]) -> Option<bool> {
    let word = words.next()?;
    if word == "(" {
        let met = any(words, allowed)?;
        return (words.next()? == ")").then_some(met);
    }
    if matches!(word, ")" | "AND" | "OR" | "WITH") {
        return None;
    }
    if words.next_if_eq(&"WITH").is_none() {
        return Some(allowed.contains(&word));
    }
    let with = format!("{word} WITH {}", words.next()?);
    Some(allowed.contains(&with.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_allowed_if_one_choice_is_allowed_throughout() {
        let allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC", "Unicode-3.0"];
        let table = [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0", false),
            ("MIT AND GPL-3.0", false),
            ("ISC AND (Apache-2.0 OR ISC)", true),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0", false),
            ("GPL-3.0 OR MIT AND ISC", true),
            ("MIT OR ISC AND GPL-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("MIT WITH LLVM-exception", false),
            ("", false),
            ("(MIT", false),
            ("MIT)", false),
            ("MIT Apache-2.0", false),
            ("MIT OR", false),
        ];
        for (expression, expected) in table {
            assert_eq!(is_allowed(expression, &allow), expected, "{expression}");
        }
    }

    #[test]
    fn the_list_is_that_of_deny_toml() {
        let text = "[graph]\n[licenses]\nallow = [\n    \"MIT\",\n    \"A WITH B\",\n]\n[bans]\n";
        assert_eq!(allowed(text), ["MIT", "A WITH B"]);
        let root = crate::run::root().unwrap();
        let deny = std::fs::read_to_string(root.join("deny.toml")).unwrap();
        assert!(allowed(&deny).contains(&"MIT"));
    }
}
