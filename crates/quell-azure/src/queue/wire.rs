//! Messages as a queue keeps them, and the requests and answers for them.
//!
//! A message's text is base64 of 13 bytes and the body. The bytes are the format, the time at which
//! the message is due in microseconds, and how often it was put off, both big-endian.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quell_core::{Error, ErrorKind, Result, Timestamp};
use quell_portable::{Delivery, Received};
use reqwest::Method;
use roxmltree::{Document, Node};

use crate::transport::{Answer, Request};

const FORMAT: u8 = 1;
/// The longest body. A message takes 64 KiB of base64, which is 48 KiB; a thousand bytes are left for
/// the reason of a dead-lettered message.
pub(super) const MOST_BYTES: usize = 48_000;
const MOST_TEXT_BYTES: usize = 48 << 10;
/// The most characters of a reason, of four bytes each.
const MOST_REASON_CHARS: usize = 250;
/// How long a message can stay invisible, in seconds: seven days.
pub(super) const MOST_SECS: u64 = 7 * 24 * 60 * 60;

/// What Quell writes into the text of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) at: Timestamp,
    /// How often it was received before its time.
    pub(super) put_offs: u32,
    pub(super) body: Vec<u8>,
}

impl Envelope {
    pub(super) fn encode(&self) -> String {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.at.as_micros().to_be_bytes());
        bytes.extend(self.put_offs.to_be_bytes());
        bytes.extend(&self.body);
        STANDARD.encode(bytes)
    }

    /// Reads a text; none where Quell did not write it.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text).ok()?;
        let Some((&[FORMAT], bytes)) = bytes.split_first_chunk() else { return None };
        let (at, bytes) = bytes.split_first_chunk()?;
        let (put_offs, body) = bytes.split_first_chunk()?;
        Some(Envelope {
            at: Timestamp::from_micros(i64::from_be_bytes(*at)),
            put_offs: u32::from_be_bytes(*put_offs),
            body: body.to_vec(),
        })
    }
}

/// How many seconds a message that is due at `at` stays invisible. A part of a second counts as one,
/// so that no message is early; what is more than seven days away is put off again then.
pub(super) fn seconds_until(now: Timestamp, at: Timestamp) -> u64 {
    at.since(now).as_micros().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX).min(MOST_SECS)
}

/// The text of a dead-lettered message: its reason in the first line, then its body.
pub(super) fn dead(reason: &str, text: &str) -> String {
    let line = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut bytes = line.take(MOST_REASON_CHARS).collect::<String>().into_bytes();
    bytes.push(b'\n');
    match Envelope::decode(text) {
        Some(envelope) => bytes.extend(envelope.body),
        None => bytes.extend(text.as_bytes()),
    }
    // Only a message that Quell did not write can be longer.
    bytes.truncate(MOST_TEXT_BYTES);
    STANDARD.encode(bytes)
}

/// A message that this receiver holds. The text is part of it, for it is needed to put the message
/// into another queue, and no request reads it.
#[derive(Debug)]
pub(super) struct Held {
    id: String,
    receipt: String,
    pub(super) text: String,
}

impl Held {
    /// Reads what [`Held::handle`] wrote; none where another timer wrote it.
    pub(super) fn of(handle: &str) -> Option<Self> {
        let mut parts = handle.splitn(3, ' ').map(str::to_owned);
        let (id, receipt, text) = (parts.next()?, parts.next()?, parts.next()?);
        let is_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (!id.is_empty() && id.chars().all(is_id)).then_some(Held { id, receipt, text })
    }

    /// What the timer's callers keep of it.
    pub(super) fn handle(&self) -> String {
        format!("{} {} {}", self.id, self.receipt, self.text)
    }

    pub(super) fn delivery(&self) -> Delivery {
        Delivery::new(self.handle())
    }

    pub(super) fn received(&self, count: u32, envelope: Option<Envelope>) -> Received {
        let put_offs = envelope.as_ref().map_or(0, |envelope| envelope.put_offs);
        let deliveries = count.saturating_sub(put_offs).max(1);
        // Quell writes no message without an envelope; its reader rejects an empty one.
        let body = envelope.map(|envelope| envelope.body).unwrap_or_default();
        Received { body, deliveries, delivery: self.delivery() }
    }

