//! Steps at whole seconds, for the tests of windows and edges.

use crate::Timestamp;
use crate::window::{Step, Thresholds};

pub(super) const fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

/// A trigger at this second, with the default thresholds and nothing else.
pub(super) fn step(secs: i64) -> Step {
    Step {
        at: at(secs),
        asked: Timestamp::MIN,
        thresholds: Thresholds::DEFAULT,
        max_triggers: None,
        collect_cap: None,
    }
}
