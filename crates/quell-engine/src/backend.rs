//! What a store author writes: rows, the indexes over them, and a commit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::alert::Overview;
use quell_core::checkup::Checkup;
use quell_core::part::{Ids, Notifications, TaskKey};
use quell_core::{
    Backlog, BacklogOf, Batch, Capabilities, Claim, Claimed, Error, Job, JobFilter, JobId,
    JobState, Key, Lease, NextDue, Now, Pruned, QueueName, Receipt, Renewal, Result, Retention,
    ScheduleName, Settled, Settlement, TaskName, Timestamp, WorkerId,
};

pub use crate::lanes::Lanes;
use crate::rows::{Row, RowName};

/// An order in which rows are found. All are ascending by [`Place`], then by name (of jobs: by id),
/// but for those that say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Index {
    /// Jobs of one queue and task that may start, by priority and by when they are due.
    Line(QueueName, TaskName),
    /// Jobs that run, by when their leases expire.
    Leases,
    /// Jobs that wait for an attempt of their key or for an older window, by when they are due.
    Waiting,
    /// Jobs that have ended and are not dead, by when they ended.
    Ended,
    /// Dead jobs, by when they died; the last death first.
    Dead,
    /// Jobs that are set aside, the newest first.
    Unreadable,
    /// Jobs of partitions of a queue that may start and have started before, by priority and by when they
    /// are due: each comes before the others of its partition where the order is strict (R41).
    Begun(QueueName),
    /// Closed windows of a key, by their ids.
    Closed(TaskKey),
    /// What names a job: dedup keys, idempotency keys, ticks, and jobs that it absorbed.
    Of(JobId),
    /// Dedup keys, idempotency keys, memories and starts, by when they expire.
    Expiry,
    /// Schedules, by when they tick next.
    Plan,
    /// Ticks that fired, by when they were due.
    Ticks,
    /// Ticks of one schedule that fired, by when they were due.
    Fired(ScheduleName),
    /// All jobs that are not set aside, the newest first. Nothing enters it: it follows from the rows.
    Jobs,
    /// All rows of a kind, by name. Nothing enters it: it follows from the rows.
    Rows(Kind),
}

/// Kinds of rows that may be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Queues.
    Queues,
    /// Tasks.
    Tasks,
    /// Starts of a rate.
    Starts,
    /// Workers.
    Workers,
    /// Alerts.
    Alerts,
    /// Schedules.
    Schedules,
}

/// What an index says of a job, so that its row need not be read.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Note {
    /// Its queue.
    pub queue: QueueName,
    /// Its task.
    pub task: TaskName,
    /// Its state.
    pub state: JobState,
    /// Its partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Key>,
    /// Its worker, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
}

/// Where a row stands in an index: first by rank, the highest first, then by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The priority of a job in line or among those that have begun; 0 in other indexes.
    pub rank: Reverse<i16>,
    /// The time; [`Timestamp::MIN`] in indexes that are ordered by ids or names alone.
    pub at: Timestamp,
}

impl Place {
    /// The place at a time.
    #[must_use]
    pub fn at(at: Timestamp) -> Self {
        Place { rank: Reverse(0), at }
    }

    /// The place in indexes that are ordered by ids or names alone.
    pub const NONE: Place = Place { rank: Reverse(0), at: Timestamp::MIN };
}

/// A row in an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Where it stands.
    pub place: Place,
    /// The row that stands there.
    pub name: RowName,
    /// What is known of it, where it is a job.
    pub note: Option<Note>,
}

/// A read of an index, from its beginning or from the entry after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The index.
    pub index: Index,
    /// Only entries of this time or later.
    pub from: Option<Timestamp>,
    /// Only entries of this time or earlier.
    pub to: Option<Timestamp>,
    /// Only what comes after this entry in the order of the index.
    pub after: Option<(Place, RowName)>,
    /// Only jobs that match, of [`Index::Jobs`] and where the backend
    /// [finds them](Backend::finds_jobs).
    pub filter: Option<JobFilter>,
    /// Only these jobs, of [`Index::Line`].
    pub lanes: Lanes,
    /// The most entries.
    pub limit: usize,
}

impl Scan {
    /// The first entries of an index.
    #[must_use]
    pub fn first(index: Index, limit: usize) -> Self {
        let lanes = Lanes::All;
        Scan { index, from: None, to: None, after: None, filter: None, lanes, limit }
    }

    /// The same, up to this time.
    #[must_use]
    pub fn up_to(self, to: Timestamp) -> Self {
        Scan { to: Some(to), ..self }
    }
}

