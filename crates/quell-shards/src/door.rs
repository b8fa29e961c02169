//! The door: which shards a call goes to, and one answer made of theirs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use quell_core::alert::{AlertRow, AlertState, Overview};
use quell_core::checkup::Checkup;
use quell_core::effect::EffectStart;
use quell_core::heartbeat::{Beaten, Heartbeat, WorkerDrain, Workers};
use quell_core::job::{Adjusted, Adjustment};
use quell_core::schedule::{
    RecordedTick, Schedule, ScheduleInfo, ScheduleState, Ticked, no_such_schedule,
};
use quell_core::store::SettledAnswers;
use quell_core::{
    AlertName, Attempt, Backlog, BacklogOf, Batch, Claim, Claimed, Counts, Effect, EffectName,
    Error, ErrorKind, ExpiredLease, ExplainTarget, Explanation, Job, JobFilter, JobId, JobResult,
    Key, Lease, NextDue, Now, Payload, Pruned, QueueInfo, QueueName, QueueSettings, Receipt,
    Redrive, Renewal, Result, Retention, ScheduleName, Settled, SettledAs, Settlement, Steps,
    TaskInfo, TaskName, TaskSettings, Timestamp, WorkerId, lacks, no_such_job,
};

use crate::directory::Directory;
use crate::shards::Shards;
use crate::visits::{Visited, Visits};

/// How many batches without keys go to one of a queue's shards together: each shard that a call
/// goes to costs a round trip.
const TOGETHER: usize = 64;

/// Items of one shard, with their places in the call.
type OfShard<S, T> = (Arc<S>, Vec<usize>, Vec<T>);

/// A store of several shards.
#[derive(Debug)]
pub struct Sharded<D: Directory> {
    pub(crate) shards: Arc<Shards<D>>,
    pub(crate) visits: Visits,
    /// What each shard with alerts to look for answered last.
    pub(crate) overviews: Mutex<BTreeMap<usize, Overview>>,
    answers: SettledAnswers,
}

impl<D: Directory> Sharded<D> {
    /// The store on these shards.
    #[must_use]
    pub fn new(shards: Arc<Shards<D>>) -> Self {
        let (visits, overviews, answers) =
            (Visits::default(), Mutex::default(), SettledAnswers::default());
        Sharded { shards, visits, overviews, answers }
    }

    /// Its shards.
    #[must_use]
    pub fn shards(&self) -> &Arc<Shards<D>> {
        &self.shards
    }

    /// The shard of a lease; any says that it holds nothing where no shard has that number.
    async fn of_lease(&self, lease: &Lease) -> Result<Arc<D::Shard>> {
        let shard = self.shards.of_job(lease.job).await?;
        Ok(shard.unwrap_or_else(|| Arc::clone(self.shards.first())))
    }

    /// The shard of a job that must be there.
    async fn of_job(&self, id: JobId) -> Result<Arc<D::Shard>> {
        self.shards.of_job(id).await?.ok_or_else(|| no_such_job(id))
    }

    /// The shard that has a schedule.
    async fn of_schedule(&self, name: &ScheduleName) -> Result<Arc<D::Shard>> {
        if let Some(only) = self.shards.only() {
            return Ok(Arc::clone(only));
        }
        let shards = self.shards.all().await?;
        let asked = self.visits.each("find a schedule", shards, |shard| {
            Box::pin(async move { shard.schedules().await })
        });
        let Visited { answers, failed } = asked.await;
        let has = |all: &[ScheduleInfo]| all.iter().any(|info| info.schedule.name == *name);
        if let Some((shard, _)) = answers.into_iter().find(|(_, all)| has(all)) {
            return Ok(shard);
        }
        // It may be on a shard that did not answer.
        if let Some(error) = failed {
            return Err(error);
        }
        Err(no_such_schedule(name))
    }

