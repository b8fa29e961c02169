//! Every order of a few triggers, claims, ends, late messages, expired leases and operations, on the real
//! rules: all of it, not a sample (stateright walks breadth first until nothing is new).
//!
//! Each world is small so that its whole space is walked in seconds. Its size is asserted from
//! below, so that no change makes a world trivial unseen. The largest worlds end earlier in a usual
//! run than in a long one.

mod bug;
mod ghost;
mod judge;
mod model;
mod standing;

use std::collections::BTreeSet;
use std::time::Duration;

use quell_conformance::effort::cases;
use quell_core::dedup::HoldUntil;
use quell_core::edge::Edge;
use quell_core::window::{Debounce, Thresholds};
use stateright::{Checker, HasDiscoveries, Model};

use bug::Bug;
use model::{End, Operation, World, seconds};

/// One key, three triggers, two workers, and everything that ends an attempt.
fn world() -> World {
    let thresholds = Thresholds::new(Duration::from_secs(2), Duration::from_secs(3)).unwrap();
    World {
        debounce: Debounce::new(thresholds),
        keys: &[Some("a")],
        dedup: &[None],
        delay: None,
        triggers: 3,
        starts: 4,
        horizon: 7,
        ends: &[End::Succeeded, End::Failed, End::Permanent],
        operators: &[],
        operations: 0,
        late: true,
        bug: None,
    }
}

/// A number in a usual run, and in a long one.
fn by_effort<T>(usual: T, long: T) -> T {
    if cases(0, 1) == 0 { usual } else { long }
}

/// Walks the whole world and finds nothing wrong.
#[expect(clippy::print_stderr, reason = "the size of a walk is on record in docs/testing.md")]
fn walk(world: World, at_least: usize) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = world.checker().threads(threads).spawn_bfs().join();
    let found = checker.discoveries().into_iter().next().map(|(name, path)| {
        let broken = path.last_state().broken.clone();
        (name, broken, path.into_actions())
    });
    assert!(found.is_none(), "{found:#?}");
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    assert!(checker.is_done(), "the walk stopped after {states} states");
    eprintln!("{states} states, {} steps, depth {depth}", checker.state_count());
    assert!(states >= at_least, "only {states} states: this world has become too small");
}

#[test]
fn r02_r11_r12_r21_hold_in_every_order_of_one_key() {
    walk(World { horizon: by_effort(6, 7), ..world() }, by_effort(30_000, 150_000));
}

#[test]
fn r08_r11_r30_hold_in_every_order_of_two_keys() {
    let ends = &[End::Succeeded, End::Failed];
    walk(World { keys: &[Some("a"), Some("b")], horizon: 4, ends, late: false, ..world() }, 80_000);
}

#[test]
fn r07_r24_r29_hold_in_every_order_of_delays_snoozes_and_releases() {
    let ends = &[End::Snoozed, End::Released, End::Failed];
    walk(World { delay: Some(seconds(3)), ends, horizon: 5, late: false, ..world() }, 130_000);
}

#[test]
fn r07_r26_r37_hold_in_every_order_of_what_operators_do() {
    let operators = &[
        Operation::Cancel,
        Operation::CancelKey,
        Operation::Flush,
        Operation::Redrive,
        Operation::Prune,
    ];
    let ends = &[End::Failed, End::Permanent];
    walk(
        World { operators, operations: 2, ends, triggers: 2, horizon: 4, late: false, ..world() },
        90_000,
    );
}

#[test]
fn r31_r33_hold_in_every_order_of_limits_and_pauses() {
    let operators = &[Operation::Pause, Operation::Limit];
    let ends = &[End::Succeeded, End::Failed];
    let keys = &[Some("a"), None];
    walk(
        World {
            operators,
            operations: 2,
            ends,
            keys,
            triggers: 2,
            starts: 3,
            horizon: 3,
            late: false,
            ..world()
        },
        85_000,
    );
}

#[test]
fn r16_holds_in_every_order_of_each_hold() {
    const DEDUP: &[Option<HoldUntil>] = &[
        None,
        Some(HoldUntil::Elapsed(Duration::from_secs(2))),
        Some(HoldUntil::Started),
        Some(HoldUntil::Done),
    ];
    let dedup = DEDUP;
    let ends = &[End::Succeeded, End::Failed, End::Permanent];
    walk(World { dedup, ends, horizon: 4, late: false, ..world() }, 14_000);
    let operators = &[Operation::Redrive, Operation::Cancel];
    let (keys, ends) = (&[None], &[End::Succeeded, End::Permanent]);
    walk(
        World {
            dedup,
            ends,
            keys,
            operators,
            operations: 1,
            triggers: by_effort(2, 3),
            starts: 2,
            horizon: 2,
            late: false,
            ..world()
        },
        by_effort(19_000, 160_000),
    );
}

#[test]
fn r13_holds_in_every_order_of_a_throttled_key() {
    let debounce = Debounce::throttle(Duration::from_secs(2)).unwrap();
    let (horizon, at_least) = (by_effort(4, 5), by_effort(35_000, 140_000));
    walk(World { debounce, horizon, late: false, ..world() }, at_least);
}

#[test]
fn r13_holds_in_every_order_of_a_leading_edge() {
    let debounce = Debounce { edge: Edge::Leading, ..world().debounce };
    let (horizon, at_least) = (by_effort(4, 5), by_effort(65_000, 300_000));
    walk(World { debounce, horizon, late: false, ..world() }, at_least);
}

#[test]
fn r07_r11_hold_in_every_order_with_overlap_and_a_full_window() {
    let debounce = Debounce { overlap: true, max_triggers: Some(2), ..world().debounce };
    walk(World { debounce, horizon: 5, late: false, ..world() }, 95_000);
}

/// What must be found in a world with a bug.
#[test]
fn every_seeded_bug_is_found_by_its_property() {
    let table = [
        (Bug::AcksBeforeWrite, "P4"),
        (Bug::JoinsRunning, "P8"),
        (Bug::SecondWindow, "P8"),
        (Bug::NeverCapped, "P7a"),
        (Bug::StartsEarly, "P6"),
        (Bug::NoExclusion, "P9"),
        (Bug::NoFence, "P10"),
        (Bug::NeverReaps, "P7b"),
        (Bug::AbsorbDrops, "P12"),
        (Bug::DropsDead, "P15"),
        (Bug::BurnsKey, "P16"),
        (Bug::NeverDies, "P12"),
    ];
    for (bug, property) in table {
        const DEDUP: &[Option<HoldUntil>] = &[Some(HoldUntil::Elapsed(Duration::from_secs(2)))];
        let dedup = if bug == Bug::BurnsKey { DEDUP } else { &[None] };
        let broken = World { bug: Some(bug), dedup, ..world() };
        let enough = HasDiscoveries::AnyOf(BTreeSet::from([property]));
        let checker = broken.checker().finish_when(enough).spawn_bfs().join();
        let found = checker.discoveries();
        assert!(
            found.contains_key(property),
            "{bug:?} breaks {property}, found: {:?}",
            found.keys()
        );
    }
}
