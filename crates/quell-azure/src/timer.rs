//! Which timer wakes the workers of a store, and that all of its processes use the same one.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use quell_core::{Error, Result, lacks};
use quell_portable::Timer;

use crate::connection::Connection;
use crate::credentials::Service;
use crate::options::refuse;
use crate::parameters::{Parameters, secret};
use crate::queue::StorageQueueOptions;
use crate::servicebus::ServiceBusOptions;
use crate::table::TableStorage;

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

/// What a URL or a caller says of the timer.
#[derive(Clone, Debug, Default)]
pub(crate) enum Wanted {
    /// Nothing: workers poll, and the store must have no timer.
    #[default]
    Nothing,
    /// The store is to have no timer any more.
    None,
    /// This one, which remembers names of messages for so long.
    Timer { name: String, window: Option<Duration>, options: Box<Options> },
}

/// How to open a timer.
#[derive(Clone, Debug)]
pub(crate) enum Options {
    ServiceBus(ServiceBusOptions),
    StorageQueue(StorageQueueOptions),
    Open(Arc<dyn Timer>),
}

impl Wanted {
    /// The timer of a URL; one in a queue of Azure Storage is on the account of `connection`.
    pub(crate) fn of_url(url: &Parameters, connection: &Connection) -> Result<Self> {
        let window = url.native_dedup;
        let for_bus = |name: &str| {
            let help = "give that timer too, or leave it out";
            refuse(&format!("`{name}` is for timer=servicebus://HOST/QUEUE only: {help}"))
        };
        let (name, options) = match &url.timer {
            Some(Place::ServiceBus { host, queue }) => {
                let options = service_bus(url, host, queue)?.timeout(url.timeout);
                let options = match window {
                    Some(window) => options.duplicate_window(window),
                    None => options,
                };
                (format!("servicebus://{host}/{queue}"), Options::ServiceBus(options))
            }
            _ if window.is_some() => return Err(for_bus("native_dedup")),
            Some(Place::None) => return Ok(Wanted::None),
            _ if url.timer_connection.is_some() => return Err(for_bus("timer_connection")),
            None => return Ok(Wanted::Nothing),
            Some(Place::StorageQueue { queue }) => {
                let options = StorageQueueOptions::new(connection.clone(), queue)?;
                let options = options.create(url.create).timeout(url.timeout);
                (format!("storage-queue://{queue}"), Options::StorageQueue(options))
            }
        };
        Ok(Wanted::Timer { name, window, options: Box::new(options) })
    }
}

fn service_bus(url: &Parameters, host: &str, queue: &str) -> Result<ServiceBusOptions> {
    let variable = url.timer_connection.as_deref();
    let source = if variable.is_none() { url.tokens(Service::Bus)? } else { None };
    if let Some(source) = source {
        return ServiceBusOptions::from_tokens(host, queue, source);
    }
    let default = ("timer_connection", "AZURE_SERVICEBUS_CONNECTION_STRING");
    let options = ServiceBusOptions::from_connection_string(&secret(variable, default)?, queue)?;
    if options.place() != host {
        return Err(refuse(&format!(
            "the connection string of Service Bus is for another host than {host:?}"
        )));
    }
    Ok(options)
}

impl Options {
    pub(crate) async fn open(self) -> Result<Arc<dyn Timer>> {
        Ok(match self {
            Options::ServiceBus(options) => Arc::new(options.open().await?),
            Options::StorageQueue(options) => Arc::new(options.open().await?),
            Options::Open(timer) => timer,
        })
    }
}

/// How the store remembers a timer, in the words of a URL: a process whose dedup keys are kept
/// elsewhere, or for another time, has another one.
pub(crate) fn remembered(
    name: String,
    window: Option<Duration>,
    keeps_keys: bool,
) -> Result<String> {
    if !keeps_keys {
        return Ok(name);
    }
    let window = window.ok_or_else(keeps_no_keys)?;
    Ok(format!("{name}&native_dedup={}", window.as_secs_f64()))
}

/// Refuses to open a store whose timer is another one, or none where one is wanted: a process without
/// the timer of the others would write jobs and wake no worker.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_named_by_its_kind_and_its_queue() {
        for (text, place) in [
            ("none", Place::None),
            (
                "servicebus://NS.servicebus.windows.net/q/a",
                Place::ServiceBus {
                    host: "ns.servicebus.windows.net".to_owned(),
                    queue: "q/a".to_owned(),
                },
            ),
            ("storage-queue://timers", Place::StorageQueue { queue: "timers".to_owned() }),
        ] {
            assert_eq!(text.parse(), Ok(place));
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
