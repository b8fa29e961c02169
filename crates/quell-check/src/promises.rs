//! What each property says, in a line.

/// What a property promises, such as that of `P2`; none of a name that no property has.
///
/// ```
/// assert_eq!(quell_check::promise("P9"), Some("one attempt of a key at a time"));
/// assert_eq!(quell_check::promise("P0"), None);
/// ```
#[must_use]
pub fn promise(property: &str) -> Option<&'static str> {
    let found = PROMISES.iter().find(|(name, _)| *name == property);
    found.map(|(_, text)| *text)
}

const PROMISES: &[(&str, &str)] = &[
    ("P1", "an accepted job is in the store, or its removal is recorded"),
    (
        "P2",
        "a run that succeeded covers each accepted trigger, or its job is recorded as dead or cancelled",
    ),
    ("P3", "nothing runs without a trigger"),
    ("P4", "one job counts each trigger"),
    ("P5", "a job has the payload that its triggers make"),
    ("P6", "nothing starts before its key was quiet, without a reason"),
    ("P7a", "no window is due past its bound"),
    ("P7b", "what may start is started"),
    ("P8", "a key has one open window, which closes for a reason only"),
    ("P8b", "each edge of a burst runs as requested"),
    ("P9", "one attempt of a key at a time"),
    ("P10", "an end counts with the current lease only, and once"),
    ("P11", "jobs change state as the contract allows"),
    ("P12", "attempts are charged as the policy says"),
    ("P13", "no retry before its backoff is over"),
    ("P14", "a newer window takes the triggers of a failed one"),
    ("P15", "no dead job is lost"),
    ("P16", "no two jobs hold one dedup key"),
    ("P17", "no trigger is refused for a key that is free"),
    ("P18", "an effect belongs to the end that counted"),
    ("P19", "an external system performs a recorded effect at most once"),
    ("P21", "limits and rates hold"),
    ("P23", "no claim skips a job that is earlier in the order"),
    ("P24", "nothing starts that is paused, or that its worker does not know"),
    ("P25", "each tick of a schedule fires once"),
    ("P26", "the first trigger of an idempotency key wins"),
    ("P27", "a lease is lost after a fault only"),
    ("P32", "all jobs come to rest after the last fault"),
    ("P33", "a handler is given the traces of its triggers"),
    ("P34", "jobs of a strict queue start in their turn"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PROPERTIES;

    #[test]
    fn every_property_has_a_promise_and_every_promise_a_property() {
        let names: Vec<&str> = PROMISES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, PROPERTIES);
    }
}
