//! Names and ids: small types that cannot be mistaken for each other and are checked once.
//!
//! A name that exists is valid: constructors refuse what a store, a metric label or a URL could
//! not carry (R40), so nothing behind them checks again.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The largest task or queue name, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// The largest debounce or dedup key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// The unit that runs. Ids of one store increase in the order of acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u64);

impl JobId {
    /// The job with this number; stores hand numbers out, callers pass them back.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        JobId(number)
    }

    /// The number behind the id.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse::<u64>() {
            Ok(number) if number > 0 && i64::try_from(number).is_ok() => Ok(JobId(number)),
            Ok(_) | Err(_) => {
                Err(Error::invalid("job", format!("`{text}` is not a job id: give its number")))
            }
        }
    }
}

/// One trigger: the job that took it and its place in that job, written `42.17`.
///
/// The id itself says which job took the trigger (R15), so a burst of a million triggers needs
/// no row each. When the job was absorbed, its record names the successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TriggerId {
    /// The job that took the trigger.
    pub job: JobId,
    /// Its place among the triggers that the job counted, from 1.
    pub seq: u64,
}

impl fmt::Display for TriggerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.seq)
    }
}

impl FromStr for TriggerId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.split_once('.').and_then(|(job, seq)| {
            Some(TriggerId { job: job.parse().ok()?, seq: seq.parse().ok().filter(|n| *n > 0)? })
        });
        parsed.ok_or_else(|| {
            Error::invalid("trigger", format!("`{text}` is not a trigger id: it reads JOB.NUMBER"))
        })
    }
}

/// Ids travel as text: a browser's numbers end at 2^53.
macro_rules! serde_as_text {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
serde_as_text!(JobId);
serde_as_text!(TriggerId);

/// What makes the tokens of one claim differ from all others: a random number of 39 bits, which the
/// worker draws for each claim (R21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Draw(u64);

impl Draw {
    /// The smallest.
    pub const MIN: Draw = Draw(0);
    /// The largest.
    pub const MAX: Draw = Draw((1 << LeaseToken::DRAW_BITS) - 1);

    /// The draw that the lowest 39 bits of a random number make.
    #[must_use]
    pub const fn new(random: u64) -> Self {
        Draw(random & Draw::MAX.0)
    }

    /// The number behind it.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The fence of one attempt (R21): which start of the job it is, from 1, and what was [drawn](Draw)
/// for it. It grows with every start of a job, and a store that gives an id again, because it was
/// restored or lost its newest writes, does not give the token again.
///
/// As text it is `3-5f2c`: the third start, and the draw in hexadecimal digits. Its number keeps
/// the starts in 24 bits, above the draw, and fits an `i64`. From the 16,777,215th start on all
/// have that number, and only the draw differs.
///
/// ```
/// use quell_core::{Draw, LeaseToken};
///
/// let token = LeaseToken::of(3, Draw::new(0x5f2c));
/// assert_eq!(token.to_string(), "3-5f2c");
/// assert_eq!("3-5f2c".parse::<LeaseToken>()?, token);
/// assert!(token < token.next(Draw::MIN));
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseToken(u64);

impl LeaseToken {
    /// The bits of the draw, the lowest of its number.
    pub const DRAW_BITS: u32 = 39;
    const MOST_STARTS: u64 = (1 << (63 - Self::DRAW_BITS)) - 1;

    /// That of a job that never started.
    pub const NONE: LeaseToken = LeaseToken(0);

    /// The token with this number, as stores keep it.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        LeaseToken(number)
    }

    /// The token of the `starts`-th start of a job, from 1.
    #[must_use]
    pub const fn of(starts: u64, draw: Draw) -> Self {
        let starts = if starts > Self::MOST_STARTS { Self::MOST_STARTS } else { starts };
        LeaseToken(starts << Self::DRAW_BITS | draw.0)
    }

    /// That of the job's next start.
    #[must_use]
    pub const fn next(self, draw: Draw) -> Self {
        Self::of(self.starts().saturating_add(1), draw)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Which start of the job it stands for, from 1.
    #[must_use]
    pub const fn starts(self) -> u64 {
        self.0 >> Self::DRAW_BITS
    }

    /// What was drawn for it.
    #[must_use]
    pub const fn draw(self) -> Draw {
        Draw::new(self.0)
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}", self.starts(), self.draw().get())
    }
}

impl FromStr for LeaseToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str, radix, most| {
            u64::from_str_radix(text, radix).ok().filter(|number| *number <= most)
        };
        let parts = text.split_once('-').and_then(|(starts, draw)| {
            Some((number(starts, 10, Self::MOST_STARTS)?, number(draw, 16, Draw::MAX.0)?))
        });
        let (starts, draw) = parts.ok_or_else(|| {
            let message = format!(
                "`{text}` is not a lease token: give it as the store returned it, such as `3-5f2c`"
            );
            Error::invalid("token", message)
        })?;
        Ok(Self::of(starts, Draw(draw)))
    }
}
serde_as_text!(LeaseToken);

