//! A store of several partitions: each queue is one, or several.

use std::sync::Arc;

use async_trait::async_trait;
use quell_core::history::Sink;
use quell_core::{
    Answer, Capabilities, EndHub, EndNotification, Error, ErrorKind, JobId, Now, Operation,
    QueueName, Result, Steps, Store, TaskName, TaskSettings, WakeHub, Wakeups, dispatch,
};
use quell_engine::{Engine, caller_error};
use quell_shards::{Directory, Layout, Sharded, Shards, Spread, check_spread};

use crate::listing::{About, Listing};
use crate::names::text;
use crate::notice::Notices;
use crate::partition::Partition;
use crate::table::{Range, Table};
use crate::timer::Timer;

/// The tag of the partition that lists the others; no queue has a name with this sign.
const LIST: &str = "#";

/// A store of several partitions of a table, each with the queues that it is configured to keep: a
/// partition takes a limited number of requests a second, and several take more.
///
/// A queue is a partition of its own, or several. What a task's key promises (R7, R11, R16) is kept by
/// one partition, so a task with keys keeps to one queue: `across_queues` of [`Capabilities`] is no. A
/// queue of several partitions takes no limits, and its triggers have one key, or the same text for each.
///
/// ```
/// use quell_core::{QueueName, Store, Timestamp};
/// use quell_portable::{MemoryTable, Partitions, Spread};
///
/// # async fn open() -> quell_core::Result<()> {
/// let table = MemoryTable::new(Timestamp::from_secs(0));
/// let spread = Spread::from([(QueueName::new("mail")?, 4)]);
/// let store = Partitions::open(table, "store", spread, None).await?;
/// assert!(!store.capabilities().across_queues);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Partitions<T: Table + Clone> {
    sharded: Sharded<List<T>>,
    hub: Arc<WakeHub>,
    ends: Arc<EndHub>,
}

/// The partitions of one store.
#[derive(Debug)]
struct List<T> {
    listing: Listing<T>,
    name: String,
    history: Option<Sink>,
    hints: (Arc<WakeHub>, Arc<EndHub>),
    first: Arc<Engine<Partition<T>>>,
    notices: Option<Arc<Notices>>,
}

impl<T: Table + Clone> Partitions<T> {
    /// The store of partitions whose names begin with `name`; `spread` says over how many each of these
    /// queues is spread, from its first job on. A queue that it leaves out goes by what others said.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where a queue is spread over another number, or over more than
    /// 64, and where the partition `name` has the rows of a store of one
    /// [`Partition`]; else what the table answers.
    pub async fn open(
        table: T,
        name: impl Into<String>,
        spread: Spread,
        history: Option<Sink>,
    ) -> Result<Self> {
        Self::open_with(table, name, spread, history, None).await
    }

    /// As [`open`](Self::open), with a timer that all partitions share: for
    /// [`Timed::several`](crate::Timed::several), which takes its messages. All processes of a store have
    /// the same timer.
    ///
    /// # Errors
    /// As there.
    pub async fn open_with(
        table: T,
        name: impl Into<String>,
        spread: Spread,
        history: Option<Sink>,
        timer: Option<Arc<dyn Timer>>,
    ) -> Result<Self> {
        let name = name.into();
        let notices = timer.map(|timer| Arc::new(Notices::new(timer)));
        check_spread(Layout::Queues, &spread)?;
        let whole = table.range(&name, &Range::of(""), 1).await?;
        if !whole.rows.is_empty() {
            let message = format!(
                "partition {name:?} has the rows of a store of one partition: open it as that, or \
                 give another name"
            );
            return Err(Error::invalid("layout", message));
        }
        let (hub, ends) = (Arc::new(WakeHub::new()), Arc::new(EndHub::new()));
        let list = partition_of(&name, LIST);
        let listing = Listing { table: table.clone(), partition: list.clone() };
        let first = Engine::new(Partition::new(table, list).with_notices(notices.clone()));
        let first = first.with_hints(Arc::clone(&hub), Arc::clone(&ends));
        let first = Arc::new(recorded(first, history.as_ref()));
        let hints = (Arc::clone(&hub), Arc::clone(&ends));
        let list = List { listing, name, history, hints, first, notices };
        let shards = Shards::open(list, spread).await?;
        Ok(Partitions { sharded: Sharded::new(Arc::new(shards)), hub, ends })
    }

    pub(crate) fn shards(&self) -> &Shards<impl Directory<Shard = Engine<Partition<T>>>> {
        self.sharded.shards()
    }

