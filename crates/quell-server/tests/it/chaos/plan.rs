//! What happens when, from a seed alone.

use std::time::Duration;

use fastrand::Rng;

use super::fault::{Fault, Kind, Side};

/// Kinds of faults, each with how often it is drawn.
type Faults = &'static [(Kind, usize)];
/// The kinds of faults of a run, in groups: several runs share some of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deck(&'static [Faults]);

/// Ends of the processes before a server.
const ENDS: Faults =
    &[(Kind::KillWorker, 6), (Kind::KillCaller, 4), (Kind::Stop, 2), (Kind::Term, 2)];
/// The same without kills.
const GENTLE_ENDS: Faults = &[(Kind::Stop, 4), (Kind::Term, 3)];
/// A session of PostgreSQL that waits too long, and none that is free.
const SCARCE_SESSIONS: Faults = &[(Kind::Impatient, 1), (Kind::NoConnections, 1)];
/// What an operator does meanwhile.
const PAUSES: Faults = &[(Kind::PauseQueue, 1), (Kind::PauseTask, 1)];
const DEPLOY: Faults = &[(Kind::Deploy, 1)];

/// What a store's file and its processes meet.
pub(super) const ON_FILE: Deck = Deck(&[
    &[(Kind::KillWorker, 7), (Kind::KillCaller, 5), (Kind::Stop, 2), (Kind::Term, 2)],
    &[(Kind::Lock, 1), (Kind::KillInCheckpoint, 1)],
    &[(Kind::FullForCaller, 1), (Kind::FullForWorker, 1)],
    PAUSES,
    DEPLOY,
]);
/// The same without kills.
pub(super) const ON_FILE_GENTLY: Deck =
    Deck(&[GENTLE_ENDS, &[(Kind::Lock, 4), (Kind::Checkpoint, 2)], PAUSES, DEPLOY]);
/// What PostgreSQL and its clients meet.
pub(super) const ON_POSTGRES: Deck = Deck(&[
    ENDS,
    &[(Kind::Cut, 4), (Kind::Lock, 1)],
    &[(Kind::KillSession, 1), (Kind::KillServer, 1), (Kind::Outage, 1)],
    SCARCE_SESSIONS,
    PAUSES,
    DEPLOY,
]);
/// The same without kills.
pub(super) const ON_POSTGRES_GENTLY: Deck = Deck(&[
    GENTLE_ENDS,
    &[(Kind::Cut, 2), (Kind::Lock, 2), (Kind::Outage, 1)],
    SCARCE_SESSIONS,
    PAUSES,
    DEPLOY,
]);
/// What clients of PostgreSQL meet that ends no other program's transactions.
pub(super) const BESIDE_A_SNAPSHOT: Deck = Deck(&[
    &[(Kind::KillWorker, 4), (Kind::KillCaller, 3), (Kind::Stop, 2), (Kind::Term, 2)],
    &[(Kind::Cut, 3), (Kind::Lock, 1)],
    SCARCE_SESSIONS,
    PAUSES,
    DEPLOY,
]);
/// What Redis and its clients meet.
pub(super) const ON_REDIS: Deck = Deck(&[
    ENDS,
    &[(Kind::Cut, 3), (Kind::Lock, 1)],
    &[(Kind::Forget, 1), (Kind::KillServer, 2), (Kind::Outage, 1), (Kind::Freeze, 2)],
    PAUSES,
    DEPLOY,
]);
/// The same without kills.
pub(super) const ON_REDIS_GENTLY: Deck = Deck(&[
    GENTLE_ENDS,
    &[(Kind::Cut, 2), (Kind::Lock, 2)],
    &[(Kind::Forget, 1), (Kind::Outage, 1), (Kind::Freeze, 2)],
    PAUSES,
    DEPLOY,
]);

