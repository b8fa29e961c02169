//! The file of tokens: digests with their scopes, changed by `quell tokens` and over HTTP.
//!
//! A token is shown once, when it is made. The file has its SHA-256 digest, so who reads the file cannot call the
//! server. Servers look at the file each second: a token that is revoked ends without a restart.
//! When each token was used last is written beside the file, once a minute.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use quell::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::digest::{Digest, random};
use super::grant::{Grant, Limits, Scope};
use crate::private_file::{self, Reread, Version};

/// What each token begins with, so that scanners find leaked ones.
const PREFIX: &str = "qll_";
/// The most tokens of a file.
const MAX_TOKENS: usize = 1_000;
/// The longest file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The longest name, in bytes.
const MAX_NAME: usize = 64;
/// The longest that a token counts beside the one that replaced it.
const MAX_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// A token as the file has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Token {
    name: String,
    sha256: Digest,
    scopes: Vec<Scope>,
    #[serde(flatten)]
    limits: Limits,
    created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
    /// The token that this one replaced, as long as it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaced: Option<Replaced>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Replaced {
    sha256: Digest,
    until: Timestamp,
}

impl Token {
    /// Whether a text with this digest is the token, at this time.
    fn is(&self, digest: &Digest, now: Timestamp) -> bool {
        let old = self.replaced.as_ref().filter(|old| now < old.until);
        // Both, whatever the first says.
        let is_one = self.sha256.is(digest) | old.is_some_and(|old| old.sha256.is(digest));
        is_one && self.expires_at.is_none_or(|at| now < at)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    tokens: Vec<Token>,
}

/// What a new token is for.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its name, in the log and the audit: up to 64 bytes.
    pub name: String,
    /// Its scopes, one at least.
    pub scopes: Vec<Scope>,
    /// What it is limited to.
    pub limits: Limits,
    /// Until when it counts.
    pub expires_at: Option<Timestamp>,
}

/// A token that was made.
pub struct Made {
    /// The token: it is shown now and never again.
    pub token: String,
    /// What is on record of it.
    pub info: TokenInfo,
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Made").field("info", &self.info).finish_non_exhaustive()
    }
}

/// What is on record of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// Its name.
    pub name: String,
    /// Its scopes.
    pub scopes: Vec<String>,
    /// What it is limited to.
    pub limits: Limits,
    /// When it was made, or replaced last.
    pub created_at: Timestamp,
    /// Until when it counts.
    pub expires_at: Option<Timestamp>,
    /// Until when the token that it replaced counts.
    pub replaced_until: Option<Timestamp>,
    /// When it was used last, to the minute across restarts.
    pub last_used_at: Option<Timestamp>,
}

/// The tokens of a file.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: Reread<Arc<[Token]>>,
    used: Mutex<Used>,
}

/// When tokens were used last, by their names.
#[derive(Debug, Default)]
struct Used {
    at: BTreeMap<String, Timestamp>,
    is_written: bool,
}

impl Tokens {
    /// Makes an empty file where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the path and the cause.
    pub fn make(path: &Path) -> Result<()> {
        if path.exists() {
            return Ok(());
        }
        write(path, &Listed::default())
    }

    /// Reads a file of tokens.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a file that cannot be read, that others can read, or with anything else in it.
    pub fn open(path: &Path) -> Result<Self> {
        let (version, tokens) = read(path)?;
        let last = private_file::read(&beside(path), MAX_FILE_BYTES).ok();
        let at = last.and_then(|(_, text)| serde_json::from_str(&text).ok()).unwrap_or_default();
        let used = Mutex::new(Used { at, is_written: true });
        Ok(Tokens(Arc::new(Inner { file: Reread::new(path, version, tokens), used })))
    }

    /// The name and the grant of a token that counts now. It is noted as used.
    #[must_use]
    pub fn find(&self, shown: &str) -> Option<(String, Grant)> {
        self.find_digest(&Digest::of(shown.as_bytes()))
    }

    /// The same by the digest of a token.
    pub(crate) fn find_digest(&self, digest: &Digest) -> Option<(String, Grant)> {
        let now = Timestamp::now();
        let tokens = self.0.file.current(read);
        // All of them: the time does not show where it stands among them.
        let found = tokens.iter().fold(None, |found, token| {
            let is_it = token.is(digest, now);
            found.or(is_it.then_some(token))
        })?;
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.at.get(&found.name).is_none_or(|at| at.as_second() < now.as_second()) {
            used.at.insert(found.name.clone(), now);
            used.is_written = false;
        }
        Some((found.name.clone(), Grant::new(found.scopes.clone(), found.limits.clone())))
    }

