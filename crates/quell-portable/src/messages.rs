//! What a process does with the messages of its timer.

use std::sync::Arc;
use std::time::Duration;

use quell_core::{ErrorKind, Job, JobId, JobState, QueueName, Result, Timestamp, WakeHub};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, error, warn};

use crate::below::Below;
use crate::carried::Carried;
use crate::notice::{Notice, Notices};
use crate::table::Table;
use crate::timer::{Delivery, Received};

/// Messages that one process handles at a time.
const MOST: usize = 64;
/// How long one call waits for messages.
const WAIT: Duration = Duration::from_secs(20);
/// How long a worker has to claim once it is woken, before the message is put off.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long a commit takes at most: a message whose row is not there after that is ignored.
const COMMIT: Duration = Duration::from_secs(60);
/// How long a message waits for its row under one lock.
const ROW: Duration = Duration::from_secs(5);
/// The first pause after which a message that no process could act on comes again, and the longest.
pub(crate) const PUT_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// The first pause after which a message comes again that is for workers of another process.
const ELSEWHERE: Duration = Duration::from_millis(50);
/// The delivery with which a message is sent again: Service Bus puts one aside after ten by default.
const OFTEN: u32 = 5;
/// What a process logs that receives a message of another store.
pub(crate) const FOREIGN: &str =
    "a message is for another store, sending it on: give each store a queue of its own";

/// A store, and what its timer must know of it.
#[derive(Debug)]
pub(crate) struct Inner<T: Table> {
    pub(crate) below: Box<dyn Below<T>>,
    /// What wakes workers: messages, and no commits of this process. A claim by a message needs no other.
    pub(crate) hub: WakeHub,
    /// A worker began to listen.
    pub(crate) listened: Notify,
    pub(crate) notices: Arc<Notices>,
}

/// Takes messages while a worker listens.
pub(crate) async fn receive<T: Table>(inner: Arc<Inner<T>>) {
    let (mut pause, mut handled) = (PUT_OFF.0, JoinSet::new());
    loop {
        if !inner.hub.has_subscribers() {
            inner.listened.notified().await;
            continue;
        }
        if handled.len() >= MOST {
            handled.join_next().await;
            continue;
        }
        while handled.try_join_next().is_some() {}
        match inner.notices.timer.receive(MOST - handled.len(), WAIT).await {
            Ok(messages) => {
                pause = PUT_OFF.0;
                for message in messages {
                    let inner = Arc::clone(&inner);
                    handled.spawn(async move { inner.handle(message).await });
                }
            }
            Err(error) => {
                warn!(%error, "cannot receive messages of the timer, workers poll");
                inner.hub.wake(None, Timestamp::MIN);
                sleep(pause).await;
                pause = pause.saturating_mul(2).min(PUT_OFF.1 / 10);
            }
        }
    }
}

/// What the rows of the jobs that a message names say.
#[derive(Debug, Default)]
struct Verdict {
    ready: Vec<JobId>,
    later: Vec<(Timestamp, JobId)>,
    missing: Vec<JobId>,
    has_expired: bool,
}

/// What a message says.
enum Said {
    Notice(Notice),
    Carried(Carried),
}

