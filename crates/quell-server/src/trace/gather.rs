//! A whole trace in memory, in the order of time: 16 bytes per event, each key once, and the
//! payloads only where they are wanted.

use std::collections::HashMap;
use std::num::NonZeroU32;

use anyhow::{Context, Result, ensure};
use quell_core::{Key, Payload, Timestamp};

use super::{Events, TraceArgs};

/// Which of a trace's keys an event has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyIndex(NonZeroU32);

impl KeyIndex {
    /// Its place among the trace's keys, from 0.
    #[must_use]
    pub fn position(self) -> usize {
        // Made from an index of a vector, so it fits one.
        usize::try_from(self.0.get() - 1).unwrap_or(usize::MAX)
    }

    fn of_position(position: usize) -> Option<KeyIndex> {
        u32::try_from(position + 1).ok().and_then(NonZeroU32::new).map(KeyIndex)
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened.
    pub at: Timestamp,
    /// Its key; none for one that is not debounced (R9).
    pub key: Option<KeyIndex>,
    /// Its place in the file, from 0.
    row: u32,
}

/// What is kept of each event besides its time and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Times,
    /// Its payload.
    Payloads,
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
    /// The first row that cannot be read, or that there is none.
    pub fn read(args: &TraceArgs, keep: Keep) -> Result<Trace> {
        let mut trace = Trace { events: Vec::new(), keys: Vec::new(), payloads: Vec::new() };
        let mut known: HashMap<Key, KeyIndex> = HashMap::new();
        for (row, event) in Events::open(args)?.enumerate() {
            let event = event?;
            let row = u32::try_from(row).context("more events than 4 billion: split the file")?;
            if keep == Keep::Payloads {
                trace.payloads.push(event.payload());
            }
            let key = event.key.map(|key| trace.index(&mut known, key)).transpose()?;
            trace.events.push(Event { at: event.at, key, row });
        }
        ensure!(!trace.events.is_empty(), "{} has no events", args.file.display());
        if !trace.events.is_sorted_by_key(|event| event.at) {
            trace.events.sort_by_key(|event| event.at);
        }
        Ok(trace)
    }

    fn index(&mut self, known: &mut HashMap<Key, KeyIndex>, key: Key) -> Result<KeyIndex> {
        if let Some(index) = known.get(&key) {
            return Ok(*index);
        }
        let index = KeyIndex::of_position(self.keys.len());
        let index = index.context("more keys than 4 billion: split the file")?;
        self.keys.push(key.clone());
        known.insert(key, index);
        Ok(index)
    }

    /// The events, by time.
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

    /// The payload of an event; none where payloads were not kept.
    #[must_use]
    pub fn payload(&self, event: &Event) -> Option<&Payload> {
        self.payloads.get(usize::try_from(event.row).ok()?)
    }
}
