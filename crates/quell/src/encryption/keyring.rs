//! Keys from a text, for XChaCha20-Poly1305.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload as Message};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use quell_core::idempotency::Fingerprint;
use quell_core::{Error, ErrorKind, Payload, Result};

use super::{Cipher, OpenError, Sealed};

/// The most keys of a keyring.
pub const MAX_KEYS: usize = 100;
/// The bytes of a key.
const KEY_BYTES: usize = 32;
/// The bytes of a nonce: with 192 bits they may be drawn at random (XChaCha20,
/// draft-irtf-cfrg-xchacha-03).
const NONCE_BYTES: usize = 24;
/// The name of the line with the key of fingerprints.
const FINGERPRINT: &str = "fingerprint";
/// The longest name of a key.
const MAX_NAME: usize = 64;

/// Keys with names: the first encrypts, all decrypt.
///
/// The text has a key on each line, `NAME KEY`, where a key is 32 random bytes as base64 (URL-safe,
/// without padding). The line of the name `fingerprint` has the key of fingerprints. Empty lines and
/// those that begin with `#` count for nothing.
///
/// To rotate, put a new key on a second line, wait until every process has read it, and move it to the
/// first. Keep the old one while jobs are left that it encrypted. Documents are encrypted by
/// XChaCha20-Poly1305.
///
/// ```
/// use quell::encryption::Keyring;
///
/// let text = Keyring::generate("2026-11")?;
/// let keys = Keyring::parse(&text)?;
/// assert_eq!(keys.names(), ["2026-11"]);
/// let more = format!("{}{text}", Keyring::line("2026-12")?);
/// keys.replace(&more)?;
/// assert_eq!(keys.names(), ["2026-12", "2026-11"]);
/// # Ok::<(), quell::Error>(())
/// ```
pub struct Keyring {
    keys: RwLock<Arc<Keys>>,
}

struct Keys {
    /// The first encrypts.
    named: Vec<(String, XChaCha20Poly1305)>,
    fingerprint: [u8; KEY_BYTES],
}

impl fmt::Debug for Keyring {
    /// The names alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("names", &self.names()).finish_non_exhaustive()
    }
}

impl Keyring {
    /// Reads keys from a text.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] that names the line and what is wrong with it, never the key.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Keyring { keys: RwLock::new(Arc::new(parse(text)?)) })
    }

    /// Takes the keys of another text from now on.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse): the keys stay as they were.
    pub fn replace(&self, text: &str) -> Result<()> {
        let keys = Arc::new(parse(text)?);
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// The text of a new keyring with one key.
    ///
    /// # Errors
    /// For a name that no key may have, and where the system has no randomness.
    pub fn generate(name: &str) -> Result<String> {
        Ok(format!("{}{}", Keyring::line(name)?, line(FINGERPRINT)?))
    }

    /// The line of a new key, with its end.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    pub fn line(name: &str) -> Result<String> {
        check_name(name)?;
        line(name)
    }

    /// The names of the keys; the first encrypts.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.now().named.iter().map(|(name, _)| name.clone()).collect()
    }

    fn now(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Cipher for Keyring {
    fn seal(&self, document: &[u8], context: &[u8]) -> Result<Sealed> {
        let keys = self.now();
        let Some((name, key)) = keys.named.first() else {
            return Err(Error::new(ErrorKind::Internal, "the keyring has no key"));
        };
        let mut bytes = random::<NONCE_BYTES>()?.to_vec();
        let nonce = XNonce::try_from(bytes.as_slice()).map_err(|_| cannot())?;
        let message = Message { msg: document, aad: context };
        bytes.extend(key.encrypt(&nonce, message).map_err(|_| cannot())?);
        Ok(Sealed { key: name.clone(), bytes })
    }

    fn open(&self, sealed: &Sealed, context: &[u8]) -> std::result::Result<Vec<u8>, OpenError> {
        let keys = self.now();
        let named = keys.named.iter().find(|(name, _)| *name == sealed.key);
        let (_, key) = named.ok_or(OpenError::NoKey)?;
        let (nonce, text) = sealed.bytes.split_at_checked(NONCE_BYTES).ok_or(OpenError::Damaged)?;
        let nonce = XNonce::try_from(nonce).map_err(|_| OpenError::Damaged)?;
        key.decrypt(&nonce, Message { msg: text, aad: context }).map_err(|_| OpenError::Damaged)
    }

    fn fingerprint(&self, payload: &Payload) -> Fingerprint {
        Fingerprint::keyed(&self.now().fingerprint, payload)
    }
}

fn cannot() -> Error {
    Error::new(ErrorKind::Internal, "a document cannot be encrypted: it is too large")
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("the system has no randomness: {error}"))
    })?;
    Ok(bytes)
}

