//! Claims that met attempts whose ends stand behind them, and yet came first.
//!
//! Where each process estimates the store's time by itself, as on Azure Table Storage, one that is
//! behind may start a job and give it an earlier time than another process gave the end before it.
//! The host's clock decides then: an attempt whose end was asked for before the claim was committed
//! may have ended first.
//!
//! Of calls that one process made at once, the later line may have the earlier time: then it stands
//! behind the other, and a claim of another process before it. Store time decides there.

use std::collections::BTreeSet;

use quell_core::history::Event;
use quell_core::{JobId, LeaseToken, SettledAs, Timestamp};

use super::{Book, Found, Line};

const EXCUSE: &str =
    "an attempt ended while the claim was made, and each process estimates the time";

/// Claims that broke a property unless attempts ended before them.
#[derive(Debug, Default)]
pub(super) struct Doubts(Vec<Doubt>);

/// A claim that met attempts which ran.
#[derive(Debug)]
pub(super) struct Doubt {
    pub(super) property: &'static str,
    /// The claim's store time.
    pub(super) t: Timestamp,
    /// When the claim had committed, at the latest.
    pub(super) done: Timestamp,
    /// The attempts that ran.
    pub(super) running: BTreeSet<(JobId, LeaseToken)>,
    /// How many of them must have ended.
    pub(super) ends: usize,
    pub(super) shown: Vec<usize>,
    pub(super) message: String,
}

impl Doubts {
    /// Takes what may turn out to be no violation, unless it is excused; where one recorder wrote all it is one.
    pub(super) fn unless(
        &mut self,
        excuse: Option<String>,
        doubt: Doubt,
        book: &Book,
        found: &mut Found,
    ) {
        if let Some(why) = excuse {
            found.cannot(doubt.property, why);
        } else if book.slack.is_zero() {
            found.broken(doubt.property, doubt.shown, doubt.message);
        } else {
            self.0.push(doubt);
        }
    }

    /// Looks for the ends of attempts.
    pub(super) fn on(&mut self, book: &Book, line: &Line, found: &mut Found) {
        let (ended, of) = match &line.event {
            Event::Settle { became: SettledAs::Refused, .. } => return,
            Event::Settle { job, token, .. } | Event::Expire { job, token, .. } => {
                (*job, Some(*token))
            }
            Event::Cancel { job, .. } => (*job, None),
            _ => return,
        };
        let Some(t) = line.event.at() else { return };
        let asked = line.c.unwrap_or(t);
        self.0.retain_mut(|doubt| {
            let is_it = |(job, token): &(JobId, LeaseToken)| {
                *job == ended && of.is_none_or(|of| of == *token)
            };
            let before = doubt.running.len();
            if t < doubt.t || book.estimated && asked < doubt.done {
                doubt.running.retain(|one| !is_it(one));
            }
            doubt.ends = doubt.ends.saturating_sub(before - doubt.running.len());
            match (doubt.ends, t < doubt.t) {
                (0, true) => found.holds(doubt.property),
                (0, false) => found.cannot(doubt.property, EXCUSE),
                _ => {}
            }
            doubt.ends > 0
        });
    }

    pub(super) fn finish(&mut self, found: &mut Found) {
        for doubt in std::mem::take(&mut self.0) {
            found.broken(doubt.property, doubt.shown, doubt.message);
        }
    }
}