/// Entries of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// In the order of the index.
    pub entries: Vec<Entry>,
    /// Whether there may be more after them, within the bounds of the scan.
    pub more: bool,
}

/// Which time a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// This one, unless the store has seen a later one.
    At(Timestamp),
    /// That of the backend's own clock.
    Clock,
    /// The same as these two, for the record alone: nothing that the step decides depends on it, so nothing
    /// need be done first.
    Noted(Now),
    /// The highest that was seen: nothing that the step decides depends on it.
    Last,
}

impl Time {
    /// The time that a step asks for; none where the highest that was seen will do.
    #[must_use]
    pub fn asked(self) -> Option<Now> {
        match self {
            Time::At(now) => Some(Some(now)),
            Time::Clock => Some(None),
            Time::Noted(now) => Some(now),
            Time::Last => None,
        }
    }
}

impl From<Now> for Time {
    fn from(now: Now) -> Self {
        now.map_or(Time::Clock, Time::At)
    }
}

/// What a step may do with the rows that it loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads: a backend takes no lock for it, and it commits nothing.
    Read,
    /// It may change them, and makes at most this number of jobs.
    Write {
        /// How many ids it may need.
        jobs: usize,
    },
}

impl Access {
    /// How many ids of new jobs the step may need.
    #[must_use]
    pub fn jobs(self) -> usize {
        match self {
            Access::Read => 0,
            Access::Write { jobs } => jobs,
        }
    }
}

/// How many attempts run in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// All of them.
    pub all: usize,
    /// Those of the worker that was asked for.
    pub by_worker: usize,
    /// Those of each partition.
    pub by_partition: BTreeMap<Key, usize>,
}

/// Batches of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whether they are offered to the backend's hot path.
    pub is_hot: bool,
    /// Their places in the call.
    pub batches: Vec<usize>,
}

/// The answer of a hot path, and what other processes and workers are to be notified of.
pub type Taken<A> = Result<Option<(A, Notifications)>>;

/// A queue, and tasks of it.
pub type TasksOf<'q> = (&'q QueueName, &'q [TaskName]);

/// What an upkeep removes at most.
#[derive(Clone, Copy, Debug)]
pub struct Removal<'r> {
    /// How long what has ended is kept.
    pub retention: &'r Retention,
    /// How many rows of each kind may go.
    pub limit: usize,
}

/// A step that has begun.
#[derive(Debug)]
pub struct Beginning<Tx> {
    /// What the backend knows of it.
    pub tx: Tx,
    /// The store's time, which never goes back (R38).
    pub now: Timestamp,
    /// The ids of new jobs, as many as were asked for: no other step gets them.
    pub ids: Ids,
}

/// How many jobs there are of a queue and task in a state, or by how many they become more or fewer.
pub type Tally = BTreeMap<(QueueName, TaskName, JobState), i64>;

/// What a step changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Rows as they are from now on; none for one that is removed. Each was loaded by the step, but for
    /// those of jobs that it makes, and for [gates](RowName::Gate): one that was not loaded is written
    /// whatever it is. Where the row of an open window is among them, before or after the step, that of
    /// its key is, too.
    pub rows: BTreeMap<RowName, Option<Row>>,
    /// Entries that come into indexes. One that is there already is replaced.
    pub enter: Vec<(Index, Entry)>,
    /// Entries that leave indexes. One that is not there is no error.
    pub leave: Vec<(Index, Place, RowName)>,
    /// How many of the ids were used that the step began with.
    pub ids: u64,
    /// Jobs whose rows cannot be decoded: they are kept as they are beside their row
    /// [`RowName::Aside`], and are no longer found under [`RowName::Job`].
    pub aside: BTreeSet<JobId>,
    /// By how many the jobs become more or fewer. It follows from the entries that have a note, and has
    /// no zeros.
    pub counts: Tally,
}

impl Changes {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
            && self.enter.is_empty()
            && self.leave.is_empty()
            && self.aside.is_empty()
    }

    /// Counts a job that enters or leaves an index with this note.
    pub(crate) fn count(&mut self, note: &Note, by: i64) {
        add_to(&mut self.counts, (note.queue.clone(), note.task.clone(), note.state), by);
    }
}

/// Adds to a tally, in which nothing is zero.
pub fn add_to(tally: &mut Tally, lane: (QueueName, TaskName, JobState), by: i64) {
    let count = tally.get(&lane).copied().unwrap_or(0).saturating_add(by);
    if count == 0 {
        tally.remove(&lane);
    } else {
        tally.insert(lane, count);
    }
}