    /// The message after an update, which has another receipt.
    pub(super) fn updated(self, answer: &Answer) -> Result<Self> {
        let receipt = answer.header("x-ms-popreceipt").ok_or_else(unreadable)?;
        Ok(Held { receipt: receipt.to_owned(), ..self })
    }
}

/// The messages of an answer, and how often each was received.
pub(super) fn messages(answer: &Answer) -> Result<Vec<(Held, u32)>> {
    each(answer, |field| {
        let (id, receipt) = (field("MessageId")?, field("PopReceipt")?);
        let count = field("DequeueCount").and_then(|count| count.parse().ok()).unwrap_or_default();
        Some((Held { id, receipt, text: field("MessageText").unwrap_or_default() }, count))
    })
}

/// The bodies of messages that were looked at; of one that Quell did not write, its text.
pub(super) fn bodies(answer: &Answer) -> Result<Vec<Vec<u8>>> {
    each(answer, |field| {
        let text = field("MessageText").unwrap_or_default();
        let envelope = Envelope::decode(&text);
        Some(envelope.map_or_else(|| text.into_bytes(), |envelope| envelope.body))
    })
}

/// Reads each message of an answer by its fields.
fn each<R>(
    answer: &Answer,
    read: impl Fn(&dyn Fn(&str) -> Option<String>) -> Option<R>,
) -> Result<Vec<R>> {
    let text = String::from_utf8_lossy(&answer.body);
    // The service begins with a byte order mark.
    let xml = Document::parse(text.trim_start_matches('\u{feff}'));
    let xml = xml.map_err(|error| unreadable().with_source(error))?;
    let message = |node: Node<'_, '_>| {
        let field = |name: &str| {
            let field = node.children().find(|child| child.has_tag_name(name));
            field.map(|field| field.text().unwrap_or_default().to_owned())
        };
        read(&field).ok_or_else(unreadable)
    };
    xml.descendants().filter(|node| node.has_tag_name("QueueMessage")).map(message).collect()
}

pub(super) fn unreadable() -> Error {
    Error::new(ErrorKind::Corrupt, "the response is not the XML of a storage queue")
}

