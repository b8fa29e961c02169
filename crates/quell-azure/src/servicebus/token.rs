//! Tokens that a connection presents to `$cbs`: signed here, given, or from a source such as Entra ID.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quell_core::{Error, ErrorKind, Result};
use sha2::Sha256;

use crate::credentials::{Secret, TokenSource};

/// A source returns tokens that last for at least five minutes; they are replaced a minute before.
const SOURCE_LIFETIME: Duration = Duration::from_secs(240);

#[derive(Clone)]
pub(super) enum Credentials {
    Key { name: String, key: Secret, lifetime: Duration },
    Signature(Secret),
    Source(Arc<dyn TokenSource>),
}

/// A token for one audience.
pub(super) struct Token {
    pub(super) text: Secret,
    /// Its type, as `$cbs` names it.
    pub(super) kind: &'static str,
    /// When to present the next one.
    pub(super) renew_after: Duration,
}

impl Credentials {
    pub(super) async fn token(&self, audience: &str) -> Result<Token> {
        let signature = "servicebus.windows.net:sastoken";
        Ok(match self {
            Credentials::Key { name, key, lifetime } => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                // A part of a second counts as a second, lest the token ends too soon.
                let expires = (now + *lifetime).as_secs() + 1;
                let text = sign(name, key, audience, expires)?;
                Token { text, kind: signature, renew_after: *lifetime / 2 }
            }
            Credentials::Signature(text) => {
                Token { text: text.clone(), kind: signature, renew_after: Duration::MAX }
            }
            Credentials::Source(source) => {
                Token { text: source.token().await?, kind: "jwt", renew_after: SOURCE_LIFETIME }
            }
        })
    }

    /// What an operator checks when the service rejects the token.
    pub(super) fn remedy(&self) -> String {
        match self {
            Credentials::Key { name, .. } => {
                format!(
                    "check SharedAccessKey of {name:?}, its claims Send and Listen, and the clock"
                )
            }
            Credentials::Signature(_) => "check SharedAccessSignature and its expiry".to_owned(),
            Credentials::Source(_) => {
                "check that the identity has the role Azure Service Bus Data Owner".to_owned()
            }
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::Key { name, .. } => {
                f.debug_struct("Key").field("name", name).finish_non_exhaustive()
            }
            Credentials::Signature(_) => f.write_str("Signature(***)"),
            Credentials::Source(_) => f.write_str("Source(***)"),
        }
    }
}

/// Signs a token for `audience`. The key is the text that the portal shows, not what it encodes.
fn sign(name: &str, key: &Secret, audience: &str, expires: u64) -> Result<Secret> {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let audience = encode(audience);
    let mac = Hmac::<Sha256>::new_from_slice(key.expose().as_bytes());
    let mut mac = mac.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    mac.update(format!("{audience}\n{expires}").as_bytes());
    let signature = encode(&STANDARD.encode(mac.finalize().into_bytes()));
    let name = encode(name);
    Ok(Secret::new(format!(
        "SharedAccessSignature sr={audience}&sig={signature}&se={expires}&skn={name}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The MAC comes from `printf 'amqp%3A%2F%2Fns%2Fq\n1700000000' | openssl dgst -sha256 -hmac c2VjcmV0`.
    #[test]
    fn signatures_match_a_known_vector() {
        let token = sign("root", &Secret::new("c2VjcmV0"), "amqp://ns/q", 1_700_000_000).unwrap();
        assert_eq!(
            token.expose(),
            "SharedAccessSignature sr=amqp%3A%2F%2Fns%2Fq&sig=Dyq9VW7vAFvmf%2BwYtYPJ7IxcgnQOUDj7p%2F%2BPMitOPrU%3D&se=1700000000&skn=root"
        );
    }
}
