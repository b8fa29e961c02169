//! Hot paths: what a backend does in fewer round trips than a step of the engine.
//!
//! Invariant: the engine's steps take what the backend declines, of every call.

use std::borrow::Cow;
use std::future::Future;

use quell_core::part::Notifications;
use quell_core::store::SettledAnswers;
use quell_core::{
    Batch, Claim, Claimed, Error, ErrorKind, JobId, Now, Receipt, Result, Settled, SettledAs,
    Settlement, unreadable,
};
use tracing::warn;

use crate::backend::{Backend, Part, Taken};
use crate::engine::{Engine, halves};
use crate::moves::{CHANGES_OF_A_START, CHANGES_OF_AN_END};
use crate::step::{Windows, is_too_large, is_too_much};

/// The answer to each batch of a call, once it is there.
type Answers = Vec<Option<Result<Vec<Receipt>>>>;

impl<B: Backend> Engine<B> {
    /// Takes a hot path, again after a row that cannot be decoded was set aside (R25). None where the
    /// backend declines.
    pub(crate) async fn hot<A, F>(&self, call: impl Fn() -> F + Sync) -> Result<Option<A>>
    where
        F: Future<Output = Taken<A>> + Send,
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

    /// Accepts batches, each whole or not at all: what the backend leaves goes by steps.
    pub(crate) async fn accept_each(
        &self,
        now: Now,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let parts = self.backend.parts(&batches);
        if parts.iter().all(|part| !part.is_hot) {
            return self.accept(now, &batches).await;
        }
        let mut answers: Answers = batches.iter().map(|_| None).collect();
        for part in parts {
            if let Err(error) = self.accept_part(now, &batches, &part, &mut answers).await {
                if answers.iter().all(Option::is_none) {
                    return Err(error);
                }
                // What was accepted stays so: the rest is refused by itself.
                answers.iter_mut().for_each(|answer| {
                    answer.get_or_insert_with(|| Err(error.share()));
                });
                break;
            }
        }
        let lost = || Error::new(ErrorKind::Internal, "an answer to a batch is missing");
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(lost()))).collect())
    }

    /// Accepts a part of a call.
    async fn accept_part(
        &self,
        now: Now,
        batches: &[Batch],
        part: &Part,
        answers: &mut Answers,
    ) -> Result<()> {
        let own: Cow<'_, [Batch]> = if part.batches.len() == batches.len() {
            batches.into()
        } else {
            part.batches.iter().filter_map(|place| batches.get(*place)).cloned().collect()
        };
        let (mut places, mut own) = (part.batches.as_slice(), &own[..]);
        while !places.is_empty() {
            let taken = match part.is_hot {
                true => self.hot(|| self.backend.hot_enqueue_some(now, own)).await?,
                false => None,
            };
            let looked_at = taken.as_ref().map_or(places.len(), |taken| taken.len().max(1));
            let looked_at = looked_at.min(places.len()).min(own.len());
            let ((next, rest), (offered, others)) =
                (places.split_at(looked_at), own.split_at(looked_at));
            (places, own) = (rest, others);
            let taken =
                taken.unwrap_or_default().into_iter().chain(std::iter::repeat_with(|| None));
            let mut left: Vec<(usize, Batch)> = Vec::new();
            for ((place, batch), answer) in next.iter().zip(offered).zip(taken) {
                match (answer, answers.get_mut(*place)) {
                    (Some(answer), Some(place)) => *place = Some(answer),
                    _ => left.push((*place, batch.clone())),
                }
            }
            if left.is_empty() {
                continue;
            }
            let (left_places, left): (Vec<usize>, Vec<Batch>) = left.into_iter().unzip();
            for (place, answer) in left_places.into_iter().zip(self.accept(now, &left).await?) {
                if let Some(place) = answers.get_mut(place) {
                    *place = Some(answer);
                }
            }
        }
        Ok(())
    }

    /// Starts due jobs: those that the backend leaves by steps, as many at once as it takes.
    pub(crate) async fn claim_each(&self, now: Now, claim: &Claim) -> Result<Claimed> {
        let taken = self.hot(|| self.backend.hot_claim_some(now, claim)).await;
        for error in self.backend.met_unreadable() {
            // What has started must be handed out: where this fails, the reaper sets the job aside.
            if let Err(failed) = Box::pin(self.set_aside(&error)).await {
                warn!(error = %failed, "an unreadable job could not be set aside");
            }
        }
        let mut claimed = match taken? {
            Some((some, false)) => return Ok(some),
            Some((some, true)) => Some(some),
            None => None,
        };
        let mut most = self.share(CHANGES_OF_A_START);
        loop {
            let jobs = claimed.as_ref().map_or(0, |claimed| claimed.jobs.len());
            let limit = most.min(claim.limit.saturating_sub(jobs));
            let now = claimed.as_ref().map(|claimed| claimed.now).or(now);
            let some = match self.start(now, &Claim { limit, ..claim.clone() }).await {
                Ok(some) => some,
                Err(error) if is_too_large(&error) && most > 1 => {
                    most /= 2;
                    continue;
                }
                // They have started: where what comes next is unknown, the worker looks at once.
                Err(error) => return claimed.ok_or(error).map(Claimed::again),
            };
            let is_last = some.jobs.len() < limit || limit == 0;
            let all = match claimed.take() {
                Some(mut all) => {
                    all.jobs.extend(some.jobs);
                    Claimed { next: some.next, ..all }
                }
                None => some,
            };
            if is_last || all.jobs.len() >= claim.limit {
                return Ok(all);
            }
            claimed = Some(all);
        }
    }

    /// Ends attempts: those that the backend leaves by steps.
    ///
    /// # Errors
    /// Those of the operation. What has ended by then is kept: the caller makes the whole call again.
    pub(crate) async fn settle_each(
        &self,
        now: Now,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        let mut settled = self.answers.take(&settlements);
        let kept = settled.iter().flatten().filter(|one| one.became == SettledAs::Succeeded);
        let ended: Vec<JobId> = kept.map(|one| one.lease.job).collect();
        if !ended.is_empty() {
            // Whether anyone was notified of these is unknown.
            self.spread(Notifications { ended, ..Notifications::default() });
        }
        let mut new = Vec::with_capacity(settlements.len());
        let done =
            self.settle_new(now, SettledAnswers::unanswered(settlements, &settled), &mut new).await;
        SettledAnswers::fill(&mut settled, new.into_iter().flatten());
        if let Err(error) = done {
            // By their leases: those after a missing one are not in their places.
            self.answers.keep(settled.iter().flatten());
            return Err(error);
        }
        let settled: Option<Vec<Settled>> = settled.into_iter().collect();
        settled.ok_or_else(|| Error::new(ErrorKind::Internal, "fewer answers than ends"))
    }

    /// Ends attempts in their order. `settled` has their answers; where it fails, some are missing.
    async fn settle_new(
        &self,
        now: Now,
        mut left: Vec<Settlement>,
        settled: &mut Vec<Option<Settled>>,
    ) -> Result<()> {
        while !left.is_empty() {
            let taken = self.hot(|| self.backend.hot_settle(now, &left)).await?;
            let mut some = taken.unwrap_or_else(|| vec![None; left.len()]);
            some.resize(some.len().clamp(1, left.len()), None);
            let rest = left.split_off(some.len());
            let by_steps = SettledAnswers::unanswered(left, &some);
            let mut ended = Vec::with_capacity(by_steps.len());
            let done = self.settle_all(now, &by_steps, &mut ended).await;
            SettledAnswers::fill(&mut some, ended);
            settled.append(&mut some);
            done?;
            left = rest;
        }
        Ok(())
    }

    /// Ends attempts by steps, as many at once as the backend takes. `settled` has the answers; where it
    /// fails, those of the first.
    async fn settle_all(
        &self,
        now: Now,
        settlements: &[Settlement],
        settled: &mut Vec<Settled>,
    ) -> Result<()> {
        let most = self.share(CHANGES_OF_AN_END);
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
        Ok(())
    }
}
