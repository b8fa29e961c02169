//! What operators read: jobs, what came of them, how many there are, and why.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_core::part::Part;
use quell_core::{
    Attempt, Counts, Effect, ExplainTarget, Explanation, Job, JobId, JobResult, JobState,
    KeyAdvice, QueueName, Result, TaskName,
};
use tracing::warn;

use crate::look::{Read, job_of, read_fields};
use crate::row::{StoredRecord, corrupt, decode_job, from_json};
use crate::shard::Time;
use crate::store::ShardStore;
use crate::tx::{Tx, contended};
use crate::write::{MESSAGE_ID, NEWEST, absorbed_by, number};

/// Rows that are read in one trip.
pub(crate) const CHUNK: usize = 500;
/// How often a read of several trips is tried.
const TRIES: u32 = 20;

impl ShardStore {
    async fn begin_reading(&self) -> Result<Tx<'_>> {
        Tx::begin(&self.shard, (Time::Last, false), 0, 0).await
    }

    /// The rows of jobs, of those that are there and can be decoded: one that cannot must not hide
    /// the others.
    pub(crate) async fn read_jobs(&self, ids: &[JobId]) -> Result<Vec<Job>> {
        let decoded = self.decode_jobs(ids).await?.into_iter();
        let logged = decoded.map(|job| job.inspect_err(|error| warn!(%error, "row left out")));
        Ok(logged.filter_map(Result::ok).collect())
    }

    /// The row of a job.
    pub(crate) async fn read_job(&self, id: JobId) -> Result<Option<Job>> {
        if let Some(job) = self.decode_jobs(&[id]).await?.pop() {
            return job.map(Some);
        }
        self.error_of(id).await?.map_or(Ok(None), Err)
    }

    async fn decode_jobs(&self, ids: &[JobId]) -> Result<Vec<Result<Job>>> {
        let mut jobs = Vec::with_capacity(ids.len());
        let mut left = ids;
        while !left.is_empty() {
            let fields = left.iter().take(CHUNK).map(ToString::to_string).collect();
            let mut known = self.shard.known();
            let reads = [Read::Bounded(self.shard.keys.jobs(), fields)];
            let rows = self.shard.look("read jobs", Time::Last, &reads).await?.fields()?;
            let (read, rest) = left.split_at(rows.len().clamp(1, left.len()));
            left = rest;
            for (id, row) in read.iter().zip(rows) {
                let Some(row) = row else { continue };
                let mut decoded = decode_job(*id, &row, &known);
                if decoded.is_err() {
                    // It may have a name that was new since this process last looked.
                    known = self.shard.learn().await?;
                    decoded = decode_job(*id, &row, &known);
                }
                jobs.push(decoded);
            }
        }
        Ok(jobs)
    }

    pub(crate) async fn read_counts(&self) -> Result<Vec<Counts>> {
        let hash = [self.shard.keys.counts()];
        let (_, [pairs]) = self.shard.read_hashes("count jobs", Vec::new(), hash).await?;
        let mut counts = BTreeMap::new();
        for (field, count) in pairs {
            let wrong = || corrupt(format_args!("the count {field:?}"));
            let mut words = field.split(' ');
            let queue = QueueName::new(words.next().ok_or_else(wrong)?)?;
            let task = TaskName::new(words.next().ok_or_else(wrong)?)?;
            let code = words.next().and_then(|code| code.parse().ok());
            let state = code.and_then(JobState::from_code).ok_or_else(wrong)?;
            let jobs = number(&count).ok_or_else(wrong)?;
            counts.insert((queue, task, state), jobs);
        }
        let rows = counts.into_iter();
        Ok(rows.map(|((queue, task, state), jobs)| Counts { queue, task, state, jobs }).collect())
    }

    /// What came of a job, or of the successor that absorbed it (R19).
    pub(crate) async fn read_result(&self, id: JobId) -> Result<Option<JobResult>> {
        let mut id = id;
        loop {
            match self.read_job(id).await {
                Ok(Some(Job { state: JobState::Absorbed, absorbed_by: Some(by), .. })) => id = by,
                Ok(Some(job)) => return Ok(Some(JobResult::of(&job))),
                Ok(None) => break,
                Err(error) if error.unreadable_job() == Some(id) => {
                    return Ok(Some(JobResult::unreadable(id, &error)));
                }
                Err(error) => return Err(error),
            }
        }
        let keys = &self.shard.keys;
        let reads = [Read::Members(keys.names(id))];
        let names = self.shard.look("read a result", Time::Last, &reads).await?.members()?;
        let records: Vec<String> =
            names.iter().filter_map(|name| name.strip_prefix("r ")).map(str::to_owned).collect();
        if records.is_empty() {
            return Ok(None);
        }
        let reads = read_fields(&keys.records(), &records);
        let mut looked = self.shard.look("read a result", Time::Last, &reads).await?;
        for row in looked.fields()?.into_iter().flatten() {
            let record: quell_core::idempotency::Record =
                from_json::<StoredRecord>("an idempotency key", &row)?.try_into()?;
            if let Some(kept) = record.kept.filter(|_| record.job == id) {
                return Ok(Some(JobResult::kept(id, &kept)));
            }
        }
        Ok(None)
    }

    /// Asks the core about a job with all that hangs on it.
    async fn ask<R>(&self, id: JobId, ask: impl Fn(&Part) -> R) -> Result<R> {
        for _ in 0..TRIES {
            let mut tx = self.begin_reading().await?;
            tx.load_around(&[id]).await?;
            if let Some(part) = tx.view() {
                return Ok(ask(&part));
            }
        }
        Err(contended("read a job"))
    }

    pub(crate) async fn read_attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        self.ask(id, |part| part.attempts(id)).await
    }

    pub(crate) async fn read_effects(&self, id: JobId) -> Result<Vec<Effect>> {
        let reads = read_fields(&self.shard.keys.effects(), &[id.to_string()]);
        let mut looked = self.shard.look("read effects", Time::Last, &reads).await?;
        looked.text()?.map_or(Ok(Vec::new()), |row| from_json("effects", &row))
    }

    pub(crate) async fn read_explanation(
        &self,
        target: &ExplainTarget,
    ) -> Result<Option<Explanation>> {
        for _ in 0..TRIES {
            let mut tx = self.begin_reading().await?;
            let Some(id) = tx.newest_of(target).await? else { return Ok(None) };
            tx.load_story(id).await?;
            let target = match target {
                ExplainTarget::Key { .. } => ExplainTarget::Job(id),
                known => known.clone(),
            };
            if let Some(part) = tx.view() {
                return Ok(part.explain(&target));
            }
        }
        Err(contended("explain a job"))
    }
}