/// A checked, cheaply cloned piece of text.
macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $field:literal, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` and makes it one.
            ///
            /// # Errors
            /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field and the rule.
            pub fn new(text: impl AsRef<str>) -> Result<Self> {
                let text = text.as_ref();
                $check($field, text)?;
                Ok($name(text.into()))
            }

            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                $name::new(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $name::new(String::deserialize(from)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_type!(
    /// The name of a task: ASCII alphanumerics, `_`, `-`, `.`, `:` and `/`, 128 bytes at most.
    TaskName, "task", check_name
);
text_type!(
    /// The name of a queue: ASCII alphanumerics, `_`, `-`, `.`, `:` and `/`, 128 bytes at most.
    QueueName, "queue", check_name
);
text_type!(
    /// The name of a schedule: ASCII alphanumerics, `_`, `-`, `.`, `:` and `/`, 128 bytes at most.
    ScheduleName, "schedule", check_name
);
text_type!(
    /// The name of an effect within its job (R23): as for a task, 128 bytes at most.
    EffectName, "effect", check_name
);
text_type!(
    /// The name of an alert: ASCII alphanumerics, `_`, `-`, `.`, `:` and `/`, 128 bytes at most.
    AlertName, "alert", check_name
);
text_type!(
    /// The random id that a store gets when it is made. A copy of its files keeps it.
    StoreId, "store id", check_name
);
text_type!(
    /// What a worker calls itself, shown with its attempts.
    WorkerId, "worker", check_name
);
text_type!(
    /// A debounce or dedup key: any text of 1 to 512 bytes without NUL.
    ///
    /// Keys of different tasks never meet, because stores keep task and key apart. To make one
    /// key of several parts, use [`Key::from_parts`]: it keeps `("a", "b-c")` and `("a-b", "c")`
    /// apart too.
    ///
    /// ```
    /// use quell_core::Key;
    ///
    /// assert_eq!(Key::from_parts(["acme", "a/b"])?.as_str(), "acme/a%2Fb");
    /// assert!(Key::new("x".repeat(513)).is_err());
    /// # Ok::<(), quell_core::Error>(())
    /// ```
    Key, "key", check_key
);

impl Key {
    /// One key of several parts, joined as [`Key::join`] does.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as for [`Key::new`].
    pub fn from_parts<P: AsRef<str>>(parts: impl IntoIterator<Item = P>) -> Result<Self> {
        Key::new(Key::join(parts))
    }

    /// The text of one key of several parts, joined by `/`; a `/` or `%` inside a part is
    /// percent-encoded. The length is checked where the text becomes a key.
    ///
    /// ```
    /// assert_eq!(quell_core::Key::join(["acme", "a/b"]), "acme/a%2Fb");
    /// ```
    pub fn join<P: AsRef<str>>(parts: impl IntoIterator<Item = P>) -> String {
        let encoded: Vec<String> = parts
            .into_iter()
            .map(|part| part.as_ref().replace('%', "%25").replace('/', "%2F"))
            .collect();
        encoded.join("/")
    }
}

fn check_name(field: &'static str, text: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    if text.is_empty() || text.len() > MAX_NAME_BYTES {
        let length = text.len();
        return Err(Error::invalid(
            field,
            format!("{field} name has {length} bytes: it takes 1 to {MAX_NAME_BYTES}"),
        ));
    }
    if let Some(bad) = text.chars().find(|c| !allowed(*c)) {
        return Err(Error::invalid(
            field,
            format!("{field} name {text:?} has {bad:?}: use letters, digits and _ - . : /"),
        ));
    }
    Ok(())
}

fn check_key(field: &'static str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(field, "key is empty: give 1 to 512 bytes, or no key at all"));
    }
    if text.len() > MAX_KEY_BYTES {
        let length = text.len();
        return Err(Error::invalid(
            field,
            format!("key has {length} bytes, the limit is {MAX_KEY_BYTES}: hash the long part"),
        ));
    }
    if text.contains('\0') {
        return Err(Error::invalid(field, "key has a NUL character: leave it out"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r40_names_and_keys_are_refused_at_the_bound_plus_one() {
        let table: [(Result<(), Error>, bool); 8] = [
            (TaskName::new("a".repeat(128)).map(drop), true),
            (TaskName::new("a".repeat(129)).map(drop), false),
            (TaskName::new("").map(drop), false),
            (TaskName::new("<img>").map(drop), false),
            (Key::new("k".repeat(512)).map(drop), true),
            (Key::new("k".repeat(513)).map(drop), false),
            (Key::new("").map(drop), false),
            (Key::new("a\0b").map(drop), false),
        ];
        for (row, (made, accepted)) in table.into_iter().enumerate() {
            assert_eq!(made.is_ok(), accepted, "row {row}: {made:?}");
            if let Err(error) = made {
                assert!(error.field().is_some(), "row {row} names no field");
            }
        }
    }

    #[test]
    fn parts_of_a_key_never_collide() {
        let pairs = [("a", "b-c"), ("a-b", "c"), ("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c")];
        let keys: std::collections::BTreeSet<_> =
            pairs.iter().map(|(a, b)| Key::from_parts([a, b]).unwrap()).collect();
        assert_eq!(keys.len(), pairs.len());
    }

    #[test]
    fn ids_round_trip_through_text() {
        let id = TriggerId { job: JobId::new(42), seq: 17 };
        assert_eq!("42.17".parse::<TriggerId>().unwrap(), id);
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"42.17\"");
        for bad in ["", "x", "0", "-1", "9223372036854775808"] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_give_back_what_they_were_made_of() {
        assert_eq!((JobId::new(7).get(), LeaseToken::new(9).get()), (7, 9));
        let id: TriggerId = "7.1".parse().unwrap();
        assert_eq!((id.job, id.seq), (JobId::new(7), 1));
        assert!("7.0".parse::<TriggerId>().is_err(), "triggers count from 1");
    }
}
