//! A shard as a backend of the engine.
//!
//! A step reads in as many looks as it needs, each of one moment, and one script writes what it changes
//! if everything that it read is still so. Common calls are one script each, in `hot`.
//!
//! Invariant: whatever is written is written by one script, with all its keys named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use quell_core::alert::Overview;
use quell_core::checkup::Checkup;
use quell_core::history::Event;
use quell_core::part::{Ids, Notifications, TaskKey};
use quell_core::{
    Batch, Capabilities, Claim, Claimed, ClaimedJob, Error, Job, JobId, Key, Lease, NextDue, Now,
    Pruned, QueueName, Receipt, Renewal, Result, Settled, Settlement, TaskName, Timestamp,
    WorkerId,
};
use quell_engine::{
    Access, Backend, Beginning, Changes, Committed, Part, Removal, Row, RowName, Running, Scan,
    Seen, Taken, Tally, TasksOf, Time,
};

use crate::commit::worker_field;
use crate::hot::parts;
use crate::keys::{slot_of_partition, slot_of_worker};
use crate::load::cell_of;
use crate::look::{MOST_BYTES, Read, job_of};
use crate::open::Open;
use crate::row::number;
use crate::shard::{self, Shard};

/// The longest pause between two tries of a step.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);

/// The rows of one shard.
#[derive(Debug)]
pub(crate) struct RedisBackend {
    pub(crate) shard: Arc<Shard>,
    /// Whether the store records a history.
    pub(crate) records: bool,
    /// The errors of jobs that were started although their rows cannot be decoded (R25).
    unreadable: Mutex<Vec<Error>>,
}

impl From<Time> for shard::Time {
    fn from(time: Time) -> Self {
        match time.asked() {
            Some(now) => now.map_or(shard::Time::Server, shard::Time::At),
            None => shard::Time::Last,
        }
    }
}

impl RedisBackend {
    pub(crate) fn new(shard: Shard, records: bool) -> Self {
        RedisBackend { shard: Arc::new(shard), records, unreadable: Mutex::default() }
    }

    /// These events, where the store records a history.
    pub(crate) fn events(&self, events: impl Iterator<Item = Event>) -> Vec<Event> {
        if self.records { events.collect() } else { Vec::new() }
    }

