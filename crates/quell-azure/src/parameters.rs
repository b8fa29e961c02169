//! What a URL says behind its `?`.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use quell_core::{Error, QueueName, Result};
use quell_portable::{Layout, Spread};
use reqwest::Url;

use crate::connection::{Connection, endpoint};
use crate::credentials::{Credentials, Service, TokenSource};
use crate::options::{TIMEOUT, refuse};
use crate::timer;

/// The parameters of a URL, and what each takes; there is also `shards.QUEUE=COUNT`.
const PARAMETERS: [(&str, &str); 10] = [
    ("connection", "the name of an environment variable"),
    ("credential", "managed-identity, workload-identity or developer"),
    ("endpoint", "http(s)://HOST[:PORT][/PATH] without user and query"),
    ("create", "true or false"),
    ("timeout_ms", "a number of milliseconds above 0"),
    ("timer", "servicebus://HOST/QUEUE, storage-queue://QUEUE or none"),
    ("timer_connection", "the name of an environment variable"),
    ("set_timer", "true or false"),
    ("native_dedup", "the queue's window of duplicate detection in seconds"),
    ("layout", "one or queues"),
];

/// What stands after the `?` of a URL.
#[derive(Default)]
pub(crate) struct Parameters {
    connection: Option<String>,
    credential: Option<String>,
    pub(crate) timer: Option<timer::Place>,
    pub(crate) timer_connection: Option<String>,
    pub(crate) sets_timer: bool,
    pub(crate) native_dedup: Option<Duration>,
    pub(crate) endpoint: Option<Url>,
    pub(crate) create: bool,
    pub(crate) timeout: Duration,
    pub(crate) layout: Layout,
    pub(crate) spread: Spread,
}

impl FromStr for Parameters {
    type Err = Error;

    /// An error names the parameter and never repeats its value, which may be a secret in a wrong
    /// place.
    fn from_str(query: &str) -> Result<Self> {
        let mut read = Parameters {
            create: true,
            sets_timer: true,
            timeout: TIMEOUT,
            ..Parameters::default()
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| refuse("a parameter has no `=`: give NAME=VALUE&NAME=VALUE…"))?;
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            if let Some(queue) = name.strip_prefix("shards.") {
                let refused = |_| refuse(&format!("`{name}`: give a whole number"));
                read.spread.insert(QueueName::new(queue)?, value.parse().map_err(refused)?);
            } else {
                read.set(name, value).ok_or_else(|| wrong(name))?;
            }
        }
        Ok(read)
    }
}

/// The error of a parameter that is not known, or has another value than it takes.
fn wrong(name: &str) -> Error {
    refuse(&match PARAMETERS.iter().find(|(known, _)| *known == name) {
        Some((_, values)) => format!("`{name}`: give {values}"),
        None => {
            let known = PARAMETERS.map(|(known, _)| known).join(", ");
            format!("{name:?} is not known: use {known} or shards.QUEUE")
        }
    })
}

impl Parameters {
    /// Takes a parameter; none where it is not known, or the value is not one that it takes.
    fn set(&mut self, name: &str, value: String) -> Option<()> {
        let positive = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        match name {
            "connection" | "timer_connection" if value.is_empty() => return None,
            "connection" => self.connection = Some(value),
            "credential" => self.credential = Some(value),
            "endpoint" => self.endpoint = Some(endpoint(&value).ok()?),
            "create" => self.create = value.parse().ok()?,
            "timeout_ms" => self.timeout = Duration::from_millis(positive(&value)?.into()),
            "timer" => self.timer = Some(value.parse().ok()?),
            "timer_connection" => self.timer_connection = Some(value),
            "set_timer" => self.sets_timer = value.parse().ok()?,
            "native_dedup" => {
                self.native_dedup = Some(Duration::from_secs(positive(&value)?.into()));
            }
            "layout" if value == "one" => self.layout = Layout::One,
            "layout" if value == "queues" => self.layout = Layout::Queues,
            _ => return None,
        }
        Some(())
    }

    /// The account of the URL, with the credentials that it names.
    pub(crate) fn connection(&self, account: &str) -> Result<Connection> {
        if self.connection.is_some() && self.credential.is_some() {
            return Err(refuse("`connection` and `credential` exclude each other: give one"));
        }
        let connection = match self.tokens(Service::Table)? {
            Some(source) => Connection::new(account, Credentials::Token(source))?,
            None => {
                let default = ("connection", "AZURE_STORAGE_CONNECTION_STRING");
                Connection::from_string(&secret(self.connection.as_deref(), default)?)?
            }
        };
        if connection.account.as_ref().is_some_and(|found| found != account) {
            let message = format!("the connection string is not of the URL's account {account:?}");
            return Err(refuse(&message));
        }
        Ok(connection)
    }

    /// The tokens for a service, where the URL names an identity.
    #[cfg(feature = "entra")]
    pub(crate) fn tokens(&self, service: Service) -> Result<Option<Arc<dyn TokenSource>>> {
        let identity = match self.credential.as_deref() {
            None => return Ok(None),
            Some("managed-identity") => crate::Identity::Managed,
            Some("workload-identity") => crate::Identity::Workload,
            Some("developer") => crate::Identity::Developer,
            Some(_) => return Err(wrong("credential")),
        };
        Ok(Some(Arc::new(match service {
            Service::Table | Service::Queue => crate::Entra::new(identity)?,
            Service::Bus => crate::Entra::of_service_bus(identity)?,
        })))
    }

    #[cfg(not(feature = "entra"))]
    pub(crate) fn tokens(&self, _: Service) -> Result<Option<Arc<dyn TokenSource>>> {
        match self.credential {
            Some(_) => {
                Err(refuse("`credential` needs the feature `entra`, which this build lacks"))
            }
            None => Ok(None),
        }
    }
}

/// The connection string in a variable, which `parameter` names, or that of the default.
pub(crate) fn secret(variable: Option<&str>, (parameter, default): (&str, &str)) -> Result<String> {
    // A name that is not set may be a secret in a wrong place: it is not repeated.
    std::env::var(variable.unwrap_or(default)).map_err(|_| {
        let help = format!("set {default}, or the variable of `{parameter}=`");
        refuse(&format!("no connection string: {help}"))
    })
}
