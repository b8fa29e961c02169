//! The debounce rule that a simulation or a replay applies to a trace.

use quell_core::window::{Debounce, Step, Thresholds};
use quell_core::{Fold, Timestamp};

/// Thresholds, and what else decides when a window runs.
///
/// ```
/// use quell_core::Fold;
/// use quell_core::window::Thresholds;
/// use quell_lab::Rule;
///
/// let rule = Rule::new(Thresholds::DEFAULT);
/// assert_eq!((rule.max_triggers, &rule.fold), (None, &Fold::Last));
/// let rule = Rule { max_triggers: Some(100), ..rule };
/// # let _ = rule;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The quiet period and the longest delay.
    pub thresholds: Thresholds,
    /// How many triggers make a window due at once; `None` for no limit.
    pub max_triggers: Option<u32>,
    /// How the payloads of a window become one (R10). A full [`Fold::Collect`] is due at once.
    pub fold: Fold,
}

impl Rule {
    /// A rule of thresholds alone: the last payload of a window is the run's.
    #[must_use]
    pub fn new(thresholds: Thresholds) -> Rule {
        Rule { thresholds, max_triggers: None, fold: Fold::Last }
    }

    pub(crate) fn debounce(&self) -> Debounce {
        Debounce { max_triggers: self.max_triggers, ..Debounce::new(self.thresholds) }
    }

    /// Whether the number of triggers alone can make a window due.
    pub(crate) fn counts(&self) -> bool {
        self.max_triggers.is_some() || matches!(self.fold, Fold::Collect { .. })
    }

    /// One trigger at `at`, as a window takes it.
    pub(crate) fn step(&self, at: Timestamp) -> Step {
        let collect_cap = match self.fold {
            Fold::Collect { cap } => Some(cap),
            _ => None,
        };
        let (thresholds, max_triggers) = (self.thresholds, self.max_triggers);
        Step { at, asked: Timestamp::MIN, thresholds, max_triggers, collect_cap }
    }
}
