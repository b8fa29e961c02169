//! Connection strings, as the portal and the command line `az` print them.

use quell_core::{Error, Result};
use reqwest::Url;

use crate::credentials::{Credentials, Secret, SharedKey};

/// Azurite's account and its key, which is public.
const DEVELOPMENT_ACCOUNT: &str = "devstoreaccount1";
const DEVELOPMENT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Where an account's services are, and the credentials for them.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The account's name; a connection string of endpoints with a SAS token has none.
    pub(crate) account: Option<String>,
    pub(crate) credentials: Credentials,
    pub(crate) tables: Option<Url>,
    pub(crate) queues: Option<Url>,
}

/// The parts of a connection string that Quell reads.
#[derive(Default)]
struct Parts<'s> {
    account: Option<&'s str>,
    key: Option<&'s str>,
    sas: Option<&'s str>,
    tables: Option<&'s str>,
    queues: Option<&'s str>,
    suffix: Option<&'s str>,
    protocol: Option<&'s str>,
    is_development: bool,
}

impl Connection {
    /// Reads a connection string: `AccountName` and `AccountKey`, or `SharedAccessSignature`; the
    /// endpoints from `TableEndpoint` and `QueueEndpoint`, else from `AccountName`,
    /// `DefaultEndpointsProtocol` (`https`) and `EndpointSuffix` (`core.windows.net`).
    /// `UseDevelopmentStorage=true` means Azurite on its own ports.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) where a part is missing or unreadable;
    /// the error never contains the string.
    pub fn from_string(text: &str) -> Result<Self> {
        let mut found = Parts::default();
        for part in parts(text) {
            let (name, value) = part?;
            match name.as_str() {
                "accountname" => found.account = Some(value),
                "accountkey" => found.key = Some(value),
                "sharedaccesssignature" => found.sas = Some(value),
                "tableendpoint" => found.tables = Some(value),
                "queueendpoint" => found.queues = Some(value),
                "endpointsuffix" => found.suffix = Some(value),
                "defaultendpointsprotocol" => found.protocol = Some(value),
                "usedevelopmentstorage" => {
                    found.is_development = value.eq_ignore_ascii_case("true");
                }
                // Other services' endpoints.
                _ => {}
            }
        }
        found.connection()
    }

    /// The account of this name in Azure's public cloud.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for a name that no account can have.
    pub fn new(account: &str, credentials: Credentials) -> Result<Self> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if !(3..=24).contains(&account.len()) || !account.chars().all(is_name) {
            let message =
                format!("account {account:?}: give 3 to 24 lower-case letters and digits");
            return Err(Error::invalid("account", message));
        }
        let url =
            |service: &str| endpoint(&format!("https://{account}.{service}.core.windows.net"));
        let (tables, queues) = (Some(url("table")?), Some(url("queue")?));
        Ok(Connection { account: Some(account.to_owned()), credentials, tables, queues })
    }
}

impl Parts<'_> {
    fn connection(mut self) -> Result<Connection> {
        if self.is_development {
            self.account = Some(DEVELOPMENT_ACCOUNT);
            self.key = Some(DEVELOPMENT_KEY);
            self.tables = self.tables.or(Some("http://127.0.0.1:10002/devstoreaccount1"));
            self.queues = self.queues.or(Some("http://127.0.0.1:10001/devstoreaccount1"));
        }
        let credentials = match (self.account, self.key, self.sas) {
            (Some(account), Some(key), _) => Credentials::SharedKey(SharedKey::new(account, key)?),
            (_, _, Some(sas)) => Credentials::Sas(Secret::new(sas.trim_start_matches('?'))),
            (..) => {
                let help = "give AccountName and AccountKey, or SharedAccessSignature";
                return Err(invalid(help));
            }
        };
        Ok(Connection {
            account: self.account.map(str::to_owned),
            credentials,
            tables: self.url(self.tables, "table")?,
            queues: self.url(self.queues, "queue")?,
        })
    }

    fn url(&self, explicit: Option<&str>, service: &str) -> Result<Option<Url>> {
        let derived = self.account.map(|account| {
            let protocol = self.protocol.unwrap_or("https");
            let suffix = self.suffix.unwrap_or("core.windows.net");
            format!("{protocol}://{account}.{service}.{suffix}")
        });
        explicit.map(str::to_owned).or(derived).map(|url| endpoint(&url)).transpose()
    }
}

