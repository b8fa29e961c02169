//! Signing what is sent, in the manner of Standard Webhooks
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>):
//! `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use quell::{Error, Result};
use sha2::Sha256;

/// A signing key. It never shows itself.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Secret {
    /// Reads a key: `whsec_` and base64, or any other text as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) for an empty key, or `whsec_` without
    /// base64; the text is not repeated.
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        let bytes = match text.strip_prefix("whsec_") {
            Some(encoded) => BASE64_STANDARD
                .decode(encoded)
                .map_err(|_| Error::invalid("secret", "secret after `whsec_` is not base64"))?,
            None => text.as_bytes().to_vec(),
        };
        if bytes.is_empty() {
            return Err(Error::invalid("secret", "secret is empty"));
        }
        Ok(Secret(bytes))
    }

    /// Whether it is the same key, compared in constant time.
    #[must_use]
    pub fn same(&self, other: &Secret) -> bool {
        let digest = |secret: &Secret| {
            let mac = Hmac::<Sha256>::new_from_slice(b"compare");
            mac.map(|mac| mac.chain_update(&secret.0))
        };
        match (digest(self), digest(other)) {
            (Ok(own), Ok(others)) => own.verify_slice(&others.finalize().into_bytes()).is_ok(),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }

    /// The signature of a message.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`](quell::ErrorKind::Internal) if the key cannot be used.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> Result<String> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0);
        let mut mac = mac.map_err(|_| {
            Error::new(quell::ErrorKind::Internal, "the signing key cannot be used")
        })?;
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        Ok(format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks libraries.
    #[test]
    fn a_known_message_has_its_known_signature() {
        let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed =
            secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_never_shows_itself() {
        let secret = Secret::new("canary-of-the-secret").unwrap();
        assert_eq!(format!("{secret:?}"), "***");
        let refused = Secret::new("whsec_canary!").unwrap_err();
        assert!(!refused.to_string().contains("canary"), "{refused}");
    }
}
