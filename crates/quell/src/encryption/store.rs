//! A store that has ciphertext, for clients that see plain documents.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::effect::EffectStart;
use quell_core::envelope::Envelope;
use quell_core::{
    Answer, AttemptOutcome, Capabilities, Claim, Claimed, ClaimedJob, DeadExport, Draw, Effect,
    EffectName, EndNotification, Failure, FailureKind, Job, JobId, JobResult, Lease, Location, Now,
    Operation, Outcome, Payload, Receipt, Redrive, Result, Settlement, Store, Trouble, Wakeups,
    no_such_job,
};
use tracing::{error, warn};

use super::OpenError;
use super::seal::{Place, Seal, Unopened};
use crate::random::drawn;

/// How often a claim looks for other jobs in place of those that do not open.
const MAX_CLAIMS: usize = 16;
/// How long a job waits whose key is not there.
const NO_KEY: Duration = Duration::from_secs(60);

/// A store below an encryption.
///
/// Triggers arrive encrypted: the client does that before it records them. All other documents are
/// encrypted and decrypted here.
#[derive(Debug)]
pub(crate) struct Encrypted {
    inner: Arc<dyn Store>,
    seal: Seal,
}

impl Encrypted {
    pub(crate) fn new(inner: Arc<dyn Store>, seal: Seal) -> Self {
        Encrypted { inner, seal }
    }

    /// What encrypts.
    pub(crate) fn seal(&self) -> &Seal {
        &self.seal
    }

    /// The store that has ciphertext.
    pub(crate) fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    /// An operation as the store gets it.
    async fn sealed(&self, operation: Operation) -> Result<Operation> {
        let seal = &self.seal;
        Ok(match operation {
            Operation::Settle { mut settlements } => {
                for settlement in &mut settlements {
                    let place = Place::Output(settlement.lease.job);
                    if let Outcome::Succeeded { output: Some(output) } = &mut settlement.outcome {
                        *output = seal.document(output, place)?;
                    }
                }
                Operation::Settle { settlements }
            }
            Operation::EndEffect { lease, name, result } => {
                let result = seal.document(&result, Place::Effect(&name))?;
                Operation::EndEffect { lease, name, result }
            }
            Operation::SetSchedule { mut schedule } => {
                schedule.trigger = seal.trigger(schedule.trigger)?;
                Operation::SetSchedule { schedule }
            }
            Operation::Redrive { redrive: Redrive { id, payload: Some(payload) } } => {
                let job = self.inner.job(id).await?.ok_or_else(|| no_such_job(id))?;
                let fold = &job.shape.fold;
                let payload = seal.folded(&payload, fold, &job.task, job.key.as_ref())?;
                Operation::Redrive { redrive: Redrive { id, payload: Some(payload) } }
            }
            Operation::ImportDead { mut exports } => {
                exports.iter_mut().try_for_each(|export| self.seal_export(export))?;
                Operation::ImportDead { exports }
            }
            other => other,
        })
    }

    fn seal_export(&self, export: &mut DeadExport) -> Result<()> {
        let DeadExport { job, past, effects, .. } = export;
        let folded = |payload: &Payload| {
            self.seal.folded(payload, &job.shape.fold, &job.task, job.key.as_ref())
        };
        let (payload, original) =
            (folded(&job.payload)?, past.original.as_ref().map(folded).transpose()?);
        (job.payload, past.original) = (payload, original);
        for Effect { name, done, .. } in effects {
            let done = done.as_mut().filter(|done| Envelope::of(done.result.as_str()).is_none());
            if let Some(done) = done {
                done.result = self.seal.document(&done.result, Place::Effect(name))?;
            }
        }
        Ok(())
    }