/// The outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// All of it was written.
    Done,
    /// Another step has changed a row that the step loaded and changed: nothing was written.
    Conflict,
    /// It changes more rows than the backend writes at once, or more bytes: nothing was written.
    TooLarge {
        /// How many rows it changes.
        changes: usize,
        /// How many the backend takes.
        most: usize,
    },
}

/// Rows in memory, in a table, in a database: what a store author writes.
///
/// A step begins, loads rows and reads indexes, and commits what it changes. A backend either locks
/// the rows that a step loads, so that commits never conflict, or compares at the commit: if a row that
/// the step changes is not as it was loaded, or a row that it makes is there, nothing is written and the
/// answer is [`Committed::Conflict`]. Reads of one step may be of different moments: what a step decides
/// by, it changes.
///
/// Each call ends within a deadline of its own. An error says that nothing was written, unless it is of
/// kind [`UnknownOutcome`](quell_core::ErrorKind::UnknownOutcome).
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug + 'static {
    /// What it knows of an open step. Dropping it gives the step up.
    type Tx: Send + Sync;

    /// What a store on it does.
    fn capabilities(&self) -> Capabilities;

    /// How many rows one commit changes at most. The engine splits what need not be one step.
    fn most_changes(&self) -> usize {
        usize::MAX
    }

    /// The longest payload of a job that waits, in bytes. Windows close at it, whatever larger bound
    /// their triggers bring (R10).
    fn most_payload(&self) -> usize {
        usize::MAX
    }

    /// How many entries of a line are read at a time: many where each read is a round trip.
    fn page(&self) -> usize {
        crate::load::PAGE
    }

    /// Whether a step that may write keeps other writers waiting from its beginning. The engine then reads
    /// first where there is mostly nothing to write.
    fn locks(&self) -> bool {
        false
    }

    /// Whether the row of a tick says why it fired and which job took its trigger, also long after. A backend that
    /// keeps spans of ticks knows only when.
    fn keeps_causes_of_ticks(&self) -> bool {
        true
    }

    /// Whether a claim that its hot path declined is to look first, and to write only where something may
    /// start. Whatever a look does not see must have been taken in by then.
    fn looks_before_claims(&self) -> bool {
        false
    }

    /// Whether it finds jobs by a [filter](Scan::filter) without a look at the others.
    fn finds_jobs(&self) -> bool {
        false
    }

    /// Whether it reads [lanes](Scan::lanes) without a look at the others.
    fn finds_lanes(&self) -> bool {
        false
    }

    /// Begins a step.
    async fn begin(&self, time: Time, access: Access) -> Result<Beginning<Self::Tx>>;

    /// Ends a step that changes nothing. A backend that has locked rows for it frees them before this returns:
    /// what the caller does next must not meet them. By default dropping the step does all that is needed.
    async fn give_up(&self, tx: Self::Tx) {
        drop(tx);
    }

    /// Other ids in place of those that the step began with, all of them above `above`: the windows of a
    /// key run in the order of their ids (R10). A backend that hands out ids in order is never asked.
    async fn ids_above(&self, tx: &mut Self::Tx, above: JobId, jobs: usize) -> Result<Ids> {
        let _unused = (tx, above, jobs);
        let message = "a backend that hands out ids in blocks must hand out later ones";
        Err(Error::new(quell_core::ErrorKind::Internal, message))
    }

    /// The store's time once the rows of a step are locked: what another step did to them while this one
    /// waited happened before. Asked for before the step decides anything. None where the time stands with
    /// which it began, which is so by default.
    fn late(&self, tx: &Self::Tx) -> Option<Timestamp> {
        let _unused = tx;
        None
    }

    /// Loads rows; those that are not there are left out. It may bring rows of earlier loads again, as they
    /// are now that other rows are locked.
    ///
    /// # Errors
    /// [`Error::unreadable`] for the row of a job that cannot be decoded.
    async fn load(
        &self,
        tx: &mut Self::Tx,
        names: &BTreeSet<RowName>,
    ) -> Result<Vec<(RowName, Row)>>;

    /// Reads indexes, one answer for each in their order.
    async fn scan(&self, tx: &mut Self::Tx, scans: &[Scan]) -> Result<Vec<Seen>>;

    /// Writes what changes, all or nothing, and then notifies other processes of the news.
    async fn commit(
        &self,
        tx: Self::Tx,
        changes: Changes,
        news: &Notifications,
    ) -> Result<Committed>;

    /// Is given the news of a step that changes nothing, which is not committed: a refusal, for instance.
    /// Only a backend needs it that records events itself; nothing by default.
    fn unchanged(&self, news: &Notifications) {
        let _unused = news;
    }

    /// Whether an error reports a conflict with another step, such as a deadlock, after which nothing was
    /// written: the engine then retries the step. None does by default.
    fn is_conflict(&self, error: &Error) -> bool {
        let _unused = error;
        false
    }

    /// The row of a job that is set aside, decoded again; none where there is none.
    ///
    /// # Errors
    /// [`Error::unreadable`] where it still cannot be decoded.
    async fn load_aside(&self, tx: &mut Self::Tx, id: JobId) -> Result<Option<Row>>;

    /// Notes that the step decides by the leases of these jobs, before it loads them (R21): where a renewal
    /// may be in flight, it is to be waited for. Nothing by default.
    fn decides_by_leases(&self, tx: &mut Self::Tx, ids: &[JobId]) {
        let _unused = (tx, ids);
    }

    /// What can be decoded of the row of a job that cannot be decoded whole, with
    /// [`JobState::Unreadable`] for a state that cannot.
    async fn load_in_part(&self, tx: &mut Self::Tx, id: JobId) -> Result<Option<Job>>;

    /// How many jobs there are: the sum of all [`Changes::counts`] that were committed. It costs no more
    /// with more jobs.
    ///
    /// # Errors
    /// Of kind [`Corrupt`](quell_core::ErrorKind::Corrupt) where what it keeps of them cannot be read:
    /// the engine then counts the entries of all indexes.
    async fn counts(&self, tx: &mut Self::Tx) -> Result<Tally>;

    /// Does what keeps its own costs flat, such as adding up what single commits left. It is called now
    /// and then; nothing by default.
    async fn tidy(&self) -> Result<()> {
        Ok(())
    }

    /// How many attempts run in a queue, where it counts them: none by default, and the engine counts the
    /// entries of [`Index::Leases`].
    async fn running(
        &self,
        tx: &mut Self::Tx,
        queue: &QueueName,
        worker: Option<&WorkerId>,
    ) -> Result<Option<Running>> {
        let _unused = (tx, queue, worker);
        Ok(None)
    }

    /// Which of these jobs have not ended, where it knows without loading them: none by default.
    async fn waiting(
        &self,
        tx: &mut Self::Tx,
        ids: &BTreeSet<JobId>,
    ) -> Result<Option<BTreeSet<JobId>>> {
        let _unused = (tx, ids);
        Ok(None)
    }

    /// The newest jobs of a task that have a key, at most `most`, where it keeps a list of them; some may
    /// have been removed. None by default: then the engine looks through the newest jobs of all tasks.
    async fn newest_keyed(
        &self,
        tx: &mut Self::Tx,
        task: &TaskName,
        most: usize,
    ) -> Result<Option<Vec<JobId>>> {
        let _unused = (tx, task, most);
        Ok(None)
    }

    /// How many of these groups of rows, from the first on, one step of upkeep loads, and one at least
    /// where there is one: all by default.
    async fn fitting(&self, tx: &mut Self::Tx, groups: &[Vec<RowName>]) -> Result<usize> {
        let _unused = tx;
        Ok(groups.len())
    }

    /// The key that a job keeps busy of whose row nothing can be decoded, and whether the job is one of
    /// its closed windows, where its indexes show that: none by default.
    async fn held_key(&self, tx: &mut Self::Tx, id: JobId) -> Result<Option<(TaskKey, bool)>> {
        let _unused = (tx, id);
        Ok(None)
    }

    /// The clock and a few facts about its health.
    async fn checkup(&self) -> Result<Checkup>;

    /// Accepts batches in fewer round trips than the engine's step, with the same answer and the same
    /// rows. None declines what is not of the common kind, and the engine takes its step. So do the other
    /// hot paths; none of them takes anything by default.
    ///
    /// # Errors
    /// As those of the operation. The engine tries again only after an [`Error::unreadable`], once that job
    /// is set aside (R25).
    async fn hot_enqueue(&self, now: Now, batches: &[Batch]) -> Taken<Vec<Result<Vec<Receipt>>>> {
        let _unused = (now, batches);
        Ok(None)
    }

    /// The parts of a call, in the order in which they are accepted: all batches are offered in one by
    /// default.
    fn parts(&self, batches: &[Batch]) -> Vec<Part> {
        vec![Part { is_hot: true, batches: (0..batches.len()).collect() }]
    }

    /// The same as [`Backend::hot_enqueue`] where it may take some of the batches. The answers are of the
    /// first batches, as many as it looked at. Those without an answer go by the engine's step, and then the
    /// batches that it did not look at are offered again. All or none by default.
    ///
    /// # Errors
    /// As [`Backend::hot_enqueue`].
    async fn hot_enqueue_some(
        &self,
        now: Now,
        batches: &[Batch],
    ) -> Taken<Vec<Option<Result<Vec<Receipt>>>>> {
        let taken = self.hot_enqueue(now, batches).await?;
        Ok(taken.map(|(answers, news)| (answers.into_iter().map(Some).collect(), news)))
    }

    /// Starts due jobs, as [`Backend::hot_enqueue`] accepts batches.
    ///
    /// # Errors
    /// As [`Backend::hot_enqueue`].
    async fn hot_claim(&self, now: Now, claim: &Claim) -> Taken<Claimed> {
        let _unused = (now, claim);
        Ok(None)
    }

    /// The same with whether the engine's step is to start the rest: it need not by default.
    ///
    /// # Errors
    /// As [`Backend::hot_enqueue`].
    async fn hot_claim_some(&self, now: Now, claim: &Claim) -> Taken<(Claimed, bool)> {
        let taken = self.hot_claim(now, claim).await?;
        Ok(taken.map(|(claimed, news)| ((claimed, false), news)))
    }

    /// The errors of jobs that a hot path has started although their rows cannot be decoded, each once:
    /// the engine sets those aside (R25). None by default.
    fn met_unreadable(&self) -> Vec<Error> {
        Vec::new()
    }

    /// Extends leases, likewise.
    ///
    /// # Errors
    /// As [`Backend::hot_enqueue`].
    async fn hot_renew(&self, now: Now, leases: &[Lease], lease: Duration) -> Taken<Vec<Renewal>> {
        let _unused = (now, leases, lease);
        Ok(None)
    }

    /// Ends attempts, likewise. The answers are of the first of them, as many as it looked at, in one
    /// commit. Those without an answer end by the engine's step, and then the ones that it did not look at
    /// are offered again.
    ///
    /// # Errors
    /// As [`Backend::hot_enqueue`]. None of these have ended then, or it is unknown whether they have.
    async fn hot_settle(
        &self,
        now: Now,
        settlements: &[Settlement],
    ) -> Taken<Vec<Option<Settled>>> {
        let _unused = (now, settlements);
        Ok(None)
    }

    /// Reads when something is due in a queue, likewise.
    ///
    /// # Errors
    /// As those of the operation; the engine does not try again.
    async fn hot_next_due(&self, now: Now, of: TasksOf<'_>) -> Result<Option<NextDue>> {
        let _unused = (now, of);
        Ok(None)
    }

    /// Reads when something may be due in several queues, likewise.
    ///
    /// # Errors
    /// As those of the operation; the engine does not try again.
    async fn hot_peek(
        &self,
        now: Now,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Option<Vec<NextDue>>> {
        let _unused = (now, queues);
        Ok(None)
    }

    /// Reads what alerts look at, likewise.
    ///
    /// # Errors
    /// As those of the operation; the engine does not try again.
    async fn hot_overview(&self, now: Now) -> Result<Option<Overview>> {
        let _unused = now;
        Ok(None)
    }

    /// Reads what waits and runs in the partitions of a queue, as [`Backend::hot_overview`] does.
    async fn hot_backlog(&self, _: Now, _: &BacklogOf) -> Result<Option<Backlog>> {
        Ok(None)
    }

    /// Removes what has expired, likewise.
    ///
    /// # Errors
    /// As those of the operation; the engine does not try again.
    async fn hot_prune(&self, now: Now, removal: Removal<'_>) -> Result<Option<Pruned>> {
        let _unused = (now, removal);
        Ok(None)
    }

    /// Whether a queue or a task, whose row was there before, is still there as far as the step knows. A
    /// backend whose database loses writes may say no.
    fn knows(&self, name: &RowName) -> bool {
        let _unused = name;
        true
    }

    /// Whether the row of a key may forget its newest job once no job of the key waits or runs.
    fn forgets_newest(&self) -> bool {
        false
    }

    /// The longest pause between two tries of a step; none for a backend whose commits never conflict.
    fn longest_pause(&self) -> Duration {
        Duration::from_millis(100)
    }
}

/// The error of a step that was tried as often as it may.
pub(crate) fn contended(what: &str) -> Error {
    let message = format!("cannot {what}: other processes change the same rows all the time");
    Error::new(quell_core::ErrorKind::Contention, message)
}