    /// As [`Partition::skip_ids`], of each partition.
    ///
    /// # Errors
    /// As there.
    pub async fn skip_ids(&self) -> Result<()> {
        for partition in self.sharded.shards().all().await? {
            partition.backend().skip_ids().await?;
        }
        Ok(())
    }
}

/// The name of the partition of a tag.
fn partition_of(store: &str, tag: &str) -> String {
    format!("{store}:{}", text(tag))
}

fn recorded<T: Table>(shard: Engine<Partition<T>>, history: Option<&Sink>) -> Engine<Partition<T>> {
    match history {
        Some(history) => shard.with_history(history.clone()),
        None => shard,
    }
}

#[async_trait]
impl<T: Table + Clone> Store for Partitions<T> {
    fn capabilities(&self) -> Capabilities {
        let first = self.sharded.shards().first();
        Capabilities { across_queues: false, ..first.capabilities() }
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        dispatch(&self.sharded, now, operation).await.map_err(caller_error)
    }

    fn wakeups(&self) -> Wakeups {
        self.hub.subscribe()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.ends.wait_for(job)
    }
}

#[async_trait]
impl<T: Table + Clone> Directory for List<T> {
    type Shard = Engine<Partition<T>>;

    fn first(&self) -> &Arc<Self::Shard> {
        &self.first
    }

    fn tags_of(&self, queue: &QueueName, count: u32) -> Vec<String> {
        match count {
            0 | 1 => vec![queue.to_string()],
            _ => (0..count).map(|turn| format!("{queue}#{turn}")).collect(),
        }
    }

    async fn spread(&self) -> Result<Spread> {
        let known = self.listing.spreads().await?.into_iter();
        known.map(|(queue, count)| Ok((QueueName::new(queue)?, count))).collect()
    }

    async fn agree_on_spread(&self, queue: &QueueName, count: u32) -> Result<u32> {
        let row = (queue.to_string(), count);
        let (_, known) = self.listing.keep(About::Spread(queue.as_str()), row).await?;
        Ok(known)
    }

    async fn keep_to(&self, task: &TaskName, queue: &QueueName) -> Result<QueueName> {
        self.listing.keep(About::Keys(task.as_str()), queue.clone()).await
    }

    async fn kept_to(&self, task: &TaskName) -> Result<Option<QueueName>> {
        self.listing.read(About::Keys(task.as_str())).await
    }

    async fn enter(&self, tag: &str) -> Result<u64> {
        self.listing.enter(tag).await
    }

    async fn number_of(&self, tag: &str) -> Result<Option<u64>> {
        let known: Option<(String, u64)> = self.listing.read(About::Tag(tag)).await?;
        Ok(known.map(|(_, number)| number))
    }

    async fn listed(&self) -> Result<Vec<(String, u64)>> {
        self.listing.tags().await
    }

    async fn open(&self, tag: &str, number: u64) -> Result<Self::Shard> {
        let partition = partition_of(&self.name, tag);
        let own = Listing { table: self.listing.table.clone(), partition: partition.clone() };
        let own = own.keep(About::Number, number).await?;
        if own != number {
            // Calls about its jobs would go to whichever partition the list calls so.
            let message = format!(
                "partition {partition:?} has number {own}, and the list says {number}, so the list has \
                 lost what was written last; if no other row of partition {:?} has number {own}, let \
                 its row {:?} have it",
                self.listing.partition,
                About::Tag(tag).row()
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let shard = Partition::new(self.listing.table.clone(), partition).numbered(own);
        let shard = shard.of_store(&self.listing.partition);
        let shard = Engine::new(shard.with_notices(self.notices.clone()));
        let (hub, ends) = &self.hints;
        let shard = shard.with_hints(Arc::clone(hub), Arc::clone(ends));
        let known = Steps::tasks(&shard).await?;
        for task in Steps::tasks(&*self.first).await? {
            if !known.contains(&task) {
                shard.take_over_task(&task.name, &task.settings).await?;
            }
        }
        for row in self.first.worker_rows().await? {
            let queue = tag.split_once('#').map_or(tag, |(queue, _)| queue);
            if row.queues.iter().any(|own| own.as_str() == queue) {
                shard.take_over_worker(&row).await?;
            }
        }
        Ok(recorded(shard, self.history.as_ref()))
    }

    async fn tell_of_task(
        &self,
        shard: &Self::Shard,
        task: &TaskName,
        settings: &TaskSettings,
    ) -> Result<()> {
        shard.take_over_task(task, settings).await
    }
}
