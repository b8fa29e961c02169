//! Which shards there are, and which of them a queue, a key or a job is on.
//!
//! A directory gives each shard a number, which its jobs' ids carry. It lives in a shard of its own
//! that holds no jobs: the alerts, and what new shards must know of tasks. Shards are never removed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_core::history::Sink;
use quell_core::{
    Error, ErrorKind, Job, JobId, Key, NewTrigger, QueueName, Result, Steps, TaskName, WakeHub,
    lacks,
};

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};
use tracing::debug;

use crate::ends::Ends;
use crate::keys::Keys;
use crate::look::{Read, text};
use crate::options::Layout;
use crate::row::corrupt;
use crate::shard::{OwnIds, Shard, Time, Way};
use crate::store::ShardStore;
use crate::tags::tags_of;
use crate::write::number;

/// The most shards of one queue.
pub(crate) const MOST_SHARDS_OF_QUEUE: u32 = 64;
/// The most shards of a store: their numbers take so much room in ids.
const MOST_SHARDS: u64 = 1_024;
/// What a call of the directory is for.
const DIRECTORY_CALL: &str = "read the directory of shards";
/// How often a call of the directory is made of which nobody knows what came.
const DIRECTORY_TRIES: usize = 3;
/// How long upkeep waits for the directory, where it knows shards without it.
const DIRECTORY_GRACE: Duration = Duration::from_millis(500);
/// After it waited in vain, it goes on with the shards that it knows for so long.
const PAUSE_WHERE_SLOW: Duration = Duration::from_secs(5);
/// The hash tag of the one shard of [`Layout::One`].
const ALL: &str = "all";
/// The hash tag of the directory; no queue has a name with this sign.
const DIRECTORY: &str = "#";

/// Every shard that this process has met.
#[derive(Debug)]
pub(crate) struct Shards {
    prefix: String,
    layout: Layout,
    way: Way,
    history: Option<Sink>,
    hub: Arc<WakeHub>,
    ends: Arc<Ends>,
    /// The tags of a queue's shards, where there are more than one.
    spread: BTreeMap<QueueName, Vec<String>>,
    /// The one shard, or the directory.
    pub(crate) first: Arc<ShardStore>,
    met: Mutex<Met>,
}

/// Shards by their tags and by their numbers.
#[derive(Debug, Default)]
struct Met {
    by_tag: BTreeMap<String, Arc<ShardStore>>,
    by_number: BTreeMap<u64, Arc<ShardStore>>,
    /// The queues in which tasks have their keys.
    kept_to: BTreeMap<TaskName, QueueName>,
    /// When the directory did not answer upkeep in time.
    slow_at: Option<Instant>,
}

impl Shards {
    pub(crate) async fn open(
        (prefix, layout, spread): (String, Layout, BTreeMap<QueueName, u32>),
        way: Way,
        (history, hub, ends): (Option<Sink>, Arc<WakeHub>, Arc<Ends>),
    ) -> Result<Self> {
        let tag = match layout {
            Layout::One => ALL,
            Layout::Queues => DIRECTORY,
        };
        let ids = OwnIds { first: 0, step: 1 };
        let first = Shard::new(Keys::new(&prefix, tag), ids, &way);
        let first = Arc::new(ShardStore::new(
            first,
            history.clone(),
            (Arc::clone(&hub), Arc::clone(&ends)),
        ));
        let mut shards = Shards {
            prefix,
            layout,
            way,
            history,
            hub,
            ends,
            spread: BTreeMap::new(),
            first,
            met: Mutex::default(),
        };
        shards.check_layout().await?;
        shards.agree_on_spread(spread).await?;
        Ok(shards)
    }

    /// The only shard, where there is only one.
    pub(crate) fn only(&self) -> Option<&Arc<ShardStore>> {
        (self.layout == Layout::One).then_some(&self.first)
    }

    /// Refuses a prefix under which keys of the other layout are.
    async fn check_layout(&self) -> Result<()> {
        let (other, name) = match self.layout {
            Layout::One => (DIRECTORY, "queues"),
            Layout::Queues => (ALL, "one"),
        };
        let ids = OwnIds { first: 0, step: 1 };
        let other = Shard::new(Keys::new(&self.prefix, other), ids, &self.way);
        let reads = [Read::Count(other.keys.meta())];
        if other.look("open the store", Time::Last, &reads).await?.number()? == 0 {
            self.first.shard.stamp().await?;
            return Ok(());
        }
        let prefix = &self.prefix;
        let message =
            format!("the store under prefix {prefix:?} has layout `{name}`: open it with that");
        Err(Error::invalid("layout", message))
    }

