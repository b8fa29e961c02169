//! Upkeep of all shards: each is asked at the same time, and one that is slow or away delays no
//! other.
//!
//! The first answers wait a moment for the others. A shard that answers later goes on being asked
//! beside, and is left out of the next visits for the same purpose until it has answered: so nothing
//! is interrupted half-way, and a shard that is away is not waited for each time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quell_core::{Error, ErrorKind, Result};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

/// How long answers wait for those of other shards.
const GRACE: Duration = Duration::from_secs(1);

/// The visits that are open, with their beginning.
type Open = BTreeMap<Visit, Instant>;
/// The purpose, the shard, and a number that distinguishes the visit from others.
type Visit = (&'static str, usize, u64);

/// The shards that are being asked, and what for.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    open: Arc<Mutex<Open>>,
    count: AtomicU64,
    // Owned so that they end with the store.
    tasks: Mutex<JoinSet<()>>,
}

/// What shards answered.
#[derive(Debug)]
pub(crate) struct Visited<S, T> {
    pub(crate) answers: Vec<(Arc<S>, T)>,
    /// Why another did not; none where all answered.
    pub(crate) failed: Option<Error>,
}

impl<S, T> Visited<S, T> {
    /// The answers; the failure where there are none.
    pub(crate) fn or_failure(self) -> Result<Vec<(Arc<S>, T)>> {
        match self.failed {
            Some(error) if self.answers.is_empty() => Err(error),
            Some(_) | None => Ok(self.answers),
        }
    }
}

/// Takes a shard from those that are being asked, whatever ends that.
struct Leaves {
    open: Arc<Mutex<Open>>,
    visit: Visit,
}

impl Drop for Leaves {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.visit);
    }
}

impl Visits {
    /// Asks each shard for one purpose.
    pub(crate) async fn each<S: Send + Sync + 'static, T: Send + 'static>(
        &self,
        purpose: &'static str,
        shards: Vec<Arc<S>>,
        ask: impl Fn(Arc<S>) -> BoxFuture<'static, Result<T>>,
    ) -> Visited<S, T> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut visited = Visited { answers: Vec::new(), failed: None };
        let mut waiting = 0_usize;
        for shard in shards {
            let Some(leaves) = self.begin(purpose, &shard) else {
                visited.failed = Some(still_asked(purpose));
                continue;
            };
            let (asked, sender) = (ask(Arc::clone(&shard)), sender.clone());
            let mut tasks = lock(&self.tasks);
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move {
                let answer = asked.await;
                drop(leaves);
                // The answer of a shard that was late has no reader.
                let _late = sender.send((shard, answer));
            });
            waiting = waiting.saturating_add(1);
        }
        drop(sender);
        let until = Instant::now() + GRACE;
        while waiting > 0 {
            let next = match visited.answers.is_empty() {
                // Nothing is gained by an answer of no shard.
                true => receiver.recv().await,
                false => match timeout_at(until, receiver.recv()).await {
                    Ok(next) => next,
                    Err(_) => {
                        debug!(purpose, shards = waiting, "shards do not answer in time");
                        visited.failed = Some(still_asked(purpose));
                        break;
                    }
                },
            };
            match next {
                Some((shard, Ok(answer))) => visited.answers.push((shard, answer)),
                Some((_, Err(error))) => visited.failed = Some(error),
                None => break,
            }
            waiting = waiting.saturating_sub(1);
        }
        visited
    }

    /// Opens a visit, unless an earlier one for the same purpose is late.
    fn begin<S>(&self, purpose: &'static str, shard: &Arc<S>) -> Option<Leaves> {
        let (shard, mut open) = (address(shard), lock(&self.open));
        let all = (purpose, shard, 0)..=(purpose, shard, u64::MAX);
        if open.range(all).any(|(_, began)| began.elapsed() >= GRACE) {
            return None;
        }
        let visit = (purpose, shard, self.count.fetch_add(1, Ordering::Relaxed));
        open.insert(visit, Instant::now());
        Some(Leaves { open: Arc::clone(&self.open), visit })
    }

    /// Asks shards for a limited number of things in all: each for its share, and those that have
    /// more for what is left. Says whether all were asked.
    pub(crate) async fn share<S: Send + Sync + 'static, T: Send + 'static>(
        &self,
        (purpose, limit): (&'static str, usize),
        mut shards: Vec<Arc<S>>,
        ask: impl Fn(Arc<S>, usize) -> BoxFuture<'static, Result<T>>,
        count: impl Fn(&T) -> usize,
    ) -> (Visited<S, T>, bool) {
        if limit == 0 {
            return (self.each(purpose, shards, |shard| ask(shard, 0)).await, true);
        }
        let mut all = Visited { answers: Vec::new(), failed: None };
        let (mut left, mut more) = (limit, Vec::new());
        while left > 0 {
            let waiting = if shards.is_empty() { &mut more } else { &mut shards };
            let asked: Vec<_> = waiting.drain(..left.min(waiting.len())).collect();
            let Some(share) = left.checked_div(asked.len()) else { break };
            let visited = self.each(purpose, asked, |shard| ask(shard, share)).await;
            all.failed = visited.failed.or(all.failed);
            for (shard, answer) in visited.answers {
                let counted = count(&answer);
                left = left.saturating_sub(counted);
                if counted >= share {
                    more.push(Arc::clone(&shard));
                }
                all.answers.push((shard, answer));
            }
        }
        let is_all = shards.is_empty();
        (all, is_all)
    }
}

/// An address that identifies a shard: one that was met stays where it is.
pub(crate) fn address<S>(shard: &Arc<S>) -> usize {
    Arc::as_ptr(shard).addr()
}

fn still_asked(purpose: &'static str) -> Error {
    let message = format!("cannot {purpose}: a shard has not answered yet");
    Error::new(ErrorKind::Unavailable, message)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
