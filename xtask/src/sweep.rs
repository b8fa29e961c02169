//! Looks for secrets in all that a run of the tests wrote: what each test and its programs printed, and the
//! logs of the servers that they shared.
//!
//! Tests plant them: each token that a test makes begins with `qll_`, and payloads and settings that no person is to
//! see have a text that begins with `canary`. One that is printed fails the run.

use std::path::Path;

use anyhow::{Context, bail};

/// The length of a token after its prefix: 32 bytes as base64.
const TOKEN: usize = 43;
/// What is shown around a find.
const AROUND: usize = 60;

/// Sweeps the report of a nextest profile, and these logs.
pub(crate) fn sweep(root: &Path, profile: &str, logs: &[(&str, String)]) -> anyhow::Result<String> {
    let report = root.join("target/nextest").join(profile).join("junit.xml");
    let cannot = || format!("read {}", report.display());
    let report = std::fs::read_to_string(&report).with_context(cannot)?;
    let printed = printed(&report);
    if printed.is_empty() {
        bail!("the report of the tests has no output of any test: nothing was swept");
    }
    let all = std::iter::once(("the tests", printed.as_str()))
        .chain(logs.iter().map(|(name, text)| (*name, text.as_str())));
    let mut bytes = 0;
    for (name, text) in all {
        bytes += text.len();
        let found = secrets(text);
        if let Some(first) = found.first() {
            bail!("{name} printed {} planted secrets, the first of them: {first}", found.len());
        }
    }
    Ok(format!("no planted secret in {} KiB of output", bytes >> 10))
}

/// What the tests printed, without their names.
fn printed(report: &str) -> String {
    let mut all = String::new();
    for tag in ["system-out", "system-err"] {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        for part in report.split(&open).skip(1) {
            let text = part.split(&close).next().unwrap_or_default();
            // The harness names each test that it runs.
            let is_named = |line: &&str| line.starts_with("test ") && line.ends_with("ok");
            for line in text.lines().filter(|line| !is_named(line)) {
                all.push_str(line);
                all.push('\n');
            }
        }
    }
    all
}

/// The planted secrets in a text, each with what is around it.
fn secrets(text: &str) -> Vec<String> {
    let is_of_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-".contains(byte);
    let is_token = |rest: &str| {
        rest.strip_prefix("qll_")
            .is_some_and(|token| token.bytes().take(TOKEN).filter(is_of_token).count() == TOKEN)
    };
    let is_canary = |rest: &str| {
        let after = rest.get(6..).unwrap_or_default().as_bytes();
        let begins = rest.get(..6).is_some_and(|word| word.eq_ignore_ascii_case("canary"));
        begins && matches!(after, [b'-' | b'_' | b' ', next, ..] if next.is_ascii_alphanumeric())
    };
    let starts = text.char_indices().map(|(at, _)| at);
    let found =
        starts.filter(|at| text.get(*at..).is_some_and(|rest| is_token(rest) || is_canary(rest)));
    let around = |at: usize| {
        let from = text.floor_char_boundary(at.saturating_sub(AROUND));
        let to = text.floor_char_boundary(at.saturating_add(AROUND));
        text.get(from..to).unwrap_or_default().replace('\n', " ")
    };
    found.map(around).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_secrets_are_found_in_what_was_printed() {
        let token = format!("qll_{}", "aZ09_-x".repeat(7));
        let report = |text: &str| {
            format!(
                "<testcase name=\"no_canary-in-names\"><system-out>running 1 test\n{text}\ntest \
                 a_canary_4 ... ok\n</system-out><system-err>plain</system-err></testcase>"
            )
        };
        for (text, finds) in [
            ("nothing", 0),
            (&*format!("token {token}"), 1),
            ("qll_short", 0),
            ("payload canary-4711", 1),
            ("CANARY-4711 and canary_1", 2),
            ("canaries", 0),
        ] {
            let found = secrets(&printed(&report(text)));
            assert_eq!(found.len(), finds, "{text}: {found:?}");
        }
        assert!(printed("<testcase name=\"x\"/>").is_empty());
    }
}
