//! The bugs that the checker must catch, in the words of what a store does wrong.

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Nothing: it must not be accused.
    None,
    /// A run that ends well closes the window that opened meanwhile, too.
    ClosesNewerWindow,
    /// A trigger that comes while its key runs is counted by the run.
    JoinsRunning,
    /// Joins move the due time without a bound.
    NeverCapped,
    /// The bound is only noticed when a trigger comes after it.
    CapNoticedOnJoin,
    /// The quiet period is taken for shorter than it is.
    StartsEarly,
    /// Attempts of one key run together.
    NoExclusion,
    /// Settlements count whoever sends them.
    NoFence,
    /// A job whose lease lapsed is forgotten.
    CrashLosesJob,
    /// Lapsed leases are never taken back.
    NeverReaps,
    /// A trigger that could not be written has taken its dedup key all the same.
    BurnsKey,
    /// Some idempotency keys are not kept.
    ForgetsIdempotency,
    /// Dead jobs are dropped.
    DropsDead,
    /// A failed job is absorbed, but its triggers are not.
    AbsorbsNothing,
    /// A crash leaves its slot of the queue's limit taken.
    LeaksSlot,
    /// A job that succeeded runs again.
    RunsTwice,
    /// A key may have two open windows.
    SecondWindow,
    /// The receipt comes before the write, which may not come.
    AcksBeforeWrite,
    /// No wake-up is ever sent.
    LosesWakeups,
    /// A window that absorbed a job is due earlier than anyone was told.
    AbsorbDisarms,
    /// Effects are committed whether or not the settlement counts.
    EffectOutside,
    /// An intent that an attempt left behind is forgotten.
    ForgetsIntents,
    /// Leases are never renewed.
    NeverRenews,
    /// A tick that two workers ask for fires twice.
    TicksTwice,
    /// Missed ticks are not caught up.
    MissesTicks,
    /// A schedule that an operator paused ticks on.
    TicksOn,
    /// Some ticks fire and trigger nothing.
    TicksInVain,
}

impl Bug {
    /// Each bug and the properties that may catch it, the foremost first.
    pub const ALL: [(Bug, &'static [&'static str]); 26] = [
        (Bug::ClosesNewerWindow, &["P2"]),
        (Bug::JoinsRunning, &["P2"]),
        (Bug::NeverCapped, &["P7a"]),
        (Bug::CapNoticedOnJoin, &["P7a"]),
        (Bug::StartsEarly, &["P6"]),
        (Bug::NoExclusion, &["P9"]),
        (Bug::NoFence, &["P10"]),
        (Bug::CrashLosesJob, &["P2"]),
        (Bug::NeverReaps, &["P32"]),
        (Bug::BurnsKey, &["P17"]),
        (Bug::ForgetsIdempotency, &["P26"]),
        (Bug::DropsDead, &["P15"]),
        (Bug::AbsorbsNothing, &["P2"]),
        (Bug::LeaksSlot, &["P7b", "P32"]),
        (Bug::RunsTwice, &["P11"]),
        (Bug::SecondWindow, &["P8"]),
        (Bug::AcksBeforeWrite, &["P2"]),
        (Bug::LosesWakeups, &["P7b"]),
        (Bug::AbsorbDisarms, &["P7b"]),
        (Bug::EffectOutside, &["P18"]),
        (Bug::ForgetsIntents, &["P19"]),
        (Bug::NeverRenews, &["P27"]),
        (Bug::TicksTwice, &["P25"]),
        (Bug::MissesTicks, &["P25"]),
        (Bug::TicksOn, &["P25"]),
        (Bug::TicksInVain, &["P2"]),
    ];
}
