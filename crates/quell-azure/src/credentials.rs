//! How requests are authenticated: by an account's key, a SAS token or a bearer token.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::percent_decode_str;
use quell_core::{Error, ErrorKind, Result};
use sha2::Sha256;

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How requests are authenticated.
#[derive(Clone)]
#[non_exhaustive]
pub enum Credentials {
    /// The account's name and key, by which each request is signed.
    SharedKey(SharedKey),
    /// A shared access signature: parameters that are appended to the URL.
    Sas(Secret),
    /// Bearer tokens of Entra ID, or of any other source.
    Token(Arc<dyn TokenSource>),
}

/// A service that takes credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Table,
    Queue,
    Bus,
}

/// A source of bearer tokens for `https://storage.azure.com/.default`.
#[async_trait]
pub trait TokenSource: Send + Sync + 'static {
    /// Returns a token that is valid now. It is called for each request, so sources cache theirs.
    async fn token(&self) -> Result<Secret>;
}

impl Credentials {
    /// Their kind, and when they expire, for operators.
    pub(crate) fn summary(&self) -> String {
        match self {
            Credentials::SharedKey(key) => format!("key of account {:?}", key.name),
            Credentials::Sas(sas) => format!("SAS token, which expires at {}", expiry(sas)),
            Credentials::Token(_) => "bearer tokens".to_owned(),
        }
    }

    /// What an operator checks when the service rejects these credentials.
    pub(crate) fn remedy(&self, service: Service) -> String {
        let (rights, role) = match service {
            Service::Table => ("raud on the table", "Storage Table Data Contributor"),
            Service::Queue => ("raup on both queues", "Storage Queue Data Contributor"),
            Service::Bus => ("Send and Listen", "Azure Service Bus Data Owner"),
        };
        match self {
            Credentials::SharedKey(key) if service == Service::Bus => {
                let name = &key.name;
                format!("check SharedAccessKey of {name:?}, its claims {rights}, and the clock")
            }
            Credentials::SharedKey(key) => format!("check AccountKey of account {:?}", key.name),
            Credentials::Sas(sas) => {
                let expiry = expiry(sas);
                format!("check the SAS token: it expires at {expiry}, and needs {rights}")
            }
            Credentials::Token(_) => format!("check that the identity has the role {role}"),
        }
    }
}

/// When a SAS token expires, as it says itself.
fn expiry(sas: &Secret) -> Cow<'_, str> {
    let expiry = sas.0.split('&').find_map(|pair| pair.strip_prefix("se="));
    percent_decode_str(expiry.unwrap_or("a time of its stored policy")).decode_utf8_lossy()
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::SharedKey(key) => key.fmt(f),
            Credentials::Sas(sas) => f.debug_tuple("Sas").field(sas).finish(),
            // A source may print what it caches.
            Credentials::Token(_) => f.write_str("Token(***)"),
        }
    }
}

/// The name and the key of a storage account.
#[derive(Clone)]
pub struct SharedKey {
    name: String,
    mac: Hmac<Sha256>,
}

impl SharedKey {
    /// Reads a key in base64, as the portal shows it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where it is not base64.
    pub fn new(account: impl Into<String>, key: &str) -> Result<Self> {
        let invalid = || Error::invalid("AccountKey", "AccountKey is not base64: copy it again");
        SharedKey::from_bytes(account, &STANDARD.decode(key).map_err(|_| invalid())?)
    }

    /// The key of an account, or of a policy of Service Bus.
    pub(crate) fn from_bytes(name: impl Into<String>, key: &[u8]) -> Result<Self> {
        let mac = Hmac::new_from_slice(key);
        let mac = mac.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        Ok(SharedKey { name: name.into(), mac })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The value of `Authorization` in the scheme SharedKeyLite, where `path` is that of the URL,
    /// percent-encoded as it is sent, and `head` is what the service signs before it.
    pub(crate) fn authorize(&self, head: &str, path: &str) -> String {
        let signature = self.sign(&format!("{head}\n/{}{path}", self.name));
        format!("SharedKeyLite {}:{signature}", self.name)
    }

    /// Signs `text`; the signature is in base64.
    pub(crate) fn sign(&self, text: &str) -> String {
        let mut mac = self.mac.clone();
        mac.update(text.as_bytes());
        STANDARD.encode(mac.finalize().into_bytes())
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKey").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2, is the vector of the MAC; the text is laid out as in Azure's
    /// documentation of SharedKeyLite for tables, and its MAC comes from `openssl dgst -mac`.
    #[test]
    fn signatures_match_known_vectors() {
        let key = SharedKey::new("testaccount1", &STANDARD.encode("Jefe")).unwrap();
        assert_eq!(
            key.sign("what do ya want for nothing?"),
            STANDARD.encode([
                0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95,
                0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9,
                0x64, 0xec, 0x38, 0x43,
            ])
        );
        let header = key.authorize("Sun, 11 Oct 2009 19:52:39 GMT", "/Tables");
        assert_eq!(
            header,
            "SharedKeyLite testaccount1:mynVmyiWMZjHHASA7uvX3rn6qBHoTNGLKgXTyKhqV0Y="
        );
        assert!(SharedKey::new("a", "not base64!").is_err());
    }
}
