//! Dead letters of a broken store.

use quell_core::{
    DeadFilter, DeadLetter, Imported, Job, JobId, Origin, Past, Result, Store, Timestamp,
};

use super::bug::Bug;
use super::store::Broken;

impl Broken {
    pub(super) async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        let mut filter = filter.clone();
        if self.bug == Bug::ListsAllTheDead {
            filter.error = None;
        }
        self.inner.dead(&filter).await
    }

    pub(super) async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        let mut letters = self.inner.letters(ids).await?;
        match self.bug {
            Bug::ForgetsTheOriginal => {
                letters.iter_mut().for_each(|one| one.past = Past::default())
            }
            Bug::ForgetsAttemptsAtRedrive => letters.iter_mut().for_each(|one| {
                let first = one.job.starts().saturating_sub(u64::from(one.job.attempt));
                one.attempts.retain(|attempt| attempt.token.starts() > first);
            }),
            _ => {}
        }
        Ok(letters)
    }

    pub(super) async fn discard(
        &self,
        now: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        if self.bug == Bug::DiscardsTheLiving {
            for id in ids {
                self.inner.cancel(now, *id, reason).await.ok();
            }
        }
        self.inner.discard(now, ids, reason).await
    }

    pub(super) async fn import_dead(
        &self,
        now: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        let mut letters = letters.to_vec();
        if self.bug == Bug::ImportsTwice {
            let nth = self.odd(|odd| {
                odd.triggers += 1;
                odd.triggers
            });
            for letter in &mut letters {
                let Origin { job, first_at } = letter.origin();
                let job = JobId::new(job.get() + 1_000 * nth);
                letter.past.origin = Some(Origin { job, first_at });
            }
        }
        self.inner.import_dead(now, &letters).await
    }
}
