//! What is wrong in a page of Markdown: listed words, long sentences, rule numbers without a link.
//!
//! Invariant: code and quotations (`>`) are never judged as prose; in the length of a sentence, a code
//! span and a link count as the words that a reader sees.

use std::ops::Range;

use super::glossary::{Glossary, Hit, tokens};
use crate::architecture::MAX_RULE;

/// No sentence of a public page has more words.
const MAX_WORDS: usize = 30;

/// Something wrong in a line of a page or source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) line: usize,
    /// The listed word, if it is one.
    pub(super) word: Option<String>,
    pub(super) what: String,
}

impl From<Hit> for Finding {
    fn from(hit: Hit) -> Self {
        let what = hit.to_string();
        Finding { line: hit.line, word: Some(hit.word), what }
    }
}

/// A paragraph, bullet, heading or cell, with the contents of its code spans masked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) line: usize,
    kind: Kind,
    text: String,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Kind {
    Prose,
    /// A heading or a cell of a table's first row: no sentence, and its rule numbers need no link.
    Title,
}

/// All that is wrong in a page. Only a public page has its sentences measured; the page that defines
/// the rules need not link to them.
pub(super) fn findings(
    glossary: &Glossary,
    text: &str,
    public: bool,
    defines_rules: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for block in blocks(text) {
        for hit in glossary.hits(&tokens(block.line, &block.visible())) {
            findings.push(Finding::from(hit));
        }
        if public && block.kind == Kind::Prose {
            block.sentences(&mut findings);
            if !defines_rules {
                block.rules(&mut findings);
            }
        }
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}

/// Splits a page into its blocks, without fenced code and quotations.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut fence: Option<&str> = None;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, full)) = lines.next() {
        let line = full.trim();
        if let Some(mark) = fence {
            fence = fence.filter(|_| !line.starts_with(mark));
            continue;
        }
        fence = ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark));
        let item = after_bullet(line);
        let stands_alone = line.is_empty() || line.starts_with(['#', '|', '>']) || fence.is_some();
        if stands_alone || item.is_some() {
            close(&mut open, &mut blocks);
        }
        if line.starts_with('#') {
            blocks.push(Block::new(index + 1, Kind::Title, line));
        } else if line.starts_with('|') {
            let is_header = lines.peek().is_some_and(|(_, next)| is_delimiter(next));
            let kind = if is_header { Kind::Title } else { Kind::Prose };
            blocks.extend(cells(line).map(|cell| Block::new(index + 1, kind, &cell)));
        } else if !stands_alone {
            let text = item.unwrap_or(line);
            match &mut open {
                Some((_, whole)) => *whole = format!("{whole}\n{text}"),
                None => open = Some((index + 1, text.to_string())),
            }
        }
    }
    close(&mut open, &mut blocks);
    blocks
}

fn close(open: &mut Option<(usize, String)>, blocks: &mut Vec<Block>) {
    blocks.extend(open.take().map(|(line, text)| Block::new(line, Kind::Prose, &text)));
}

/// The text of a list item that begins in this line.
fn after_bullet(line: &str) -> Option<&str> {
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let numbered = line.get(digits..).filter(|_| digits > 0);
    let bullet = ["- ", "* "].iter().find_map(|mark| line.strip_prefix(mark));
    bullet.or_else(|| numbered?.strip_prefix(". "))
}

/// The line below a table's first row.
fn is_delimiter(line: &str) -> bool {
    let line = line.trim();
    line.starts_with('|') && line.contains("--") && line.chars().all(|c| "|-: ".contains(c))
}

/// The cells of a row, but for the row of dashes. A `\|` does not end one.
fn cells(line: &str) -> impl Iterator<Item = String> {
    let line = if is_delimiter(line) { String::new() } else { line.replace("\\|", "/") };
    let cells: Vec<String> = line.split('|').map(|cell| cell.trim().to_string()).collect();
    cells.into_iter().filter(|cell| !cell.is_empty())
}

impl Block {
    fn new(line: usize, kind: Kind, text: &str) -> Self {
        Self { line, kind, text: without_tags(&mask_code(text)) }
    }

