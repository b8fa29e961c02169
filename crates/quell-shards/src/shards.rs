//! Which shards there are, and which of them a queue, a key or a job is on.
//!
//! The directory gives each shard a number, which its jobs' ids carry. Shards are never removed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use quell_core::{
    Error, ErrorKind, Job, JobId, Key, NewTrigger, QueueName, Result, TaskName, TaskSettings, lacks,
};
use tokio::time::{Instant, timeout};
use tracing::debug;

use crate::directory::{Directory, MOST_SHARDS};
use crate::layout::Spread;

/// How long upkeep waits for the directory, where it knows shards without it.
const DIRECTORY_GRACE: Duration = Duration::from_millis(500);
/// After it waited in vain, it goes on with the shards that it knows for so long.
const PAUSE_WHERE_SLOW: Duration = Duration::from_secs(5);

/// Every shard that this process has met.
#[derive(Debug)]
pub struct Shards<D: Directory> {
    directory: D,
    /// The tags of a queue's shards, where there are more than one.
    spread: BTreeMap<QueueName, Vec<String>>,
    met: Mutex<Met<D::Shard>>,
}

/// Shards by their tags and by their numbers.
#[derive(Debug)]
struct Met<S> {
    by_tag: BTreeMap<String, Arc<S>>,
    by_number: BTreeMap<u64, Arc<S>>,
    /// The queues in which tasks have their keys.
    kept_to: BTreeMap<TaskName, QueueName>,
    /// When the directory did not answer upkeep in time.
    slow_at: Option<Instant>,
}

impl<S> Default for Met<S> {
    fn default() -> Self {
        Met {
            by_tag: BTreeMap::new(),
            by_number: BTreeMap::new(),
            kept_to: BTreeMap::new(),
            slow_at: None,
        }
    }
}

impl<D: Directory> Shards<D> {
    /// The shards that a directory lists. `spread` says over how many each of these queues is spread.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the directory has another number for one of them: keys would move;
    /// else what the directory answers.
    pub async fn open(directory: D, spread: Spread) -> Result<Self> {
        let mut known = BTreeMap::new();
        if !directory.is_whole() {
            for (queue, count) in spread {
                let agreed = directory.agree_on_spread(&queue, count).await?;
                if agreed != count {
                    let message = format!(
                        "queue {queue} is spread over {agreed} shards here: open the store with that"
                    );
                    return Err(Error::invalid("shards", message));
                }
            }
            known = directory.spread().await?;
        }
        let several = known.into_iter().filter(|(_, count)| *count > 1);
        let tags = several.map(|(queue, count)| {
            let tags = directory.tags_of(&queue, count);
            (queue, tags)
        });
        let spread = tags.collect();
        Ok(Shards { directory, spread, met: Mutex::default() })
    }

    /// The shard that lists the others.
    #[must_use]
    pub fn first(&self) -> &Arc<D::Shard> {
        self.directory.first()
    }

    /// The only shard, where there is only one.
    #[must_use]
    pub fn only(&self) -> Option<&Arc<D::Shard>> {
        self.directory.is_whole().then(|| self.first())
    }

    pub(crate) fn is_reachable(&self, shard: &D::Shard) -> bool {
        self.directory.is_reachable(shard)
    }

    pub(crate) async fn tell_of_task(
        &self,
        shard: &D::Shard,
        task: &TaskName,
        settings: &TaskSettings,
    ) -> Result<()> {
        self.directory.tell_of_task(shard, task, settings).await
    }

    /// Over how many shards a queue is spread.
    pub(crate) fn spread_of(&self, queue: &QueueName) -> u32 {
        self.spread.get(queue).map_or(1, |tags| u32::try_from(tags.len()).unwrap_or(u32::MAX))
    }

    /// The tag of one of a queue's shards.
    fn tag(&self, queue: &QueueName, turn: u32) -> String {
        let turn = usize::try_from(turn).unwrap_or(usize::MAX);
        let tag = self.spread.get(queue).and_then(|tags| tags.get(turn));
        tag.map_or_else(|| queue.to_string(), String::clone)
    }

