//! Links and anchors of a page of Markdown, outside of its code.

use std::collections::BTreeSet;

/// A link: `[text](target)`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link<'t> {
    pub(crate) text: &'t str,
    pub(crate) target: &'t str,
}

impl<'t> Link<'t> {
    /// The target without its anchor; empty for a place in the same page.
    pub(crate) fn path(&self) -> &'t str {
        self.target.split('#').next().unwrap_or_default()
    }

    /// What follows the `#`.
    pub(crate) fn anchor(&self) -> Option<&'t str> {
        self.target.split_once('#').map(|(_, anchor)| anchor)
    }
}

/// Shows each link to `f` and replaces it by what that returns.
pub(crate) fn relink(text: &str, mut f: impl FnMut(&Link<'_>) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_code = false;
    for line in text.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        if in_code || is_fence {
            in_code ^= is_fence;
            out.push_str(line);
            continue;
        }
        let mut rest = line;
        while let Some((before, link, after)) = next_link(rest) {
            out.push_str(before);
            let whole = rest.get(before.len()..rest.len() - after.len()).unwrap_or_default();
            out.push_str(&f(&link).unwrap_or_else(|| whole.to_owned()));
            rest = after;
        }
        out.push_str(rest);
    }
    out
}

/// The first link of a line, with the text before and after it.
fn next_link(line: &str) -> Option<(&str, Link<'_>, &str)> {
    let (mut open, mut in_code) = (None, false);
    for (at, c) in line.char_indices() {
        match c {
            '`' => in_code = !in_code,
            '[' if !in_code => open = Some(at),
            ']' if !in_code => {
                let target = line.get(at..)?.strip_prefix("](");
                let found = target.and_then(|target| target.split_once(')'));
                if let (Some(start), Some((target, after))) = (open.take(), found) {
                    let text = line.get(start + 1..at)?;
                    return Some((line.get(..start)?, Link { text, target }, after));
                }
            }
            _ => {}
        }
    }
    None
}

/// The places of a page that links can name: its headings, and the ids of its tags.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let ids = line.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        anchors.extend(ids.map(str::to_owned));
        if line.starts_with('#') {
            let heading = relink(line, |link| Some(link.text.to_owned()));
            let slug = slug(heading.trim_start_matches('#'));
            let free = (1..).map(|n| format!("{slug}-{n}"));
            let free = std::iter::once(slug.clone()).chain(free).find(|it| !anchors.contains(it));
            anchors.extend(free);
        }
    }
    anchors
}

/// A heading's anchor, as code hosts and mdBook make it.
fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_are_no_links() {
        let text = "a [b](c) `[d](e)` [`f`](g#h) [i]\n```\n[j](k)\n```\n";
        let mut seen = Vec::new();
        let out = relink(text, |link| {
            seen.push((link.text.to_owned(), link.path().to_owned()));
            link.anchor().map(|anchor| format!("<{anchor}>"))
        });
        assert_eq!(seen, [("b".into(), "c".into()), ("`f`".into(), "g".into())]);
        assert_eq!(out, text.replace("[`f`](g#h)", "<h>"));
    }

    #[test]
    fn headings_and_ids_are_anchors() {
        let text = "# A store's `health`: [now](x)\n<a id=\"r7\"></a>\n## Twice\n## Twice\n\
                    ```sh\n# no heading\n```\n";
        let expected = ["a-stores-health-now", "r7", "twice", "twice-1"].map(str::to_owned);
        assert_eq!(anchors(text), BTreeSet::from(expected));
    }
}
