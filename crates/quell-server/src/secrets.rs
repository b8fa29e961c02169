//! Secrets by reference: a variable or a file that the configuration names.
//!
//! A file is read again when it has changed, so a secret can be rotated while the server runs. Each line is a
//! secret: during a rotation the old and the new one stand there together.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use quell::{Error, Result};
use sha2::Sha256;

use crate::access::Digest;
use crate::private_file::{self, Reread, Version};

/// The most secrets of one variable or file: two are enough for a rotation.
const MAX_SECRETS: usize = 8;
/// The longest file of secrets, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// The prefix of a key of Standard Webhooks.
const STANDARD_PREFIX: &str = "whsec_";

/// A secret. It never shows itself.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Secret {
    /// A secret of this text, without white space around it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) for an empty text.
    pub fn new(text: &str) -> Result<Self> {
        match text.trim() {
            "" => Err(Error::invalid("secret", "secret is empty")),
            text => Ok(Secret(text.to_owned())),
        }
    }

    /// Its text as bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The key of Standard Webhooks, as its libraries read it: base64, with or without `whsec_`. A text that is
    /// not base64, which they refuse, is a key as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) for `whsec_` without base64; the text is not
    /// repeated.
    pub fn signing_key(&self) -> Result<Vec<u8>> {
        let prefixed = self.0.strip_prefix(STANDARD_PREFIX);
        let encoded = prefixed.unwrap_or(&self.0);
        // Some libraries accept keys without padding, too.
        let decoded = STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded));
        match (decoded, prefixed) {
            (Ok(key), _) if !key.is_empty() => Ok(key),
            (_, None) => Ok(self.0.as_bytes().to_vec()),
            (_, Some(_)) => Err(Error::invalid("secret", "secret after `whsec_` is not base64")),
        }
    }

    /// Whether it is this text, compared in constant time.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        let digest = |text: &[u8]| {
            let mac = Hmac::<Sha256>::new_from_slice(b"compare");
            mac.map(|mac| mac.chain_update(text))
        };
        match (digest(self.bytes()), digest(shown)) {
            (Ok(own), Ok(shown)) => own.verify_slice(&shown.finalize().into_bytes()).is_ok(),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }
}

/// The secrets of one variable or file; all of them count.
#[derive(Clone, Debug)]
pub struct Secrets(Arc<Source>);

#[derive(Debug)]
struct Source {
    /// Whether each has to be a signing key.
    sign: bool,
    from: From,
}

#[derive(Debug)]
enum From {
    /// A variable, which cannot change.
    Text(Arc<[Secret]>),
    File(Reread<Arc<[Secret]>>),
}

impl Secrets {
    /// One secret on each line of a text.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) for a text without any, or with too many.
    pub fn of_text(text: &str) -> Result<Self> {
        let from = From::Text(secrets_of(text)?);
        Ok(Secrets(Arc::new(Source { sign: false, from })))
    }

    /// One secret on each line of a file, which is read again when it has changed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) for a file that cannot be read, that others can read, has
    /// none, or too many.
    pub fn of_file(path: &Path) -> Result<Self> {
        let (version, secrets) = read(path, false)?;
        let from = From::File(Reread::new(path, version, secrets));
        Ok(Secrets(Arc::new(Source { sign: false, from })))
    }

    /// The same, where each is a signing key, now and after each change.
    ///
    /// # Errors
    /// As for [`Secret::signing_key`].
    pub fn for_signing(self) -> Result<Self> {
        let from = match &self.0.from {
            From::Text(secrets) => {
                check_keys(secrets)?;
                From::Text(Arc::clone(secrets))
            }
            From::File(file) => {
                let (version, secrets) = read(file.path(), true)?;
                From::File(Reread::new(file.path(), version, secrets))
            }
        };
        Ok(Secrets(Arc::new(Source { sign: true, from })))
    }

    /// The secrets that count now. A file that cannot be read leaves those that were read before.
    #[must_use]
    pub fn current(&self) -> Arc<[Secret]> {
        match &self.0.from {
            From::Text(secrets) => Arc::clone(secrets),
            From::File(file) => file.current(|path| read(path, self.0.sign)),
        }
    }

    /// The first of them, which signs what has room for one code.
    #[must_use]
    pub fn first(&self) -> Option<Secret> {
        self.current().first().cloned()
    }

    /// Whether any of them is this text, compared in constant time.
    #[must_use]
    pub fn have(&self, shown: &[u8]) -> bool {
        self.current().iter().fold(false, |found, secret| found | secret.is(shown))
    }

