//! The cause of a death: an error's text without everything that differs from one job to the next,
//! so that dead jobs can be counted by cause (R25).

/// The longest cause, in characters.
pub const MAX_CHARS: usize = 160;

/// How much of a line is looked at, in characters.
const LOOKED_AT: usize = 400;
/// Stands for a number or an id.
const NUMBER: char = 'N';
/// Begin a backtrace, or what else was printed: lines after them have no cause.
const ASIDE: [&str; 3] = ["at ", "backtrace:", "stdout: "];
/// Begin what an error goes on with, and say nothing themselves.
const CONJUNCTIONS: [&str; 2] = ["caused by: ", "stderr: "];
/// After these a short number is part of the cause.
const CODES: [&str; 10] = [
    "answered ",
    "code ",
    "code: ",
    "errno ",
    "http ",
    "os error ",
    "signal ",
    "signal: ",
    "status ",
    "status: ",
];
/// The longest number that may be such a code.
const CODE_DIGITS: usize = 3;
/// A word of at least this many hexadecimal digits is an id.
const HEX_ID: usize = 8;
/// A word of at least this many alphanumeric characters is an id.
const MIXED_ID: usize = 12;

/// The cause in an error's text: its first line, and the last one of what it goes on
/// with (its innermost source, or the last words of a command), without numbers, ids and what is
/// quoted. Empty for a text that says nothing.
///
/// ```
/// use quell_core::cause;
///
/// let error = "cannot send to \"ada\"\ncaused by: io\ncaused by: no answer from 10.0.0.7 in 1.5s";
/// assert_eq!(cause::of(error), "cannot send to \"…\": no answer from N in Ns");
/// assert_eq!(cause::of("the target answered 503: job 42 waits"), "the target answered 503: job N waits");
/// ```
#[must_use]
pub fn of(error: &str) -> String {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    let Some(first) = lines.next() else { return String::new() };
    let is_aside = |line: &&str| ASIDE.iter().any(|begin| line.starts_with(begin));
    let mut cause = without_accidents(&clipped(first, LOOKED_AT));
    if let Some(last) = lines.take_while(|line| !is_aside(line)).last() {
        let said = CONJUNCTIONS.iter().find_map(|begin| last.strip_prefix(begin)).unwrap_or(last);
        cause.push_str(": ");
        cause.push_str(&without_accidents(&clipped(said, LOOKED_AT)));
    }
    clipped(&cause, MAX_CHARS)
}

/// A text of at most `most` characters; where it is cut, the last one is an ellipsis.
fn clipped(text: &str, most: usize) -> String {
    match text.char_indices().nth(most.saturating_sub(1)) {
        Some((end, last)) if text.get(end..).is_some_and(|rest| rest.len() > last.len_utf8()) => {
            format!("{}…", text.get(..end).unwrap_or_default())
        }
        _ => text.to_owned(),
    }
}

/// A line without what differs by accident, its spaces made one.
fn without_accidents(line: &str) -> String {
    let (mut rest, mut kept) = (line, String::with_capacity(line.len()));
    while let Some(next) = rest.chars().next() {
        let in_word = kept.ends_with(char::is_alphanumeric);
        if matches!(next, '"' | '\'' | '`')
            && !in_word
            && let Some(after) = after_quote(rest, next)
        {
            kept.extend([next, '…', next]);
            rest = after;
        } else if let Some(after) = after_uuid(rest).filter(|_| !in_word) {
            kept.push(NUMBER);
            rest = after;
        } else if next.is_alphanumeric() {
            let (word, after) = rest.split_at_checked(word_end(rest)).unwrap_or((rest, ""));
            push_word(&mut kept, word);
            rest = after;
        } else {
            if !next.is_whitespace() {
                kept.push(next);
            } else if !kept.ends_with(' ') {
                kept.push(' ');
            }
            rest = rest.strip_prefix(next).unwrap_or_default();
        }
    }
    kept
}

/// What follows a quotation, which ends where no word goes on; none where it does not end.
fn after_quote(text: &str, quote: char) -> Option<&str> {
    let inside = text.strip_prefix(quote)?;
    let ends = inside.match_indices(quote);
    let mut after = ends.filter_map(|(at, _)| inside.get(at..)?.strip_prefix(quote));
    after.find(|after| !after.starts_with(char::is_alphanumeric))
}

/// What follows an id such as `6f1b7c1e-0f0a-4a43-9d52-6d7f8a1b2c3d`.
fn after_uuid(text: &str) -> Option<&str> {
    let (id, after) = text.split_at_checked(36)?;
    let is_part = |(part, length): (&str, usize)| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let is_id = id.split('-').count() == 5 && id.split('-').zip([8, 4, 4, 4, 12]).all(is_part);
    (is_id && !after.starts_with(char::is_alphanumeric)).then_some(after)
}

