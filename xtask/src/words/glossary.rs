//! The listed words and phrases, and where a text has them.
//!
//! Invariant: only whole words match; a hyphen or an underscore is part of a word, so neither
//! `dead-letter` nor `told_at` is a hit.

use std::collections::HashMap;
use std::fmt;

use anyhow::bail;

/// The words not to use, each with what to write instead.
#[derive(Debug)]
pub(super) struct Glossary {
    /// By the first word, as nearly every word of a text begins no entry.
    entries: HashMap<String, Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// The words of a phrase after its first one, in their order and in lower case.
    rest: Vec<String>,
    instead: String,
}

/// A listed word in a text.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Hit {
    pub(super) line: usize,
    pub(super) word: String,
    pub(super) instead: String,
}

/// A word of a text, in lower case, with the number of its line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Token {
    line: usize,
    word: String,
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: write: {}", self.word, self.instead)
    }
}

impl Glossary {
    /// Reads lines of `word, word | replacement`.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut entries = HashMap::<String, Vec<Entry>>::new();
        for line in super::lines(text) {
            let Some((words, instead)) = line.split_once('|') else {
                bail!("`{line}` has no `|` before what to write instead");
            };
            for word in words.split(',') {
                let mut words = tokens(1, word).into_iter().map(|token| token.word);
                let Some(first) = words.next().filter(|_| !instead.trim().is_empty()) else {
                    bail!("`{line}` has an empty word or replacement");
                };
                let entry = Entry { rest: words.collect(), instead: instead.trim().to_string() };
                entries.entry(first).or_default().push(entry);
            }
        }
        Ok(Self { entries })
    }

    /// The listed words in a text, by line. A phrase may go over the end of a line.
    pub(super) fn hits(&self, tokens: &[Token]) -> Vec<Hit> {
        let mut hits = Vec::new();
        for (index, Token { line, word }) in tokens.iter().enumerate() {
            for Entry { rest, instead } in self.entries.get(word).into_iter().flatten() {
                let after = tokens[index + 1..].iter().map(|token| &token.word);
                if after.zip(rest).filter(|(found, listed)| found == listed).count() == rest.len() {
                    let word = [word.as_str(), &rest.join(" ")].join(" ").trim_end().to_string();
                    hits.push(Hit { line: *line, word, instead: instead.clone() });
                }
            }
        }
        hits
    }
}

/// The words of a text whose first line has this number.
pub(super) fn tokens(first_line: usize, text: &str) -> Vec<Token> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let mut tokens = Vec::new();
    for (line, text) in text.lines().enumerate() {
        for word in text.split(|c| !is_part(c)) {
            let word = word.trim_matches('-').to_lowercase();
            if !word.is_empty() {
                tokens.push(Token { line: first_line + line, word });
            }
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        let list = "# a comment\ntold, tells | sends\n\nof which | the number\nletter | dead job\n";
        let glossary = Glossary::parse(list).unwrap();
        let hits = glossary.hits(&tokens(1, text));
        hits.into_iter().map(|hit| (hit.line, hit.word)).collect()
    }

    #[test]
    fn whole_words_match_in_any_case() {
        let table: [(&str, &[(usize, &str)]); 8] = [
            ("It is TOLD.", &[(1, "told")]),
            ("(tells)", &[(1, "tells")]),
            ("\nten, of which two", &[(2, "of which")]),
            ("ten, of\nwhich two", &[(1, "of which")]),
            ("retold told_at told-by", &[]),
            ("a dead-letter queue", &[]),
            ("a letter", &[(1, "letter")]),
            ("of all which", &[]),
        ];
        for (text, expected) in table {
            let expected: Vec<(usize, String)> =
                expected.iter().map(|(line, word)| (*line, (*word).to_string())).collect();
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn a_line_without_a_replacement_is_refused() {
        for list in ["told", "told |", " | sends"] {
            assert!(Glossary::parse(list).is_err(), "{list}");
        }
    }
}
