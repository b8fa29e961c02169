//! Parses the time of an event: a number since the Unix epoch, or RFC 3339.

use anyhow::{Result, bail};
use quell_core::Timestamp;
use serde_json::Value;

/// Numbers below this are seconds: it is the year 5138.
const SECONDS_BELOW: i64 = 100_000_000_000;
/// Numbers below this are milliseconds.
const MILLIS_BELOW: i64 = SECONDS_BELOW * 1_000;
/// Numbers below this are microseconds.
const MICROS_BELOW: i64 = MILLIS_BELOW * 1_000;

/// Reads a time: unix seconds, milliseconds or microseconds by magnitude, or RFC 3339.
pub(super) fn parse(value: &Value) -> Result<Timestamp> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    let Some(at) = number(&text).or_else(|| calendar(&text)) else {
        bail!(
            "{text:?} is not a time: give unix seconds, milliseconds or microseconds, or RFC 3339 \
             with an offset, such as 2026-01-02T03:04:05Z"
        );
    };
    if at < Timestamp::from_micros(0) {
        bail!("{text:?} is before 1970");
    }
    Ok(at)
}

/// A number with at most one point; digits past the microsecond are cut.
fn number(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole: i64 = whole.parse().ok()?;
    let unit = match whole {
        ..SECONDS_BELOW => 1_000_000,
        SECONDS_BELOW..MILLIS_BELOW => 1_000,
        MILLIS_BELOW..MICROS_BELOW => 1,
        MICROS_BELOW.. => return None,
    };
    let millionths = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    let millionths = millionths.fold(0, |sum: i64, digit| sum * 10 + i64::from(digit - b'0'));
    Some(Timestamp::from_micros(whole.checked_mul(unit)? + millionths * unit / 1_000_000))
}

fn calendar(text: &str) -> Option<Timestamp> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_micros(moment.as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_read_by_magnitude_or_as_rfc_3339() {
        let table = [
            (json!(1_456_613_712), 1_456_613_712_000_000),
            (json!("1456613712"), 1_456_613_712_000_000),
            (json!("1456613712.25"), 1_456_613_712_250_000),
            (json!(1_456_613_712.5), 1_456_613_712_500_000),
            (json!(1_456_613_712_345_i64), 1_456_613_712_345_000),
            (json!("1456613712345.5"), 1_456_613_712_345_500),
            (json!(1_456_613_712_345_678_i64), 1_456_613_712_345_678),
            (json!("2016-02-27T22:55:12Z"), 1_456_613_712_000_000),
            (json!(" 2016-02-27 23:55:12.5+01:00 "), 1_456_613_712_500_000),
            (json!(0), 0),
        ];
        for (value, micros) in table {
            assert_eq!(parse(&value).unwrap().as_micros(), micros, "{value}");
        }
    }

    #[test]
    fn r40_what_is_not_a_time_is_refused() {
        let bad = [json!(""), json!("soon"), json!(null), json!("-1"), json!("1e9"), json!("1.x")];
        let too = [json!("2016-02-27"), json!("2016-02-27T22:55:12"), json!(1e18), json!("1.-5")];
        for value in bad.into_iter().chain(too) {
            assert!(parse(&value).is_err(), "{value}");
        }
    }
}
