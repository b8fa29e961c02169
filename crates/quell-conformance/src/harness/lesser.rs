//! A store that claims less than the one inside it, and keeps to that.
//!
//! It shows a store author what lacking a capability means, and tests of clients and workers what
//! they meet on such a store.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use quell_core::{
    Answer, Batch, Capabilities, EndNotification, Error, JobId, Now, Operation, QueueName, Receipt,
    Result, Store, TaskName, Wakeups, lacks,
};

use crate::Capability;

/// The triggers of a batch that a store takes without the capability of large ones.
const LARGEST_BATCH: usize = 200;

/// The bytes of an edit that it takes beside the job's own payload.
const LONGEST_EDIT: usize = 1 << 20;

/// Hides capabilities of a store and does without them as `Capabilities` documents.
///
/// ```
/// use quell_conformance::{Capability, Lesser};
/// use quell_core::{MemoryStore, Store, Timestamp};
///
/// let whole = MemoryStore::new(Timestamp::from_secs(0));
/// let lesser = Lesser::new(whole, &[Capability::Dedup, Capability::Push]);
/// assert!(!lesser.capabilities().dedup && lesser.capabilities().listing);
/// ```
#[derive(Debug)]
pub struct Lesser<S> {
    inner: S,
    claims: Capabilities,
    /// The queues that tasks with keys keep to.
    kept_to: Mutex<BTreeMap<TaskName, QueueName>>,
}

impl<S: Store> Lesser<S> {
    /// The store without these.
    #[must_use]
    pub fn new(inner: S, without: &[Capability]) -> Self {
        let claims = inner.capabilities();
        let claims = without.iter().fold(claims, |claims, hidden| hidden.hidden(claims));
        Lesser { inner, claims, kept_to: Mutex::default() }
    }

    /// A refusal, unless the capability is claimed.
    fn needs(&self, capability: Capability, cure: &str) -> Result<()> {
        if capability.is_claimed(&self.claims) {
            return Ok(());
        }
        Err(lacks(capability.name(), cure))
    }

    /// Whether a batch is of one queue, and that its tasks' own where they have keys.
    fn keeps_to_queues(&self, batch: &Batch) -> Result<()> {
        let mut kept_to = self.kept_to.lock().unwrap_or_else(PoisonError::into_inner);
        let first = batch.triggers.first().map(|trigger| &trigger.queue);
        for trigger in &batch.triggers {
            if first != Some(&trigger.queue) {
                self.needs(Capability::AcrossQueues, "make one batch for each queue")?;
            }
            if trigger.has_key() || batch.dedup.is_some() {
                let own = kept_to.entry(trigger.task.clone()).or_insert(trigger.queue.clone());
                if *own != trigger.queue {
                    let cure = format!("trigger task {} in queue {own}", trigger.task);
                    self.needs(Capability::AcrossQueues, &cure)?;
                }
            }
        }
        Ok(())
    }
}

impl<S: Store> Lesser<S> {
    async fn enqueue_less(
        &self,
        now: Now,
        mut batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        if batches.iter().any(Batch::asks_dedup) {
            self.needs(Capability::Dedup, "leave the dedup key out or change stores")?;
        }
        if batches.iter().any(Batch::asks_idempotency) {
            self.needs(Capability::Dedup, "leave the idempotency key out or change stores")?;
        }
        if !self.claims.priorities {
            let triggers = batches.iter_mut().flat_map(|batch| &mut batch.triggers);
            triggers.for_each(|trigger| trigger.priority = 0);
        }
        let refuses = |batch: &Batch| {
            if batch.triggers.len() > LARGEST_BATCH {
                self.needs(Capability::LargeBatches, "make several batches of it")?;
            }
            if self.claims.across_queues { Ok(()) } else { self.keeps_to_queues(batch) }
        };
        let refused: Vec<Option<Error>> =
            batches.iter().map(|batch| refuses(batch).err()).collect();
        let mut kept = refused.iter().map(Option::is_none);
        batches.retain(|_| kept.next().unwrap_or(false));
        let mut accepted = self.inner.enqueue(now, batches).await?.into_iter();
        let answers = refused.into_iter().map(|refused| match refused {
            Some(error) => Some(Err(error)),
            None => accepted.next(),
        });
        Ok(answers.flatten().collect())
    }

    /// What it refuses, and what it leaves out of what is asked.
    fn less(&self, operation: &mut Operation) -> Result<()> {
        match operation {
            Operation::SetQueue { settings, .. } | Operation::ReplaceQueue { settings, .. }
                if settings.limits_concurrency() || settings.limits_rate() =>
            {
                self.needs(Capability::ExactLimits, "limit the workers of the queue instead")?;
            }
            Operation::Jobs { .. }
            | Operation::Counts {}
            | Operation::Dead { .. }
            | Operation::CountDead { .. }
            | Operation::Unreadable { .. } => {
                self.needs(Capability::Listing, "ask for a job by its id")?;
            }
            Operation::Redrive { redrive }
                if redrive
                    .payload
                    .as_ref()
                    .is_some_and(|edit| edit.as_str().len() > LONGEST_EDIT) =>
            {
                self.needs(Capability::LargeBatches, "keep large payloads elsewhere")?;
            }
            Operation::Overview {} => {
                self.needs(Capability::Listing, "look at a job by its id")?;
            }
            Operation::SetSchedule { schedule } => {
                self.keeps_to_queues(&Batch::one(schedule.trigger.clone()))?;
                if schedule.trigger.dedup.is_some() {
                    self.needs(Capability::Dedup, "leave the dedup key out or change stores")?;
                }
                if !self.claims.priorities {
                    schedule.trigger.priority = 0;
                }
            }
            Operation::Adjust { adjustment, .. } if !self.claims.priorities => {
                adjustment.priority = adjustment.priority.and(Some(0));
            }
            Operation::ImportDead { exports } if !self.claims.priorities => {
                exports.iter_mut().for_each(|export| export.job.priority = 0);
            }
            _ => {}
        }
        Ok(())
    }
}

#[async_trait]
impl<S: Store> Store for Lesser<S> {
    fn capabilities(&self) -> Capabilities {
        self.claims
    }

    async fn call(&self, now: Now, mut operation: Operation) -> Result<Answer> {
        self.less(&mut operation)?;
        match operation {
            Operation::Enqueue { batches } => {
                self.enqueue_less(now, batches).await.map(Answer::Enqueue)
            }
            operation => self.inner.call(now, operation).await,
        }
    }

    fn wakeups(&self) -> Wakeups {
        // Silent and not ended: a stream ends with its store.
        if self.claims.push {
            self.inner.wakeups()
        } else {
            Box::pin(futures_util::stream::pending())
        }
    }

    fn transaction_committed(&self) {
        self.inner.transaction_committed();
    }

    fn ended(&self, job: JobId) -> EndNotification {
        if self.claims.push {
            self.inner.ended(job)
        } else {
            Box::pin(futures_util::future::pending())
        }
    }
}
