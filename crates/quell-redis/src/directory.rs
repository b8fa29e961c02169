//! The directory of shards on Redis: a shard of its own that holds no jobs, but the alerts, and what new
//! shards must know of tasks and workers.

use std::sync::Arc;

use async_trait::async_trait;
use quell_core::history::Sink;
use quell_core::{Error, ErrorKind, QueueName, Result, TaskName, TaskSettings, WakeHub};
use quell_engine::{EndWaiters, Engine};
use quell_shards::{Directory, Layout, MOST_SHARDS, Shards, Spread};

use crate::backend::RedisBackend;
use crate::keys::Keys;
use crate::link::ScriptCall;
use crate::look::{Read, text};
use crate::row::{corrupt, number};
use crate::shard::{OwnIds, Shard, Time, Way};
use crate::tags::tags_of;

/// What a call of the directory is for.
const DIRECTORY_CALL: &str = "read the directory of shards";
/// The most attempts of a directory call while its outcome is unknown.
const DIRECTORY_TRIES: usize = 3;
/// The hash tag of the one shard of [`Layout::One`].
const ALL: &str = "all";
/// The hash tag of the directory; no queue has a name with this sign.
const DIRECTORY: &str = "#";

/// The shards of a prefix.
pub(crate) type Nodes = Shards<Prefix>;

/// A prefix of keys, and the way to them.
#[derive(Debug)]
pub(crate) struct Prefix {
    prefix: String,
    layout: Layout,
    way: Way,
    history: Option<Sink>,
    hub: Arc<WakeHub>,
    ends: Arc<EndWaiters>,
    /// The one shard, or the directory.
    first: Arc<Engine<RedisBackend>>,
}

impl Prefix {
    pub(crate) async fn open(
        (prefix, layout, spread): (String, Layout, Spread),
        way: Way,
        (history, hub, ends): (Option<Sink>, Arc<WakeHub>, Arc<EndWaiters>),
    ) -> Result<Nodes> {
        let tag = match layout {
            Layout::One => ALL,
            Layout::Queues => DIRECTORY,
        };
        let ids = OwnIds { first: 0, step: 1 };
        let first = Shard::new(Keys::new(&prefix, tag), ids, &way);
        let first = Arc::new(engine(first, history.as_ref(), (&hub, &ends)));
        let directory = Prefix { prefix, layout, way, history, hub, ends, first };
        directory.check_layout().await?;
        Shards::open(directory, spread).await
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
            self.first.backend().shard.stamp().await?;
            return Ok(());
        }
        let prefix = &self.prefix;
        let message =
            format!("the store under prefix {prefix:?} has layout `{name}`: open it with that");
        Err(Error::invalid("layout", message))
    }
}

/// A shard as a store of its own.
fn engine(
    shard: Shard,
    history: Option<&Sink>,
    (hub, ends): (&Arc<WakeHub>, &Arc<EndWaiters>),
) -> Engine<RedisBackend> {
    let engine = Engine::new(RedisBackend::new(shard, history.is_some()));
    let engine = engine.with_hints(Arc::clone(hub), Arc::clone(ends.hub()));
    match history {
        Some(history) => engine.with_history(history.clone()),
        None => engine,
    }
}

#[async_trait]
impl Directory for Prefix {
    type Shard = Engine<RedisBackend>;

    fn first(&self) -> &Arc<Engine<RedisBackend>> {
        &self.first
    }

    fn is_whole(&self) -> bool {
        self.layout == Layout::One
    }

    fn tags_of(&self, queue: &QueueName, count: u32) -> Vec<String> {
        tags_of(queue, count)
    }

    async fn spread(&self) -> Result<Spread> {
        let fields = self.first.backend().shard.directory("spread ").await?.into_iter();
        let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
        fields.map(|(field, known)| Ok((QueueName::new(field)?, count(known)))).collect()
    }

    async fn agree_on_spread(&self, queue: &QueueName, count: u32) -> Result<u32> {
        let known =
            self.first.backend().shard.agree(&format!("spread {queue}"), count.into()).await?;
        Ok(u32::try_from(known).unwrap_or(u32::MAX))
    }

    async fn keep_to(&self, task: &TaskName, queue: &QueueName) -> Result<QueueName> {
        self.first.backend().shard.keep_to(task, queue).await
    }

    async fn kept_to(&self, task: &TaskName) -> Result<Option<QueueName>> {
        self.first.backend().shard.kept_to(task).await
    }

    async fn enter(&self, tag: &str) -> Result<u64> {
        self.first.backend().shard.enter(&format!("shard {tag}"), MOST_SHARDS).await
    }

