//! What a client that encrypts gives to a store in place of a payload, an output or a result.
//!
//! It is JSON, so a store keeps it as any other payload, and `collect` gathers it. The store learns the
//! size, the name of the key and, where there is an idempotency key, the fingerprint (R19).

use serde::{Deserialize, Serialize};

use crate::Payload;
use crate::idempotency::Fingerprint;

/// What a cipher adds to a document, at most: a nonce and a code of authenticity.
const SEAL: usize = 64;
/// How the text of every envelope begins.
const BEGINNING: &str = "{\"$sealed\"";

/// An encrypted JSON document.
///
/// ```
/// use quell_core::envelope::Envelope;
/// use quell_core::Payload;
///
/// let sealed = Envelope { key: "k1".to_owned(), data: "AAAA".to_owned(), fingerprint: None };
/// let stored = sealed.payload();
/// assert_eq!(stored.as_str(), r#"{"$sealed":{"key":"k1","data":"AAAA"}}"#);
/// assert_eq!(Envelope::of(stored.as_str()), Some(sealed));
/// assert_eq!(Envelope::of("{}"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The name of the key that opens it.
    pub key: String,
    /// What the cipher made of the document, as text.
    pub data: String,
    /// The keyed fingerprint of the document, where its trigger has an idempotency key: no two
    /// ciphertexts are equal, and a repeated trigger must be known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outer<T> {
    #[serde(rename = "$sealed")]
    sealed: T,
}

impl Envelope {
    /// The envelope that this text is; none where it is another document.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let text = text.trim_start();
        if !text.starts_with(BEGINNING) {
            return None;
        }
        serde_json::from_str::<Outer<Envelope>>(text).ok().map(|outer| outer.sealed)
    }

    /// Whether this text is an envelope, or an array that may hold some.
    #[must_use]
    pub fn may_be_in(text: &str) -> bool {
        let text = text.trim_start();
        text.starts_with(BEGINNING) || (text.starts_with('[') && text.contains(BEGINNING))
    }

    /// The bytes that a document counts for a limit: of an encrypted one, those before, as far as its
    /// ciphertext shows them. So a limit is the same with and without encryption.
    ///
    /// ```
    /// use quell_core::envelope::Envelope;
    ///
    /// assert_eq!(Envelope::counted(r#"{"a":1}"#), 7);
    /// let sealed = Envelope { key: "k1".to_owned(), data: "A".repeat(400), fingerprint: None };
    /// assert!(Envelope::counted(sealed.payload().as_str()) < 300);
    /// ```
    #[must_use]
    pub fn counted(text: &str) -> usize {
        let sealed = Envelope::of(text);
        sealed.map_or(text.len(), |sealed| {
            (sealed.data.len() / 4).saturating_mul(3).saturating_sub(SEAL)
        })
    }

    /// The payload that stands for it in a store.
    #[must_use]
    pub fn payload(&self) -> Payload {
        let text = serde_json::to_string(&Outer { sealed: self });
        Payload::from_stored(text.unwrap_or_default())
    }
}
