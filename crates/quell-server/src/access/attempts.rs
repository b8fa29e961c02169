//! Failed logins, which are bounded for each address and in all.
//!
//! A token has 256 random bits, so no number of attempts finds one. The bounds keep attempts from filling logs and
//! using up the processor, and their own memory is bounded, too.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long failed attempts count.
const WINDOW: Duration = Duration::from_secs(60);
/// The failed attempts of one address.
const PER_ADDRESS: u32 = 10;
/// The failed attempts of all addresses.
const IN_ALL: u32 = 300;
/// The addresses that are counted apart.
const MOST_ADDRESSES: usize = 4_096;

/// The failed attempts of late.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts(Arc<Mutex<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    all: Option<Count>,
    by_address: HashMap<Option<IpAddr>, Count>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    began: Instant,
    failed: u32,
}

impl Count {
    /// How long it is full yet.
    fn full_for(self, most: u32, now: Instant) -> Option<Duration> {
        let left = WINDOW.checked_sub(now.saturating_duration_since(self.began))?;
        (self.failed >= most && !left.is_zero()).then_some(left)
    }

    fn add(count: Option<Count>, now: Instant) -> Count {
        let counts = |count: &Count| now.saturating_duration_since(count.began) < WINDOW;
        let count = count.filter(counts).unwrap_or(Count { began: now, failed: 0 });
        Count { failed: count.failed.saturating_add(1), ..count }
    }
}

impl Attempts {
    /// How long an address has to wait for its next attempt; none where it may try now.
    pub(crate) fn wait(&self, address: Option<IpAddr>, now: Instant) -> Option<Duration> {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_all = counted.all.and_then(|all| all.full_for(IN_ALL, now));
        let of_one = counted.by_address.get(&address.map(network));
        of_one.and_then(|count| count.full_for(PER_ADDRESS, now)).max(of_all)
    }

    /// Counts a failed attempt.
    pub(crate) fn failed(&self, address: Option<IpAddr>, now: Instant) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.all = Some(Count::add(counted.all, now));
        let address = address.map(network);
        if counted.by_address.len() >= MOST_ADDRESSES && !counted.by_address.contains_key(&address)
        {
            let counts = |count: &Count| now.saturating_duration_since(count.began) < WINDOW;
            counted.by_address.retain(|_, count| counts(count));
        }
        let before = counted.by_address.get(&address).copied();
        // Those that find no place are bounded together with all others.
        if before.is_some() || counted.by_address.len() < MOST_ADDRESSES {
            counted.by_address.insert(address, Count::add(before, now));
        }
    }
}

/// An IPv4 address, or the network of an IPv6 address: a caller has all of its 2^64 addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_attempts_are_bounded_by_address_and_in_all_and_so_is_what_is_counted() {
        let (attempts, begin) = (Attempts::default(), Instant::now());
        let at = |secs| begin + Duration::from_secs(secs);
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let (one, other) = (address("2001:db8::1"), address("2001:db8:0:1::1"));
        for n in 0..PER_ADDRESS {
            assert_eq!(attempts.wait(one, begin), None, "{n}");
            attempts.failed(one, begin);
        }
        assert_eq!(attempts.wait(one, at(20)), Some(Duration::from_secs(40)));
        assert_eq!(attempts.wait(address("2001:db8::2"), at(1)), attempts.wait(one, at(1)));
        assert_eq!(attempts.wait(other, at(1)), None);
        assert_eq!(attempts.wait(None, at(1)), None);
        assert_eq!(attempts.wait(one, at(60)), None);
        for n in 0..10_000_u32 {
            attempts.failed(Some(IpAddr::V4(n.into())), at(61));
        }
        assert_eq!(attempts.wait(other, at(62)), Some(Duration::from_secs(59)));
        assert_eq!(attempts.0.lock().unwrap().by_address.len(), MOST_ADDRESSES);
        assert_eq!(attempts.wait(other, at(121)), None);
    }
}
