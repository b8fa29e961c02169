//! Durations as people write them, on the command line and in the configuration: `10s`, `1h 30m`.
//!
//! One parser for every place, so that a unit means the same everywhere. Invariant: what it
//! returns is whole microseconds, the resolution of store time, and at least one.

use std::time::Duration;

use jiff::SignedDuration;

/// Reads a duration such as `250ms`, `10s`, `10m` or `1h30m`.
///
/// # Errors
/// A message that says what is wrong with `text` and what to write; the caller adds the field.
pub fn parse(text: &str) -> Result<Duration, String> {
    let signed: SignedDuration = text.trim().parse().map_err(|_| {
        format!(
            "{text:?} is not a duration: give a number with a unit, such as 250ms, 10s or 1h30m"
        )
    })?;
    match Duration::try_from(signed) {
        Err(_) => Err(format!("{text:?} is negative: give a duration above zero")),
        Ok(duration) if duration.as_micros() == 0 => {
            Err(format!("{text:?} is zero: give a duration of at least a microsecond"))
        }
        Ok(duration) => Ok(duration
            .saturating_sub(Duration::from_nanos(u64::from(duration.subsec_nanos() % 1_000)))),
    }
}

/// Writes a duration as [`parse`] reads it, without loss: `1h30m`, `10s`, `1s500ms`.
#[must_use]
pub fn exact(duration: Duration) -> String {
    let units: [(u128, &str); 5] =
        [(3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms"), (1, "us")];
    let mut rest = duration.as_micros();
    let mut text = String::new();
    for (micros, unit) in units {
        if rest >= micros {
            text.push_str(&format!("{}{unit}", rest / micros));
            rest %= micros;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Writes a measured duration with about three digits: `840us`, `59.8s`, `9m57s`, `3d4h`.
#[must_use]
pub fn rough(duration: Duration) -> String {
    let secs = duration.as_secs_f64();
    let whole = duration.as_secs();
    match secs {
        _ if duration.is_zero() => "0s".to_owned(),
        s if s < 0.001 => format!("{}us", duration.as_micros()),
        s if s < 0.999_5 => format!("{}ms", digits(s * 1e3)),
        s if s < 59.95 => format!("{}s", digits(s)),
        s if s < 3_599.5 => pair(duration.as_secs_f64().round(), 60, "m", "s"),
        s if s < 86_370.0 => pair((s / 60.0).round(), 60, "h", "m"),
        _ => format!("{}d{}h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

/// Three significant digits, without trailing zeros.
fn digits(value: f64) -> String {
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        return format!("{value:.0}");
    };
    format!("{value:.decimals$}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn pair(units: f64, per: u32, large: &str, small: &str) -> String {
    let per = f64::from(per);
    let (high, low) = ((units / per).floor(), units % per);
    if low == 0.0 { format!("{high}{large}") } else { format!("{high}{large}{low}{small}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let table = [
            ("10s", Ok(10_000_000)),
            ("10m", Ok(600_000_000)),
            ("1h30m", Ok(5_400_000_000)),
            ("1h 30m", Ok(5_400_000_000)),
            ("250ms", Ok(250_000)),
            ("1.5s", Ok(1_500_000)),
            ("1us", Ok(1)),
            ("1µs", Ok(1)),
            ("0s", Err("zero")),
            ("1ns", Err("zero")),
            ("-1s", Err("negative")),
            ("10", Err("unit")),
            ("", Err("unit")),
            ("soon", Err("unit")),
        ];
        for (text, expected) in table {
            match (parse(text), expected) {
                (Ok(duration), Ok(micros)) => assert_eq!(duration.as_micros(), micros, "{text}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (read, expected) => panic!("{text}: {read:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn exact_durations_read_back_the_same() {
        for micros in [1, 999, 1_000_000, 1_500_000, 60_000_000, 5_400_000_000, 90_061_000_001] {
            let duration = Duration::from_micros(micros);
            assert_eq!(parse(&exact(duration)), Ok(duration), "{}", exact(duration));
        }
    }

    #[test]
    fn rough_durations_keep_three_digits() {
        let table = [
            (0, "0s"),
            (840, "840us"),
            (1_234, "1.23ms"),
            (999_400, "999ms"),
            (999_900, "1s"),
            (59_840_000, "59.8s"),
            (59_999_000, "1m"),
            (597_000_000, "9m57s"),
            (3_599_900_000, "1h"),
            (5_400_000_000, "1h30m"),
            (273_600_000_000, "3d4h"),
        ];
        for (micros, expected) in table {
            assert_eq!(rough(Duration::from_micros(micros)), expected, "{micros}");
        }
    }
}
