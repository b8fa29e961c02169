//! Which queue, with which credentials, and how.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quell_core::{Error, Result};

use super::ServiceBus;
use crate::connection::Parts;
use crate::credentials::{Credentials, Secret, SharedKey, TokenSource};
use crate::options::TIMEOUT;

/// How to open a queue of Azure Service Bus.
///
/// The queue's own properties are set where it is created: the duration of a lock, the maximum of
/// deliveries and the window of duplicate detection.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// use std::time::Duration;
///
/// use quell_azure::servicebus::ServiceBusOptions;
///
/// let connection = "Endpoint=sb://quell.servicebus.windows.net/;\
///     SharedAccessKeyName=worker;SharedAccessKey=…";
/// let timer = ServiceBusOptions::from_connection_string(connection, "timers")?
///     .duplicate_window(Duration::from_secs(600))
///     .open()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ServiceBusOptions {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_plain: bool,
    pub(super) queue: String,
    pub(super) credentials: Credentials,
    pub(super) token_lifetime: Duration,
    /// What is added to the expiry of tokens, in seconds: as far as is known, the clock here is no later
    /// than this.
    pub(super) allowance: Arc<AtomicU64>,
    pub(super) timeout: Duration,
    pub(super) duplicate_window: Option<Duration>,
    pub(super) lock: Duration,
}

impl ServiceBusOptions {
    /// Reads a connection string: `Endpoint`, and `SharedAccessKeyName` with `SharedAccessKey`, or
    /// `SharedAccessSignature`. `UseDevelopmentEmulator=true` means a connection without TLS, to
    /// port 5672 unless the endpoint names another.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) where a part is missing or unreadable,
    /// and where `EntityPath` is another queue; the error never contains the string.
    pub fn from_connection_string(text: &str, queue: &str) -> Result<Self> {
        let parts = Parts::read(text)?;
        if parts.get("entitypath").is_some_and(|found| found != queue) {
            return Err(invalid(&format!("its EntityPath is another queue than {queue:?}")));
        }
        let place = parts.get("endpoint").and_then(|endpoint| endpoint.strip_prefix("sb://"));
        let place = place.ok_or_else(|| invalid("give Endpoint=sb://HOST/"))?;
        let (name, key) = (parts.get("sharedaccesskeyname"), parts.get("sharedaccesskey"));
        let credentials = match (name, key, parts.get("sharedaccesssignature")) {
            // The key is the text that the portal shows, not what it encodes.
            (Some(name), Some(key), _) => {
                Credentials::SharedKey(SharedKey::from_bytes(name, key.as_bytes())?)
            }
            (_, _, Some(signature)) => Credentials::Sas(Secret::new(signature)),
            (..) => {
                let help = "give SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature";
                return Err(invalid(help));
            }
        };
        let is_plain = parts.is_true("usedevelopmentemulator");
        ServiceBusOptions::new(place.trim_end_matches('/'), queue, credentials, is_plain)
    }

    /// The queue of a namespace such as `quell.servicebus.windows.net`, by bearer tokens. They are for
    /// `https://servicebus.azure.net/.default`, and must last for five minutes when they are returned.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for names that no namespace or queue has.
    pub fn from_tokens(host: &str, queue: &str, source: Arc<dyn TokenSource>) -> Result<Self> {
        ServiceBusOptions::new(host, queue, Credentials::Token(source), false)
    }