/// The parts of a connection string: the name of each in lower case, and its value.
pub(crate) fn parts(text: &str) -> impl Iterator<Item = Result<(String, &str)>> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(|part| {
        // The text of a malformed part may be a secret.
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| invalid("a part has no `=`: give NAME=VALUE;NAME=VALUE…"))?;
        Ok((name.to_ascii_lowercase(), value))
    })
}

/// Reads the URL of a service, without a `/` at its end.
pub(crate) fn endpoint(text: &str) -> Result<Url> {
    let url = Url::parse(text.trim_end_matches('/')).ok();
    let is_plain = |url: &Url| {
        let has_user = !url.username().is_empty() || url.password().is_some();
        let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
        is_http && !has_user && url.query().is_none() && url.fragment().is_none()
    };
    // Where it has a query, that may be a SAS token.
    let help = "an endpoint is not http(s)://HOST[:PORT][/PATH] without user and query";
    url.filter(is_plain).ok_or_else(|| Error::invalid("endpoint", help))
}

fn invalid(help: &str) -> Error {
    Error::invalid("connection", format!("cannot read the connection string: {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "c2VjcmV0";

    fn tables(text: &str) -> String {
        let connection = Connection::from_string(text).unwrap();
        connection.tables.map(String::from).unwrap_or_default()
    }

    #[test]
    fn endpoints_come_from_the_parts_of_a_connection_string() {
        let account = format!("AccountName=quell;AccountKey={KEY}");
        for (more, expected) in [
            ("", "https://quell.table.core.windows.net/"),
            (";EndpointSuffix=core.chinacloudapi.cn", "https://quell.table.core.chinacloudapi.cn/"),
            (";DefaultEndpointsProtocol=http", "http://quell.table.core.windows.net/"),
            (";TableEndpoint=http://127.0.0.1:7/quell/", "http://127.0.0.1:7/quell"),
        ] {
            assert_eq!(tables(&format!("{account}{more}")), expected);
        }
        assert_eq!(tables("UseDevelopmentStorage=true"), "http://127.0.0.1:10002/devstoreaccount1");
        let sas = "TableEndpoint=https://x.test;SharedAccessSignature=sv=2019&sig=a%3D";
        assert!(matches!(
            Connection::from_string(sas).unwrap().credentials,
            Credentials::Sas(secret) if secret.expose() == "sv=2019&sig=a%3D"
        ));
    }

    #[test]
    fn no_secret_of_a_connection_string_is_printed() {
        let good = format!("AccountName=quell;AccountKey={KEY}");
        let sas = "TableEndpoint=https://x.test;SharedAccessSignature=sv=1&sig=CANARY";
        for text in [good.as_str(), sas] {
            let printed = format!("{:?}", Connection::from_string(text).unwrap());
            assert!(!printed.contains(KEY) && !printed.contains("CANARY"), "{printed}");
        }
        for bad in [
            "CANARY",
            "AccountName=quell;AccountKey=CANARY!",
            "AccountName=quell;SharedAccessSignature=x;TableEndpoint=https://u:CANARY@x.test",
            "SharedAccessSignature=x;TableEndpoint=https://x.test/?sig=CANARY",
            "TableEndpoint=https://CANARY.test",
        ] {
            let error = Connection::from_string(bad).unwrap_err();
            assert_eq!(error.kind(), quell_core::ErrorKind::Invalid);
            assert!(!format!("{error:?}").contains("CANARY"), "{error:?}");
        }
    }
}
