//! Dead letters (R25, R26).

use std::collections::BTreeSet;

use async_trait::async_trait;
use quell_core::part::Part;
use quell_core::{
    DeadFilter, DeadLetter, DeadLetters, Imported, Job, JobId, JobState, Result, Timestamp,
};

use crate::look::{Score, job_of};
use crate::pace::TRIES;
use crate::portions::{Order, Walk};
use crate::read::CHUNK;
use crate::shard::Time;
use crate::store::ShardStore;
use crate::store::step;
use crate::tx::{Cell, Committed, Tx, contended};
use crate::write::{number, origin_field};

impl ShardStore {
    /// Walks the dead that died in the filter's time, the latest death first, until `take` has
    /// enough.
    async fn walk_dead(
        &self,
        filter: &DeadFilter,
        mut take: impl FnMut(Job) -> bool,
    ) -> Result<()> {
        let before = filter.before.map(|place| place.died_at);
        let to = match (filter.died_before, before) {
            (Some(a), Some(b)) => Score::At(a.min(b)),
            (Some(at), None) | (None, Some(at)) => Score::At(at),
            (None, None) => Score::Max,
        };
        let mut walk = Walk::new(self.shard.keys.dead(), Order::Highest, to);
        // A page is mostly found among the first ones.
        let mut limit = filter.page().min(CHUNK);
        while let Some(members) = walk.next(&self.shard, "list the dead", limit).await? {
            limit = limit.saturating_mul(2).min(CHUNK);
            let is_in_time = |at: &Timestamp| filter.died_after.is_none_or(|after| *at >= after);
            let of_time = members.iter().take_while(|(_, at)| is_in_time(at));
            let ids: Result<Vec<JobId>> = of_time.map(|(member, _)| job_of(member)).collect();
            let ids = ids?;
            for job in self.read_jobs(&ids).await? {
                if filter.matches(&job) && !take(job) {
                    return Ok(());
                }
            }
            if ids.len() < members.len() {
                break;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl DeadLetters for ShardStore {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        let mut page = Vec::new();
        self.walk_dead(filter, |job| {
            page.push(job);
            page.len() < filter.page()
        })
        .await?;
        Ok(page)
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        let all = DeadFilter { before: None, ..filter.clone() };
        let by_counts =
            all.error.is_none() && all.died_after.is_none() && all.died_before.is_none();
        if by_counts {
            let counts = self.read_counts().await?.into_iter().filter(|counts| {
                counts.state == JobState::Dead
                    && all.task.as_ref().is_none_or(|task| *task == counts.task)
                    && all.queue.as_ref().is_none_or(|queue| *queue == counts.queue)
            });
            return Ok(counts.map(|counts| counts.jobs).fold(0, u64::saturating_add));
        }
        let mut count = 0_u64;
        self.walk_dead(&all, |_| {
            count = count.saturating_add(1);
            true
        })
        .await?;
        Ok(count)
    }

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        let ids: Vec<JobId> = ids.iter().copied().take(DeadFilter::MAX_PAGE).collect();
        let mut tx = Tx::begin(&self.shard, (Time::Last, false), 0, 0).await?;
        tx.load_whole(&ids).await?;
        let letters = |part: Part| ids.iter().filter_map(|id| part.letter(*id)).collect();
        tx.view().map(letters).ok_or_else(|| contended("read dead letters"))
    }

    async fn discard(
        &self,
        now: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        Ok(step!(self, "discard dead jobs", (now.into(), 0), |tx| {
            tx.load_whole(ids).await?;
            let aside = tx.load_aside(ids).await?;
            tx.step(|part| {
                let mut gone: BTreeSet<JobId> = part.discard(ids, reason).into_iter().collect();
                gone.extend(&aside);
                ids.iter().copied().filter(|id| gone.remove(id)).collect()
            })
        }))
    }

    async fn import_dead(
        &self,
        now: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        Ok(step!(self, "import dead letters", (now.into(), letters.len()), |tx| {
            tx.load_for_letters(letters).await?;
            tx.step(|part| part.import_dead(letters))
        }))
    }
}

impl Tx<'_> {
    /// Loads the jobs that letters were, or became, here.
    async fn load_for_letters(&mut self, letters: &[DeadLetter]) -> Result<()> {
        let key = self.shard.keys.origins();
        let fields: BTreeSet<String> =
            letters.iter().map(|letter| origin_field(&letter.origin())).collect();
        let cells = fields.iter().map(|field| Cell::new(key.clone(), field.as_str())).collect();
        self.fetch(cells, Vec::new()).await?;
        let became = fields.iter().filter_map(|field| self.cell(key.clone(), field));
        let became: Vec<JobId> = became.filter_map(number).map(JobId::new).collect();
        self.load_whole(&became).await?;
        self.load_jobs(letters.iter().map(|letter| letter.origin().job)).await?;
        let keyed = letters
            .iter()
            .filter_map(|letter| Some((letter.job.task.clone(), letter.job.key.clone()?)));
        self.load_keys(&keyed.collect(), &[]).await?;
        let names =
            letters.iter().map(|letter| (letter.job.queue.clone(), letter.job.task.clone()));
        self.take_settings(names);
        Ok(())
    }
}
