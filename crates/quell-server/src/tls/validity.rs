//! When a certificate ends, read from its DER form.
//!
//! Invariant: whatever is not where RFC 5280 has it makes no time, and no bytes make a panic.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The version of a certificate, which may be left out.
const VERSION: u8 = 0xa0;

/// The last moment of a certificate.
pub(super) fn not_after(cert: &[u8]) -> Option<Timestamp> {
    let (_, certificate, _) = element(cert)?;
    let (_, mut rest, _) = element(certificate)?;
    if rest.first() == Some(&VERSION) {
        (_, _, rest) = element(rest)?;
    }
    // The serial number, the algorithm and the issuer stand before it.
    for _ in 0..3 {
        (_, _, rest) = element(rest)?;
    }
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (_, _, rest) = element(validity)?;
    let (kind, text, _) = element(rest)?;
    let text = std::str::from_utf8(text).ok()?;
    let text = match kind {
        // Years from 50 on are of the last century.
        UTC_TIME if text.get(..2)? < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let at = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?;
    Some(at.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// The first element: its kind, its content, and what comes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        ..=0x7f => (usize::from(*first), rest),
        // The length of the length.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |all, byte| (all << 8) | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*kind, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_read_and_no_bytes_panic() {
        for (year, text) in [(2031, "2031-02-03T04:05:06Z"), (2051, "2051-02-03T04:05:06Z")] {
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 2, 3)
                + std::time::Duration::from_secs(4 * 3_600 + 5 * 60 + 6);
            let key = rcgen::KeyPair::generate().unwrap();
            let der = params.self_signed(&key).unwrap().der().to_vec();
            assert_eq!(not_after(&der).unwrap().to_string(), text);
            for cut in 0..der.len() {
                let _none = not_after(&der[..cut]);
                let mut changed = der.clone();
                changed[cut] ^= 0xff;
                let _any = not_after(&changed);
            }
        }
        assert_eq!(not_after(b"\x30\x84\xff\xff\xff\xff"), None);
    }
}
