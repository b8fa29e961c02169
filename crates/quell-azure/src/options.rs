//! Which table, with which credentials, and how.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use quell_core::history::Sink;
use quell_core::{Error, Result};
use quell_engine::Engine;
use quell_portable::Partition;
use reqwest::Url;

use crate::clock::Monotonic;
use crate::connection::{Connection, endpoint};
use crate::credentials::Service;
use crate::table::TableStorage;
use crate::transport::Transport;

/// Where the connection string is, unless the URL names another variable: the name that Azure's own
/// command line reads.
const CONNECTION_ENV: &str = "AZURE_STORAGE_CONNECTION_STRING";

/// How to open a table.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// use quell_azure::AzureOptions;
///
/// let url = "azure://myaccount/quell?connection=BILLING_CONNECTION&create=true";
/// let store = AzureOptions::from_url(url)?.open().await?;
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
    history: Option<Sink>,
}

/// A store on Azure Table Storage.
pub type AzureStore = Engine<Partition<TableStorage>>;

/// The partition that holds a store's rows.
const PARTITION: &str = "store";

impl AzureOptions {
    /// Reads `azure://ACCOUNT/TABLE`; after a `?` come, divided by `&`:
    ///
    /// - `connection=NAME`: the environment variable with the connection string, which has the
    ///   secrets; `AZURE_STORAGE_CONNECTION_STRING` by default.
    /// - `credential=managed-identity|workload-identity|developer`: Entra ID in place of a connection
    ///   string (feature `entra`).
    /// - `endpoint=URL` of the table service, where it is elsewhere, such as that of Azurite.
    /// - `create=true|false` and `timeout_ms=MILLISECONDS`, as the methods of these names.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for anything else, where the variable
    /// is not set, and where the connection string is of another account.
    pub fn from_url(url: &str) -> Result<Self> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (account, table) = place
            .strip_prefix("azure://")
            .and_then(|place| place.split_once('/'))
            .filter(|(account, _)| !account.contains('@'))
            .ok_or_else(|| refuse("give azure://ACCOUNT/TABLE, and secrets in a variable"))?;
        let (mut variable, mut credential, mut elsewhere) = (CONNECTION_ENV.to_owned(), None, None);
        let (mut create, mut timeout) = (false, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            match (name, value.as_str()) {
                ("connection", _) => variable = value,
                ("credential", _) => credential = Some(value),
                ("endpoint", _) => elsewhere = Some(endpoint(&value)?),
                ("create", "true" | "false") => create = value == "true",
                ("timeout_ms", text) if let Ok(limit) = text.parse::<u32>() => {
                    timeout = Some(Duration::from_millis(limit.into()));
                }
                // The value may be a secret in a wrong place.
                _ => {
                    return Err(refuse(&format!(
                        "{name:?} is not known or its value is wrong: connection=VARIABLE, \
                         credential=managed-identity|workload-identity|developer, endpoint=URL, \
                         create=true|false, timeout_ms=…"
                    )));
                }
            }
        }
        let mut connection = match credential {
            Some(identity) => entra(account, &identity)?,
            None => from_variable(&variable)?,
        };
        if connection.account.as_ref().is_some_and(|found| found != account) {
            let message = format!("the connection string is not of the URL's account {account:?}");
            return Err(refuse(&message));
        }
        connection.tables = elsewhere.or(connection.tables);
        let options = AzureOptions::new(connection, table)?.create(create);
        Ok(match timeout {
            Some(timeout) => options.timeout(timeout),
            None => options,
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
            let message =
                format!("table {table:?}: give 3 to 63 letters and digits, a letter first");
            return Err(Error::invalid("table", message));
        }
        let (create, timeout) = (false, Duration::from_secs(10));
        let (monotonic, history) = (Monotonic::default(), None);
        Ok(AzureOptions { connection, table, create, timeout, monotonic, history })
    }

    /// Whether to create the table where it is missing. Not by default.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Writes an event history (R39).
    pub fn history(self, sink: Sink) -> Self {
        AzureOptions { history: Some(sink), ..self }
    }

    /// How long a call may take, retries included. 10 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
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
    pub fn monotonic(mut self, clock: Monotonic) -> Self {
        self.monotonic = clock;
        self
    }

    /// Opens the table, after checking that it is Quell's or empty.
    ///
    /// # Errors
    /// As [`AzureOptions::open_table`].
    pub async fn open(self) -> Result<AzureStore> {
        let history = self.history.clone();
        let store = AzureStore::new(Partition::new(self.open_table().await?, PARTITION));
        Ok(match history {
            Some(history) => store.with_history(history),
            None => store,
        })
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
        let url: Option<Url> = self.connection.tables;
        let url = url.ok_or_else(|| refuse("the connection string has no TableEndpoint"))?;
        let credentials = self.connection.credentials;
        let transport = Transport::new(Service::Table, url, credentials, self.timeout)?;
        let table = TableStorage::new(self.table, transport, self.timeout, self.monotonic);
        Box::pin(table.prepare(self.create)).await?;
        Ok(table)
    }
}

fn from_variable(name: &str) -> Result<Connection> {
    // A name that is not set may be a secret in a wrong place: it is not repeated.
    let text = std::env::var(name).map_err(|_| {
        refuse(&format!(
            "no connection string: set {CONNECTION_ENV}, or the variable of `connection=`"
        ))
    })?;
    Connection::from_string(&text)
}

#[cfg(feature = "entra")]
fn entra(account: &str, identity: &str) -> Result<Connection> {
    let identity = match identity {
        "managed-identity" => crate::Identity::Managed,
        "workload-identity" => crate::Identity::Workload,
        "developer" => crate::Identity::Developer,
        _ => return Err(refuse("`credential`: managed-identity, workload-identity or developer")),
    };
    let source = std::sync::Arc::new(crate::Entra::new(identity)?);
    Connection::new(account, crate::Credentials::Token(source))
}

#[cfg(not(feature = "entra"))]
fn entra(_: &str, _: &str) -> Result<Connection> {
    Err(refuse("`credential` needs the feature `entra`, which this build lacks"))
}

fn refuse(help: &str) -> Error {
    Error::invalid("url", format!("cannot read the URL of an Azure table: {help}"))
}
