//! Tokens that a connection presents to `$cbs`: signed here, given, or from a source such as Entra ID.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quell_core::Result;

use super::options::ServiceBusOptions;
use crate::credentials::{Credentials, Secret, SharedKey};

/// A source returns tokens that last for at least five minutes; they are replaced a minute before.
const SOURCE_LIFETIME: Duration = Duration::from_secs(240);
/// How much longer tokens last at first where the clock here is late, in seconds; eight times as long
/// after each further refusal.
const FIRST_ALLOWANCE: u64 = 8 * 3_600;
/// The longest allowance: 21 days.
const LONGEST_ALLOWANCE: u64 = FIRST_ALLOWANCE * 64;

/// A token for one audience.
pub(super) struct Token {
    pub(super) text: Secret,
    /// Its type, as `$cbs` names it.
    pub(super) kind: &'static str,
    /// When to present the next one.
    pub(super) renew_after: Duration,
}

impl ServiceBusOptions {
    pub(super) async fn token(&self, audience: &str) -> Result<Token> {
        let kind = "servicebus.windows.net:sastoken";
        Ok(match &self.credentials {
            Credentials::SharedKey(key) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let allowance = self.allowance.load(Ordering::Relaxed);
                // A part of a second counts as a second, lest the token ends too soon.
                let expires = (now + self.token_lifetime).as_secs() + 1 + allowance;
                let text = sign(key, audience, expires);
                Token { text, kind, renew_after: self.token_lifetime / 2 }
            }
            Credentials::Sas(text) => {
                Token { text: text.clone(), kind, renew_after: Duration::MAX }
            }
            Credentials::Token(source) => {
                Token { text: source.token().await?, kind: "jwt", renew_after: SOURCE_LIFETIME }
            }
        })
    }

    /// Records that a token had expired when it arrived. Returns whether the next one lasts longer.
    pub(super) fn last_longer(&self) -> bool {
        if !matches!(self.credentials, Credentials::SharedKey(_)) {
            return false;
        }
        let longer = (self.allowance.load(Ordering::Relaxed) * 8).max(FIRST_ALLOWANCE);
        self.allowance.store(longer.min(LONGEST_ALLOWANCE), Ordering::Relaxed);
        longer <= LONGEST_ALLOWANCE
    }
}

/// Signs a token for `audience`.
fn sign(key: &SharedKey, audience: &str, expires: u64) -> Secret {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let audience = encode(audience);
    let signature = encode(&key.sign(&format!("{audience}\n{expires}")));
    let name = encode(key.name());
    Secret::new(format!(
        "SharedAccessSignature sr={audience}&sig={signature}&se={expires}&skn={name}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The MAC comes from `printf 'amqp%3A%2F%2Fns%2Fq\n1700000000' | openssl dgst -sha256 -hmac c2VjcmV0`.
    #[test]
    fn signatures_match_a_known_vector() {
        let key = SharedKey::from_bytes("root", b"c2VjcmV0").unwrap();
        let token = sign(&key, "amqp://ns/q", 1_700_000_000);
        assert_eq!(
            token.expose(),
            "SharedAccessSignature sr=amqp%3A%2F%2Fns%2Fq&sig=Dyq9VW7vAFvmf%2BwYtYPJ7IxcgnQOUDj7p%2F%2BPMitOPrU%3D&se=1700000000&skn=root"
        );
    }
}