    /// All tokens, by name.
    #[must_use]
    pub fn list(&self) -> Vec<TokenInfo> {
        self.0.file.look(read);
        let (_, tokens) = self.0.file.last();
        let used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<TokenInfo> =
            tokens.iter().map(|token| info(token, used.at.get(&token.name).copied())).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Makes a token.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name that is taken or cannot be one, for no scopes, and for too many tokens.
    pub fn add(&self, new: NewToken) -> Result<Made> {
        let NewToken { name, scopes, limits, expires_at } = new;
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_fine) {
            let message = format!(
                "{name:?} cannot name a token: give 1 to {MAX_NAME} of A to Z, a to z, digits, `.`, `_`, `-` or `@`"
            );
            return Err(Error::invalid("name", message));
        }
        if scopes.is_empty() {
            return Err(Error::invalid(
                "scopes",
                "a token without scopes permits nothing: give one",
            ));
        }
        let now = Timestamp::now();
        if expires_at.is_some_and(|at| at <= now) {
            return Err(Error::invalid(
                "expires_at",
                "the token would be expired: give a later time",
            ));
        }
        let (token, sha256) = random(PREFIX)?;
        let made =
            Token { name, sha256, scopes, limits, created_at: now, expires_at, replaced: None };
        let info = info(&made, None);
        self.change(|tokens| {
            if tokens.iter().any(|known| known.name == made.name) {
                let message = format!("a token has the name {:?}: give another", made.name);
                return Err(Error::invalid("name", message));
            }
            if tokens.len() >= MAX_TOKENS {
                let message = format!("there are {MAX_TOKENS} tokens, the limit: revoke some");
                return Err(Error::invalid("name", message));
            }
            tokens.push(made);
            Ok(())
        })?;
        Ok(Made { token, info })
    }

    /// Makes a new token in place of one; the old one counts for `keep` yet, up to seven days.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for an unknown name, [`ErrorKind::Invalid`] for a time that is too long.
    pub fn rotate(&self, name: &str, keep: Duration) -> Result<Made> {
        if keep > MAX_KEPT {
            let message = format!("the old token would count for {keep:?}: give up to 168h");
            return Err(Error::invalid("keep", message));
        }
        let (text, sha256) = random(PREFIX)?;
        let now = Timestamp::now();
        let until = now.saturating_add(jiff::SignedDuration::try_from(keep).unwrap_or_default());
        let until = until.unwrap_or(now);
        let mut made = None;
        self.change(|tokens| {
            let token = known(tokens, name)?;
            let old = std::mem::replace(&mut token.sha256, sha256);
            token.replaced = (!keep.is_zero()).then_some(Replaced { sha256: old, until });
            token.created_at = now;
            made = Some(token.clone());
            Ok(())
        })?;
        let token = made.ok_or_else(|| unknown(name))?;
        Ok(Made { token: text, info: info(&token, None) })
    }

    /// Ends a token at once.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for an unknown name.
    pub fn revoke(&self, name: &str) -> Result<()> {
        self.change(|tokens| {
            known(tokens, name)?;
            tokens.retain(|token| token.name != name);
            Ok(())
        })
    }

    /// Notes on disk when tokens were used last.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the file cannot be written.
    pub fn write_used(&self) -> Result<()> {
        let (_, tokens) = self.0.file.last();
        let text = {
            let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
            if used.is_written {
                return Ok(());
            }
            used.at.retain(|name, _| tokens.iter().any(|token| token.name == *name));
            used.is_written = true;
            serde_json::to_string(&used.at).unwrap_or_default()
        };
        private_file::write(&beside(self.0.file.path()), &text)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Token>) -> Result<()>) -> Result<()> {
        let path = self.0.file.path();
        private_file::locked(path, || {
            let (_, tokens) = read(path)?;
            let mut tokens = tokens.to_vec();
            let now = Timestamp::now();
            for token in &mut tokens {
                token.replaced = token.replaced.take().filter(|old| now < old.until);
            }
            change(&mut tokens)?;
            write(path, &Listed { tokens })
        })?;
        self.0.file.look(read);
        Ok(())
    }
}

fn known<'t>(tokens: &'t mut [Token], name: &str) -> Result<&'t mut Token> {
    tokens.iter_mut().find(|token| token.name == name).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("no token has the name {name:?}"))
}

/// Where it is noted when tokens were used last.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".used");
    PathBuf::from(name)
}

fn info(token: &Token, last_used_at: Option<Timestamp>) -> TokenInfo {
    TokenInfo {
        name: token.name.clone(),
        scopes: token.scopes.iter().map(Scope::to_string).collect(),
        limits: token.limits.clone(),
        created_at: token.created_at,
        expires_at: token.expires_at,
        replaced_until: token.replaced.as_ref().map(|old| old.until),
        last_used_at,
    }
}

fn read(path: &Path) -> Result<(Version, Arc<[Token]>)> {
    let (version, text) = private_file::read(path, MAX_FILE_BYTES)?;
    let listed: Listed = serde_json::from_str(&text).map_err(|error| {
        let message = format!("the file {} is not one of tokens: {error}", path.display());
        Error::invalid("tokens", message)
    })?;
    Ok((version, listed.tokens.into()))
}

