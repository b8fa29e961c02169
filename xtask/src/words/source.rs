//! Listed words in the comments and string literals of Rust, SQL and Lua.
//!
//! Invariant: identifiers are never read; a comment is read as Markdown, so its code spans and
//! examples are not either.

use std::path::Path;

use super::glossary::{Glossary, Hit, Token, tokens};
use super::page;

/// How comments and strings begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    Sql,
    Lua,
}

impl Language {
    /// By a file's ending.
    pub(super) fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()? {
            "rs" => Some(Self::Rust),
            "sql" => Some(Self::Sql),
            "lua" => Some(Self::Lua),
            _ => None,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Comment { line: usize, text: String },
    Literal { line: usize, text: String },
}

/// The listed words of a source, by line.
pub(super) fn hits(glossary: &Glossary, language: Language, text: &str) -> Vec<Hit> {
    let mut hits = Vec::new();
    let mut comments: Option<(usize, String)> = None;
    for piece in pieces(language, text) {
        match piece {
            Piece::Comment { line, text } => {
                let follows = comments.as_ref().is_some_and(|(first, whole)| {
                    first + whole.lines().count() == line && !text.contains('\n')
                });
                match &mut comments {
                    Some((_, whole)) if follows => *whole = format!("{whole}{text}\n"),
                    _ => {
                        let before = comments.replace((line, format!("{text}\n")));
                        hits.extend(glossary.hits(&comment_tokens(before)));
                    }
                }
            }
            Piece::Literal { line, text } => hits.extend(glossary.hits(&tokens(line, &text))),
        }
    }
    hits.extend(glossary.hits(&comment_tokens(comments)));
    hits.sort_by_key(|hit| hit.line);
    hits
}

fn comment_tokens(comment: Option<(usize, String)>) -> Vec<Token> {
    let Some((line, text)) = comment else { return Vec::new() };
    let blocks = page::blocks(&text).into_iter();
    blocks.flat_map(|block| tokens(line + block.line - 1, &block.visible())).collect()
}

/// The comments and string literals of a source.
fn pieces(language: Language, text: &str) -> Vec<Piece> {
    let mut reader = Reader { rest: text, line: 1, word: false };
    let mut pieces = Vec::new();
    while !reader.rest.is_empty() {
        let line = reader.line;
        if let Some(text) = reader.comment(language) {
            pieces.push(Piece::Comment { line, text });
        } else if let Some(text) = reader.literal(language) {
            pieces.push(Piece::Literal { line, text });
        } else {
            reader.take(1);
        }
    }
    pieces
}

struct Reader<'t> {
    rest: &'t str,
    line: usize,
    /// Whether the character before was part of a name, so that `r"` cannot begin here.
    word: bool,
}

impl<'t> Reader<'t> {
    /// Takes some characters.
    fn take(&mut self, characters: usize) -> &'t str {
        let end = self.rest.char_indices().nth(characters).map_or(self.rest.len(), |(at, _)| at);
        self.take_bytes(end)
    }

    fn take_bytes(&mut self, end: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.line += taken.matches('\n').count();
        self.word = taken.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        taken
    }

    /// Takes all before a mark and the mark; returns what was before.
    fn take_until(&mut self, mark: &str) -> &'t str {
        let end = self.rest.find(mark).unwrap_or(self.rest.len());
        let taken = self.take_bytes(end);
        self.take_bytes(mark.len().min(self.rest.len()));
        taken
    }

    fn comment(&mut self, language: Language) -> Option<String> {
        let to_end_of_line = if language == Language::Rust { "//" } else { "--" };
        if language == Language::Lua && self.rest.starts_with("--[[") {
            self.take(4);
            return Some(self.take_until("]]").to_string());
        }
        if self.rest.starts_with(to_end_of_line) {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            let text = self.take_bytes(end).trim_start_matches(['/', '-']);
            return Some(text.strip_prefix('!').unwrap_or(text).to_string());
        }
        let has_blocks = language != Language::Lua && self.rest.starts_with("/*");
        has_blocks.then(|| self.block_comment())
    }

    /// A block comment, in which others may be nested.
    fn block_comment(&mut self) -> String {
        let mut text = String::new();
        let mut depth = 0_usize;
        while !self.rest.is_empty() {
            if self.rest.starts_with("/*") {
                self.take(2);
                depth += 1;
            } else if self.rest.starts_with("*/") {
                self.take(2);
                depth -= 1;
                if depth == 0 {
                    break;
                }
            } else {
                text.push_str(self.take(1));
            }
        }
        text
    }

    fn literal(&mut self, language: Language) -> Option<String> {
        match language {
            Language::Rust => self.rust_literal(),
            Language::Sql if self.rest.starts_with('\'') => Some(self.quoted("'", false)),
            Language::Lua if self.rest.starts_with('"') => Some(self.quoted("\"", true)),
            Language::Lua if self.rest.starts_with('\'') => Some(self.quoted("'", true)),
            Language::Lua if self.rest.starts_with("[[") => {
                self.take(2);
                Some(self.take_until("]]").to_string())
            }
            Language::Sql | Language::Lua => None,
        }
    }

    fn rust_literal(&mut self) -> Option<String> {
        if self.rest.starts_with('\'') {
            self.character_or_lifetime();
            return None;
        }
        if self.rest.starts_with('"') {
            return Some(self.quoted("\"", true));
        }
        let after = ["br", "cr", "r"].iter().find_map(|mark| self.rest.strip_prefix(mark));
        let hashes = after.map(|after| after.len() - after.trim_start_matches('#').len());
        let begins = after.is_some_and(|after| after.trim_start_matches('#').starts_with('"'));
        if self.word || !begins {
            return None;
        }
        self.take_until("\"");
        let end = format!("\"{}", "#".repeat(hashes.unwrap_or(0)));
        Some(self.take_until(&end).to_string())
    }

    /// `'"'` and `'\''` are characters, `'a` is a lifetime: the quote alone is taken then.
    fn character_or_lifetime(&mut self) {
        let mut after = self.rest.chars().skip(1);
        let (first, second) = (after.next(), after.next());
        if first == Some('\\') {
            self.take(3);
            self.take_until("'");
        } else if second == Some('\'') {
            self.take(3);
        }
    }

    /// A string up to its mark; an escape, if there are any, stands for a space.
    fn quoted(&mut self, mark: &str, escapes: bool) -> String {
        self.take(1);
        let mut text = String::new();
        while !self.rest.is_empty() && !self.rest.starts_with(mark) {
            if escapes && self.rest.starts_with('\\') {
                let escape = self.take(2);
                text.push(if escape.ends_with('\n') { '\n' } else { ' ' });
            } else {
                text.push_str(self.take(1));
            }
        }
        self.take(1);
        text
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