fn line(name: &str) -> Result<String> {
    Ok(format!("{name} {}\n", URL_SAFE_NO_PAD.encode(random::<KEY_BYTES>()?)))
}

fn check_name(name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let why = if name == FINGERPRINT {
        "is the name of the key of fingerprints"
    } else if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
        "has other characters than ASCII alphanumerics and `_-.`, or none, or more than 64"
    } else {
        return Ok(());
    };
    Err(Error::invalid("name", format!("the name {name:?} of a key {why}: choose another")))
}

fn parse(text: &str) -> Result<Keys> {
    let (mut named, mut fingerprint) = (Vec::new(), None);
    let lines = text.lines().zip(1_u64..).map(|(line, number)| (line.trim(), number));
    for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
        let refused = |why: &str| {
            let message = format!("line {number} of the keys {why}: write NAME KEY");
            Error::invalid("keys", message)
        };
        let (name, key) =
            line.split_once(char::is_whitespace).ok_or_else(|| refused("has no key"))?;
        let key = URL_SAFE_NO_PAD.decode(key.trim()).ok();
        let key = key.and_then(|key| <[u8; KEY_BYTES]>::try_from(key).ok());
        let key = key.ok_or_else(|| refused("has no key of 32 bytes as URL-safe base64"))?;
        if name == FINGERPRINT {
            if fingerprint.replace(key).is_some() {
                return Err(refused("is a second key of fingerprints"));
            }
            continue;
        }
        check_name(name).map_err(|_| refused("has a name that no key may have"))?;
        if named.iter().any(|(known, _)| known == name) {
            return Err(refused("has the name of an earlier one"));
        }
        if named.len() >= MAX_KEYS {
            return Err(refused("is one too many, the limit is 100: remove old ones"));
        }
        named.push((name.to_owned(), XChaCha20Poly1305::new(&key.into())));
    }
    let lacks = |what: &str| Error::invalid("keys", format!("the keys lack {what}"));
    if named.is_empty() {
        return Err(lacks("a line with a key: make one with `quell keys add`"));
    }
    let fingerprint = fingerprint
        .ok_or_else(|| lacks("the line `fingerprint KEY`: make the file with `quell keys add`"))?;
    Ok(Keys { named, fingerprint })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyring(name: &str) -> Keyring {
        Keyring::parse(&Keyring::generate(name).unwrap()).unwrap()
    }

    #[test]
    fn r43_what_was_sealed_opens_in_its_context_and_in_no_other() {
        let keys = keyring("k1");
        let sealed = keys.seal(b"secret", b"here").unwrap();
        assert_eq!(keys.open(&sealed, b"here").unwrap(), b"secret");
        assert_eq!(keys.open(&sealed, b"there"), Err(OpenError::Damaged));
        assert_ne!(keys.seal(b"secret", b"here").unwrap(), sealed, "each has a nonce of its own");
        for place in 0..sealed.bytes.len() {
            let mut changed = sealed.clone();
            changed.bytes[place] ^= 1;
            assert_eq!(keys.open(&changed, b"here"), Err(OpenError::Damaged), "byte {place}");
        }
        for short in [0, 23, 24, 39] {
            let cut = Sealed { bytes: sealed.bytes[..short].to_vec(), ..sealed.clone() };
            assert_eq!(keys.open(&cut, b"here"), Err(OpenError::Damaged), "{short} bytes");
        }
        assert_eq!(keyring("k2").open(&sealed, b"here"), Err(OpenError::NoKey));
        assert_eq!(keyring("k1").open(&sealed, b"here"), Err(OpenError::Damaged));
    }

    /// The vector of draft-irtf-cfrg-xchacha-03, appendix A.3.1.
    #[test]
    fn r43_documents_are_encrypted_as_xchacha20_poly1305_has_it() {
        let hex = |text: &str| -> Vec<u8> {
            let digits = text.as_bytes().chunks(2);
            digits
                .map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap())
                .collect()
        };
        let key: Vec<u8> = (0x80..=0x9f).collect();
        let keys = Keyring::parse(&format!("v {0}\nfingerprint {0}", URL_SAFE_NO_PAD.encode(key)));
        let mut bytes: Vec<u8> = (0x40..=0x57).collect();
        bytes.extend(hex(
            "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb731c7f1b0b4aa6440bf3a82f\
             4eda7e39ae64c6708c54c216cb96b72e1213b4522f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f\
             76b2383565d3fff921f9664c97637da9768812f615c68b13b52ec0875924c1c7987947deafd8780acf49",
        ));
        let aad = hex("50515253c0c1c2c3c4c5c6c7");
        let sealed = Sealed { key: "v".to_owned(), bytes };
        let opened = keys.unwrap().open(&sealed, &aad).unwrap();
        assert!(opened.starts_with(b"Ladies and Gentlemen of the class of '99"));
    }

    #[test]
    fn r43_a_rotated_key_opens_until_it_is_removed_and_fingerprints_stay() {
        let (first, payload) = (Keyring::generate("k1").unwrap(), Payload::from_stored("[1,2.0]"));
        let keys = Keyring::parse(&first).unwrap();
        let (old, print) = (keys.seal(b"1", b"").unwrap(), keys.fingerprint(&payload));
        keys.replace(&format!("{first}{}", Keyring::line("k2").unwrap())).unwrap();
        assert_eq!(keys.seal(b"1", b"").unwrap().key, "k1", "the second only decrypts");
        let second = Keyring::line("k2").unwrap();
        keys.replace(&format!("# the newest\n\n{second}{first}")).unwrap();
        assert_eq!(keys.seal(b"1", b"").unwrap().key, "k2");
        assert_eq!(keys.open(&old, b"").unwrap(), b"1");
        assert_eq!(keys.fingerprint(&Payload::from_stored("[1, 2]")), print);
        assert_ne!(keyring("k1").fingerprint(&payload), print);
        let fingerprint = first.lines().nth(1).unwrap();
        keys.replace(&format!("{second}{fingerprint}")).unwrap();
        assert_eq!(keys.open(&old, b""), Err(OpenError::NoKey));
        keys.replace("").unwrap_err();
        assert_eq!(keys.names(), ["k2"], "a broken text changes nothing");
    }

    #[test]
    fn r40_a_text_that_has_no_keys_is_refused_by_line_without_the_key() {
        let line = Keyring::line("k1").unwrap();
        let (_, key) = line.trim().split_once(' ').unwrap();
        let print = format!("fingerprint {key}\n");
        for (text, why) in [
            (String::new(), "quell keys add"),
            (line.clone(), "fingerprint"),
            (print.clone(), "quell keys add"),
            (format!("{line}{line}{print}"), "line 2"),
            (format!("{line}{print}{print}"), "line 3"),
            (format!("{line}k2 {}\n{print}", &key[1..]), "line 2"),
            (format!("{line}k2\n{print}"), "line 2"),
            (format!("{line}k/2 {key}\n{print}"), "line 2"),
        ] {
            let error = Keyring::parse(&text).unwrap_err();
            let message = error.to_string();
            assert_eq!(error.field(), Some("keys"));
            assert!(message.contains(why) && !message.contains(&key[2..]), "{message}");
        }
        for name in ["", "fingerprint", "a b", &"x".repeat(65)] {
            assert_eq!(Keyring::line(name).unwrap_err().field(), Some("name"), "{name}");
        }
        assert!(Keyring::line(&"x".repeat(64)).is_ok());
        let many = |count: usize| -> String {
            (0..count)
                .map(|n| Keyring::line(&format!("k{n}")).unwrap())
                .chain([print.clone()])
                .collect()
        };
        assert!(Keyring::parse(&many(MAX_KEYS)).is_ok());
        assert!(Keyring::parse(&many(MAX_KEYS + 1)).is_err());
        let debug = format!("{:?}", Keyring::parse(&many(1)).unwrap());
        assert!(debug.contains("k0") && !debug.contains(&key[2..]), "{debug}");
    }
}
