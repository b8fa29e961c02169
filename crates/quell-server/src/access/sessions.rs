//! Sessions of browsers: a cookie in place of a token.
//!
//! A session has the digest of its token, and the token is looked up again at each request. Sessions are kept in
//! memory, so they end with the server. Invariant: a cookie is shown once, and only its digest is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quell::Result;

use super::digest::{Digest, random};
use super::grant::Grant;
use crate::config::SessionTimes;

/// The most sessions of a server.
const MOST: usize = 1_000;
/// The most sessions of one token: who has it ends no session of others.
const MOST_OF_ONE: usize = 20;

/// The sessions of a server.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<Mutex<HashMap<Digest, Session>>>);

#[derive(Clone, Debug)]
struct Session {
    of: NewSession,
    began: Instant,
    used: Instant,
}

impl Session {
    /// How long it lasts yet without a further request, and in all.
    fn lasts(&self, now: Instant, times: SessionTimes) -> Option<(Duration, Duration)> {
        let left = |most: Duration, since| most.checked_sub(now.saturating_duration_since(since));
        let idle = left(times.idle, self.used).filter(|left| !left.is_zero())?;
        let most = left(times.most, self.began).filter(|left| !left.is_zero())?;
        Some((idle.min(most), most))
    }
}

/// What a session is begun with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewSession {
    /// The digest of its token.
    pub(crate) token: Digest,
    /// The token's name.
    pub(crate) name: String,
    /// What the token permitted at the login.
    pub(crate) grant: Grant,
}

/// A session that counts now.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    /// The digest of its cookie.
    pub(crate) id: Digest,
    pub(crate) of: NewSession,
    /// How long it lasts yet without a further request.
    pub(crate) idle: Duration,
    /// How long it lasts yet in all.
    pub(crate) most: Duration,
}

impl Sessions {
    /// Begins a session; its cookie is shown now and never again. Where there are too many, the one that was used
    /// last longest ago ends.
    ///
    /// # Errors
    /// Where the system has no random bytes.
    pub(crate) fn begin(
        &self,
        of: NewSession,
        times: SessionTimes,
        now: Instant,
    ) -> Result<(String, Begun)> {
        let (cookie, id) = random("")?;
        let session = Session { of: of.clone(), began: now, used: now };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = |session: &Session| session.of.token == of.token;
        if all.values().filter(|session| own(session)).count() >= MOST_OF_ONE {
            let oldest = all.iter().filter(|(_, session)| own(session));
            let oldest = oldest.min_by_key(|(_, session)| session.used).map(|(id, _)| *id);
            oldest.into_iter().for_each(|id| drop(all.remove(&id)));
        }
        if all.len() >= MOST {
            all.retain(|_, session| session.lasts(now, times).is_some());
        }
        if all.len() >= MOST {
            let oldest = all.iter().min_by_key(|(_, session)| session.used);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                all.remove(&oldest);
            }
        }
        all.insert(id, session);
        Ok((cookie, Begun { id, of, idle: times.idle.min(times.most), most: times.most }))
    }

    /// The session of a cookie, if it counts now; this is a use of it.
    pub(crate) fn find(&self, cookie: &str, times: SessionTimes, now: Instant) -> Option<Begun> {
        self.look(&Digest::of(cookie.as_bytes()), times, now, true)
    }

    /// The same by the cookie's digest, without a use.
    pub(crate) fn get(&self, id: &Digest, times: SessionTimes, now: Instant) -> Option<Begun> {
        self.look(id, times, now, false)
    }

    fn look(&self, id: &Digest, times: SessionTimes, now: Instant, is_use: bool) -> Option<Begun> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = all.get_mut(id)?;
        if session.lasts(now, times).is_none() {
            all.remove(id);
            return None;
        }
        if is_use {
            session.used = now;
        }
        let (idle, most) = session.lasts(now, times)?;
        Some(Begun { id: *id, of: session.of.clone(), idle, most })
    }

    /// Ends a session.
    pub(crate) fn end(&self, id: &Digest) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: SessionTimes =
        SessionTimes { idle: Duration::from_secs(60), most: Duration::from_secs(150) };

    /// Of a token of its own.
    fn new(name: &str) -> NewSession {
        NewSession {
            token: Digest::of(name.as_bytes()),
            name: name.to_owned(),
            grant: Grant::all(),
        }
    }

    #[test]
    fn a_session_ends_when_it_is_idle_and_at_its_longest() {
        let (sessions, begin) = (Sessions::default(), Instant::now());
        let at = |secs| begin + Duration::from_secs(secs);
        let (used, _) = sessions.begin(new("used"), TIMES, begin).unwrap();
        let (idle, _) = sessions.begin(new("idle"), TIMES, begin).unwrap();
        assert!(sessions.find(&used, TIMES, at(59)).is_some());
        assert!(sessions.find(&idle, TIMES, at(60)).is_none());
        assert!(sessions.find(&idle, TIMES, at(1)).is_none(), "an end is for good");
        let seen = sessions.find(&used, TIMES, at(118)).unwrap();
        assert_eq!((seen.idle.as_secs(), seen.most.as_secs()), (32, 32));
        assert!(sessions.get(&seen.id, TIMES, at(149)).is_some());
        assert!(sessions.find(&used, TIMES, at(150)).is_none());
    }

    #[test]
    fn a_session_is_random_and_the_number_of_sessions_is_bounded() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let (first, begun) = sessions.begin(new("first"), TIMES, now).unwrap();
        let (second, _) = sessions.begin(new("second"), TIMES, now).unwrap();
        assert!(first != second && first.len() == 43, "{first}");
        assert!(!format!("{sessions:?} {begun:?}").contains(&first));
        let later = now + Duration::from_secs(1);
        assert!(sessions.find(&first, TIMES, later).is_some());
        for number in 2..MOST {
            sessions.begin(new(&number.to_string()), TIMES, later).unwrap();
        }
        assert!(sessions.get(&Digest::of(second.as_bytes()), TIMES, later).is_some());
        sessions.begin(new("one too many"), TIMES, later).unwrap();
        assert!(sessions.find(&second, TIMES, later).is_none(), "it was used longest ago");
        assert!(sessions.find(&first, TIMES, later).is_some());
        assert_eq!(sessions.0.lock().unwrap().len(), MOST);
        sessions.end(&begun.id);
        assert!(sessions.find(&first, TIMES, later).is_none());
    }

    #[test]
    fn a_token_has_a_bounded_number_of_sessions_and_ends_no_others() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let (other, _) = sessions.begin(new("other"), TIMES, now).unwrap();
        let later = now + Duration::from_secs(1);
        let own: Vec<String> = (0..=MOST_OF_ONE)
            .map(|number| {
                let at = later + Duration::from_millis(number.try_into().unwrap());
                sessions.begin(new("own"), TIMES, at).unwrap().0
            })
            .collect();
        let end = later + Duration::from_secs(1);
        let counts = |cookie: &String| sessions.find(cookie, TIMES, end).is_some();
        assert!(counts(&other) && !counts(&own[0]));
        assert!(own[1..].iter().all(counts));
    }
}