    /// The tag of the shard that a whole batch belongs on: it is one step.
    async fn tag_of(&self, batch: &Batch, draw: u32) -> Result<String> {
        // With whether it is so for a key: without one, any shard of the queue will do.
        let mut tag: Option<(String, bool)> = None;
        let whole = batch.dedup.as_ref().map(|dedup| &dedup.key);
        let first = batch.triggers.first().map(|trigger| &trigger.queue);
        for (index, trigger) in batch.triggers.iter().enumerate() {
            if first != Some(&trigger.queue) {
                let error = lacks("across_queues", "make one batch for each queue");
                return Err(at(error, batch, index));
            }
            let own = self.shards.tag_of(trigger, whole.filter(|_| index == 0), draw).await;
            let own = own.map_err(|error| at(error, batch, index))?;
            let has_key = trigger.has_key() || (index == 0 && whole.is_some());
            match &tag {
                Some((first, true)) if *first != own && has_key => {
                    let message = format!(
                        "it belongs on shard `{own}`, and the batch begins on `{first}`: a batch is \
                         one step, and that is of one shard; make one batch for each key"
                    );
                    let error = Error::new(ErrorKind::Unsupported, message);
                    return Err(at(error, batch, index));
                }
                Some((_, is_kept)) if *is_kept || !has_key => {}
                Some(_) | None => tag = Some((own, has_key)),
            }
        }
        Ok(tag.map(|(tag, _)| tag).unwrap_or_default())
    }

    /// Items by the shard of their job, with their places; those of no shard are left out.
    pub(crate) async fn by_shard<T: Clone>(
        &self,
        items: &[T],
        job: impl Fn(&T) -> JobId,
    ) -> Result<Vec<OfShard<D::Shard, T>>> {
        let mut parts: Vec<OfShard<D::Shard, T>> = Vec::new();
        for (place, item) in items.iter().enumerate() {
            let Some(shard) = self.shards.of_job(job(item)).await? else { continue };
            match parts.iter_mut().find(|(known, ..)| Arc::ptr_eq(known, &shard)) {
                Some((_, places, part)) => {
                    places.push(place);
                    part.push(item.clone());
                }
                None => parts.push((shard, vec![place], vec![item.clone()])),
            }
        }
        Ok(parts)
    }
}