    /// An answer as the client gets it. In lists, what does not open stays as it is.
    ///
    /// # Errors
    /// For an output that does not open: its caller would take ciphertext for it.
    fn opened(&self, answer: Answer) -> Result<Answer> {
        Ok(match answer {
            Answer::Enqueue(mut answers) => {
                answers
                    .iter_mut()
                    .flatten()
                    .flatten()
                    .for_each(|receipt| self.open_receipt(receipt));
                Answer::Enqueue(answers)
            }
            Answer::RunSchedule(mut receipt) => {
                self.open_receipt(&mut receipt);
                Answer::RunSchedule(receipt)
            }
            Answer::Job(mut job) => {
                job.iter_mut().for_each(|job| self.open_job(job));
                Answer::Job(job)
            }
            Answer::Jobs(mut jobs) => {
                jobs.iter_mut().for_each(|job| self.open_job(job));
                Answer::Jobs(jobs)
            }
            Answer::Dead(mut jobs) => {
                jobs.iter_mut().for_each(|job| self.open_job(job));
                Answer::Dead(jobs)
            }
            Answer::ResultOf(mut result) => {
                if let Some(JobResult { job, output: Some(output), .. }) = &mut result {
                    let opened = self.seal.opened(output, Place::Output(*job));
                    let what = format!("the output of job {job}");
                    *output = opened.map_err(|unopened| unopened.error(&what))?;
                }
                Answer::ResultOf(result)
            }
            Answer::Explain(mut explanation) => {
                if let Some(explanation) = &mut explanation {
                    self.open_past(&explanation.job, explanation.past.original.as_mut());
                    self.open_job(&mut explanation.job);
                    self.open_effects(&mut explanation.effects);
                }
                Answer::Explain(explanation)
            }
            Answer::Exports(mut exports) => {
                for DeadExport { job, past, effects, .. } in &mut exports {
                    self.open_past(job, past.original.as_mut());
                    self.open_job(job);
                    self.open_effects(effects);
                }
                Answer::Exports(exports)
            }
            Answer::Effects(mut effects) => {
                self.open_effects(&mut effects);
                Answer::Effects(effects)
            }
            Answer::Schedules(mut schedules) => {
                for info in &mut schedules {
                    let trigger = &mut info.schedule.trigger;
                    let key = trigger.keyed.as_ref().map(|keyed| &keyed.key);
                    let place = Place::Payload(&trigger.task, key);
                    if let Ok(opened) = self.seal.opened(&trigger.payload, place) {
                        trigger.payload = opened;
                    }
                }
                Answer::Schedules(schedules)
            }
            other => other,
        })
    }

    /// What is known of an effect that begins. A result that does not open fails the attempt, as the
    /// effect must not be performed again.
    fn begun(&self, name: &EffectName, answer: Answer) -> Result<Answer> {
        let Answer::BeginEffect(EffectStart::Done { key, result }) = answer else {
            return Ok(answer);
        };
        let opened = self.seal.opened(&result, Place::Effect(name));
        let what = format!("the result of effect {name}");
        let opened = opened.map_err(|unopened| unopened.error(&what))?;
        Ok(Answer::BeginEffect(EffectStart::Done { key, result: opened }))
    }

    /// Decrypts in place, where that is possible.
    fn open_in_place(&self, document: &mut Payload, place: Place<'_>) {
        if let Ok(opened) = self.seal.opened(document, place) {
            *document = opened;
        }
    }

    fn open_job(&self, job: &mut Job) {
        let place = Place::Payload(&job.task, job.key.as_ref());
        self.open_in_place(&mut job.payload, place);
        self.open_output(job.id, job.output.as_mut());
    }

    fn open_output(&self, job: JobId, output: Option<&mut Payload>) {
        output.into_iter().for_each(|output| self.open_in_place(output, Place::Output(job)));
    }

    fn open_past(&self, job: &Job, original: Option<&mut Payload>) {
        let place = Place::Payload(&job.task, job.key.as_ref());
        original.into_iter().for_each(|original| self.open_in_place(original, place));
    }

    fn open_effects(&self, effects: &mut [Effect]) {
        for Effect { name, done, .. } in effects {
            if let Some(done) = done {
                self.open_in_place(&mut done.result, Place::Effect(name));
            }
        }
    }

