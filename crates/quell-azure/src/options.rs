//! Which table, with which credentials, and how.

use std::sync::Arc;
use std::time::Duration;

use quell_core::checkup::ClockReset;
use quell_core::history::Sink;
use quell_core::{Error, QueueName, Result, Store, lacks};
use quell_engine::Engine;
use quell_portable::{Layout, Partition, Partitions, Spread, Timer};
use quell_shards::check_spread;

use crate::clock::Monotonic;
use crate::connection::{Connection, endpoint};
use crate::credentials::Service;
use crate::over::{Over, PARTITION, engine};
use crate::parameters::Parameters;
use crate::table::TableStorage;
use crate::timer::{self, Wanted};
use crate::transport::Transport;

/// How long a call may take, unless an option says otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// How to open a table.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// use quell_azure::AzureOptions;
///
/// let url = "azure://myaccount/quell?connection=BILLING_CONNECTION";
/// let store = AzureOptions::from_url(url)?.open_store().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct AzureOptions {
    connection: Connection,
    table: String,
    create: bool,
    timeout: Duration,
    monotonic: Monotonic,
    timer: Wanted,
    sets_timer: bool,
    native_dedup: bool,
    over: Over,
}

/// A store on Azure Table Storage.
pub type AzureStore = Engine<Partition<TableStorage>>;

