//! What is kept of a token or a session: its SHA-256 digest.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quell::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The bytes of a digest, and of what it is made of.
const BYTES: usize = 32;

/// A digest of a token or a session's id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Digest([u8; BYTES]);

impl Digest {
    pub(crate) fn of(text: &[u8]) -> Self {
        Digest(Sha256::digest(text).into())
    }

    /// Whether it is the same, in a time that does not depend on where they differ.
    pub(crate) fn is(&self, other: &Digest) -> bool {
        let differ = |(a, b): (&u8, &u8)| a ^ b;
        self.0.iter().zip(&other.0).map(differ).fold(0, |all, one| all | one) == 0
    }
}

impl TryFrom<String> for Digest {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        let wrong = || Error::invalid("sha256", "sha256 has to be 64 hexadecimal digits");
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        let bytes = bytes.filter(|_| text.len() == 2 * BYTES).ok_or_else(wrong)?;
        bytes.try_into().map(Digest).map_err(|_| wrong())
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A random text of 256 bits behind a prefix, and its digest.
///
/// # Errors
/// [`ErrorKind::Internal`] where the system has no random bytes.
pub(super) fn random(prefix: &str) -> Result<(String, Digest)> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("the system gave no random bytes: {error}"))
    })?;
    let text = format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes));
    let digest = Digest::of(text.as_bytes());
    Ok((text, digest))
}
