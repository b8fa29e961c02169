//! A whole trace in memory, in the order of time: 16 bytes for each event, each key once, and the
//! payloads only where the source keeps them.

use std::collections::HashMap;
use std::num::NonZeroU32;

use anyhow::anyhow;
use quell_core::{Key, Payload, Timestamp};

use super::{Events, Source};
use crate::error::{Result, without_field};

/// The index of an event's key among [`Trace::keys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyIndex(NonZeroU32);

impl KeyIndex {
    /// The position in [`Trace::keys`], from 0.
    #[must_use]
    pub fn position(self) -> usize {
        // Made from an index of a vector, so it fits one.
        usize::try_from(self.0.get() - 1).unwrap_or(usize::MAX)
    }

    fn of_position(position: usize) -> Option<KeyIndex> {
        u32::try_from(position + 1).ok().and_then(NonZeroU32::new).map(KeyIndex)
    }
}

/// One event of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened.
    pub at: Timestamp,
    /// Its key; `None` for an event that is not debounced (R9).
    pub key: Option<KeyIndex>,
    /// Its place in the file, from 0.
    row: u32,
}

/// The events of a source, by time; those of one instant in the order of the file.
#[derive(Debug)]
pub struct Trace {
    events: Vec<Event>,
    keys: Vec<Key>,
    payloads: Vec<Payload>,
}

impl Trace {
    /// Reads a whole source.
    ///
    /// # Errors
    /// A file that cannot be read, that has no events or lacks the time's column, and the first row
    /// that cannot be read. [`Error::field`](crate::Error::field) is `time` or `key` where the
    /// column or the function of the source is at fault.
    pub fn read(source: &Source) -> Result<Trace> {
        let mut trace = Trace { events: Vec::new(), keys: Vec::new(), payloads: Vec::new() };
        let mut known: HashMap<Key, KeyIndex> = HashMap::new();
        for (row, event) in Events::open(source)?.enumerate() {
            let event = event?;
            let row = u32::try_from(row).map_err(|_| too_many("events"))?;
            trace.payloads.extend(event.payload);
            let key = event.key.map(|key| trace.index(&mut known, key)).transpose()?;
            trace.events.push(Event { at: event.at, key, row });
        }
        if trace.events.is_empty() {
            return Err(without_field(anyhow!("{} has no events", source.file().display())));
        }
        if !trace.events.is_sorted_by_key(|event| event.at) {
            trace.events.sort_by_key(|event| event.at);
        }
        Ok(trace)
    }

    fn index(&mut self, known: &mut HashMap<Key, KeyIndex>, key: Key) -> Result<KeyIndex> {
        if let Some(index) = known.get(&key) {
            return Ok(*index);
        }
        let index = KeyIndex::of_position(self.keys.len()).ok_or_else(|| too_many("keys"))?;
        self.keys.push(key.clone());
        known.insert(key, index);
        Ok(index)
    }

    /// The events, by time; there is at least one.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The different keys, in the order of their first event in the file.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The key of an event.
    #[must_use]
    pub fn key(&self, event: &Event) -> Option<&Key> {
        event.key.and_then(|index| self.keys.get(index.position()))
    }

    /// The payload of an event; `None` where the source did not keep payloads.
    #[must_use]
    pub fn payload(&self, event: &Event) -> Option<&Payload> {
        self.payloads.get(usize::try_from(event.row).ok()?)
    }
}

fn too_many(what: &str) -> crate::Error {
    without_field(anyhow!("more than {} {what}, the limit: split the file", u32::MAX))
}
