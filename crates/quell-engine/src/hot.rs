//! Hot paths: what a backend does in fewer round trips than a step of the engine.
//!
//! Invariant: a hot path is taken whole or not at all; the engine takes every operation that the backend
//! declines.

use std::future::Future;

use quell_core::{Result, Settled, Settlement, Timestamp, unreadable};

use crate::backend::{Backend, Taken};
use crate::engine::{CHANGES_OF_AN_END, Engine, halves};
use crate::step::{Windows, is_too_much};

impl<B: Backend> Engine<B> {
    /// Takes a hot path, again after a row that cannot be decoded was set aside (R25). None where the
    /// backend declines.
    pub(crate) async fn hot<A, F>(&self, call: impl Fn() -> F + Sync) -> Result<Option<A>>
    where
        F: Future<Output = Result<Taken<A>>> + Send,
    {
        let mut rows_set_aside = 0;
        loop {
            let error = match call().await {
                Ok(taken) => {
                    let Some((answer, news)) = taken else { return Ok(None) };
                    self.spread(news);
                    return Ok(Some(answer));
                }
                Err(error) => error,
            };
            rows_set_aside += 1;
            let may_try = rows_set_aside <= unreadable::MAX_PER_CALL;
            // Seldom, and a future too large to be a part of each call's.
            if !(may_try && Box::pin(self.set_aside(&error)).await?) {
                return Err(error);
            }
        }
    }

    /// Ends attempts, as many at once as the backend takes.
    pub(crate) async fn settle_all(
        &self,
        now: Option<Timestamp>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let most = self.share(CHANGES_OF_AN_END);
        let mut settled = Vec::with_capacity(settlements.len());
        let mut left: Vec<&[Settlement]> = settlements.chunks(most).rev().collect();
        while let Some(next) = left.pop() {
            match self.end(now, next, Windows::Together).await {
                Err(error) if is_too_much(&error) && next.len() > 1 => {
                    left.extend(halves(next).into_iter().rev());
                }
                Err(error) if is_too_much(&error) => {
                    settled.extend(self.end(now, next, Windows::Apart).await?);
                }
                other => settled.extend(other?),
            }
        }
        Ok(settled)
    }
}