/// Where the word ends that a text begins with. A point or comma between digits belongs to it.
fn word_end(text: &str) -> usize {
    let joins = |at: usize, separator: char| {
        let after = text.get(at..).and_then(|rest| rest.strip_prefix(separator));
        matches!(separator, '.' | ',')
            && text.get(..at).is_some_and(|before| before.ends_with(|c: char| c.is_ascii_digit()))
            && after.is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit()))
    };
    let ends = |(at, c): &(usize, char)| !c.is_alphanumeric() && !joins(*at, *c);
    text.char_indices().find(ends).map_or(text.len(), |(at, _)| at)
}

fn push_word(kept: &mut String, word: &str) {
    let digits = |text: &str| text.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_mixed = word.contains(char::is_alphabetic);
    if digits(word) == 0 || (word.len() == digits(word) && is_code(kept, word)) {
        kept.push_str(word);
        return;
    }
    let is_id = word.strip_prefix("0x").is_some_and(is_hex)
        || (word.len() >= HEX_ID && is_hex(word))
        || (word.len() >= MIXED_ID && is_mixed);
    if is_id {
        kept.push(NUMBER);
        return;
    }
    let mut in_number = false;
    for c in word.chars() {
        let of_number = c.is_ascii_digit() || matches!(c, '.' | ',');
        if !of_number {
            kept.push(c);
        } else if !in_number {
            kept.push(NUMBER);
        }
        in_number = of_number;
    }
}

/// Whether a number after this text is part of the cause.
fn is_code(before: &str, number: &str) -> bool {
    let before = before.to_ascii_lowercase();
    number.len() <= CODE_DIGITS && CODES.iter().any(|code| before.ends_with(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r25_a_cause_is_what_errors_of_many_jobs_have_in_common() {
        let table = [
            ("", ""),
            (" \n\n", ""),
            ("job 4217 is gone", "job N is gone"),
            ("  much\t space \r\n", "much space"),
            ("took 1.5s for 10,000 rows, 3 to go", "took Ns for N rows, N to go"),
            ("10.0.0.7:5432 and [::1]:80", "N:N and [::N]:N"),
            ("no field `to` in 'a b', it's late", "no field `…` in '…', it's late"),
            ("the clients' name isn't \"Ada\"", "the clients' name isn't \"…\""),
            ("it's an \"open quote", "it's an \"open quote"),
            ("'it isn't' is quoted", "'…' is quoted"),
            (
                "order 6f1b7c1e-0f0a-4a43-9d52-6d7f8a1b2c3d at 2026-03-01T10:00:00.123Z",
                "order N at N-N-NTN:N:NZ",
            ),
            ("0x7ffe12ab, deadbeef01, 01hv3k9qzt7x and cus_NffrFeUfNV2Hib", "N, N, N and cus_N"),
            ("a facade, deadbeef, utf8 and mail7", "a facade, deadbeef, utfN and mailN"),
            ("zażółć 7 größe", "zażółć N größe"),
        ];
        for (error, cause) in table {
            assert_eq!(of(error), cause, "{error:?}");
        }
    }

    #[test]
    fn r25_codes_tell_one_cause_from_another() {
        for code in [
            "the target answered 503: try later",
            "the command ended with exit status: 2",
            "Connection refused (os error 111)",
            "HTTP 404",
            "signal: 9 (SIGKILL)",
        ] {
            assert_eq!(of(code), code);
        }
        assert_eq!(of("status: 40001 rows"), "status: N rows", "a long number is no code");
        assert_eq!(of("503 rows answered"), "N rows answered");
    }

    #[test]
    fn r25_the_last_words_count_and_asides_do_not() {
        let table = [
            (
                "cannot send\ncaused by: tls\ncaused by: no route to 10.1.1.1",
                "cannot send: no route to N",
            ),
            (
                "the command ended with exit status: 1\nstderr: Traceback:\n  File x, line 7\n\
                 ValueError: 7\nstdout: 99 done",
                "the command ended with exit status: 1: ValueError: N",
            ),
            (
                "panicked: out of range\nat src/app.rs:7:1\nbacktrace:\n0: main",
                "panicked: out of range",
            ),
            ("failed\nstderr: TypeError: x\n    at f (a.js:1)\n    at g", "failed: TypeError: x"),
        ];
        for (error, cause) in table {
            assert_eq!(of(error), cause, "{error:?}");
        }
    }

    #[test]
    fn r25_a_cause_is_short_however_long_the_error_is() {
        let long = of(&format!("{}\n{}", "ü ".repeat(9_000), "ab ".repeat(9_000)));
        assert_eq!(long.chars().count(), MAX_CHARS);
        assert!(long.ends_with('…'));
        let whole = "x".repeat(MAX_CHARS);
        assert_eq!(of(&whole), whole);
    }
}