fn write(path: &Path, listed: &Listed) -> Result<()> {
    let text = serde_json::to_string_pretty(listed).map_err(|error| {
        Error::new(ErrorKind::Internal, "tokens have no JSON form").with_source(error)
    })?;
    private_file::write(path, &(text + "\n"))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    fn new(name: &str) -> NewToken {
        NewToken {
            name: name.to_owned(),
            scopes: vec!["read".parse().unwrap()],
            limits: Limits::default(),
            expires_at: None,
        }
    }

    fn opened() -> (tempfile::TempDir, PathBuf, Tokens) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        Tokens::make(&path).unwrap();
        let tokens = Tokens::open(&path).unwrap();
        (folder, path, tokens)
    }

    #[test]
    fn a_token_is_random_and_only_its_digest_is_kept() {
        let (_folder, path, tokens) = opened();
        let (one, two) = (tokens.add(new("one")).unwrap(), tokens.add(new("two")).unwrap());
        assert_ne!(one.token, two.token);
        let random = one.token.strip_prefix("qll_").unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(random).unwrap().len(), 32);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(random) && text.contains("\"sha256\""), "{text}");
        assert!(!format!("{tokens:?} {one:?}").contains(random), "{one:?}");
        let (name, grant) = tokens.find(&one.token).unwrap();
        assert_eq!((name.as_str(), grant.scopes().as_str()), ("one", "read"));
        for wrong in ["", "qll_", &one.token[..46], &text] {
            assert!(tokens.find(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_token_ends_when_it_expires_is_replaced_or_is_revoked() {
        let (_folder, path, tokens) = opened();
        let made = tokens.add(new("ci")).unwrap();
        let digest = Digest::of(made.token.as_bytes());
        let rotated = tokens.rotate("ci", Duration::from_secs(3_600)).unwrap();
        assert!(tokens.find(&made.token).is_some() && tokens.find(&rotated.token).is_some());
        let (_, kept) = read(&path).unwrap();
        let later = Timestamp::now() + jiff::SignedDuration::from_secs(3_601);
        assert!(
            !kept[0].is(&digest, later) && kept[0].is(&Digest::of(rotated.token.as_bytes()), later)
        );
        let again = tokens.rotate("ci", Duration::ZERO).unwrap();
        assert!(tokens.find(&made.token).is_none() && tokens.find(&rotated.token).is_none());
        tokens.revoke("ci").unwrap();
        assert!(tokens.find(&again.token).is_none());
        for error in [tokens.revoke("ci"), tokens.rotate("ci", Duration::ZERO).map(drop)] {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
        }
        let end = Timestamp::now() + jiff::SignedDuration::from_secs(60);
        let made = tokens.add(NewToken { expires_at: Some(end), ..new("short") }).unwrap();
        let (_, kept) = read(&path).unwrap();
        assert!(tokens.find(&made.token).is_some());
        assert!(!kept[0].is(&Digest::of(made.token.as_bytes()), end));
        let past = Some(Timestamp::now());
        assert!(tokens.add(NewToken { expires_at: past, ..new("past") }).is_err());
    }

    #[test]
    fn another_process_changes_the_same_file_and_when_one_was_used_is_kept() {
        let (_folder, path, tokens) = opened();
        let other = Tokens::open(&path).unwrap();
        let made = other.add(new("ci")).unwrap();
        tokens.0.file.wait();
        assert!(tokens.find(&made.token).is_some());
        tokens.write_used().unwrap();
        let used = Tokens::open(&path).unwrap().list()[0].last_used_at;
        assert_eq!(used, tokens.list()[0].last_used_at);
        assert!(used.is_some());
        other.revoke("ci").unwrap();
        tokens.0.file.wait();
        assert!(tokens.find(&made.token).is_none());
    }

    #[test]
    fn r40_what_cannot_be_a_token_is_refused_by_field() {
        let (_folder, path, tokens) = opened();
        tokens.add(new("ci")).unwrap();
        for (refused, field) in [
            (new("ci"), "name"),
            (new(""), "name"),
            (new("a b"), "name"),
            (new(&"x".repeat(65)), "name"),
            (NewToken { scopes: vec![], ..new("x") }, "scopes"),
        ] {
            assert_eq!(
                tokens.add(refused.clone()).unwrap_err().field(),
                Some(field),
                "{refused:?}"
            );
        }
        tokens.add(new(&"x".repeat(64))).unwrap();
        let week = Duration::from_secs(7 * 86_400);
        assert!(tokens.rotate("ci", week).is_ok());
        let longer = tokens.rotate("ci", week + Duration::from_secs(1));
        assert_eq!(longer.unwrap_err().field(), Some("keep"));
        private_file::write(&path, "{\"tokens\":[{}]}").unwrap();
        assert!(Tokens::open(&path).unwrap_err().to_string().contains("tokens.json"));
    }
}