/// A request for a queue's messages, or for one of them.
fn request(
    what: &'static str,
    method: Method,
    queue: &str,
    held: Option<&Held>,
    mut query: Vec<(&'static str, String)>,
) -> Request {
    let mut path = format!("{queue}/messages");
    if let Some(held) = held {
        path = format!("{path}/{}", held.id);
        query.push(("popreceipt", held.receipt.clone()));
    }
    Request { what, method, path, query, headers: Vec::new(), body: String::new() }
}

/// `text` is in base64, which has no character that XML escapes.
fn with_text(mut request: Request, text: &str) -> Request {
    request.headers.push(("Content-Type", "application/xml".to_owned()));
    request.body = format!("<QueueMessage><MessageText>{text}</MessageText></QueueMessage>");
    request
}

/// Looks at messages without taking them.
pub(super) fn peek(queue: &str, most: usize) -> Request {
    let query = vec![("peekonly", "true".to_owned()), ("numofmessages", most.to_string())];
    request("open the queue", Method::GET, queue, None, query)
}

pub(super) fn create(queue: &str) -> Request {
    let path = queue.to_owned();
    Request { path, ..request("create the queue", Method::PUT, queue, None, Vec::new()) }
}

/// Puts a message that is invisible for `secs`, and never expires: the service keeps none invisible
/// until after its end.
pub(super) fn put(what: &'static str, queue: &str, secs: u64, text: &str) -> Request {
    let query = vec![("visibilitytimeout", secs.to_string()), ("messagettl", "-1".to_owned())];
    with_text(request(what, Method::POST, queue, None, query), text)
}

pub(super) fn receive(queue: &str, most: usize, lock_secs: u64) -> Request {
    let query =
        vec![("numofmessages", most.to_string()), ("visibilitytimeout", lock_secs.to_string())];
    request("receive messages", Method::GET, queue, None, query)
}

/// Makes a message invisible for `secs` from now on.
pub(super) fn update(what: &'static str, queue: &str, held: &Held, secs: u64) -> Request {
    let query = vec![("visibilitytimeout", secs.to_string())];
    request(what, Method::PUT, queue, Some(held), query)
}

/// Makes a message invisible that came before its time.
pub(super) fn put_off(queue: &str, held: &Held, early: Envelope, now: Timestamp) -> Request {
    let request = update("put a message off", queue, held, seconds_until(now, early.at));
    let put_offs = early.put_offs.saturating_add(1);
    with_text(request, &Envelope { put_offs, ..early }.encode())
}

pub(super) fn delete(what: &'static str, queue: &str, held: &Held) -> Request {
    request(what, Method::DELETE, queue, Some(held), Vec::new())
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;

    use super::*;

    #[test]
    fn a_part_of_a_second_counts_as_one_and_seven_days_are_the_most() {
        let now = Timestamp::from_secs(1_000);
        for (micros, expected) in [
            (-1, 0),
            (0, 0),
            (1, 1),
            (1_000_000, 1),
            (1_000_001, 2),
            (604_800_000_000, 604_800),
            (604_800_000_001, 604_800),
            (i64::MAX / 2, 604_800),
        ] {
            let at = Timestamp::from_micros(now.as_micros() + micros);
            assert_eq!(seconds_until(now, at), expected, "{micros} µs");
        }
    }

    #[test]
    fn an_envelope_is_read_as_it_was_written_and_others_are_not_read() {
        for body in [Vec::new(), vec![0, 255, 10], vec![7; MOST_BYTES]] {
            let envelope = Envelope { at: Timestamp::from_micros(-5), put_offs: 3, body };
            let text = envelope.encode();
            assert!(text.len() <= 64 << 10 && dead(&"ö".repeat(900), &text).len() <= 64 << 10);
            assert_eq!(Envelope::decode(&text), Some(envelope));
        }
        for text in ["", "plain", "AAAA", "AQ==", &STANDARD.encode([2; 40])] {
            assert_eq!(Envelope::decode(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_handle_is_read_as_it_was_written_and_others_are_not_read() {
        let held =
            |text: &str| Held { id: "a-1".into(), receipt: "r+/=".into(), text: text.into() };
        for text in ["", "AQ==", "not ours, with  spaces\n"] {
            let read = Held::of(&held(text).handle()).unwrap();
            assert_eq!(
                (read.id.as_str(), read.receipt.as_str(), read.text.as_str()),
                ("a-1", "r+/=", text)
            );
        }
        for other in ["", "a-1", "a-1 r", "a/../b r t", " r t"] {
            assert!(Held::of(other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn messages_are_found_in_an_answer() {
        let read = |body: &str| {
            let body = body.as_bytes().to_vec();
            messages(&Answer { status: 200, headers: HeaderMap::new(), body })
        };
        let found = read(
            "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><QueueMessagesList><QueueMessage>\
             <MessageId>1</MessageId><PopReceipt>r=</PopReceipt><DequeueCount>2</DequeueCount>\
             <MessageText>a &lt;b&gt; &#228;</MessageText></QueueMessage><QueueMessage>\
             <MessageId>2</MessageId><PopReceipt>s</PopReceipt><MessageText /></QueueMessage>\
             </QueueMessagesList>",
        );
        let found = found.unwrap();
        let texts: Vec<_> =
            found.iter().map(|(held, count)| (held.text.as_str(), *count)).collect();
        assert_eq!(texts, [("a <b> ä", 2), ("", 0)]);
        assert!(read("<QueueMessagesList />").unwrap().is_empty());
        for bad in ["", "{}", "<a><QueueMessage><MessageId>1</MessageId></QueueMessage></a>"] {
            assert_eq!(read(bad).unwrap_err().kind(), ErrorKind::Corrupt, "{bad:?}");
        }
    }
}
