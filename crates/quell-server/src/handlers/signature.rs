//! Signatures in the manner of Standard Webhooks
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>):
//! `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`, one for each secret that counts.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use quell::{Error, ErrorKind, Result};
use sha2::Sha256;

use crate::secrets::Secret;

/// What marks a signature by HMAC-SHA256.
pub(crate) const VERSION: &str = "v1,";

/// The signatures of a message, separated by spaces: a receiver that has any one of the secrets accepts it.
///
/// # Errors
/// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) for a secret that is no key.
pub(crate) fn signatures(
    secrets: &[Secret],
    id: &str,
    timestamp: i64,
    body: &[u8],
) -> Result<String> {
    let signed = secrets.iter().map(|secret| {
        let code = code(secret, id, timestamp, body)?.finalize().into_bytes();
        Ok(format!("{VERSION}{}", BASE64_STANDARD.encode(code)))
    });
    Ok(signed.collect::<Result<Vec<_>>>()?.join(" "))
}

/// The message authentication code of a message, not finished yet.
pub(crate) fn code(secret: &Secret, id: &str, timestamp: i64, body: &[u8]) -> Result<Hmac<Sha256>> {
    let mac = Hmac::<Sha256>::new_from_slice(&secret.signing_key()?);
    let mac = mac.map_err(|_| Error::new(ErrorKind::Internal, "the signing key cannot be used"))?;
    Ok(mac.chain_update(format!("{id}.{timestamp}.")).chain_update(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks libraries.
    #[test]
    fn a_known_message_has_its_known_signature() {
        let secret = |text: &str| Secret::new(text).unwrap();
        let secrets = [
            secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            secret("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        ];
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signed = signatures(&secrets, id, 1_614_265_330, br#"{"test": 2432232314}"#);
        let known = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signed.unwrap(), format!("{known} {known}"));
    }
}
