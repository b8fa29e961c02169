//! How a process holds the message of a queue: under its lock, until what it covers has ended.

use quell_core::{ErrorKind, JobId, QueueName, Result};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use crate::held::{Fate, Left};
use crate::messages::{Inner, PATIENCE, PUT_OFF, pause};
use crate::notice::Notice;
use crate::table::Table;
use crate::timer::Delivery;

impl<T: Table> Inner<T> {
    /// Holds a message until what it covers is done. What it covers is never forgotten while this process
    /// lives: it is held, or sent on, or covered by another message that is held.
    pub(crate) async fn keep(
        &self,
        notice: &Notice,
        queue: &QueueName,
        delivery: Delivery,
    ) -> Result<()> {
        let (mut delivery, held) = (delivery, &self.notices.held);
        let begun = Instant::now();
        let mut renewed = begun;
        let beat = self.notices.timer.lock() / 3;
        loop {
            let changed = held.changed.notified();
            let (sent, left) = match self.fate(queue).await {
                Fate::Hold => (None, Left::default()),
                Fate::Idle if begun.elapsed() <= PATIENCE => (None, Left::default()),
                Fate::Idle => {
                    // No worker here has time for it.
                    let (jobs, watches) = held.let_go(queue);
                    let sent = self.put_off(notice, queue, (&jobs, watches), PUT_OFF.0).await;
                    (Some(sent), Left { jobs, watches, ..Left::default() })
                }
                Fate::Done(left) => (Some(self.pass_on(notice, queue, &left).await), left),
            };
            match sent {
                None => {
                    let rest = beat.saturating_sub(renewed.elapsed());
                    let _told = timeout(rest.min(PATIENCE), changed).await;
                }
                Some(Ok(())) => return self.notices.timer.complete(&delivery).await,
                Some(Err(error)) => {
                    debug!(%error, "cannot forward messages, retrying");
                    if !held.hold(queue, &left.jobs, left.watches) {
                        // A message that came meanwhile covers it.
                        return self.notices.timer.complete(&delivery).await;
                    }
                    self.hub.wake(Some(queue), notice.at);
                    sleep(PUT_OFF.0).await;
                }
            }
            if renewed.elapsed() < beat {
                continue;
            }
            match self.notices.timer.renew(&delivery).await {
                Ok(next) => (delivery, renewed) = (next, Instant::now()),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.lost(queue).await;
                    return Ok(());
                }
                Err(error) => {
                    debug!(%error, "cannot renew lock, retrying");
                    sleep(PUT_OFF.0).await;
                }
            }
        }
    }

    /// What to do about the message that is held of a queue; while the table's time is unknown, it is held.
    async fn fate(&self, queue: &QueueName) -> Fate {
        match self.now().await {
            Ok(now) => self.notices.held.judge(queue, now),
            Err(error) => {
                debug!(%error, "cannot read the table's time, holding the message");
                Fate::Hold
            }
        }
    }

    /// A lock was lost. Jobs of other messages that it covered need another. So does what runs here: this
    /// process may have had the message again, and have folded it into the one that it held.
    async fn lost(&self, queue: &QueueName) {
        let held = &self.notices.held;
        let runs_until = held.runs_until(queue);
        let (jobs, _) = held.let_go(queue);
        let send = async || -> Result<()> {
            let now = self.now().await?;
            if !jobs.is_empty() {
                let again = Notice::new(Some(queue.clone()), now, now);
                self.notices.send(Notice { jobs: jobs.clone(), ..again }, now).await?;
            }
            let watch_at = runs_until.map_or(now, |until| until.max(now));
            self.notices.send(Notice::new(Some(queue.clone()), now, watch_at), now).await
        };
        let mut rest = PUT_OFF.0;
        while let Err(error) = send().await {
            warn!(%error, %queue, "cannot forward the messages of a lost lock, retrying");
            sleep(rest).await;
            rest = rest.saturating_mul(2).min(PUT_OFF.1 / 10);
        }
    }

    /// Covers what this process does by notices for the time at which a lock ends: a message that was
    /// delivered before may be the one that is held here. Its lock was lost then, and the process may die
    /// before it learns so.
    pub(crate) async fn cover_own(&self, jobs: Vec<JobId>, queue: &QueueName) -> Result<()> {
        let now = self.now().await?;
        // These say not that their holder may have died: that would be a reason to send them again.
        let watch = Notice::new(Some(queue.clone()), now, now + self.notices.timer.lock());
        if !jobs.is_empty() {
            self.notices.send(Notice { jobs, ..watch.clone() }, now).await?;
        }
        self.notices.send(watch, now).await
    }

    /// Sends on what a message covered and is not done.
    async fn pass_on(&self, notice: &Notice, queue: &QueueName, left: &Left) -> Result<()> {
        let now = self.now().await?;
        if !left.jobs.is_empty() {
            let (at, tries) = match left.due {
                Some(due) => (due, 0),
                None => (now + pause(PUT_OFF.0, notice.tries), notice.tries.saturating_add(1)),
            };
            let again = Notice::new(Some(queue.clone()), now, at);
            self.notices.send(Notice { jobs: left.jobs.clone(), tries, ..again }, now).await?;
        }
        if let Some(expiry) = left.expiry {
            let watch = Notice::new(Some(queue.clone()), now, expiry.max(now));
            self.notices.send(watch, now).await?;
        }
        Ok(())
    }
}