impl AzureOptions {
    /// Reads `azure://ACCOUNT/TABLE`; after a `?` come, divided by `&`:
    ///
    /// - `connection=NAME`: the environment variable with the connection string, which has the
    ///   secrets; `AZURE_STORAGE_CONNECTION_STRING` by default.
    /// - `credential=managed-identity|workload-identity|developer`: Entra ID in place of a connection
    ///   string (feature `entra`).
    /// - `endpoint=URL` of the table service, where it is elsewhere, such as that of Azurite.
    /// - `create=true|false`: whether a missing table is created, which it is by default; and
    ///   `timeout_ms=MILLISECONDS`, as [`AzureOptions::timeout`].
    /// - `timer=servicebus://HOST/QUEUE` or `timer=storage-queue://QUEUE`: what wakes workers, as
    ///   [`AzureOptions::timer`]; `timer=none` where the store is to have none any more.
    /// - `set_timer=true|false`: whether a store without a timer gets this one, and `timer=none` takes
    ///   it away, which they do by default; else both are refused.
    /// - `timer_connection=NAME`: the environment variable with the connection string of Service Bus;
    ///   `AZURE_SERVICEBUS_CONNECTION_STRING` by default.
    /// - `native_dedup=SECONDS`: dedup keys are kept by the queue of Service Bus, for its window of
    ///   duplicate detection, which is so long: as [`AzureOptions::native_dedup`].
    /// - `layout=one|queues`, as [`AzureOptions::layout`], and `shards.QUEUE=COUNT`, as
    ///   [`AzureOptions::shards`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for anything else, where a variable is
    /// not set, and where a connection string is of another account or namespace.
    pub fn from_url(url: &str) -> Result<Self> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (account, table) = place
            .strip_prefix("azure://")
            .and_then(|place| place.split_once('/'))
            .filter(|(account, _)| !account.contains('@'))
            .ok_or_else(|| refuse("give azure://ACCOUNT/TABLE, and secrets in a variable"))?;
        let parameters: Parameters = query.parse()?;
        let mut connection = parameters.connection(account)?;
        let timer = Wanted::of_url(&parameters, &connection)?;
        let (layout, spread) = (parameters.layout, parameters.spread);
        check_spread(layout, &spread)?;
        connection.tables = parameters.endpoint.or(connection.tables);
        Ok(AzureOptions {
            create: parameters.create,
            timeout: parameters.timeout,
            timer,
            sets_timer: parameters.sets_timer,
            native_dedup: parameters.native_dedup.is_some(),
            over: Over { layout, spread, history: None },
            ..AzureOptions::new(connection, table)?
        })
    }

    /// The table of this name, on the account of `connection`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for a name that no table can have.
    pub fn new(connection: Connection, table: impl Into<String>) -> Result<Self> {
        let table = table.into();
        let is_name = table.chars().all(|c| c.is_ascii_alphanumeric())
            && table.starts_with(|c: char| c.is_ascii_alphabetic())
            && (3..=63).contains(&table.len());
        if !is_name {
            let message = format!(
                "table {table:?}: give 3 to 63 characters of A-Z, a-z and 0-9, no digit first"
            );
            return Err(Error::invalid("table", message));
        }
        Ok(AzureOptions {
            connection,
            table,
            create: false,
            timeout: TIMEOUT,
            monotonic: Monotonic::default(),
            timer: Wanted::Nothing,
            sets_timer: true,
            native_dedup: false,
            over: Over::default(),
        })
    }

    /// Whether to create the table where it is missing. Not by default.
    pub fn create(self, create: bool) -> Self {
        AzureOptions { create, ..self }
    }

    /// Writes an event history (R39).
    pub fn history(mut self, sink: Sink) -> Self {
        self.over.history = Some(sink);
        self
    }

    /// How long a call may take, retries included. 10 s by default.
    pub fn timeout(self, timeout: Duration) -> Self {
        AzureOptions { timeout, ..self }
    }

    /// Whether all queues share a partition of the table, which is the default, or each has one of its
    /// own. It cannot change once there is the table.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.over.layout = layout;
        self
    }

    /// Spreads one queue over this number of partitions by the hash of its triggers' keys. Such a queue
    /// has no limits, its order of priorities applies within each partition, and the number of partitions
    /// cannot change.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for none or more than 64, and where
    /// the layout is not [`Layout::Queues`].
    pub fn shards(mut self, queue: &QueueName, shards: u32) -> Result<Self> {
        check_spread(self.over.layout, &Spread::from([(queue.clone(), shards)]))?;
        self.over.spread.insert(queue.clone(), shards);
        Ok(self)
    }

    /// Where the table service is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for what is not a plain URL of HTTP.
    pub fn endpoint(mut self, url: &str) -> Result<Self> {
        self.connection.tables = Some(endpoint(url)?);
        Ok(self)
    }

    /// The clock that measures the time since the service's last timestamp; the system's by default.
    pub fn monotonic(self, monotonic: Monotonic) -> Self {
        AzureOptions { monotonic, ..self }
    }

    /// What wakes workers, in place of polls; the store remembers `name`, and processes with another
    /// timer or without one are refused. What a store without a timer has already is announced to it.
    pub fn timer(self, name: impl Into<String>, timer: Arc<dyn Timer>) -> Self {
        let (name, window) = (name.into(), timer.duplicate_window());
        let options = Box::new(timer::Options::Open(timer));
        AzureOptions { timer: Wanted::Timer { name, window, options }, ..self }
    }

    /// Whether the timer keeps dedup keys, in place of the table: as
    /// [`Timed::native_dedup`](quell_portable::Timed::native_dedup). The store remembers that, too. Not by
    /// default.
    pub fn native_dedup(self, native_dedup: bool) -> Self {
        AzureOptions { native_dedup, ..self }
    }

    /// Opens the table, after checking that it is Quell's or empty, and the timer, if it has one.
    ///
    /// # Errors
    /// As [`AzureOptions::open_table`], and as the timer's where it is opened;
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) where the store has another timer.
    pub async fn open_store(mut self) -> Result<Arc<dyn Store>> {
        let (sets_timer, native_dedup) = (self.sets_timer, self.native_dedup);
        let (wanted, over) = (std::mem::take(&mut self.timer), self.over.clone());
        if native_dedup && !matches!(wanted, Wanted::Timer { .. }) {
            return Err(timer::keeps_no_keys());
        }
        let table = Arc::new(self.open_table().await?);
        let found = table.timer().await?;
        let Wanted::Timer { name, window, options } = wanted else {
            if matches!(wanted, Wanted::None) && sets_timer {
                table.set_timer(None).await?;
            } else {
                timer::check(&table, found.as_deref(), None)?;
            }
            return over.polled(table).await;
        };
        let name = timer::remembered(name, window, native_dedup)?;
        timer::check(&table, found.as_deref(), Some(&name))?;
        if found.is_none() && !sets_timer {
            return Err(timer::none_yet(&table));
        }
        let mut store = over.timed(Arc::clone(&table), options.open().await?).await?;
        if native_dedup {
            store = store.native_dedup().await?;
        }
        if found.is_none() {
            store.announce().await.map_err(|error| error.at(format_args!("timer {name}")))?;
            table.set_timer(Some(&name)).await?;
        }
        Ok(Arc::new(store))
    }

    /// Opens a store of [`Layout::Queues`] without a timer.
    ///
    /// # Errors
    /// As [`AzureOptions::open_table`]; [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) where a queue
    /// is spread over another number of partitions, where the store has a timer or one was asked for, and
    /// for [`Layout::One`]: [`AzureOptions::open_store`] opens all of them.
    pub async fn open_partitions(self) -> Result<Partitions<Arc<TableStorage>>> {
        let Over { spread, history, .. } = self.over.clone();
        let table = self.open_untimed("open_partitions", Layout::Queues).await?;
        Partitions::open(Arc::new(table), PARTITION, spread, history).await
    }

    /// Opens the table for `method`, which opens no timer, and this layout alone.
    async fn open_untimed(self, method: &str, layout: Layout) -> Result<TableStorage> {
        if self.over.layout != layout {
            let message = format!("`{method}` opens another layout: use `open_store`");
            return Err(Error::invalid("layout", message));
        }
        if !matches!(self.timer, Wanted::Nothing) {
            let message = format!("`{method}` opens no timer: use `open_store`");
            return Err(Error::invalid("timer", message));
        }
        if self.native_dedup {
            return Err(timer::keeps_no_keys());
        }
        let table = self.open_table().await?;
        timer::check(&table, table.timer().await?.as_deref(), None)?;
        Ok(table)
    }

    /// Opens the table without a timer, after checking that it is Quell's or empty.
    ///
    /// # Errors
    /// As [`AzureOptions::open_table`]; [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) where the
    /// store has a timer, or one was asked for: [`AzureOptions::open_store`] opens both.
    pub async fn open(self) -> Result<AzureStore> {
        let history = self.over.history.clone();
        let table = self.open_untimed("open", Layout::One).await?;
        Ok(engine(Partition::new(table, PARTITION), history))
    }

    /// Leaves the next [`SKIPPED_IDS`](quell_core::checkup::SKIPPED_IDS) ids out, after a failover of
    /// the account that lost writes: ids that were given and then lost may be known elsewhere.
    ///
    /// # Errors
    /// As [`AzureOptions::open_table`].
    pub async fn skip_ids(self) -> Result<()> {
        let Over { layout, spread, .. } = self.over.clone();
        let table = Arc::new(self.open_table().await?);
        match layout {
            Layout::One => Partition::new(table, PARTITION).skip_ids().await,
            Layout::Queues => {
                Partitions::open(table, PARTITION, spread, None).await?.skip_ids().await
            }
        }
    }

    /// Always refused: the store's time is the service's, and no row holds it, so there is nothing to
    /// set back (R38).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](quell_core::ErrorKind::Unsupported).
    pub async fn reset_clock(self) -> Result<ClockReset> {
        std::future::ready(Err(lacks(
            "reset_clock",
            "its time is the service's and no row holds it: restart the processes of the store",
        )))
        .await
    }

    /// Opens the table alone, for a store of one's own on it.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`](quell_core::ErrorKind::Foreign) for a table of others,
    /// [`ErrorKind::Newer`](quell_core::ErrorKind::Newer) for one of a newer Quell,
    /// [`ErrorKind::NotFound`](quell_core::ErrorKind::NotFound) where it is missing, and
    /// [`ErrorKind::Unavailable`](quell_core::ErrorKind::Unavailable) where the service cannot be
    /// reached or rejects the credentials.
    pub async fn open_table(self) -> Result<TableStorage> {
        let url = self
            .connection
            .tables
            .ok_or_else(|| refuse("the connection string has no TableEndpoint"))?;
        let credentials = self.connection.credentials;
        let transport = Transport::new(Service::Table, url, credentials, self.timeout)?;
        let table = TableStorage::new(self.table, transport, self.timeout, self.monotonic);
        Box::pin(table.prepare(self.over.layout, self.create)).await?;
        Ok(table)
    }
}

pub(crate) fn refuse(help: &str) -> Error {
    Error::invalid("url", format!("cannot read the URL of an Azure table: {help}"))
}
