//! Texts of pages: times, notices, parts of addresses.

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};

/// A text as a part of an address: all but unreserved characters are encoded.
pub(crate) fn encode(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// An error of the API as a sentence.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().collect::<String>());
    let end = if text.ends_with(['.', '!', '?', ')']) || text.is_empty() { "" } else { "." };
    format!("{}{}{end}", first.unwrap_or_default(), letters.as_str())
}

/// What a page says after a change: only these texts, whatever a link has.
pub(crate) fn notice(done: &str, number: &str) -> Option<String> {
    let text = match done {
        "accepted" => "The trigger is accepted.",
        "debounced" => "The trigger joined the window that waits.",
        "duplicate" => "The trigger is a duplicate: its dedup key counted before.",
        "existing" => "The trigger is known by its idempotency key: this is its job.",
        "pending" => "The trigger is sent. The queue that keeps dedup keys has it now.",
        "paused" => "It is paused.",
        "drained" => "It claims nothing more from its next heartbeat on.",
        "resumed" => "It goes on.",
        "cancelled" => "It is cancelled.",
        "due" => "It is due now.",
        "priority" => "Its priority is changed.",
        "redriven" => "It runs again.",
        "discarded" => "The dead job is removed.",
        "flushed" => "The window is due now.",
        "window-cancelled" => "The window is cancelled.",
        "saved" => "The settings are saved.",
        "undone" => "The settings are as they were before.",
        "restored" => "The job is in its earlier state.",
        "fired" => "The schedule was fired.",
        "stopped" => "The action stops.",
        "forgotten" => "The action is removed from the list.",
        "backfilled" => {
            let number: u64 = number.parse().ok()?;
            return Some(format!("Ticks that were fired: {number}."));
        }
        _ => return None,
    };
    Some(text.to_owned())
}

/// A time as people read it, from now on: `3 min ago`, `in 2 h`.
pub(crate) fn relative(now: Timestamp, at: Timestamp) -> String {
    let apart = at.duration_since(now);
    let (length, is_past) = (apart.abs(), apart.is_negative() || apart.is_zero());
    if length < SignedDuration::from_secs(1) {
        return "now".to_owned();
    }
    let length = in_units(length, 1);
    if is_past { format!("{length} ago") } else { format!("in {length}") }
}

/// Units of time in seconds, the longest first.
const UNITS: [(i64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];

/// A duration in at most `most` units, the longest first.
fn in_units(length: SignedDuration, most: usize) -> String {
    let mut left = length.as_secs();
    let units = UNITS.into_iter().skip_while(|(unit, _)| *unit > length.as_secs()).take(most);
    let parts = units.filter_map(|(unit, name)| {
        let count = left / unit;
        left %= unit;
        (count > 0).then(|| format!("{count} {name}"))
    });
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "0 s".to_owned() } else { parts.join(" ") }
}

/// An exact time as people read it, in UTC.
pub(crate) fn exact(at: &str) -> Cow<'_, str> {
    match at.parse::<Timestamp>() {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%S%.3f UTC").to_string().into(),
        Err(_) => at.into(),
    }
}

/// Seconds as people read them: from a minute on, in whole ones and at most two units.
pub(crate) fn seconds(length: f64) -> String {
    if length < 0.999_5 {
        return format!("{:.0} ms", length * 1_000.0);
    }
    if length < 59.95 {
        return format!("{length:.1} s");
    }
    let length = SignedDuration::try_from_secs_f64(length.round());
    length.map_or_else(|_| "long".to_owned(), |length| in_units(length, 2))
}

/// A number with spaces between thousands.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A text as one word of a shell.
pub(crate) fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_and_exact() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        for (at, shown) in [
            ("2026-03-01T12:00:00Z", "now"),
            ("2026-03-01T11:59:57Z", "3 s ago"),
            ("2026-03-01T11:57:00Z", "3 min ago"),
            ("2026-03-01T14:30:00Z", "in 2 h"),
            ("2026-02-20T12:00:00Z", "9 d ago"),
        ] {
            assert_eq!(relative(now, at.parse().unwrap()), shown);
        }
        assert_eq!(exact("2026-03-01T12:00:00.5Z"), "2026-03-01 12:00:00.500 UTC");
        assert_eq!(exact("<b>"), "<b>");
        for (length, shown) in [
            (0.25, "250 ms"),
            (0.999_7, "1.0 s"),
            (2.12, "2.1 s"),
            (59.97, "1 min"),
            (75.4, "1 min 15 s"),
            (7_199.0, "1 h 59 min"),
            (86_400.0 + 300.0, "1 d"),
            (f64::INFINITY, "long"),
        ] {
            assert_eq!(seconds(length), shown);
        }
        assert_eq!((number(7), number(1_234_567)), ("7".into(), "1\u{202f}234\u{202f}567".into()));
    }

    #[test]
    fn words_of_a_shell_and_parts_of_addresses_are_quoted() {
        for (text, word) in [("mail", "mail"), ("a b", "'a b'"), ("it's", "'it'\\''s'"), ("", "''")]
        {
            assert_eq!(shell(text), word);
        }
        assert_eq!(encode("a b/ü?&"), "a%20b%2F%C3%BC%3F%26");
        assert_eq!(sentence("no such job"), "No such job.");
        assert_eq!(sentence(""), "");
    }

    #[test]
    fn a_link_cannot_put_words_into_a_page() {
        assert_eq!(notice("your account is closed", ""), None);
        assert_eq!(notice("backfilled", "<b>"), None);
        assert_eq!(notice("backfilled", "3").unwrap(), "Ticks that were fired: 3.");
    }
}