/// Refuses limits of a queue that is spread over several shards.
fn check_limits(queue: &QueueName, settings: &QueueSettings, shards: usize) -> Result<()> {
    let limited = settings.limits_concurrency() || settings.limits_rate();
    if shards <= 1 || !limited {
        return Ok(());
    }
    let message = format!(
        "queue {queue} is spread over {shards} shards, and limits hold on one only: leave it on \
         one shard, or limit workers instead"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

fn at(error: Error, batch: &Batch, index: usize) -> Error {
    if batch.triggers.len() > 1 { error.at(format_args!("triggers[{index}]")) } else { error }
}

/// All answers, of shards that are asked at the same time.
macro_rules! all_of {
    ($self:ident, |$shard:ident| $ask:expr) => {{
        let shards = $self.shards.all().await?;
        try_join_all(shards.iter().map(|$shard| $ask)).await?
    }};
}

#[async_trait]
impl<D: Directory> Steps for Sharded<D> {
    async fn enqueue(&self, now: Now, batches: Vec<Batch>) -> Result<Vec<Result<Vec<Receipt>>>> {
        if let Some(only) = self.shards.only() {
            return only.enqueue(now, batches).await;
        }
        let mut answers: Vec<Option<Result<Vec<Receipt>>>> = Vec::new();
        let mut parts: BTreeMap<String, (Vec<usize>, Vec<Batch>)> = BTreeMap::new();
        let first = fastrand::u32(..);
        for (place, batch) in batches.into_iter().enumerate() {
            let draw = first.wrapping_add(u32::try_from(place / TOGETHER).unwrap_or(0));
            match self.tag_of(&batch, draw).await {
                Ok(_) if batch.triggers.is_empty() => answers.push(Some(Ok(Vec::new()))),
                Ok(tag) => {
                    let (places, part) = parts.entry(tag).or_default();
                    places.push(place);
                    part.push(batch);
                    answers.push(None);
                }
                Err(error) => answers.push(Some(Err(error))),
            }
        }
        let asked = parts.into_iter().map(async |(tag, (places, part))| {
            let answer = async { self.shards.by_tag(&tag).await?.enqueue(now, part).await };
            (places, answer.await)
        });
        for (places, answer) in join_all(asked).await {
            // A shard that is away fails its own batches only.
            let each: Vec<Result<Vec<Receipt>>> = match answer {
                Ok(each) => each,
                Err(error) => places.iter().map(|_| Err(error.share())).collect(),
            };
            for (place, one) in places.into_iter().zip(each) {
                if let Some(answer) = answers.get_mut(place) {
                    *answer = Some(one);
                }
            }
        }
        let missing = || Err(Error::new(ErrorKind::Internal, "a shard did not answer for a batch"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect())
    }

    async fn claim(&self, now: Now, claim: &Claim) -> Result<Claimed> {
        if let Some(only) = self.shards.only() {
            return only.claim(now, claim).await;
        }
        self.claim_each(now, claim).await
    }

    async fn renew(&self, now: Now, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>> {
        if let Some(only) = self.shards.only() {
            return only.renew(now, leases, lease).await;
        }
        self.renew_each(now, leases, lease).await
    }

    async fn settle(&self, now: Now, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        if let Some(only) = self.shards.only() {
            return only.settle(now, settlements).await;
        }
        // Ends that committed although an earlier call failed on another shard.
        let mut answers = self.answers.take(&settlements);
        let new = SettledAnswers::unanswered(settlements, &answers);
        let parts = self.by_shard(&new, |one| one.lease.job).await;
        let parts = parts.inspect_err(|_| self.answers.keep(answers.iter().flatten()))?;
        let asked = parts
            .into_iter()
            .map(async |(shard, places, part)| (places, shard.settle(now, part).await));
        let refused = |one: &Settlement| Settled { lease: one.lease, became: SettledAs::Refused };
        let (mut done, mut failed): (Vec<_>, _) = (new.iter().map(refused).collect(), None);
        for (places, answer) in join_all(asked).await {
            match answer {
                Ok(settled) => {
                    for (place, one) in places.into_iter().zip(settled) {
                        if let Some(answer) = done.get_mut(place) {
                            *answer = one;
                        }
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        SettledAnswers::fill(&mut answers, done);
        if let Some(error) = failed {
            self.answers.keep(answers.iter().flatten());
            return Err(error);
        }
        Ok(answers.into_iter().flatten().collect())
    }

    async fn begin_effect(
        &self,
        now: Now,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<EffectStart> {
        self.of_lease(lease).await?.begin_effect(now, lease, name, key).await
    }

    async fn end_effect(
        &self,
        now: Now,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        self.of_lease(lease).await?.end_effect(now, lease, name, result).await
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        match self.shards.of_job(id).await? {
            Some(shard) => shard.effects(id).await,
            None => Ok(Vec::new()),
        }
    }

    async fn reap(&self, now: Now, limit: usize) -> Result<Vec<ExpiredLease>> {
        self.reap_each(now, limit).await
    }

    async fn heartbeat(&self, now: Now, beat: &Heartbeat) -> Result<Beaten> {
        self.beat_each(now, beat).await
    }

    async fn drain_worker(&self, now: Now, drain: &WorkerDrain) -> Result<u64> {
        self.drain_in_each(now, drain).await
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        self.remove_from_each(worker, incarnation).await
    }

    async fn workers(&self, now: Now) -> Result<Workers> {
        self.list_workers(now).await
    }

    async fn next_due(&self, now: Now, queue: &QueueName, tasks: &[TaskName]) -> Result<NextDue> {
        if let Some(only) = self.shards.only() {
            return only.next_due(now, queue, tasks).await;
        }
        self.next_of_each(now, queue, tasks).await
    }

    async fn peek(
        &self,
        now: Now,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Vec<NextDue>> {
        if let Some(only) = self.shards.only() {
            return only.peek(now, queues).await;
        }
        let asked = queues.iter().map(|(queue, tasks)| Steps::next_due(self, now, queue, tasks));
        of_those_that_answer(join_all(asked).await)
    }

    async fn backlog(&self, now: Now, of: &BacklogOf) -> Result<Backlog> {
        self.backlog_of_each(now, of).await
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        let of_shards = all_of!(self, |shard| shard.queues());
        let all = of_shards.into_iter().flatten().map(|info| (info.name.clone(), info));
        Ok(all.collect::<BTreeMap<_, _>>().into_values().collect())
    }

    async fn set_queue(&self, now: Now, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        settings.validate()?;
        let shards = self.shards.of_queue(queue).await?;
        check_limits(queue, settings, shards.len())?;
        try_join_all(shards.iter().map(|shard| shard.set_queue(now, queue, settings)))
            .await
            .map(drop)
    }

    /// Of a queue that is spread over several shards, the settings are compared before they are
    /// written, and not in one step.
    async fn replace_queue(
        &self,
        now: Now,
        queue: &QueueName,
        known: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> Result<bool> {
        settings.validate()?;
        let shards = self.shards.of_queue(queue).await?;
        check_limits(queue, settings, shards.len())?;
        if let [only] = &shards[..] {
            return only.replace_queue(now, queue, known, settings).await;
        }
        let there = self.queues().await?.into_iter().find(|there| there.name == *queue);
        let is_same = there.as_ref().map(|there| &there.settings) == known;
        if is_same {
            try_join_all(shards.iter().map(|shard| shard.set_queue(now, queue, settings))).await?;
        }
        Ok(is_same)
    }

    async fn delete_queue(&self, now: Now, queue: &QueueName) -> Result<bool> {
        let shards = self.shards.found_of_queue(queue).await?;
        let asked = shards.iter().map(|shard| shard.delete_queue(now, queue));
        Ok(try_join_all(asked).await?.contains(&true))
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        let of_shards = all_of!(self, |shard| shard.tasks());
        let own = self.shards.first().tasks().await?;
        // The directory's come last and win: `set_task` writes to the directory first.
        let all = of_shards.into_iter().flatten().chain(own).map(|info| (info.name.clone(), info));
        Ok(all.collect::<BTreeMap<_, _>>().into_values().collect())
    }

    async fn set_task(&self, now: Now, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        settings.validate()?;
        // A shard that is made from now on learns of it from the directory.
        self.shards.first().set_task(now, task, settings).await?;
        if self.shards.only().is_none() {
            all_of!(self, |shard| self.shards.tell_of_task(shard, task, settings));
        }
        Ok(())
    }

    async fn task_settings(&self, tasks: &[TaskName]) -> Result<Vec<TaskInfo>> {
        self.shards.first().task_settings(tasks).await
    }

    async fn replace_task(
        &self,
        now: Now,
        task: &TaskName,
        known: &TaskSettings,
        settings: &TaskSettings,
    ) -> Result<bool> {
        settings.validate()?;
        // Compared in the directory, where `set_task` writes first.
        if !self.shards.first().replace_task(now, task, known, settings).await? {
            return Ok(false);
        }
        if self.shards.only().is_none() {
            all_of!(self, |shard| self.shards.tell_of_task(shard, task, settings));
        }
        Ok(true)
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        match self.shards.of_job(id).await? {
            Some(shard) => shard.job(id).await,
            None => Ok(None),
        }
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        match self.shards.of_job(id).await? {
            Some(shard) => shard.result(id).await,
            None => Ok(None),
        }
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        let mut jobs: Vec<Job> =
            all_of!(self, |shard| shard.jobs(filter)).into_iter().flatten().collect();
        jobs.sort_by_key(|job| std::cmp::Reverse(job.id));
        jobs.truncate(filter.page());
        Ok(jobs)
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        let mut all = BTreeMap::new();
        for counts in all_of!(self, |shard| shard.counts()).into_iter().flatten() {
            let Counts { queue, task, state, jobs } = counts;
            let sum: &mut u64 = all.entry((queue, task, state)).or_default();
            *sum = sum.saturating_add(jobs);
        }
        let rows = all.into_iter();
        Ok(rows.map(|((queue, task, state), jobs)| Counts { queue, task, state, jobs }).collect())
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        match self.shards.of_job(id).await? {
            Some(shard) => shard.attempts(id).await,
            None => Ok(Vec::new()),
        }
    }

    async fn explain(&self, now: Now, target: &ExplainTarget) -> Result<Option<Explanation>> {
        let Some(id) = target.job() else { return self.explain_key(now, target).await };
        match self.shards.of_job(id).await? {
            Some(shard) => shard.explain(now, target).await,
            None => Ok(None),
        }
    }

    async fn flush(&self, now: Now, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        match self.shards.of_key(task, key).await? {
            Some(shard) => shard.flush(now, task, key).await,
            None => Ok(None),
        }
    }

    async fn cancel_key(&self, now: Now, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        match self.shards.of_key(task, key).await? {
            Some(shard) => shard.cancel_key(now, task, key).await,
            None => Ok(None),
        }
    }

    async fn cancel(&self, now: Now, id: JobId, reason: &str) -> Result<()> {
        self.of_job(id).await?.cancel(now, id, reason).await
    }

    async fn adjust(&self, now: Now, id: JobId, adjustment: Adjustment) -> Result<Adjusted> {
        self.of_job(id).await?.adjust(now, id, adjustment).await
    }

    async fn redrive(&self, now: Now, redrive: &Redrive) -> Result<SettledAs> {
        self.of_job(redrive.id).await?.redrive(now, redrive).await
    }

    async fn prune(&self, now: Now, retention: &Retention, limit: usize) -> Result<Pruned> {
        self.prune_each(now, retention, limit).await
    }

    async fn overview(&self, now: Now) -> Result<Overview> {
        if let Some(only) = self.shards.only() {
            return only.overview(now).await;
        }
        self.overview_of_each(now).await
    }

    async fn checkup(&self) -> Result<Checkup> {
        let mut all = self.shards.first().checkup().await?;
        for shard in all_of!(self, |shard| shard.checkup()) {
            all.clock.mark = all.clock.mark.max(shard.clock.mark);
        }
        Ok(all)
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        self.shards.first().alerts().await
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        self.shards.first().set_alert(name, version, state).await
    }

    async fn set_schedule(&self, now: Now, schedule: &Schedule) -> Result<()> {
        if let Some(only) = self.shards.only() {
            return only.set_schedule(now, schedule).await;
        }
        let tag = self.shards.tag_of(&schedule.trigger, None, fastrand::u32(..)).await?;
        let shard = self.shards.by_tag(&tag).await?;
        // Where it triggers into another queue than before, it moves there: first away, so that no
        // tick fires twice.
        for other in self.shards.all().await? {
            let is_there = !Arc::ptr_eq(&other, &shard)
                && other.schedules().await?.iter().any(|i| i.schedule.name == schedule.name);
            if is_there {
                other.delete_schedule(now, &schedule.name).await?;
            }
        }
        shard.set_schedule(now, schedule).await
    }

    async fn set_schedule_state(
        &self,
        now: Now,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        self.of_schedule(name).await?.set_schedule_state(now, name, state).await
    }

    async fn delete_schedule(&self, now: Now, name: &ScheduleName) -> Result<()> {
        self.of_schedule(name).await?.delete_schedule(now, name).await
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        let mut all: Vec<ScheduleInfo> =
            all_of!(self, |shard| shard.schedules()).into_iter().flatten().collect();
        all.sort_by(|a, b| a.schedule.name.cmp(&b.schedule.name));
        Ok(all)
    }

    async fn ticks(
        &self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<RecordedTick>> {
        self.of_schedule(name).await?.ticks(name, from, to, limit).await
    }

    async fn tick(&self, now: Now, limit: usize) -> Result<Ticked> {
        if let Some(only) = self.shards.only() {
            return only.tick(now, limit).await;
        }
        self.tick_each(now, limit).await
    }

    async fn run_schedule(&self, now: Now, name: &ScheduleName) -> Result<Receipt> {
        self.of_schedule(name).await?.run_schedule(now, name).await
    }

    async fn backfill(
        &self,
        now: Now,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        self.of_schedule(name).await?.backfill(now, name, from, to).await
    }
}

/// What is next where a shard answers, and nothing for now where one is away; a failure where all
/// are.
pub(crate) fn of_those_that_answer(answers: Vec<Result<NextDue>>) -> Result<Vec<NextDue>> {
    let now = answers.iter().flatten().map(|next| next.now).max();
    let Some(now) = now else { return answers.into_iter().collect() };
    let nothing = NextDue { now, due: None, expiry: None };
    Ok(answers.into_iter().map(|answer| answer.unwrap_or(nothing)).collect())
}

/// The earlier of two.
pub(crate) fn sooner(a: NextDue, b: NextDue) -> NextDue {
    NextDue {
        now: a.now.max(b.now),
        due: a.due.into_iter().chain(b.due).min(),
        expiry: a.expiry.into_iter().chain(b.expiry).min(),
    }
}
