//! Which timer wakes the workers of a store, and that all of its processes use the same one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use quell_core::{Error, Result, lacks};
use quell_portable::Timer;

use crate::connection::Connection;
use crate::queue::StorageQueueOptions;
use crate::servicebus::ServiceBusOptions;
use crate::table::TableStorage;

/// Where the connection string of Service Bus is, unless the URL names another variable.
const CONNECTION_ENV: &str = "AZURE_SERVICEBUS_CONNECTION_STRING";

/// A timer, as a URL and a store's own row name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    None,
    ServiceBus { host: String, queue: String },
    StorageQueue { queue: String },
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        if text == "none" {
            return Ok(Place::None);
        }
        let (scheme, place) = text.split_once("://").ok_or(())?;
        let is_word = |word: &str| !word.is_empty() && !word.contains(['@', '?', '#']);
        match (scheme, place.split_once('/')) {
            ("servicebus", Some((host, queue))) if is_word(host) && is_word(queue) => {
                Ok(Place::ServiceBus { host: host.to_ascii_lowercase(), queue: queue.to_owned() })
            }
            ("storage-queue", None) if is_word(place) => {
                Ok(Place::StorageQueue { queue: place.to_owned() })
            }
            _ => Err(()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::None => f.write_str("none"),
            Place::ServiceBus { host, queue } => write!(f, "servicebus://{host}/{queue}"),
            Place::StorageQueue { queue } => write!(f, "storage-queue://{queue}"),
        }
    }
}

/// What a URL or a caller says of the timer.
#[derive(Clone, Debug, Default)]
pub(crate) enum Wanted {
    /// Nothing: workers poll, and the store must have no timer.
    #[default]
    Nothing,
    /// The store is to have no timer any more.
    None,
    /// This one.
    Timer { name: String, options: Box<Options> },
}

/// How to open a timer.
#[derive(Clone, Debug)]
pub(crate) enum Options {
    ServiceBus(ServiceBusOptions),
    StorageQueue(StorageQueueOptions),
    Open(Arc<dyn Timer>),
}

impl Wanted {
    /// The timer of a URL: `variable` is the value of `timer_connection`, `credential` that of
    /// `credential`.
    pub(crate) fn of_url(
        place: &Place,
        variable: Option<&str>,
        credential: Option<&str>,
        connection: &Connection,
        (create, timeout): (bool, Option<Duration>),
    ) -> Result<Self> {
        let options = match place {
            Place::None => return Ok(Wanted::None),
            Place::ServiceBus { host, queue } => {
                let options = match (credential, variable) {
                    (Some(identity), None) => tokens(host, queue, identity)?,
                    (_, variable) => from_variable(host, queue, variable)?,
                };
                Options::ServiceBus(timeout.map_or(options.clone(), |limit| options.timeout(limit)))
            }
            Place::StorageQueue { .. } if variable.is_some() => {
                return Err(refuse("`timer_connection` is for servicebus:// only: leave it out"));
            }
            Place::StorageQueue { queue } => {
                let options = StorageQueueOptions::new(connection.clone(), queue)?.create(create);
                Options::StorageQueue(
                    timeout.map_or(options.clone(), |limit| options.timeout(limit)),
                )
            }
        };
        Ok(Wanted::Timer { name: place.to_string(), options: Box::new(options) })
    }
}

impl Wanted {
    /// The same timer, of which the URL says for how long it remembers names of messages.
    pub(crate) fn remembering(self, window: Option<Duration>) -> Result<Self> {
        let Some(window) = window else { return Ok(self) };
        match self {
            Wanted::Timer { name, options } => match *options {
                Options::ServiceBus(options) => {
                    let options = Box::new(Options::ServiceBus(options.duplicate_window(window)));
                    Ok(Wanted::Timer { name, options })
                }
                _ => Err(refuse("`native_dedup` is for servicebus:// only: leave it out")),
            },
            _ => Err(refuse("`native_dedup` with timer=none: leave it out")),
        }
    }
}

