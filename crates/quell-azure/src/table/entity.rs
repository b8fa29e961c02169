//! A row as an entity: its value in binary properties `v0`, `v1`, …, and in `b` the batch that wrote
//! it.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quell_core::{Error, ErrorKind, Result};
use quell_portable::{Bounds, Row, Version};
use serde_json::Value;

/// A binary property takes 64 KiB.
const PROPERTY_BYTES: usize = 64 << 10;
const PROPERTIES: usize = 15;

/// The bounds of a table.
///
/// An entity takes 1 MiB. 15 full properties leave 64 KiB: the keys take 2 KiB of that at most, and names
/// and sizes of properties less than 1 KiB. A key takes 1 KiB of UTF-16.
///
/// A request takes 4 MiB, in which a value is a third longer (base64), and each of 100 changes has
/// headers and names twice, less than 3 KiB: that leaves 2.8 MiB for values.
pub(crate) const BOUNDS: Bounds = Bounds {
    changes: 100,
    batch_bytes: 2_816 << 10,
    row_bytes: PROPERTIES * PROPERTY_BYTES,
    name_bytes: 512,
};

/// A row with the id of the batch that wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Entity {
    pub(crate) row: Row,
    pub(crate) batch: String,
}

/// An entity in JSON. Names and ids have no character that JSON escapes.
pub(crate) fn encode(partition: &str, row: &str, batch: &str, value: &[u8]) -> String {
    let mut json = format!(r#"{{"PartitionKey":"{partition}","RowKey":"{row}","b":"{batch}""#);
    for (at, part) in value.chunks(PROPERTY_BYTES).enumerate() {
        // Writing to a string cannot fail.
        let _written = write!(json, r#","v{at}@odata.type":"Edm.Binary","v{at}":""#);
        STANDARD.encode_string(part, &mut json);
        json.push('"');
    }
    json.push('}');
    json
}

/// Reads an entity; `etag` is the header's, where the answer is of one entity.
pub(crate) fn decode(entity: &Value, etag: Option<&str>) -> Result<Entity> {
    let text = |name: &str| entity.get(name).and_then(Value::as_str);
    let name = text("RowKey").ok_or_else(|| corrupt("?", "RowKey"))?;
    let batch = text("b").ok_or_else(|| corrupt(name, "b"))?;
    let mut value = Vec::new();
    for part in (0..PROPERTIES).map_while(|at| text(&format!("v{at}"))) {
        let decoded = STANDARD.decode_vec(part, &mut value);
        decoded.map_err(|error| corrupt(name, "v").with_source(error))?;
    }
    // An ETag is the timestamp, quoted.
    let of_timestamp = || {
        let time = utf8_percent_encode(text("Timestamp")?, NON_ALPHANUMERIC).to_string();
        let time = time.replace("%2D", "-").replace("%2E", ".");
        Some(format!("W/\"datetime'{time}'\""))
    };
    let etag = etag.or_else(|| text("odata.etag")).map(str::to_owned).or_else(of_timestamp);
    let version = Version::new(etag.ok_or_else(|| corrupt(name, "odata.etag"))?);
    let row = Row { name: name.to_owned(), value: value.into(), version };
    Ok(Entity { row, batch: batch.to_owned() })
}

fn corrupt(row: &str, property: &str) -> Error {
    let message = format!("corrupt row: cannot decode property `{property}` of row {row:?}");
    Error::new(ErrorKind::Corrupt, message)
}

/// Refuses a name of a partition or a row that a table does not take.
pub(crate) fn check_name(field: &'static str, name: &str) -> Result<()> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-._~:".contains(c);
    if (1..=BOUNDS.name_bytes).contains(&name.len()) && name.chars().all(is_fine) {
        return Ok(());
    }
    let bytes = BOUNDS.name_bytes;
    let message =
        format!("{field} {name:?}: give 1 to {bytes} characters of A-Z, a-z, 0-9 and -._~:");
    Err(Error::invalid(field, message))
}

/// The first name that is not before `text`, as far as names go; none where all are before it.
///
/// Keys and filters take no control characters: bounds are given by characters of names.
pub(crate) fn bound(text: &str) -> Option<String> {
    let Some(at) = text.find(|c: char| !('-'..='~').contains(&c)) else {
        return Some(text.to_owned());
    };
    let (prefix, rest) = text.split_at(at);
    if rest.starts_with(|c: char| c < '-') {
        // `-` is the least character of a name.
        return Some(format!("{prefix}-"));
    }
    // All names that begin with `prefix` are before it.
    let prefix = prefix.trim_end_matches('~');
    let last = prefix.chars().next_back()?;
    let successor = char::from_u32(u32::from(last) + 1)?;
    Some(format!("{}{successor}", prefix.get(..prefix.len() - 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_ranges_consist_of_characters_that_names_have() {
        for (text, expected) in [
            ("", Some("")),
            ("job", Some("job")),
            ("job\u{7f}", Some("joc")),
            ("a.\u{7f}", Some("a/")),
            ("a~~\u{7f}", Some("b")),
            ("~\u{7f}", None),
            ("\u{7f}", None),
            ("job\0", Some("job-")),
            ("jö", Some("k")),
        ] {
            assert_eq!(bound(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn an_entity_is_read_as_it_was_written() {
        for length in [0, 1, PROPERTY_BYTES, PROPERTY_BYTES + 1, BOUNDS.row_bytes] {
            let value: Vec<u8> = (0..=250).cycle().take(length).collect();
            let mut json: Value = serde_json::from_str(&encode("p", "r", "id", &value)).unwrap();
            json["Timestamp"] = "2026-11-23T12:48:12.1234567Z".into();
            let Entity { row, batch } = decode(&json, None).unwrap();
            assert_eq!((row.name.as_str(), batch.as_str()), ("r", "id"));
            assert!(*row.value == *value, "{length} bytes");
            let etag = "W/\"datetime'2026-11-23T12%3A48%3A12.1234567Z'\"";
            assert_eq!(row.version.as_str(), etag);
        }
    }
}