/// What stands between a server and its clients fails by halves. No process is killed.
pub(super) const ON_GRAY: Deck = Deck(&[
    &[
        (Kind::Silent(Side::Clients), 1),
        (Kind::Silent(Side::Server), 1),
        (Kind::Silent(Side::Both), 1),
        (Kind::Lost(Side::Clients), 1),
        (Kind::Lost(Side::Server), 1),
        (Kind::Lost(Side::Both), 1),
        (Kind::Hole, 1),
    ],
    &[(Kind::StopInCalls, 3), (Kind::EndIdle, 2), (Kind::HandOver, 1)],
    PAUSES,
]);
/// A transaction pooler loses its server.
pub(super) const BEHIND_A_POOLER: Deck = Deck(&[
    &[(Kind::KillServer, 1), (Kind::KillSession, 1), (Kind::Outage, 2)],
    &[(Kind::Cut, 1), (Kind::Stop, 1)],
    PAUSES,
]);

impl Deck {
    fn faults(self) -> impl Iterator<Item = (Kind, usize)> {
        self.0.iter().copied().flatten().copied()
    }

    pub(super) fn kinds(self) -> impl Iterator<Item = Kind> {
        self.faults().map(|(kind, _)| kind)
    }

    /// How many kinds of faults it has.
    pub(super) fn len(self) -> usize {
        self.kinds().count()
    }
}

/// An endless row of faults, each with the time to wait before it. Every kind comes once first, in
/// an order of the seed.
pub(super) struct Plan {
    random: Rng,
    deck: Deck,
    first: Vec<Kind>,
    longest_wait: Duration,
}

impl Plan {
    pub(super) fn new(seed: u64, deck: Deck, longest_wait: Duration) -> Plan {
        let mut random = Rng::with_seed(seed);
        let mut first: Vec<Kind> = deck.kinds().collect();
        random.shuffle(&mut first);
        Plan { random, deck, first, longest_wait }
    }

    fn kind(&mut self) -> Kind {
        if let Some(kind) = self.first.pop() {
            return kind;
        }
        let all: usize = self.deck.faults().map(|(_, weight)| weight).sum();
        let mut drawn = self.random.usize(..all);
        for (kind, weight) in self.deck.faults() {
            match drawn.checked_sub(weight) {
                Some(left) => drawn = left,
                None => return kind,
            }
        }
        unreachable!("the weights add up")
    }
}

impl Iterator for Plan {
    type Item = (Duration, Fault);

    fn next(&mut self) -> Option<Self::Item> {
        let kind = self.kind();
        let longest = u64::try_from(self.longest_wait.as_micros()).unwrap();
        let wait = Duration::from_micros(self.random.u64(2_000..longest));
        Some((wait, kind.draw(&mut self.random)))
    }
}

#[test]
fn the_same_seed_plans_the_same_and_every_kind_comes_once_first() {
    let gray = [ON_GRAY, BEHIND_A_POOLER];
    let decks = [
        ON_FILE,
        ON_FILE_GENTLY,
        ON_POSTGRES,
        ON_POSTGRES_GENTLY,
        BESIDE_A_SNAPSHOT,
        ON_REDIS,
        ON_REDIS_GENTLY,
    ];
    for deck in decks.into_iter().chain(gray) {
        let drawn = |seed, count| -> Vec<_> {
            Plan::new(seed, deck, Duration::from_millis(60)).take(count).collect()
        };
        assert_eq!(drawn(7, 200), drawn(7, 200));
        assert_ne!(drawn(7, 200), drawn(8, 200));
        let mut first: Vec<Kind> =
            drawn(9, deck.len()).into_iter().map(|(_, fault)| fault.kind).collect();
        let mut all: Vec<Kind> = deck.kinds().collect();
        first.sort_unstable();
        all.sort_unstable();
        assert_eq!(first, all);
    }
    for gentle in [ON_FILE_GENTLY, ON_POSTGRES_GENTLY, ON_REDIS_GENTLY].into_iter().chain(gray) {
        assert!(gentle.kinds().all(|kind| !kind.kills_a_process()), "{gentle:?}");
    }
}