impl Options {
    /// How the store remembers this timer, in the words of a URL: a process whose dedup keys are kept
    /// elsewhere, or for another time, has another one.
    pub(crate) fn remembered(&self, name: String, keeps_keys: bool) -> Result<String> {
        if !keeps_keys {
            return Ok(name);
        }
        let window = match self {
            Options::ServiceBus(options) => options.window(),
            Options::StorageQueue(_) => None,
            Options::Open(timer) => timer.duplicate_window(),
        };
        let window = window.ok_or_else(keeps_no_keys)?;
        Ok(format!("{name}&native_dedup={}", window.as_secs_f64()))
    }

    pub(crate) async fn open(self) -> Result<Arc<dyn Timer>> {
        Ok(match self {
            Options::ServiceBus(options) => Arc::new(options.open().await?),
            Options::StorageQueue(options) => Arc::new(options.open().await?),
            Options::Open(timer) => timer,
        })
    }
}

/// Refuses to open a store whose timer is another one, or none where one is wanted: what a process
/// writes without a message of the others' timer would wake nobody.
pub(crate) fn check(table: &TableStorage, found: Option<&str>, wanted: Option<&str>) -> Result<()> {
    let (Some(found), false) = (found, found == wanted) else { return Ok(()) };
    let message = format!(
        "the timer of table {:?} is {found}, this is {}: give timer={found}; to change it, stop all \
         processes and open the table once with timer=none",
        table.name(),
        wanted.unwrap_or("a process without one"),
    );
    Err(Error::invalid("timer", message))
}

/// The refusal of `native_dedup` without a timer that remembers names.
pub(crate) fn keeps_no_keys() -> Error {
    lacks(
        "native_dedup",
        "dedup keys are kept by a queue of Service Bus with duplicate detection alone: give that as the \
         timer, with its window, or leave `native_dedup` out",
    )
}

/// Refuses to give a store its first timer where that is not for this process to do.
pub(crate) fn none_yet(table: &TableStorage) -> Error {
    let message = format!(
        "table {:?} has no timer yet: it gets this one by a process without set_timer=false, such as \
         `quell serve`; or leave `timer` out",
        table.name(),
    );
    Error::invalid("timer", message)
}

fn from_variable(host: &str, queue: &str, variable: Option<&str>) -> Result<ServiceBusOptions> {
    // A name that is not set may be a secret in a wrong place: it is not repeated.
    let text = std::env::var(variable.unwrap_or(CONNECTION_ENV)).map_err(|_| {
        refuse(&format!(
            "no connection string of Service Bus: set {CONNECTION_ENV}, or the variable of \
             `timer_connection=`"
        ))
    })?;
    let options = ServiceBusOptions::from_connection_string(&text, queue)?;
    if options.place() != host {
        return Err(refuse(&format!("the connection string of Service Bus is not of {host:?}")));
    }
    Ok(options)
}

#[cfg(feature = "entra")]
fn tokens(host: &str, queue: &str, identity: &str) -> Result<ServiceBusOptions> {
    let source = crate::Entra::of_service_bus(crate::options::identity(identity)?)?;
    ServiceBusOptions::from_tokens(host, queue, Arc::new(source))
}

#[cfg(not(feature = "entra"))]
fn tokens(_: &str, _: &str, _: &str) -> Result<ServiceBusOptions> {
    Err(refuse("`credential` needs the feature `entra`, which this build lacks"))
}

fn refuse(help: &str) -> Error {
    Error::invalid("url", format!("cannot read the URL of an Azure table: {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_named_by_its_kind_and_its_queue() {
        for name in ["none", "servicebus://ns.servicebus.windows.net/q/a", "storage-queue://timers"]
        {
            assert_eq!(name.parse::<Place>().unwrap().to_string(), name);
        }
        for wrong in [
            "",
            "servicebus",
            "servicebus://ns",
            "servicebus:///q",
            "servicebus://u:p@ns/q",
            "storage-queue://",
            "storage-queue://a/b",
            "https://ns/q",
        ] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
