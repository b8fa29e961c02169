//! How many random cases a proof tries: some in each test run, many where time does not matter.
//!
//! Invariant: where cases are numbered seeds, those of a usual run are the first of a long run.

/// The environment variable that `cargo xtask test --long` sets.
pub const LONG: &str = "QUELL_TEST_LONG";

/// How many cases to try: `usual`, or `long` in a long run.
///
/// ```
/// let seeds = quell_conformance::effort::cases(20, 1_000);
/// assert!(seeds == 20 || seeds == 1_000);
/// ```
#[must_use]
pub fn cases(usual: u64, long: u64) -> u64 {
    if std::env::var_os(LONG).is_some() { long } else { usual }
}

/// The same, where the environment variable `name` may set another number.
///
/// # Panics
/// Where that is not a number.
#[must_use]
#[expect(clippy::panic, reason = "a number of cases that cannot be read must not run none")]
pub fn cases_by(name: &str, usual: u64, long: u64) -> u64 {
    std::env::var(name).map_or_else(
        |_| cases(usual, long),
        |text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a number of cases")),
    )
}

/// The places of one call, such as those at which it is cut, that a run tries: all in a long run. A usual
/// run tries one in `one_in` of them, others for each number of a call, and the `last` ones.
///
/// ```
/// use quell_conformance::effort::some_of;
///
/// let tried: Vec<u32> = some_of((0..9).collect(), 1, (4, 2)).collect();
/// assert!(tried == [3, 7, 8] || tried.len() == 9);
/// ```
pub fn some_of<T>(
    places: Vec<T>,
    call: usize,
    (one_in, last): (u64, usize),
) -> impl Iterator<Item = T> {
    let one_in = usize::try_from(cases(one_in, 1)).unwrap_or(usize::MAX);
    let last = places.len().saturating_sub(last);
    let is_in = move |at: usize| at >= last || at.saturating_add(call).is_multiple_of(one_in);
    places.into_iter().enumerate().filter(move |(at, _)| is_in(*at)).map(|(_, place)| place)
}