    /// Whether any of them has this digest, compared in constant time.
    #[must_use]
    pub(crate) fn have_digest(&self, digest: &Digest) -> bool {
        let is_it = |secret: &Secret| Digest::of(secret.bytes()).is(digest);
        self.current().iter().fold(false, |found, secret| found | is_it(secret))
    }
}

fn check_keys(secrets: &[Secret]) -> Result<()> {
    secrets.iter().try_for_each(|secret| secret.signing_key().map(drop))
}

fn read(file: &Path, sign: bool) -> Result<(Version, Arc<[Secret]>)> {
    let (version, text) = private_file::read(file, MAX_FILE_BYTES)?;
    let secrets = secrets_of(&text)?;
    if sign {
        check_keys(&secrets)?;
    }
    Ok((version, secrets))
}

fn secrets_of(text: &str) -> Result<Arc<[Secret]>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let secrets = lines.map(Secret::new).collect::<Result<Arc<[Secret]>>>()?;
    match secrets.len() {
        0 => Err(Error::invalid("secret", "secret is empty")),
        1..=MAX_SECRETS => Ok(secrets),
        count => {
            let message = format!("there are {count} secrets, the limit is {MAX_SECRETS}");
            Err(Error::invalid("secret", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(secrets: &Secrets) -> Vec<String> {
        secrets.current().iter().map(|secret| secret.0.clone()).collect()
    }

    /// Makes the file due for a look, as a second would.
    fn wait(secrets: &Secrets) {
        let From::File(file) = &secrets.0.from else { panic!("a variable") };
        file.wait();
    }

    #[test]
    fn a_secret_never_shows_itself() {
        let secrets = Secrets::of_text("canary-of-the-secret\ncanary-too").unwrap();
        assert!(!format!("{secrets:?}").contains("canary"), "{secrets:?}");
        let refused = Secret::new("whsec_canary!").unwrap().signing_key().unwrap_err();
        assert!(!refused.to_string().contains("canary"), "{refused}");
    }

    #[test]
    fn a_signing_key_is_base64_with_and_without_prefix_or_text_as_it_is() {
        let table: [(&str, &[u8]); 4] = [
            ("whsec_AAEC", &[0, 1, 2]),
            ("AAEC", &[0, 1, 2]),
            ("whsec_AAECAw", &[0, 1, 2, 3]),
            ("it's a secret", b"it's a secret"),
        ];
        for (text, key) in table {
            assert_eq!(Secret::new(text).unwrap().signing_key().unwrap(), key, "{text}");
        }
    }

    #[test]
    fn one_secret_is_on_each_line() {
        let secrets = Secrets::of_text("\n  new one \r\n\nold\n").unwrap();
        assert_eq!(shown(&secrets), ["new one", "old"]);
        assert!(secrets.have(b"old") && secrets.have(b"new one") && !secrets.have(b"new"));
        for (text, why) in [(" \n", "empty"), ("x\n".repeat(9).as_str(), "limit")] {
            let error = Secrets::of_text(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_lost_one_leaves_what_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secrets");
        private_file::write(&file, "old\n").unwrap();
        let secrets = Secrets::of_file(&file).unwrap();
        private_file::write(&file, "new\nold\n").unwrap();
        assert_eq!(shown(&secrets), ["old"], "looked at twice within a second");
        wait(&secrets);
        assert_eq!(shown(&secrets), ["new", "old"]);
        for broken in ["", "\n\n"] {
            private_file::write(&file, broken).unwrap();
            wait(&secrets);
            assert_eq!(shown(&secrets), ["new", "old"]);
        }
        std::fs::remove_file(&file).unwrap();
        wait(&secrets);
        assert_eq!(shown(&secrets), ["new", "old"]);
        private_file::write(&file, "newest\n").unwrap();
        wait(&secrets);
        assert_eq!(shown(&secrets), ["newest"]);
        assert!(Secrets::of_file(&folder.path().join("nosuch")).is_err());

        // A typo in a key that signs would fail every call.
        let secrets = secrets.for_signing().unwrap();
        private_file::write(&file, "whsec_canary!\n").unwrap();
        wait(&secrets);
        assert_eq!(shown(&secrets), ["newest"]);
        let typo = Secrets::of_file(&file).unwrap();
        assert!(!typo.for_signing().unwrap_err().to_string().contains("canary"));
    }
}