    /// The tag of the shard that a trigger belongs on; `whole` is the dedup key of its batch (R17),
    /// and `draw` says which shard it is where no key does.
    ///
    /// # Errors
    /// `Unsupported` for a task that has its keys in another queue, and for a trigger with several
    /// keys on a queue with several shards: each would have to be on its own.
    pub(crate) async fn tag_of(
        &self,
        trigger: &NewTrigger,
        whole: Option<&Key>,
        draw: u32,
    ) -> Result<String> {
        if trigger.has_key() || whole.is_some() {
            self.keep_to(&trigger.task, &trigger.queue).await?;
        }
        let count = self.spread_of(&trigger.queue);
        if count == 1 {
            return Ok(self.tag(&trigger.queue, 0));
        }
        let debounce = trigger.keyed.as_ref().map(|keyed| &keyed.key);
        let dedup = trigger.dedup.as_ref().map(|dedup| &dedup.key);
        let idempotency = trigger.idempotency.as_ref().map(|idempotency| &idempotency.key);
        let mut keys = [whole, debounce, dedup, idempotency].into_iter().flatten();
        let (key, others) = (keys.next(), keys);
        let turn = match key {
            Some(key) => turn_of(&trigger.task, key.as_str(), count),
            None => draw % count,
        };
        for other in others {
            if turn_of(&trigger.task, other.as_str(), count) != turn {
                let queue = &trigger.queue;
                let message = format!(
                    "queue {queue} is spread over {count} shards, and the trigger's keys belong on \
                     different ones: give it one key, or the same text for each"
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        }
        Ok(self.tag(&trigger.queue, turn))
    }

    /// The shard that a job from elsewhere belongs on.
    ///
    /// # Errors
    /// `Unsupported` for a key of a task that has its keys in another queue.
    pub(crate) async fn of_arrival(&self, job: &Job) -> Result<Arc<D::Shard>> {
        if job.key.is_some() {
            self.keep_to(&job.task, &job.queue).await?;
        }
        let count = self.spread_of(&job.queue);
        let text = job.key.as_ref().map_or("", |key| key.as_str());
        self.by_tag(&self.tag(&job.queue, turn_of(&job.task, text, count))).await
    }

    /// Lets a task have its keys in this queue.
    ///
    /// # Errors
    /// `Unsupported` where it has them in another one: its windows and attempts would not meet.
    async fn keep_to(&self, task: &TaskName, queue: &QueueName) -> Result<()> {
        let known = self.met().kept_to.get(task).cloned();
        let own = match known {
            Some(own) => own,
            None => {
                let own = self.directory.keep_to(task, queue).await?;
                self.met().kept_to.insert(task.clone(), own.clone());
                own
            }
        };
        if own == *queue {
            return Ok(());
        }
        let cure = format!(
            "task {task} has its keys in queue {own}: trigger it there, or give what goes into \
             {queue} a name of its own"
        );
        Err(lacks("across_queues", &cure))
    }

    /// The shard of a task's key; none where the task has no keys yet.
    pub(crate) async fn of_key(&self, task: &TaskName, key: &Key) -> Result<Option<Arc<D::Shard>>> {
        if let Some(only) = self.only() {
            return Ok(Some(Arc::clone(only)));
        }
        let Some(queue) = self.directory.kept_to(task).await? else { return Ok(None) };
        let count = self.spread_of(&queue);
        self.find(&self.tag(&queue, turn_of(task, key.as_str(), count))).await
    }

    /// The shards of a queue that there are: one that nothing was written to has none, so that a name
    /// that is only asked about takes no number.
    pub(crate) async fn found_of_queue(&self, queue: &QueueName) -> Result<Vec<Arc<D::Shard>>> {
        if let Some(only) = self.only() {
            return Ok(vec![Arc::clone(only)]);
        }
        let mut shards = Vec::new();
        for turn in 0..self.spread_of(queue) {
            shards.extend(self.find(&self.tag(queue, turn)).await?);
        }
        Ok(shards)
    }

    /// The shards of a queue that there are, but those that cannot be met now.
    ///
    /// # Errors
    /// What the directory answers, where that leaves none.
    pub async fn met_of_queue(&self, queue: &QueueName) -> Result<Vec<Arc<D::Shard>>> {
        if let Some(only) = self.only() {
            return Ok(vec![Arc::clone(only)]);
        }
        let tags: Vec<_> = (0..self.spread_of(queue)).map(|turn| self.tag(queue, turn)).collect();
        let is_some_met = tags.iter().any(|tag| self.met().by_tag.contains_key(tag));
        let found = join_all(tags.iter().map(async |tag| match is_some_met {
            true => timeout(DIRECTORY_GRACE, self.find(tag)).await.unwrap_or(Ok(None)),
            false => self.find(tag).await,
        }));
        found_of(found.await)
    }

    /// Where heartbeats go of a worker that claims from a queue: to the shards that there are, and to
    /// the directory while there may be more.
    pub(crate) async fn of_workers(&self, queue: &QueueName) -> Result<Vec<Arc<D::Shard>>> {
        let knows_others = !self.met().by_tag.is_empty();
        let found = self.met_of_queue(queue);
        let mut shards = match knows_others {
            // Other shards wait for the heartbeat.
            true => timeout(DIRECTORY_GRACE * 2, found).await.unwrap_or_else(|_| Ok(Vec::new())),
            false => found.await,
        }?;
        if shards.len() < usize::try_from(self.spread_of(queue)).unwrap_or(usize::MAX) {
            shards.push(Arc::clone(self.first()));
        }
        Ok(shards)
    }

    /// The shards of a queue that is written to; those that it lacks are made.
    pub(crate) async fn of_queue(&self, queue: &QueueName) -> Result<Vec<Arc<D::Shard>>> {
        if let Some(only) = self.only() {
            return Ok(vec![Arc::clone(only)]);
        }
        let count = self.spread_of(queue);
        let mut shards = Vec::new();
        for turn in 0..count {
            shards.push(self.by_tag(&self.tag(queue, turn)).await?);
        }
        Ok(shards)
    }

    /// The shard of a tag, where there is one.
    async fn find(&self, tag: &str) -> Result<Option<Arc<D::Shard>>> {
        if let Some(shard) = self.met().by_tag.get(tag) {
            return Ok(Some(Arc::clone(shard)));
        }
        match self.directory.number_of(tag).await? {
            Some(number) => self.meet(tag, number).await.map(Some),
            None => Ok(None),
        }
    }

    /// The shard of a tag; it is made where there is none.
    pub(crate) async fn by_tag(&self, tag: &str) -> Result<Arc<D::Shard>> {
        if let Some(shard) = self.met().by_tag.get(tag) {
            return Ok(Arc::clone(shard));
        }
        let number = self.directory.enter(tag).await?;
        if number == 0 {
            let message = format!(
                "the store has {MOST_SHARDS} shards, and no more fit into its ids: use fewer queues"
            );
            return Err(Error::new(ErrorKind::Full, message));
        }
        self.meet(tag, number).await
    }

    /// The shard of a job; none where no shard has that number.
    ///
    /// # Errors
    /// What the directory or the shard answers, where this process meets it now.
    pub async fn of_job(&self, id: JobId) -> Result<Option<Arc<D::Shard>>> {
        if let Some(only) = self.only() {
            return Ok(Some(Arc::clone(only)));
        }
        let number = id.get() % MOST_SHARDS;
        let mut found = self.met().by_number.get(&number).map(Arc::clone);
        if found.is_none() {
            let mut listed = self.directory.listed().await?;
            // Others are not asked: their masters may be away.
            listed.retain(|(_, own)| *own == number);
            for (tag, _) in listed {
                found = Some(self.meet(&tag, number).await?);
            }
        }
        Ok(found)
    }

    /// All shards that hold jobs.
    ///
    /// # Errors
    /// What the directory or a shard answers that this process meets now.
    pub async fn all(&self) -> Result<Vec<Arc<D::Shard>>> {
        if let Some(only) = self.only() {
            return Ok(vec![Arc::clone(only)]);
        }
        let mut shards = Vec::new();
        for (tag, number) in self.directory.listed().await? {
            let met = self.met().by_tag.get(&tag).map(Arc::clone);
            shards.push(match met {
                Some(shard) => shard,
                None => self.meet(&tag, number).await?,
            });
        }
        Ok(shards)
    }

    /// All shards that hold jobs; where the directory or a new one is slow or away, those that this
    /// process has met.
    pub(crate) async fn within_reach(&self) -> Result<Vec<Arc<D::Shard>>> {
        if let Some(only) = self.only() {
            return Ok(vec![Arc::clone(only)]);
        }
        let is_none_met = self.met().by_tag.is_empty();
        let was_slow = self.met().slow_at.is_some_and(|at| at.elapsed() < PAUSE_WHERE_SLOW);
        if is_none_met {
            self.meet_new().await?;
        } else if !was_slow && timeout(DIRECTORY_GRACE, self.meet_new()).await.is_err() {
            self.met().slow_at = Some(Instant::now());
        }
        Ok(self.met().by_tag.values().map(Arc::clone).collect())
    }

    /// Meets the shards that this process does not know yet, each by itself. Fails where the directory
    /// does, and where none can be met and none is known.
    async fn meet_new(&self) -> Result<()> {
        let mut listed = self.directory.listed().await?;
        listed.retain(|(tag, _)| !self.met().by_tag.contains_key(tag));
        let new = listed.iter().map(async |(tag, number)| self.meet(tag, *number).await);
        let failed = join_all(new).await.into_iter().filter_map(Result::err);
        let failed = failed.inspect(|error| debug!(%error, "a shard cannot be met")).last();
        match failed {
            Some(error) if self.met().by_tag.is_empty() => Err(error),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes note of a shard.
    async fn meet(&self, tag: &str, number: u64) -> Result<Arc<D::Shard>> {
        let shard = self.directory.open(tag, number).await?;
        let shard = Arc::new(shard);
        let mut met = self.met();
        let shard = Arc::clone(met.by_tag.entry(tag.to_owned()).or_insert(shard));
        let other = met.by_number.insert(number, Arc::clone(&shard));
        match other.filter(|other| !Arc::ptr_eq(other, &shard)) {
            None => Ok(shard),
            Some(other) => {
                met.by_number.insert(number, other);
                met.by_tag.remove(tag);
                let message = format!("two shards have the number {number}, one is {tag:?}");
                Err(Error::new(ErrorKind::Corrupt, message))
            }
        }
    }

    fn met(&self) -> MutexGuard<'_, Met<D::Shard>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shards that were found; a failure where that is none.
pub(crate) fn found_of<S, F: IntoIterator<Item = Arc<S>>>(
    answers: Vec<Result<F>>,
) -> Result<Vec<Arc<S>>> {
    let (mut shards, mut failed) = (Vec::new(), None);
    for answer in answers {
        match answer {
            Ok(found) => shards.extend(found),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if shards.is_empty() => Err(error),
        Some(_) | None => Ok(shards),
    }
}

/// Which of a queue's shards a key of a task is on: by the SHA-1 of both, which is the same
/// everywhere and for ever.
fn turn_of(task: &TaskName, key: &str, count: u32) -> u32 {
    let digest = sha1_smol::Sha1::from(format!("{task} {key}")).digest().bytes();
    let number = digest.first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_be_bytes(*bytes));
    u32::try_from(number % u64::from(count.max(1))).unwrap_or(0)
}