    async fn number_of(&self, tag: &str) -> Result<Option<u64>> {
        self.first.backend().shard.number_of(&format!("shard {tag}")).await
    }

    async fn listed(&self) -> Result<Vec<(String, u64)>> {
        self.first.backend().shard.directory("shard ").await
    }

    async fn open(&self, tag: &str, number: u64) -> Result<Engine<RedisBackend>> {
        let keys = Keys::new(&self.prefix, tag);
        let shard = Shard::new(keys, OwnIds { first: number, step: MOST_SHARDS }, &self.way);
        let shard = engine(shard, self.history.as_ref(), (&self.hub, &self.ends));
        let own = shard.backend().shard.number_from(number).await?;
        if own != Some(number) {
            // Calls about its jobs would go to whichever shard the directory calls so.
            let (own, meta) = (own.unwrap_or(0), self.first.backend().shard.keys.meta());
            return Err(corrupt(format_args!(
                "shard {tag:?} has number {own}, and the directory says {number}, so it has lost what \
                 was written last; if no other shard has number {own}: HSET {meta} \"shard {tag}\" {own}"
            )));
        }
        let known = shard.backend().shard.learn().await?;
        for (task, settings) in &self.first.backend().shard.learn().await?.tasks {
            if known.tasks.get(task) != Some(settings) {
                shard.take_over_task(task, settings).await?;
            }
        }
        for row in self.first.worker_rows().await? {
            // No queue has a name with this sign.
            let queue = tag.split_once('#').map_or(tag, |(queue, _)| queue);
            if row.queues.iter().any(|own| own.as_str() == queue) {
                shard.take_over_worker(&row).await?;
            }
        }
        Ok(shard)
    }

    fn is_reachable(&self, shard: &Engine<RedisBackend>) -> bool {
        shard.backend().shard.is_reachable()
    }

    async fn tell_of_task(
        &self,
        shard: &Engine<RedisBackend>,
        task: &TaskName,
        settings: &TaskSettings,
    ) -> Result<()> {
        shard.take_over_task(task, settings).await
    }
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
        let call = ScriptCall { script: &self.scripts.keep, keys: &keys, args: &args };
        let known = text(self.directory_write(call).await?)?;
        known.parse().map_err(|_| corrupt(format_args!("the answer {known:?} of the directory")))
    }

    /// The queue in which a task has its keys: this one where it has none yet.
    async fn keep_to(&self, task: &TaskName, queue: &QueueName) -> Result<QueueName> {
        let (keys, args) =
            ([self.keys.homes()], [task.as_str().as_bytes(), queue.as_str().as_bytes()]);
        let call = ScriptCall { script: &self.scripts.keep, keys: &keys, args: &args };
        QueueName::new(text(self.directory_write(call).await?)?)
    }

    /// The queue in which a task has its keys.
    async fn kept_to(&self, task: &TaskName) -> Result<Option<QueueName>> {
        let reads = [Read::Fields(self.keys.homes(), vec![task.to_string()])];
        let home = self.look(DIRECTORY_CALL, Time::Last, &reads).await?.text()?;
        let home = home.map(|home| QueueName::new(String::from_utf8_lossy(&home)));
        home.transpose()
    }

    /// The number of a field of `meta`, the next one where it has none yet; 0 where all are given.
    async fn enter(&self, field: &str, most: u64) -> Result<u64> {
        let (keys, most) = ([self.keys.meta()], most.to_string());
        let args = [field.as_bytes(), most.as_bytes()];
        let call = ScriptCall { script: &self.scripts.enter, keys: &keys, args: &args };
        match self.directory_write(call).await? {
            redis::Value::Int(number) => Ok(u64::try_from(number).unwrap_or(0)),
            other => Err(corrupt(format_args!("the answer {other:?} of the directory"))),
        }
    }

    /// Runs a script of the directory, and retries it while its outcome is unknown. These scripts are
    /// idempotent.
    async fn directory_write(&self, call: ScriptCall<'_>) -> Result<redis::Value> {
        for _ in 1..DIRECTORY_TRIES {
            match self.link.write(DIRECTORY_CALL, call).await {
                Err(error) if error.is_unknown_outcome() => {}
                answer => return answer,
            }
        }
        self.link.write(DIRECTORY_CALL, call).await
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
        Ok(newest.as_deref().and_then(crate::row::number).map(|id| id % MOST_SHARDS))
    }
}

/// What these keys mean; a newer Quell may mean something else. Since 2, a shard of a queue has a part
/// of the slots to itself, and a row may store its bound in milliseconds; since 3, a row has what was
/// drawn for the newest start; since 4, ticks that fired are in spans. Nothing older was released, and
/// none of it is read.
const LAYOUT: u64 = 4;
