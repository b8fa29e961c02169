//! The stamp witness: coverage shown from outside, for any queue (P2, P3).
//!
//! Per key there is a counter that the queue does not know. A caller raises it and triggers; a
//! handler reads it first thing. If a run that ended well read at least what was accepted last,
//! nothing was lost.

use std::collections::BTreeMap;

use quell_core::history::Event;

use super::{Book, Found, Line, Property};

/// What was accepted and what was read, by key.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    stamps: BTreeMap<(String, u64), (String, u64, usize)>,
    accepted: BTreeMap<String, (u64, usize)>,
    made: BTreeMap<String, u64>,
    runs: BTreeMap<(String, u64), (String, u64)>,
    read: BTreeMap<String, u64>,
}

impl Property for Stamps {
    fn on(&mut self, _: &Book, at: usize, line: &Line, found: &mut Found) {
        match &line.event {
            Event::Stamp { op, key, value } => {
                self.stamps.insert((line.p.clone(), *op), (key.clone(), *value, at));
                let made = self.made.entry(key.clone()).or_default();
                *made = (*made).max(*value);
            }
            Event::StampOk { op } => {
                let Some((key, value, _)) = self.stamps.get(&(line.p.clone(), *op)) else {
                    let message = format!("call {op} was accepted and never made");
                    found.broken("P3", [at], message);
                    return;
                };
                let accepted = self.accepted.entry(key.clone()).or_insert((*value, at));
                *accepted = (*accepted).max((*value, at));
            }
            Event::Read { run, key, value } => {
                if *value > self.made.get(key).copied().unwrap_or(0) && line.n.is_some() {
                    let message =
                        format!("a run read {value} of {key}, which no caller had stamped");
                    found.broken("P3", [at], message);
                }
                self.runs.insert((line.p.clone(), *run), (key.clone(), *value));
            }
            Event::ReadOk { run } => {
                if let Some((key, value)) = self.runs.get(&(line.p.clone(), *run)) {
                    let read = self.read.entry(key.clone()).or_default();
                    *read = (*read).max(*value);
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Book, _: &[Line], found: &mut Found) {
        for (key, (value, at)) in &self.accepted {
            let read = self.read.get(key).copied().unwrap_or(0);
            if read >= *value {
                found.holds("P2");
            } else {
                let lost =
                    format!("{key} was stamped {value}, but no good run read more than {read}");
                found.broken("P2", [*at], lost);
            }
        }
    }
}
