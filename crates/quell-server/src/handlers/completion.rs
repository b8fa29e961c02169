//! Completion URLs: where the target of a call reports the end of work that it answered with 202.
//!
//! The URL has the lease of the attempt, and a code by the task's secret (HMAC-SHA256). Who has it may
//! end this attempt, and nothing else.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use quell::{Error, ErrorKind, Result};
use sha2::Sha256;

use crate::secrets::Secret;

/// The path in front of a lease and its code.
pub(crate) const PATH: &str = "/v1/completions";
/// What the code is over, besides the lease: the secret signs other texts, too.
const PURPOSE: &str = "quell completion ";

/// The URL for a lease.
pub(super) fn url(secret: &Secret, base: &str, lease: &str) -> Result<String> {
    let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let code = mac(secret, lease)?.finalize().into_bytes();
    Ok(format!("{base}{PATH}/{}/{}", encode(lease.as_bytes()), encode(&code)))
}

/// The lease of a URL; none where it is none.
pub(crate) fn lease(encoded: &str) -> Option<String> {
    String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

/// Whether a code of a URL is that of its lease, compared in constant time.
pub(super) fn proves(secret: &Secret, lease: &str, code: &str) -> bool {
    let code = BASE64_URL_SAFE_NO_PAD.decode(code);
    let mac = mac(secret, lease);
    code.is_ok_and(|code| mac.is_ok_and(|mac| mac.verify_slice(&code).is_ok()))
}

fn mac(secret: &Secret, lease: &str) -> Result<Hmac<Sha256>> {
    let mac = Hmac::<Sha256>::new_from_slice(&secret.signing_key()?);
    let mac = mac.map_err(|_| Error::new(ErrorKind::Internal, "the signing key cannot be used"))?;
    Ok(mac.chain_update(PURPOSE).chain_update(lease))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_proves_its_own_lease_by_its_own_secret() {
        let (one, other) = (Secret::new("one").unwrap(), Secret::new("other").unwrap());
        let url = url(&one, "https://quell.example", "42:1-5f:7:1:0:t").unwrap();
        let rest = url.strip_prefix("https://quell.example/v1/completions/").unwrap();
        let (encoded, code) = rest.split_once('/').unwrap();
        assert_eq!(lease(encoded).as_deref(), Some("42:1-5f:7:1:0:t"));
        assert!(proves(&one, "42:1-5f:7:1:0:t", code));
        assert!(!proves(&other, "42:1-5f:7:1:0:t", code));
        assert!(!proves(&one, "43:1-5f:7:1:0:t", code));
        assert!(!proves(&one, "42:1-5f:7:1:0:t", "") && lease("%").is_none());
    }
}