    /// Takes note of how queues are spread, and refuses what others know otherwise: keys would move.
    async fn agree_on_spread(&mut self, asked: BTreeMap<QueueName, u32>) -> Result<()> {
        for (queue, count) in asked {
            let known = self.first.shard.agree(&format!("spread {queue}"), count.into()).await?;
            if known != u64::from(count) {
                let message = format!(
                    "queue {queue} is spread over {known} shards here: open the store with that"
                );
                return Err(Error::invalid("shards", message));
            }
        }
        let spread = self.first.shard.directory("spread ").await?;
        for (field, count) in spread {
            let (queue, count) = (QueueName::new(field)?, u32::try_from(count).unwrap_or(u32::MAX));
            if count <= 1 {
                continue;
            }
            let tags = tags_of(&queue, count);
            self.spread.insert(queue, tags);
        }
        Ok(())
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
    pub(crate) async fn of_arrival(&self, job: &Job) -> Result<Arc<ShardStore>> {
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
                let own = self.first.shard.keep_to(task, queue).await?;
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
    pub(crate) async fn of_key(
        &self,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<Arc<ShardStore>>> {
        if let Some(only) = self.only() {
            return Ok(Some(Arc::clone(only)));
        }
        let Some(queue) = self.first.shard.kept_to(task).await? else { return Ok(None) };
        let count = self.spread_of(&queue);
        self.find(&self.tag(&queue, turn_of(task, key.as_str(), count))).await
    }

    /// The shards of a queue that there are: one that nothing was written to has none, so that a name
    /// that is only asked about takes no number.
    pub(crate) async fn found_of_queue(&self, queue: &QueueName) -> Result<Vec<Arc<ShardStore>>> {
        if let Some(only) = self.only() {
            return Ok(vec![Arc::clone(only)]);
        }
        let mut shards = Vec::new();
        for turn in 0..self.spread_of(queue) {
            shards.extend(self.find(&self.tag(queue, turn)).await?);
        }
        Ok(shards)
    }

    /// The shards of a queue that there are, but those that cannot be met now. Fails only where that
    /// leaves none.
    pub(crate) async fn met_of_queue(&self, queue: &QueueName) -> Result<Vec<Arc<ShardStore>>> {
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
    pub(crate) async fn of_workers(&self, queue: &QueueName) -> Result<Vec<Arc<ShardStore>>> {
        let knows_others = !self.met().by_tag.is_empty();
        let found = self.met_of_queue(queue);
        let mut shards = match knows_others {
            // Other shards wait for the heartbeat.
            true => timeout(DIRECTORY_GRACE * 2, found).await.unwrap_or_else(|_| Ok(Vec::new())),
            false => found.await,
        }?;
        if shards.len() < usize::try_from(self.spread_of(queue)).unwrap_or(usize::MAX) {
            shards.push(Arc::clone(&self.first));
        }
        Ok(shards)
    }

    /// The shards of a queue that is written to; those that it lacks are made.
    pub(crate) async fn of_queue(&self, queue: &QueueName) -> Result<Vec<Arc<ShardStore>>> {
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
    async fn find(&self, tag: &str) -> Result<Option<Arc<ShardStore>>> {
        if let Some(shard) = self.met().by_tag.get(tag) {
            return Ok(Some(Arc::clone(shard)));
        }
        match self.first.shard.number_of(&format!("shard {tag}")).await? {
            Some(number) => self.meet(tag, number).await.map(Some),
            None => Ok(None),
        }
    }

    /// The shard of a tag; it is made where there is none.
    pub(crate) async fn by_tag(&self, tag: &str) -> Result<Arc<ShardStore>> {
        if let Some(shard) = self.met().by_tag.get(tag) {
            return Ok(Arc::clone(shard));
        }
        let number = self.first.shard.enter(&format!("shard {tag}"), MOST_SHARDS).await?;
        self.meet(tag, number).await
    }

    /// The shard of a job; none where no shard has that number.
    pub(crate) async fn of_job(&self, id: JobId) -> Result<Option<Arc<ShardStore>>> {
        if let Some(only) = self.only() {
            return Ok(Some(Arc::clone(only)));
        }
        let number = id.get() % MOST_SHARDS;
        let mut found = self.met().by_number.get(&number).map(Arc::clone);
        if found.is_none() {
            let mut listed = self.first.shard.directory("shard ").await?;
            // Others are not asked: their masters may be away.
            listed.retain(|(_, own)| *own == number);
            for (tag, _) in listed {
                found = Some(self.meet(&tag, number).await?);
            }
        }
        Ok(found)
    }

    /// All shards that hold jobs.
    pub(crate) async fn all(&self) -> Result<Vec<Arc<ShardStore>>> {
        if let Some(only) = self.only() {
            return Ok(vec![Arc::clone(only)]);
        }
        let mut shards = Vec::new();
        for (tag, number) in self.first.shard.directory("shard ").await? {
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
    pub(crate) async fn within_reach(&self) -> Result<Vec<Arc<ShardStore>>> {
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
        let mut listed = self.first.shard.directory("shard ").await?;
        listed.retain(|(tag, _)| !self.met().by_tag.contains_key(tag));
        let new = listed.iter().map(async |(tag, number)| self.meet(tag, *number).await);
        let failed = join_all(new).await.into_iter().filter_map(Result::err);
        let failed = failed.inspect(|error| debug!(%error, "a shard cannot be met")).last();
        match failed {
            Some(error) if self.met().by_tag.is_empty() => Err(error),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes note of a shard; it learns what the directory knows of tasks.
    async fn meet(&self, tag: &str, number: u64) -> Result<Arc<ShardStore>> {
        let keys = Keys::new(&self.prefix, tag);
        let shard = Shard::new(keys, OwnIds { first: number, step: MOST_SHARDS }, &self.way);
        let shard = ShardStore::new(
            shard,
            self.history.clone(),
            (Arc::clone(&self.hub), Arc::clone(&self.ends)),
        );
        let own = shard.shard.number_from(number).await?;
        if own != Some(number) {
            // Calls about its jobs would go to whichever shard the directory calls so.
            let (own, meta) = (own.unwrap_or(0), self.first.shard.keys.meta());
            return Err(corrupt(format_args!(
                "shard {tag:?} has number {own}, and the directory says {number}, so it has lost what \
                 was written last; if no other shard has number {own}: HSET {meta} \"shard {tag}\" {own}"
            )));
        }
        let known = shard.shard.learn().await?;
        for (task, settings) in &self.first.shard.learn().await?.tasks {
            if known.tasks.get(task) != Some(settings) {
                shard.set_task(task, settings).await?;
            }
        }
        for row in self.first.list_workers(Time::Last).await?.rows {
            // No queue has a name with this sign.
            let queue = tag.split_once('#').map_or(tag, |(queue, _)| queue);
            if row.queues.iter().any(|own| own.as_str() == queue) {
                shard.take_over(&row).await?;
            }
        }
        let shard = Arc::new(shard);
        let mut met = self.met();
        let shard = Arc::clone(met.by_tag.entry(tag.to_owned()).or_insert(shard));
        let other = met.by_number.insert(number, Arc::clone(&shard));
        match other.filter(|other| !Arc::ptr_eq(other, &shard)) {
            None => Ok(shard),
            Some(other) => {
                met.by_number.insert(number, other);
                met.by_tag.remove(tag);
                Err(corrupt(format_args!("two shards have the number {number}, one is {tag:?}")))
            }
        }
    }

    fn met(&self) -> std::sync::MutexGuard<'_, Met> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shards that were found; a failure where that is none.
pub(crate) fn found_of<F: IntoIterator<Item = Arc<ShardStore>>>(
    answers: Vec<Result<F>>,
) -> Result<Vec<Arc<ShardStore>>> {
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

impl Shard {
    /// Marks the keys as Quell's.
    async fn stamp(&self) -> Result<()> {
        let known = self.agree("layout", LAYOUT).await?;
        if known < LAYOUT {
            let message = format!(
                "the store's keys are of version {known}, from before the first release, and this \
                 Quell knows only {LAYOUT}: let the one that wrote them finish its jobs, then remove \
                 the keys"
            );
            return Err(Error::new(ErrorKind::Foreign, message));
        }
        if known > LAYOUT {
            let message = format!(
                "the store's keys are of version {known}, this Quell knows up to {LAYOUT}: update it"
            );
            return Err(Error::new(ErrorKind::Newer, message));
        }
        Ok(())
    }

    /// Writes a number under a field of `meta`, unless there is one; returns the one that is there.
    async fn agree(&self, field: &str, value: u64) -> Result<u64> {
        let (keys, value) = ([self.keys.meta()], value.to_string());
        let args = [field.as_bytes(), value.as_bytes()];
        let known = text(self.directory_write(&self.scripts.keep, &keys, &args).await?)?;
        known.parse().map_err(|_| corrupt(format_args!("the answer {known:?} of the directory")))
    }

    /// The queue in which a task has its keys: this one where it has none yet.
    async fn keep_to(&self, task: &TaskName, queue: &QueueName) -> Result<QueueName> {
        let (keys, args) =
            ([self.keys.homes()], [task.as_str().as_bytes(), queue.as_str().as_bytes()]);
        QueueName::new(text(self.directory_write(&self.scripts.keep, &keys, &args).await?)?)
    }

    /// The queue in which a task has its keys.
    async fn kept_to(&self, task: &TaskName) -> Result<Option<QueueName>> {
        let reads = [Read::Fields(self.keys.homes(), vec![task.to_string()])];
        let home = self.look(DIRECTORY_CALL, Time::Last, &reads).await?.text()?;
        let home = home.map(|home| QueueName::new(String::from_utf8_lossy(&home)));
        home.transpose()
    }

    /// The number of a field of `meta`, the next one where it has none yet.
    async fn enter(&self, field: &str, most: u64) -> Result<u64> {
        let (code, most) = (&self.scripts.enter, most.to_string());
        let number = self.directory_call(code, &[field.as_bytes(), most.as_bytes()]).await?;
        if number == 0 {
            let message = format!(
                "the store has {MOST_SHARDS} shards, and no more fit into its ids: use fewer queues"
            );
            return Err(Error::new(ErrorKind::Full, message));
        }
        Ok(number)
    }

    async fn directory_call(&self, script: &crate::link::Script, args: &[&[u8]]) -> Result<u64> {
        match self.directory_write(script, &[self.keys.meta()], args).await? {
            redis::Value::Int(number) => Ok(u64::try_from(number).unwrap_or(0)),
            other => Err(corrupt(format_args!("the answer {other:?} of the directory"))),
        }
    }

    /// Runs a script of the directory; where nobody knows what came of it, once more: the second
    /// time changes nothing.
    async fn directory_write(
        &self,
        script: &crate::link::Script,
        keys: &[String],
        args: &[&[u8]],
    ) -> Result<redis::Value> {
        for _ in 1..DIRECTORY_TRIES {
            match self.link.write(DIRECTORY_CALL, script, keys, args).await {
                Err(error) if error.is_unknown_outcome() => {}
                answer => return answer,
            }
        }
        self.link.write(DIRECTORY_CALL, script, keys, args).await
    }

    /// The number of a field of `meta`, where it has one.
    async fn number_of(&self, field: &str) -> Result<Option<u64>> {
        let reads = [Read::Fields(self.keys.meta(), vec![field.to_owned()])];
        let known = self.look(DIRECTORY_CALL, Time::Last, &reads).await?.text()?;
        Ok(known.as_deref().and_then(number))
    }

    /// The fields of `meta` that begin so, with their numbers.
    async fn directory(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        let reads = [Read::All(self.keys.meta())];
        let pairs = self.look(DIRECTORY_CALL, Time::Last, &reads).await?.pairs()?;
        let of = |(field, value): (String, Vec<u8>)| {
            Some((field.strip_prefix(prefix)?.to_owned(), number(&value)?))
        };
        Ok(pairs.into_iter().filter_map(of).collect())
    }

    /// Lets a new shard's ids begin with its own number; returns the number that it has.
    async fn number_from(&self, number: u64) -> Result<Option<u64>> {
        let mut command = redis::cmd("SET");
        let key = self.keys.seq();
        command.arg(&key).arg(number).arg("NX");
        self.link.command("number a shard", &key, &command).await?;
        let reads = [Read::Text(self.keys.seq())];
        let newest = self.look("number a shard", Time::Last, &reads).await?.text()?;
        Ok(newest.as_deref().and_then(crate::write::number).map(|id| id % MOST_SHARDS))
    }
}

/// What these keys mean; a newer Quell may mean something else. Since 2, a shard of a queue has a part
/// of the slots to itself, and a row may tell its bound in milliseconds; since 3, a row has what was
/// drawn for the newest start. Nothing older was released, and none of it is read.
const LAYOUT: u64 = 3;
