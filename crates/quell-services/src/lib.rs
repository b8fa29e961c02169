//! Private servers for Quell's own tests and chores: installed, started, hurt and stopped.
//!
//! Each server lives on a free port of the loopback address with everything in a temporary folder,
//! and ends with the value that stands for it. `cargo xtask` shares one of each among all tests
//! that only need one ([`url_for_tests`]); tests that hurt a server start their own.
//!
//! Invariant: nothing here knows Quell.

mod packages;
pub mod pgbouncer;
pub mod postgres;
mod process;

pub use packages::install;
pub use pgbouncer::{PgBouncer, Pooling, python_with_psycopg};
pub use postgres::{Postgres, psql};

/// Where the tests find the PostgreSQL server that they share.
pub const POSTGRES_URL: &str = "QUELL_TEST_POSTGRES";

/// The URL of a new schema on the PostgreSQL server that tests share.
///
/// # Panics
/// Where there is no such server: a missing service fails a test and skips none.
#[must_use]
#[expect(clippy::expect_used, reason = "only tests call it, and they must fail")]
pub fn url_for_tests() -> String {
    let server = std::env::var(POSTGRES_URL)
        .expect("no PostgreSQL for tests: run `cargo xtask test`, or `cargo xtask with-services`");
    format!("{server}?schema=t{:016x}", fastrand::u64(..))
}