    pub(crate) fn unreadable(&self) -> MutexGuard<'_, Vec<Error>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Backend for RedisBackend {
    type Tx = Open;

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().with_transactions(false).with_timed(false)
    }

    fn finds_lanes(&self) -> bool {
        true
    }

    fn keeps_causes_of_ticks(&self) -> bool {
        // They are in spans of a plan, which take as many bytes whatever their number.
        false
    }

    fn locks(&self) -> bool {
        // Steps of one process wait for each other, as they would only get in each other's way.
        true
    }

    fn knows(&self, name: &RowName) -> bool {
        // A server that lost writes may have lost them; each step reads the names again where they differ.
        let known = self.shard.known();
        match name {
            RowName::Queue(queue) => known.queues.contains_key(queue),
            RowName::Task(task) => known.tasks.contains_key(task),
            _ => true,
        }
    }

    fn forgets_newest(&self) -> bool {
        // The hash that shows a key's window goes after its run.
        true
    }

    fn longest_pause(&self) -> Duration {
        LONGEST_PAUSE
    }

    async fn begin(&self, time: Time, access: Access) -> Result<Beginning<Open>> {
        let tx = Open::begin(Arc::clone(&self.shard), time.into(), access).await?;
        Ok(Beginning { now: tx.now, ids: tx.ids(), tx })
    }

    async fn ids_above(&self, tx: &mut Open, _: JobId, jobs: usize) -> Result<Ids> {
        // The job was made after the step had begun.
        tx.reserve(jobs).await?;
        Ok(tx.ids())
    }

    fn late(&self, tx: &Open) -> Option<Timestamp> {
        // What it has read was written before its last look.
        Some(tx.now)
    }

    async fn load(&self, tx: &mut Open, names: &BTreeSet<RowName>) -> Result<Vec<(RowName, Row)>> {
        tx.load(names).await
    }

    async fn scan(&self, tx: &mut Open, scans: &[Scan]) -> Result<Vec<Seen>> {
        tx.scan(scans).await
    }

    async fn commit(
        &self,
        mut tx: Open,
        changes: Changes,
        news: &Notifications,
    ) -> Result<Committed> {
        let made = (changes.ids > 0 || tx.reserved.is_some()).then_some(changes.ids);
        if tx.reserved.is_some_and(|reserved| reserved < changes.ids) {
            self.shard.want_ids(changes.ids);
            return Ok(Committed::Conflict);
        }
        // Expired leases are judged by rows as they were read: a heartbeat that comes meanwhile is no conflict.
        let beats = changes.rows.keys().filter_map(|name| match name {
            RowName::Worker(worker, incarnation) => Some(worker_field(worker, *incarnation)),
            _ => None,
        });
        let beats: BTreeSet<String> = beats.collect();
        let workers = tx.keys().workers();
        tx.let_change(&workers, |field| beats.contains(field));
        let writes = tx.writes(changes, news)?;
        let is_done = tx.commit(writes).await?;
        if made.is_some() && is_done {
            self.shard.note_ids(made);
        }
        Ok(if is_done { Committed::Done } else { Committed::Conflict })
    }

    async fn load_aside(&self, tx: &mut Open, id: JobId) -> Result<Option<Row>> {
        Ok(tx.load_aside(id).await?.map(|job| Row::Job(Arc::new(job))))
    }

    async fn load_in_part(&self, tx: &mut Open, id: JobId) -> Result<Option<Job>> {
        tx.load_in_part(id).await
    }

    async fn counts(&self, _: &mut Open) -> Result<Tally> {
        self.shard.counts().await
    }

    async fn running(
        &self,
        tx: &mut Open,
        queue: &QueueName,
        worker: Option<&WorkerId>,
    ) -> Result<Option<Running>> {
        let mut looked = tx.look(vec![Read::All(tx.keys().slots())]).await?;
        let count = |bytes: &[u8]| number(bytes).and_then(|count| usize::try_from(count).ok());
        let of_worker = worker.map(|worker| slot_of_worker(queue, worker));
        let of_partition = |name: &Key| slot_of_partition(queue, name);
        let (mut running, mut by_partition) = (Running::default(), BTreeMap::new());
        for (field, value) in looked.pairs()? {
            let count = count(&value).unwrap_or(0);
            if field == queue.as_str() {
                running.all = count;
            } else if of_worker.as_ref() == Some(&field) {
                running.by_worker = count;
            } else if let Some((_, name)) = field.split_once(" p ") {
                let name = Key::new(name)?;
                if of_partition(&name) == field {
                    by_partition.insert(name, count);
                }
            }
        }
        Ok(Some(Running { by_partition, ..running }))
    }

    async fn waiting(
        &self,
        tx: &mut Open,
        ids: &BTreeSet<JobId>,
    ) -> Result<Option<BTreeSet<JobId>>> {
        tx.waiting(ids).await.map(Some)
    }

    async fn newest_keyed(
        &self,
        tx: &mut Open,
        task: &TaskName,
        most: usize,
    ) -> Result<Option<Vec<JobId>>> {
        let read = Read::First(tx.keys().recent(task), most);
        let members = tx.look(vec![read]).await?.members()?;
        members.iter().map(|member| job_of(member)).collect::<Result<_>>().map(Some)
    }

    async fn fitting(&self, tx: &mut Open, groups: &[Vec<RowName>]) -> Result<usize> {
        let mut bytes = vec![0_u64; groups.len()];
        let mut by_key: BTreeMap<String, (Vec<String>, Vec<usize>)> = BTreeMap::new();
        for (place, names) in groups.iter().enumerate() {
            for cell in names.iter().filter_map(|name| cell_of(tx, name)) {
                let (fields, places) = by_key.entry(cell.key).or_default();
                fields.extend(cell.field);
                places.push(place);
            }
        }
        let of = |(key, (fields, _)): (&String, &(Vec<String>, Vec<usize>))| {
            Read::Lengths(key.clone(), fields.clone())
        };
        let mut looked = tx.look(by_key.iter().map(of).collect()).await?;
        for (_, places) in by_key.values() {
            for (place, length) in places.iter().zip(looked.numbers()?) {
                if let Some(sum) = bytes.get_mut(*place) {
                    *sum = sum.saturating_add(length);
                }
            }
        }
        Ok(fitting(bytes))
    }

    async fn held_key(&self, tx: &mut Open, id: JobId) -> Result<Option<(TaskKey, bool)>> {
        tx.held_key(id).await
    }

    async fn checkup(&self) -> Result<Checkup> {
        self.shard.checkup().await
    }

    fn parts(&self, batches: &[Batch]) -> Vec<Part> {
        parts(&self.shard.known(), batches)
    }

    async fn hot_enqueue_some(
        &self,
        now: Now,
        batches: &[Batch],
    ) -> Taken<Vec<Option<Result<Vec<Receipt>>>>> {
        self.accept_some(now, batches).await
    }

    async fn hot_claim_some(&self, now: Now, claim: &Claim) -> Taken<(Claimed, bool)> {
        let claimed = self.claim_some(now, claim).await?;
        Ok(claimed.map(|(claimed, has_rest)| {
            let started = |job: &ClaimedJob| job.lease_until.before(claim.lease);
            let event = |job| Event::claimed(started(job), claim, job);
            let events = self.events(claimed.jobs.iter().map(event));
            ((claimed, has_rest), Notifications { events, ..Notifications::default() })
        }))
    }

    fn met_unreadable(&self) -> Vec<Error> {
        std::mem::take(&mut *self.unreadable())
    }

    async fn hot_renew(&self, now: Now, leases: &[Lease], lease: Duration) -> Taken<Vec<Renewal>> {
        let renewed = self.renew_all(now, leases, lease).await?;
        Ok(renewed.map(|(t, renewed)| {
            let events = leases.iter().zip(&renewed).filter_map(|(lease, renewal)| {
                let Lease { job, token } = *lease;
                renewal.until().map(|until| Event::Renew { t, job, token, until })
            });
            let events = self.events(events);
            (renewed, Notifications { events, ..Notifications::default() })
        }))
    }

    async fn hot_settle(
        &self,
        now: Now,
        settlements: &[Settlement],
    ) -> Taken<Vec<Option<Settled>>> {
        self.settle_some(now, settlements).await
    }

    async fn hot_next_due(&self, now: Now, (queue, tasks): TasksOf<'_>) -> Result<Option<NextDue>> {
        self.next_due_of(now, queue, tasks).await
    }

    async fn hot_peek(
        &self,
        now: Now,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Option<Vec<NextDue>>> {
        self.peek_all(now, queues).await
    }

    async fn hot_overview(&self, now: Now) -> Result<Option<Overview>> {
        self.read_overview(now.into()).await.map(Some)
    }

    async fn hot_prune(&self, now: Now, removal: Removal<'_>) -> Result<Option<Pruned>> {
        let Removal { retention, limit } = removal;
        self.prune_ticks(now.into(), retention, limit).await
    }
}

/// How many of these rows a call reads: as many as its bound of bytes allows, and one at least.
pub(crate) fn fitting(lengths: impl IntoIterator<Item = u64>) -> usize {
    let mut sum = 0_u64;
    let fits = lengths.into_iter().take_while(|length| {
        sum = sum.saturating_add(*length);
        sum <= MOST_BYTES
    });
    fits.count().max(1)
}