impl Tx<'_> {
    /// The job that an explanation is of.
    async fn newest_of(&mut self, target: &ExplainTarget) -> Result<Option<JobId>> {
        let (task, key) = match target {
            ExplainTarget::Job(id) => return Ok(Some(*id)),
            ExplainTarget::Trigger(trigger) => return Ok(Some(trigger.job)),
            ExplainTarget::Key { task, key } => (task, key),
        };
        let tasks: Vec<TaskName> = match task {
            Some(task) => vec![task.clone()],
            None => self.known.tasks.keys().cloned().collect(),
        };
        let keys = self.shard.keys.clone();
        let fields = || vec![MESSAGE_ID.to_owned(), NEWEST.to_owned()];
        let of = |task: &TaskName| Read::Fields(keys.debounce(task, key), fields());
        let mut looked = self.look(tasks.iter().map(of).collect()).await?;
        let mut shown = Vec::new();
        for _ in &tasks {
            let ids = looked.fields()?.into_iter().flatten();
            shown.extend(ids.filter_map(|id| number(&id)).map(JobId::new));
        }
        self.load_jobs(shown).await?;
        // A key's hash is kept for a while only, and the newest job of all may have been removed.
        for task in &tasks {
            self.load_recent(task).await?;
        }
        let of_key = |job: &&Arc<Job>| job.key.as_ref() == Some(key) && tasks.contains(&job.task);
        let found = self.rows.jobs.values().rev().find(of_key).map(|job| job.id);
        self.rows.jobs.clear();
        Ok(found)
    }

    /// Loads the newest keyed jobs of a task.
    async fn load_recent(&mut self, task: &TaskName) -> Result<()> {
        let sample = usize::try_from(KeyAdvice::SAMPLE).unwrap_or(usize::MAX);
        let read = vec![Read::First(self.shard.keys.recent(task), sample)];
        let members = self.look(read).await?.members()?;
        let ids: Result<Vec<JobId>> = members.iter().map(|member| job_of(member)).collect();
        self.load_jobs(ids?).await
    }

    /// Loads all that an explanation of a job tells.
    async fn load_story(&mut self, id: JobId) -> Result<()> {
        self.load_around(&[id]).await?;
        let Some(job) = self.rows.jobs.get(&id) else { return Ok(()) };
        let task = job.task.clone();
        if let Some(key) = job.key.clone() {
            self.load_open_windows(&[(task.clone(), key)].into()).await?;
        }
        let keys = self.shard.keys.clone();
        let absorbed = absorbed_by(&keys, id);
        self.fetch(Vec::new(), vec![absorbed.clone()]).await?;
        let members = self.sets.get(&absorbed).cloned().unwrap_or_default();
        let absorbed: Result<Vec<JobId>> = members.iter().map(|member| job_of(member)).collect();
        self.load_jobs(absorbed?).await?;
        self.load_ticks_of(id).await?;
        self.load_recent(&task).await
    }
}