    fn open_receipt(&self, receipt: &mut Receipt) {
        if let Receipt::Existing { job, output, .. } = receipt {
            self.open_output(*job, output.as_mut());
        }
    }

    /// Jobs that start. One whose payload does not open never reaches a handler: it waits for the key,
    /// without an attempt spent, or is buried where no key can help. Others take its place, so that
    /// many of them hold up no claim.
    async fn claim(&self, now: Now, claim: Claim) -> Result<Answer> {
        let mut claimed = self.open_claimed(now, self.inner.claim(now, &claim).await?).await;
        for _ in 0..MAX_CLAIMS {
            let left = claim.limit.saturating_sub(claimed.jobs.len());
            if !claimed.lacks || left == 0 {
                break;
            }
            let again = Claim { limit: left, draw: Draw::new(drawn()), ..claim.clone() };
            // What was claimed before is at work, whatever becomes of this.
            let Ok(more) = self.inner.claim(now, &again).await else { break };
            let more = self.open_claimed(now, more).await;
            claimed.jobs.extend(more.jobs);
            (claimed.answer, claimed.lacks) = (more.answer, more.lacks);
        }
        Ok(Answer::Claim(Claimed { jobs: claimed.jobs, ..claimed.answer }))
    }

    async fn open_claimed(&self, now: Now, mut answer: Claimed) -> Opened {
        let (mut jobs, mut closed) = (Vec::with_capacity(answer.jobs.len()), Vec::new());
        for mut job in std::mem::take(&mut answer.jobs) {
            match self.seal.opened(&job.payload, Place::Payload(&job.task, job.key.as_ref())) {
                Ok(opened) => {
                    job.payload = opened;
                    jobs.push(job);
                }
                Err(unopened) => closed.push(settlement(&job, &unopened)),
            }
        }
        let lacks = !closed.is_empty();
        if lacks && let Err(error) = self.inner.settle(now, closed).await {
            let then = "they come again when their leases expire";
            warn!(%error, "jobs that do not open keep their leases: {then}");
        }
        Opened { answer, jobs, lacks }
    }
}

/// A claim, and which of its jobs can run.
struct Opened {
    /// Without its jobs.
    answer: Claimed,
    jobs: Vec<ClaimedJob>,
    /// Whether some of its jobs cannot.
    lacks: bool,
}

#[async_trait]
impl Store for Encrypted {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn concurrent_enqueues(&self) -> usize {
        self.inner.concurrent_enqueues()
    }

    fn location(&self) -> Option<&Location> {
        self.inner.location()
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        if let Operation::Claim { claim } = operation {
            return self.claim(now, claim).await;
        }
        let operation = self.sealed(operation).await?;
        if let Operation::BeginEffect { name, .. } = &operation {
            let name = name.clone();
            return self.begun(&name, self.inner.call(now, operation).await?);
        }
        self.opened(self.inner.call(now, operation).await?)
    }

    fn wakeups(&self) -> Wakeups {
        self.inner.wakeups()
    }

    fn transaction_committed(&self) {
        self.inner.transaction_committed();
    }

    fn trouble(&self) -> Option<Trouble> {
        self.inner.trouble()
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.inner.ended(job)
    }
}

fn settlement(job: &ClaimedJob, unopened: &Unopened) -> Settlement {
    let (id, task, key) = (job.id, &job.task, &unopened.key);
    let outcome = match unopened.why {
        OpenError::NoKey => {
            warn!(job = %id, %task, key, "a job waits for the key that its payload was encrypted with");
            Outcome::Snoozed { delay: NO_KEY }
        }
        OpenError::Damaged => {
            error!(job = %id, %task, key, "a job is dead: its encrypted payload was changed in the store");
            let error = format!(
                "the payload was encrypted with the key {key} and does not open with it: it was \
                 changed in the store, or is of another job"
            );
            let (ended, kind) = (AttemptOutcome::Failed, FailureKind::Permanent);
            Outcome::Failed(Failure { error, ended, kind })
        }
    };
    Settlement { lease: Lease { job: id, token: job.token }, outcome }
}
