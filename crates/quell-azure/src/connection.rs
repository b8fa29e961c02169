//! Connection strings, as the portal and the command line `az` print them.

use std::collections::BTreeMap;

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
        let parts = Parts::read(text)?;
        let is_development = parts.is_true("usedevelopmentstorage");
        let (account, key) = match is_development {
            true => (Some(DEVELOPMENT_ACCOUNT), Some(DEVELOPMENT_KEY)),
            false => (parts.get("accountname"), parts.get("accountkey")),
        };
        let credentials = match (account, key, parts.get("sharedaccesssignature")) {
            (Some(account), Some(key), _) => Credentials::SharedKey(SharedKey::new(account, key)?),
            (_, _, Some(sas)) => Credentials::Sas(Secret::new(sas.trim_start_matches('?'))),
            (..) => {
                let help = "give AccountName and AccountKey, or SharedAccessSignature";
                return Err(invalid(help));
            }
        };
        let url = |service: &str, development_port: u16| {
            let derived = account.map(|account| match is_development {
                true => format!("http://127.0.0.1:{development_port}/{account}"),
                false => {
                    let protocol = parts.get("defaultendpointsprotocol").unwrap_or("https");
                    let suffix = parts.get("endpointsuffix").unwrap_or("core.windows.net");
                    format!("{protocol}://{account}.{service}.{suffix}")
                }
            });
            let explicit = parts.get(&format!("{service}endpoint")).map(str::to_owned);
            explicit.or(derived).map(|url| endpoint(&url)).transpose()
        };
        let (tables, queues) = (url("table", 10_002)?, url("queue", 10_001)?);
        Ok(Connection { account: account.map(str::to_owned), credentials, tables, queues })
    }

    /// The account of this name in Azure's public cloud.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for a name that no account can have.
    pub fn new(account: &str, credentials: Credentials) -> Result<Self> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if !(3..=24).contains(&account.len()) || !account.chars().all(is_name) {
            let message = format!("account {account:?}: give 3 to 24 characters of a-z and 0-9");
            return Err(Error::invalid("account", message));
        }
        let url =
            |service: &str| endpoint(&format!("https://{account}.{service}.core.windows.net"));
        let (tables, queues) = (Some(url("table")?), Some(url("queue")?));
        Ok(Connection { account: Some(account.to_owned()), credentials, tables, queues })
    }
}

/// The parts of a connection string: their values by their names in lower case.
pub(crate) struct Parts<'s>(BTreeMap<String, &'s str>);

impl<'s> Parts<'s> {
    pub(crate) fn read(text: &'s str) -> Result<Self> {
        let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(|part| {
            // The text of a malformed part may be a secret.
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| invalid("a part has no `=`: give NAME=VALUE;NAME=VALUE…"))?;
            Ok((name.to_ascii_lowercase(), value))
        });
        parts.collect::<Result<_>>().map(Parts)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'s str> {
        self.0.get(name).copied()
    }

    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }
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
