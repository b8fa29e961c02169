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
    /// Some jobs that succeeded are gone, though nobody removed them.
    Vanishes,
    /// A trigger of a trailing task is counted on a job that has run, as if a leading edge led it.
    SuppressesTrailing,
    /// A trigger without a key runs although the call failed.
    RunsRefused,
    /// A trigger is given the id of the one before.
    SameTrigger,
    /// The handler is given something else than the fold of the payloads.
    MangledPayload,
    /// Windows gather past their byte limit.
    NeverFull,
    /// A leading edge runs at the end of the burst.
    LeadsLate,
    /// A job that has ended can be cancelled.
    CancelsEnded,
    /// A lapse spends an attempt.
    ChargesLapses,
    /// A failed job comes back at once.
    ForgetsBackoff,
    /// A job that goes back says that another one took it in.
    AbsorbsElsewhere,
    /// A dedup key that is taken is given away again.
    TakesKeyTwice,
    /// A queue's limits are written down and not heeded.
    OverLimits,
    /// Some jobs jump the queue.
    OutOfOrder,
    /// A paused queue hands out jobs.
    StartsPaused,
}

impl Bug {
    /// Each bug and the properties that may catch it, the foremost first.
    pub const ALL: [(Bug, &'static [&'static str]); 41] = [
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
        (Bug::AbsorbsNothing, &["P14"]),
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
        (Bug::Vanishes, &["P1"]),
        (Bug::SuppressesTrailing, &["P2"]),
        (Bug::RunsRefused, &["P3"]),
        (Bug::SameTrigger, &["P4"]),
        (Bug::MangledPayload, &["P5"]),
        (Bug::NeverFull, &["P8"]),
        (Bug::LeadsLate, &["P8b"]),
        (Bug::CancelsEnded, &["P11"]),
        (Bug::ChargesLapses, &["P12"]),
        (Bug::ForgetsBackoff, &["P13"]),
        (Bug::AbsorbsElsewhere, &["P14"]),
        (Bug::TakesKeyTwice, &["P16"]),
        (Bug::OverLimits, &["P21"]),
        (Bug::OutOfOrder, &["P23"]),
        (Bug::StartsPaused, &["P24"]),
    ];

    /// For each property a bug that it alone catches: without the property, the checker would take
    /// the store for a sound one.
    pub const OWN: [(&'static str, Bug); 28] = [
        ("P1", Bug::Vanishes),
        ("P2", Bug::SuppressesTrailing),
        ("P3", Bug::RunsRefused),
        ("P4", Bug::SameTrigger),
        ("P5", Bug::MangledPayload),
        ("P6", Bug::StartsEarly),
        ("P7a", Bug::NeverCapped),
        ("P7b", Bug::LosesWakeups),
        ("P8", Bug::SecondWindow),
        ("P8b", Bug::LeadsLate),
        ("P9", Bug::NoExclusion),
        ("P10", Bug::NoFence),
        ("P11", Bug::CancelsEnded),
        ("P12", Bug::ChargesLapses),
        ("P13", Bug::ForgetsBackoff),
        ("P14", Bug::AbsorbsElsewhere),
        ("P15", Bug::DropsDead),
        ("P16", Bug::TakesKeyTwice),
        ("P17", Bug::BurnsKey),
        ("P18", Bug::EffectOutside),
        ("P19", Bug::ForgetsIntents),
        ("P21", Bug::OverLimits),
        ("P23", Bug::OutOfOrder),
        ("P24", Bug::StartsPaused),
        ("P25", Bug::TicksTwice),
        ("P26", Bug::ForgetsIdempotency),
        ("P27", Bug::NeverRenews),
        ("P32", Bug::NeverReaps),
    ];
}
