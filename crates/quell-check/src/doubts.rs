//! Ends of attempts that a store's time may place after claims which they made room for.
//!
//! Where each process estimates the store's time by itself, as on Azure Table Storage, one that is
//! behind may start a job and give it an earlier time than another process gave the end before it.
//! The host's clock decides then: an attempt whose end was asked for before the claim was committed
//! may have ended first.

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
    /// Takes what may turn out to be no violation; where one clock counts it is one.
    pub(super) fn add(&mut self, book: &Book, doubt: Doubt, found: &mut Found) {
        if book.estimated && !book.slack.is_zero() {
            self.0.push(doubt);
        } else {
            found.broken(doubt.property, doubt.shown, doubt.message);
        }
    }

    /// Looks for the ends of attempts.
    pub(super) fn on(&mut self, line: &Line, found: &mut Found) {
        let ended = match &line.event {
            Event::Settle { became: SettledAs::Refused, .. } => return,
            Event::Settle { job, token, .. } | Event::Expire { job, token, .. } => (*job, *token),
            _ => return,
        };
        let Some(asked) = line.c.or(line.event.at()) else { return };
        self.0.retain_mut(|doubt| {
            if asked < doubt.done && doubt.running.remove(&ended) {
                doubt.ends = doubt.ends.saturating_sub(1);
            }
            if doubt.ends == 0 {
                found.cannot(doubt.property, EXCUSE);
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
