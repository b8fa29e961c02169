//! Which master of a Cluster has which slot.

use std::sync::Arc;

use redis::{ConnectionAddr, ErrorKind, RedisError, RedisResult, Value};

use crate::tags::slot;

/// How many slots a Cluster has.
pub(crate) const SLOTS: u16 = 16_384;
/// The number of a node that is none.
const NONE: u16 = u16::MAX;

/// The masters of all slots, as one node returned them.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Masters and replicas, as `host:port`.
    nodes: Vec<String>,
    /// The number of each slot's master.
    owners: Arc<[u16]>,
}

impl Default for Slots {
    fn default() -> Self {
        Slots { nodes: Vec::new(), owners: vec![NONE; usize::from(SLOTS)].into() }
    }
}

impl Slots {
    /// Reads the answer of a node to `CLUSTER SLOTS`.
    pub(crate) fn read(asked: &str, answer: Value) -> RedisResult<Self> {
        let corrupt =
            || RedisError::from((ErrorKind::UnexpectedReturnType, "an answer to CLUSTER SLOTS"));
        let Value::Array(ranges) = answer.extract_error()? else { return Err(corrupt()) };
        let mut slots = Slots::default();
        let mut owners = slots.owners.to_vec();
        for range in ranges {
            let Value::Array(parts) = range else { return Err(corrupt()) };
            let mut parts = parts.into_iter();
            let mut number = || match parts.next() {
                Some(Value::Int(number)) => usize::try_from(number).map_err(|_| corrupt()),
                _ => Err(corrupt()),
            };
            let (first, last) = (number()?, number()?);
            for (place, node) in parts.enumerate() {
                let node = node_of(asked, node).ok_or_else(corrupt)?;
                let node = slots.number(&node);
                if place == 0 {
                    owners.get_mut(first..=last).ok_or_else(corrupt)?.fill(node);
                }
            }
        }
        slots.owners = owners.into();
        Ok(slots)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.nodes.iter()
    }

    /// The master of a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<String> {
        let number = self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(*number)).cloned()
    }

    /// The same with another master of one slot.
    pub(crate) fn with(&self, slot: u16, node: &str) -> Self {
        let mut slots = Slots { nodes: self.nodes.clone(), owners: Arc::clone(&self.owners) };
        let number = slots.number(node);
        let mut owners = slots.owners.to_vec();
        if let Some(owner) = owners.get_mut(usize::from(slot)) {
            *owner = number;
        }
        slots.owners = owners.into();
        slots
    }

    fn number(&mut self, node: &str) -> u16 {
        let known = self.nodes.iter().position(|known| known == node);
        let number = known.unwrap_or_else(|| {
            self.nodes.push(node.to_owned());
            self.nodes.len().saturating_sub(1)
        });
        u16::try_from(number).unwrap_or(NONE)
    }
}

/// A node in an answer; where it names no host, it means the host that was asked.
fn node_of(asked: &str, node: Value) -> Option<String> {
    let Value::Array(parts) = node else { return None };
    let mut parts = parts.into_iter();
    let host = match parts.next()? {
        Value::Nil => String::new(),
        Value::BulkString(host) => String::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        _ => return None,
    };
    let Value::Int(port) = parts.next()? else { return None };
    let host = match host.as_str() {
        "" | "?" => asked.rsplit_once(':').map_or(asked, |(host, _)| host),
        host => host,
    };
    Some(format!("{host}:{port}"))
}

/// `host:port` of an address.
pub(crate) fn address(address: &ConnectionAddr) -> Option<String> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(format!("{host}:{port}"))
        }
        _ => None,
    }
}

/// The slot of a key: that of its part in braces, where it has one.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = || {
        let begin = key.iter().position(|byte| *byte == b'{')?.saturating_add(1);
        let rest = key.get(begin..)?;
        let end = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..end).filter(|tag| !tag.is_empty())
    };
    slot(tag().unwrap_or(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: i64) -> Value {
        let host = match host {
            "" => Value::Nil,
            host => Value::BulkString(host.as_bytes().to_vec()),
        };
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())])
    }

    #[test]
    fn slots_are_of_the_part_in_braces() {
        // As CLUSTER KEYSLOT says.
        for (key, slot) in [("foo", 12_182), ("a{foo}b", 12_182), ("{foo}{bar}", 12_182)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        for whole in ["a{}foo", "a{foo", "a}foo{"] {
            assert_eq!(slot_of(whole.as_bytes()), slot(whole.as_bytes()), "{whole}");
        }
    }

    #[test]
    fn r40_an_answer_to_cluster_slots_is_read_or_refused() {
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let answer = Value::Array(vec![
            range(0, 99, vec![node("h1", 1), node("h2", 2)]),
            range(100, 16_383, vec![node("", 3)]),
        ]);
        let slots = Slots::read("asked:7", answer).unwrap();
        let owner = |slots: &Slots, slot| slots.owner(slot).unwrap_or_default();
        assert_eq!(owner(&slots, 99), "h1:1");
        assert_eq!(owner(&slots, 100), "asked:3");
        assert_eq!(slots.nodes().count(), 3);
        let moved = slots.with(99, "h9:9");
        assert_eq!((owner(&moved, 99).as_str(), owner(&moved, 98).as_str()), ("h9:9", "h1:1"));
        assert_eq!(owner(&slots, 99), "h1:1");
        assert_eq!(Slots::default().owner(5), None);
        for wrong in [
            Value::Int(1),
            Value::Array(vec![range(0, 16_384, vec![node("h", 1)])]),
            Value::Array(vec![range(-1, 5, vec![node("h", 1)])]),
            Value::Array(vec![range(0, 5, vec![Value::Nil])]),
        ] {
            assert!(Slots::read("asked:7", wrong.clone()).is_err(), "{wrong:?}");
        }
    }
}