    fn new(place: &str, queue: &str, credentials: Credentials, is_plain: bool) -> Result<Self> {
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()),
            None => (place, Some(if is_plain { 5_672 } else { 5_671 })),
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        let (Some(port), true) = (port, !host.is_empty() && host.chars().all(is_host)) else {
            return Err(invalid("Endpoint is not sb://HOST/ or sb://HOST:PORT/"));
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-/~".contains(c);
        if !(1..=260).contains(&queue.len()) || !queue.chars().all(is_name) {
            let message =
                format!("queue {queue:?}: give 1 to 260 characters of A-Z, a-z, 0-9 and ._-/~");
            return Err(Error::invalid("queue", message));
        }
        Ok(ServiceBusOptions {
            host: host.to_owned(),
            port,
            is_plain,
            queue: queue.to_owned(),
            credentials,
            token_lifetime: Duration::from_secs(3_600),
            allowance: Arc::default(),
            timeout: TIMEOUT,
            duplicate_window: None,
            lock: Duration::from_secs(30),
        })
    }

    /// How long a call may take; [`receive`](quell_portable::Timer::receive) waits on top of it. 10 s by
    /// default.
    pub fn timeout(self, timeout: Duration) -> Self {
        ServiceBusOptions { timeout, ..self }
    }

    /// The window of duplicate detection that the queue was created with, which the service does not
    /// return. By default there is none.
    pub fn duplicate_window(self, window: Duration) -> Self {
        ServiceBusOptions { duplicate_window: Some(window), ..self }
    }

    /// The duration of a lock, no longer than the queue was created with: locks are renewed three times as
    /// often. 30 s by default.
    pub fn lock(self, lock: Duration) -> Self {
        ServiceBusOptions { lock, ..self }
    }

    /// The lifetime of the tokens that a key signs; each is replaced after half of it. An hour by
    /// default.
    pub fn token_lifetime(self, token_lifetime: Duration) -> Self {
        ServiceBusOptions { token_lifetime, ..self }
    }

    /// The host, with the port where it is not the usual one.
    pub(crate) fn place(&self) -> String {
        match (self.port, self.is_plain) {
            (5_671, false) | (5_672, true) => self.host.clone(),
            (port, _) => format!("{}:{port}", self.host),
        }
    }

    /// Opens the queue: connects, and presents the credentials.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](quell_core::ErrorKind::Unavailable) where the service cannot be
    /// reached, rejects the credentials, or has no such queue.
    pub async fn open(self) -> Result<ServiceBus> {
        let timer = ServiceBus::new(self);
        timer.connect().await?;
        Ok(timer)
    }
}

fn invalid(help: &str) -> Error {
    let message = format!("cannot read the connection string of Service Bus: {help}");
    Error::invalid("connection", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_from_the_parts_of_a_connection_string() {
        let key = "SharedAccessKeyName=n;SharedAccessKey=CANARY=";
        for (text, place, is_plain) in [
            ("Endpoint=sb://ns.test/", ("ns.test", 5_671), false),
            ("Endpoint=sb://ns.test:99", ("ns.test", 99), false),
            ("Endpoint=sb://localhost;UseDevelopmentEmulator=true", ("localhost", 5_672), true),
            ("Endpoint=sb://ns.test;EntityPath=q", ("ns.test", 5_671), false),
        ] {
            let text = format!("{text};{key}");
            let options = ServiceBusOptions::from_connection_string(&text, "q").unwrap();
            assert_eq!(
                ((options.host.as_str(), options.port), options.is_plain),
                (place, is_plain)
            );
            let printed = format!("{options:?}");
            assert!(!printed.contains("CANARY"), "{printed}");
        }
    }

    #[test]
    fn errors_never_contain_the_connection_string() {
        for text in [
            "CANARY",
            "Endpoint=sb://ns.test;SharedAccessKey=CANARY",
            "Endpoint=https://CANARY;SharedAccessSignature=CANARY",
            "Endpoint=sb://u:CANARY@ns.test;SharedAccessSignature=CANARY",
            "Endpoint=sb://ns.test;EntityPath=CANARY;SharedAccessSignature=CANARY",
        ] {
            let error = ServiceBusOptions::from_connection_string(text, "q").unwrap_err();
            assert_eq!(error.kind(), quell_core::ErrorKind::Invalid);
            assert!(!format!("{error:?}").contains("CANARY"), "{error:?}");
        }
    }
}