impl<T: Table> Inner<T> {
    /// Handles one message. Where that fails, its lock expires and it comes again.
    async fn handle(&self, received: Received) {
        let Received { body, deliveries, delivery } = received;
        let said = match Carried::read(&body) {
            Some(carried) => carried.map(Said::Carried),
            None => Notice::read(&body).map(Said::Notice),
        };
        let done = match said {
            Ok(said) if deliveries >= OFTEN => self.replace(said, delivery).await,
            Ok(Said::Carried(carried)) => self.take_in(carried, delivery).await,
            Ok(Said::Notice(notice)) => {
                let watches = notice.watches || deliveries > 1;
                self.note(Notice { watches, ..notice }, delivery).await
            }
            Err(wrong) => {
                error!(error = %wrong, "message put aside");
                self.notices.timer.dead_letter(&delivery, &wrong.to_string()).await
            }
        };
        match done {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                debug!(%error, "message belongs to another process now");
            }
            Err(error) => warn!(%error, "cannot handle message, the timer delivers it again"),
            Ok(()) => {}
        }
    }

    pub(crate) async fn now(&self) -> Result<Timestamp> {
        self.below.first().now().await
    }

    /// The random name of this store.
    pub(crate) async fn store_name(&self) -> Result<&str> {
        self.below.first().store_name(&self.notices).await
    }

    /// Sends an equal message before it completes this one, so that its deliveries are counted from one.
    /// It asks the table for nothing: that may be away for longer than a message has deliveries.
    async fn replace(&self, said: Said, delivery: Delivery) -> Result<()> {
        match said {
            Said::Notice(notice) => {
                let due = notice.at;
                self.notices.send(Notice { watches: true, ..notice }, due).await?;
            }
            Said::Carried(carried) => {
                self.send_carried(&carried, carried.sent, carried.sent).await?;
            }
        }
        self.notices.timer.complete(&delivery).await
    }

    /// Acts on a notice.
    async fn note(&self, notice: Notice, delivery: Delivery) -> Result<()> {
        let own = self.store_name().await?;
        if let Some(store) = notice.store.as_deref().filter(|store| *store != own) {
            // Its ids are of other jobs here.
            warn!(%store, "{FOREIGN}");
            self.send_again(notice, ELSEWHERE).await?;
            return self.notices.timer.complete(&delivery).await;
        }
        match notice.queue.clone() {
            Some(queue) => self.look(notice, &queue, delivery).await,
            None => self.tick(notice, delivery).await,
        }
    }

    /// Sends a notice once more, after a pause that grows with each time.
    async fn send_again(&self, notice: Notice, first: Duration) -> Result<()> {
        let now = self.now().await?;
        let (at, tries) = (now + pause(first, notice.tries), notice.tries.saturating_add(1));
        self.notices.send(Notice { at, tries, ..notice }, now).await
    }

    async fn look(&self, notice: Notice, queue: &QueueName, delivery: Delivery) -> Result<()> {
        let (mut notice, mut delivery) = (notice, delivery);
        if !self.notices.held.serves(queue) {
            let jobs = std::mem::take(&mut notice.jobs);
            let watches = notice.watches || jobs.is_empty();
            self.put_off(&notice, queue, (&jobs, watches), ELSEWHERE).await?;
            return self.notices.timer.complete(&delivery).await;
        }
        let verdict = self.judge(&notice, queue, &mut delivery).await?;
        let now = self.now().await?;
        for (at, job) in verdict.later {
            let mut later = Notice::new(Some(queue.clone()), now, at);
            later.jobs.push(job);
            self.notices.send(later, now).await?;
        }
        if !verdict.missing.is_empty() {
            // Its step is slow, or was never committed.
            let jobs = verdict.missing;
            let again = Notice { jobs, at: now + ROW, watches: false, ..notice.clone() };
            self.notices.send(again, now).await?;
        }
        // Where a process that held this message has gone, the leases of its jobs expire. Workers take
        // them back once they are awake and have sent a heartbeat (R25).
        let watches = notice.watches || notice.jobs.is_empty() || verdict.has_expired;
        if verdict.ready.is_empty() && !watches {
            return self.notices.timer.complete(&delivery).await;
        }
        notice.jobs = verdict.ready;
        let is_first = self.notices.held.hold(queue, &notice.jobs, watches);
        self.hub.wake(Some(queue), notice.at);
        if is_first {
            return self.keep(&notice, queue, delivery).await;
        }
        if notice.watches {
            self.cover_own(notice.jobs, queue).await?;
        }
        self.notices.timer.complete(&delivery).await
    }

    /// Reads the rows of the jobs that a message names; waits for those that are not written yet.
    async fn judge(
        &self,
        notice: &Notice,
        queue: &QueueName,
        delivery: &mut Delivery,
    ) -> Result<Verdict> {
        let (begun, mut pause) = (Instant::now(), Duration::from_millis(10));
        let mut verdict = Verdict { missing: notice.jobs.clone(), ..Verdict::default() };
        loop {
            let now = self.now().await?;
            for id in std::mem::take(&mut verdict.missing) {
                let job = self.below.job(id).await?;
                verdict.add(id, job.as_ref(), now, self.notices.held.runs(queue, id));
            }
            if now.since(notice.sent) > COMMIT {
                verdict.missing.clear();
            }
            if verdict.missing.is_empty() || begun.elapsed() > ROW {
                return Ok(verdict);
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(Duration::from_secs(1));
            if begun.elapsed() > self.notices.timer.lock() / 3 {
                *delivery = self.notices.timer.renew(delivery).await?;
            }
        }
    }

    /// Sends on what a message covered that no worker here can act on: the jobs, and the look for leases
    /// that expire.
    pub(crate) async fn put_off(
        &self,
        notice: &Notice,
        queue: &QueueName,
        (jobs, watches): (&[JobId], bool),
        first: Duration,
    ) -> Result<()> {
        let now = self.now().await?;
        let (at, tries) = (now + pause(first, notice.tries), notice.tries.saturating_add(1));
        let again = Notice { tries, ..Notice::new(Some(queue.clone()), now, at) };
        if watches {
            self.notices.send(again.clone(), now).await?;
        }
        if !jobs.is_empty() {
            self.notices.send(Notice { jobs: jobs.to_vec(), ..again }, now).await?;
        }
        Ok(())
    }

    /// A tick is due, or all queues are to be looked at.
    async fn tick(&self, notice: Notice, delivery: Delivery) -> Result<()> {
        let (begun, held) = (Instant::now(), &self.notices.held);
        let (before, _) = held.ticks();
        self.hub.wake(None, notice.at);
        while begun.elapsed() < PATIENCE {
            let changed = held.changed.notified();
            if held.ticks().1 > before {
                return self.notices.timer.complete(&delivery).await;
            }
            let _told = timeout(PATIENCE.saturating_sub(begun.elapsed()), changed).await;
        }
        self.send_again(notice, PUT_OFF.0).await?;
        self.notices.timer.complete(&delivery).await
    }
}

pub(crate) fn pause(first: Duration, tries: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(tries)).min(PUT_OFF.1)
}

impl Verdict {
    fn add(&mut self, id: JobId, job: Option<&Job>, now: Timestamp, runs_here: bool) {
        let Some(job) = job else { return self.missing.push(id) };
        match job.state {
            JobState::Scheduled if job.waits => {}
            JobState::Scheduled if job.window.due_at > now => {
                self.later.push((job.window.due_at, id));
            }
            JobState::Scheduled => self.ready.push(id),
            JobState::Running if runs_here => {}
            // The process that started it has a message of its own.
            JobState::Running => self.has_expired |= job.lease_until.is_some_and(|at| at <= now),
            _ => {}
        }
    }
}
