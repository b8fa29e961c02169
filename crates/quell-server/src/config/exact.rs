//! Numbers that templates cannot carry: those that are neither a 64-bit integer nor a 64-bit float.
//!
//! A key made of a rounded number would be another number's key, too.

use std::borrow::Cow;

/// Quotes each number of a JSON text that a value of it would round; and the first of them.
pub(crate) fn carry(text: &str) -> (Cow<'_, str>, Option<String>) {
    let (mut carried, mut first) = (String::new(), None);
    let (mut rest, mut done) = (text.char_indices().peekable(), 0);
    let (mut in_text, mut escaped) = (false, false);
    while let Some((start, c)) = rest.next() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            '-' | '0'..='9' if !in_text => {
                let mut end = start + 1;
                while let Some((at, _)) = rest.next_if(|(_, c)| is_of_number(*c)) {
                    end = at + 1;
                }
                let number = text.get(start..end).unwrap_or_default();
                if !is_exact(number) {
                    carried.push_str(text.get(done..start).unwrap_or_default());
                    carried.push_str(&format!("\"{number}\""));
                    done = end;
                    first.get_or_insert_with(|| number.to_owned());
                }
            }
            _ => {}
        }
    }
    if first.is_none() {
        return (Cow::Borrowed(text), None);
    }
    carried.push_str(text.get(done..).unwrap_or_default());
    (Cow::Owned(carried), first)
}

fn is_of_number(c: char) -> bool {
    matches!(c, '0'..='9' | '.' | 'e' | 'E' | '+' | '-')
}

/// Whether a JSON number has the same value as a 64-bit integer or float.
fn is_exact(number: &str) -> bool {
    if number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return true;
    }
    let Some(written) = Decimal::of(number) else { return false };
    let float = number.parse::<f64>().ok().filter(|float| float.is_finite());
    // The shortest digits that stand for the float.
    float.is_some_and(|float| Decimal::of(&format!("{float:e}")) == Some(written))
}

/// A decimal number by its digits, without zeros at either end, and the power of ten of the last one.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: String,
    power: i64,
}

impl Decimal {
    fn of(number: &str) -> Option<Decimal> {
        let (negative, number) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number),
        };
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let kept = digits.trim_end_matches('0');
        let cut = i64::try_from(digits.len() - kept.len()).ok()?;
        let kept = kept.trim_start_matches('0');
        if kept.is_empty() {
            return Some(Decimal { negative, digits: String::new(), power: 0 });
        }
        let exponent: i64 = exponent.parse().ok()?;
        let power = exponent.checked_add(cut)?;
        let power = power.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        Some(Decimal { negative, digits: kept.to_owned(), power })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_a_value_would_round_become_texts() {
        let exact = ["0", "-0", "7", "1.10", "1e3", "18446744073709551615", "-9223372036854775808"];
        let exact = exact.into_iter().chain(["100000000000000000000", "0.1", "5e-324", "0e99999"]);
        for number in exact {
            assert_eq!(carry(number), (Cow::Borrowed(number), None), "{number}");
        }
        let rounded = [
            "123456789012345678901234567890",
            "1e400",
            "1e99999999999999999999",
            "0.1000000000000000000001",
            "18446744073709551617",
        ];
        for number in rounded {
            let text = format!(r#"{{"1":[{number},"{number}\"",2]}}"#);
            let quoted = format!(r#"{{"1":["{number}","{number}\"",2]}}"#);
            assert_eq!(carry(&text), (Cow::Owned(quoted), Some(number.to_owned())));
        }
    }
}