    /// The text as a reader sees it, without the targets of links.
    pub(super) fn visible(&self) -> String {
        let mut visible = self.text.clone();
        for link in links(&self.text).into_iter().rev() {
            visible.replace_range(link.text.end..link.end, " ");
            visible.replace_range(link.text.start - 1..link.text.start, " ");
        }
        visible.replace(" .", ".").replace(" ,", ",")
    }

    /// Sentences with too many words.
    fn sentences(&self, findings: &mut Vec<Finding>) {
        let visible = self.visible();
        let mut words: Vec<(usize, &str)> = Vec::new();
        for (index, line) in visible.lines().enumerate() {
            for word in line.split_whitespace() {
                if word.contains(char::is_alphanumeric) {
                    words.push((self.line + index, word));
                }
                if ends_sentence(word) {
                    measure(&words, findings);
                    words.clear();
                }
            }
        }
        measure(&words, findings);
    }

    /// Numbers of rules that do not link to the rule.
    fn rules(&self, findings: &mut Vec<Finding>) {
        let links = links(&self.text);
        for (at, rule) in rule_numbers(&self.text) {
            let linked = links
                .iter()
                .any(|link| link.text.contains(&at) && link.target.contains("semantics.md"));
            if !linked {
                let line = self.line + self.text[..at].matches('\n').count();
                let number = rule.to_lowercase();
                let what = format!("`{rule}` is no link: write [{rule}](semantics.md#{number})");
                findings.push(Finding { line, word: None, what });
            }
        }
    }
}

fn ends_sentence(word: &str) -> bool {
    let bare = word.trim_end_matches(|c| ")\"'*_”’`]".contains(c));
    bare.ends_with(['.', '!', '?'])
}

fn measure(words: &[(usize, &str)], findings: &mut Vec<Finding>) {
    let Some((line, _)) = words.first().filter(|_| words.len() > MAX_WORDS) else { return };
    let start: Vec<&str> = words.iter().take(6).map(|(_, word)| *word).collect();
    let what = format!(
        "a sentence of {} words, at most {MAX_WORDS}: \"{} …\"",
        words.len(),
        start.join(" ")
    );
    findings.push(Finding { line: *line, word: None, what });
}

/// The places of rule numbers, as whole words.
fn rule_numbers(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('R') {
        let before = text[..at].chars().next_back();
        let digits = text[at + 1..].chars().take_while(char::is_ascii_digit).count();
        let end = at + 1 + digits;
        let after = text[end..].chars().next();
        let alone = [before, after].into_iter().flatten().all(|c| !c.is_alphanumeric() && c != '_');
        let number = text[at + 1..end].parse().unwrap_or(0);
        if alone && (1..=MAX_RULE).contains(&number) {
            found.push((at, &text[at..end]));
        }
    }
    found
}

struct Link<'t> {
    text: Range<usize>,
    target: &'t str,
    /// Where the link ends, behind its `)`.
    end: usize,
}

/// The inline links of a text, in their order.
fn links(text: &str) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    for (close, _) in text.match_indices("](") {
        let Some(open) = text[..close].rfind('[') else { continue };
        let Some(length) = text[close..].find(')') else { continue };
        let target = &text[close + 2..close + length];
        links.push(Link { text: open + 1..close, target, end: close + length + 1 });
    }
    links
}

/// Code spans keep the number of their words and lose the text, so they count and match nothing.
fn mask_code(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('`') {
        let ticks = rest[start..].len() - rest[start..].trim_start_matches('`').len();
        let (mark, inner) = (&rest[start..start + ticks], &rest[start + ticks..]);
        masked.push_str(&rest[..start]);
        let Some(end) = inner.find(mark) else {
            rest = inner;
            continue;
        };
        masked.push('`');
        masked.extend(inner[..end].chars().map(|c| if c.is_whitespace() { c } else { 'x' }));
        masked.push('`');
        rest = &inner[end + ticks..];
    }
    masked.push_str(rest);
    masked
}

/// Tags of HTML, such as `<a id="r7"></a>`, are no text.
fn without_tags(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let inner = &rest[start + 1..];
        let is_tag = inner.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '!');
        let end = inner.find('>').filter(|end| is_tag && !inner[..*end].contains("://"));
        kept.push_str(&rest[..start]);
        match end {
            Some(end) => rest = &inner[end + 1..],
            None => {
                kept.push('<');
                rest = inner;
            }
        }
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
