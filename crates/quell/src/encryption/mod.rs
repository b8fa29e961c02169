//! Encryption of payloads, outputs and results of effects before they reach a store (R43).
//!
//! Give a [`Cipher`] to [`QuellBuilder::encryption`](crate::QuellBuilder::encryption): a [`Keyring`], or
//! one of your own, such as one whose keys are in a key management service. The store and its backups
//! have ciphertext then; handlers, results, lists and exports have plain JSON, as before.
//!
//! ```
//! use std::sync::Arc;
//! use quell::encryption::Keyring;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize)]
//! # struct Parcel { to: String }
//! # impl quell::Task for Parcel { const NAME: &'static str = "parcel"; type Output = (); }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! // From a file, usually. The first key encrypts, every key decrypts.
//! let keys = Arc::new(Keyring::parse(&Keyring::generate("2026-11")?)?);
//! let quell = quell::Quell::builder("memory:").await?.encryption(keys).build()?;
//! let job = quell.trigger(Parcel { to: "ann".to_owned() }).await?.job().unwrap();
//! # let listed = quell.store().job(job).await?.unwrap();
//! # assert_eq!(listed.payload.as_str(), r#"{"to":"ann"}"#);
//! # Ok(())
//! # }
//! ```

mod keyring;
mod renew;
mod seal;
mod store;

use std::fmt::Debug;

use quell_core::idempotency::Fingerprint;
use quell_core::{Payload, Result, TaskName};

pub use keyring::{Keyring, MAX_KEYS};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use seal::Place;
pub(crate) use seal::{Seal, WithoutPayloads};
pub(crate) use store::Encrypted;

/// A document as a cipher made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The name of the key: short, and no secret.
    pub key: String,
    /// The ciphertext with all that opening it needs besides the key and the context.
    pub bytes: Vec<u8>,
}

/// Why a document cannot be decrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// The key is not there, or not now: jobs wait for it.
    NoKey,
    /// The document was changed, or is of another job: no retry can help.
    Damaged,
}

/// Encrypts and decrypts documents. Calls are synchronous and must be short: a cipher with keys
/// elsewhere fetches them beforehand.
///
/// What it makes must be authentic: [`open`](Cipher::open) is to refuse a document that was changed, or
/// that was sealed in another context.
pub trait Cipher: Send + Sync + Debug + 'static {
    /// Whether payloads of this task are encrypted; outputs and results of effects always are. A task
    /// that merges or accumulates payloads ([`Fold`](crate::Fold)) cannot be.
    fn encrypts(&self, task: &TaskName) -> bool {
        let _unused = task;
        true
    }

    /// Encrypts a document. The context says where it belongs, such as its task and debounce key; it is
    /// to be authenticated with it.
    ///
    /// # Errors
    /// Why it cannot be done now: the trigger or the settlement fails with it.
    fn seal(&self, document: &[u8], context: &[u8]) -> Result<Sealed>;

    /// Decrypts what [`seal`](Cipher::seal) made, by any key that is not retired.
    ///
    /// # Errors
    /// [`OpenError::NoKey`] or [`OpenError::Damaged`].
    fn open(&self, sealed: &Sealed, context: &[u8]) -> std::result::Result<Vec<u8>, OpenError>;

    /// The fingerprint of a payload under a key of its own, for idempotency keys (R19). It must stay the
    /// same through rotations: where it changes, a repeated trigger is a conflict.
    fn fingerprint(&self, payload: &Payload) -> Fingerprint;
}
