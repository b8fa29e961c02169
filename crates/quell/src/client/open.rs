//! From a URL to a store, by the features of the build.

use std::sync::Arc;

use quell_core::checkup::ClockReset;
use quell_core::history::Sink;
use quell_core::{Error, Result, lacks};
use quell_engine::{Engine, Maps};

use crate::clock::{Clock, SystemClock};
use crate::{Quell, QuellBuilder};

/// Opens the store behind a URL; the events that only it sees go to `history`.
pub(crate) async fn open_store(url: &str, history: Option<Sink>) -> Result<QuellBuilder> {
    match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("memory") => {
            let clock = Arc::new(SystemClock::for_store());
            let store = Engine::new(Maps::new(clock.now()));
            let store = history.into_iter().fold(store, Engine::with_history);
            Ok(Quell::with_store(Arc::new(store)).clock(clock))
        }
        #[cfg(feature = "sqlite")]
        Some("sqlite") => {
            use quell_sqlite::SqliteOptions;
            let options = SqliteOptions::from_url(url)?;
            let store = history.into_iter().fold(options, SqliteOptions::history).open().await?;
            Ok(Quell::with_store(Arc::new(store)))
        }
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => {
            use quell_postgres::PostgresOptions;
            let options = PostgresOptions::from_url(url)?;
            let store = history.into_iter().fold(options, PostgresOptions::history).open().await?;
            Ok(Quell::with_store(Arc::new(store)))
        }
        #[cfg(feature = "redis")]
        Some(scheme) if REDIS.contains(&scheme) => {
            use quell_redis::RedisOptions;
            let options = RedisOptions::from_url(url)?;
            let store = history.into_iter().fold(options, RedisOptions::history).open().await?;
            Ok(Quell::with_store(Arc::new(store)))
        }
        #[cfg(feature = "azure")]
        Some("azure") => {
            use quell_azure::AzureOptions;
            let options = AzureOptions::from_url(url)?;
            let options = history.into_iter().fold(options, AzureOptions::history);
            Ok(Quell::with_store(options.open_store().await?))
        }
        scheme => Err(unknown(scheme.unwrap_or(""))),
    }
}

/// Asks the options of the store behind a URL for `$method`; `$memory` says why a store in memory
/// has no use for it.
macro_rules! of_options {
    ($url:ident, $method:ident, $memory:literal) => {
        match $url.split_once(':').map(|(scheme, _)| scheme) {
            #[cfg(feature = "sqlite")]
            Some("sqlite") => quell_sqlite::SqliteOptions::from_url($url)?.$method().await,
            #[cfg(feature = "postgres")]
            Some("postgres" | "postgresql") => {
                quell_postgres::PostgresOptions::from_url($url)?.$method().await
            }
            #[cfg(feature = "redis")]
            Some(scheme) if REDIS.contains(&scheme) => {
                quell_redis::RedisOptions::from_url($url)?.$method().await
            }
            #[cfg(feature = "azure")]
            Some("azure") => quell_azure::AzureOptions::from_url($url)?.$method().await,
            Some("memory") => Err(lacks(stringify!($method), $memory)),
            scheme => Err(unknown(scheme.unwrap_or(""))),
        }
    };
}

/// Sets a store's clock back to the clock that it is read from, the host's or the database
/// server's, with all times that it made while it was ahead (R38). Stop all processes of the store
/// first.
///
/// ```no_run
/// # async fn mend() -> quell::Result<()> {
/// let reset = quell::checkup::reset_clock("sqlite://app.db").await?;
/// println!("the clock went back by {:?}", reset.by);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Contention`](crate::ErrorKind::Contention) while another process uses the store,
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where its clock is less than an hour ahead,
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) in memory and on Azure; else what the
/// store answers.
pub async fn reset_clock(url: &str) -> Result<ClockReset> {
    of_options!(url, reset_clock, "a store in memory ends with its process: start it again")
}

/// Leaves ids out, [`SKIPPED_IDS`](crate::checkup::SKIPPED_IDS) of them, where a store was restored
/// from a backup or lost its newest writes in a failover: receipts with the ids that were lost may
/// be known elsewhere, and must not name other jobs. Processes of the store may run meanwhile.
///
/// ```no_run
/// # async fn restored() -> quell::Result<()> {
/// quell::checkup::skip_ids("sqlite://app.db").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) in memory; else what the store
/// answers.
pub async fn skip_ids(url: &str) -> Result<()> {
    of_options!(url, skip_ids, "a store in memory ends with its process: nothing restores it")
}

/// What a URL of this build may begin with.
const FORMS: &[&str] = &[
    #[cfg(feature = "sqlite")]
    "sqlite://FILE",
    #[cfg(feature = "postgres")]
    "postgres://HOST/DATABASE",
    #[cfg(feature = "redis")]
    "redis://HOST",
    #[cfg(feature = "redis")]
    "redis-cluster://HOST,HOST",
    #[cfg(feature = "redis")]
    "redis+sentinel://HOST,HOST/MASTER",
    #[cfg(feature = "azure")]
    "azure://ACCOUNT/TABLE",
    "memory:",
];

/// What a URL of a store on Redis begins with.
const REDIS: [&str; 6] =
    ["redis", "rediss", "redis-cluster", "rediss-cluster", "redis+sentinel", "rediss+sentinel"];

/// The message has only the scheme: the rest may have a password.
fn unknown(scheme: &str) -> Error {
    let feature = match scheme {
        "sqlite" => Some("sqlite"),
        "postgres" | "postgresql" => Some("postgres"),
        scheme if REDIS.contains(&scheme) => Some("redis"),
        "azure" => Some("azure"),
        _ => None,
    };
    let (last, others) = FORMS.split_last().map_or(("", &[][..]), |(last, rest)| (*last, rest));
    let forms = match others {
        [] => last.to_owned(),
        others => format!("{} or {last}", others.join(", ")),
    };
    let why = match feature {
        Some(feature) => format!("which needs the feature `{feature}` of quell: turn it on, or "),
        None => "which this build does not know: ".to_owned(),
    };
    Error::invalid("url", format!("store url begins with {scheme:?}, {why}use {forms}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r40_a_url_of_a_feature_that_is_off_names_it() {
        for (scheme, reported) in [
            ("sqlite", "needs the feature `sqlite` of quell: turn it on, or use "),
            ("postgresql", "needs the feature `postgres` of quell: turn it on, or use "),
            ("rediss-cluster", "needs the feature `redis` of quell: turn it on, or use "),
            ("redis+sentinel", "needs the feature `redis` of quell: turn it on, or use "),
            ("azure", "needs the feature `azure` of quell: turn it on, or use "),
            ("mysql", "which this build does not know: use "),
        ] {
            let error = unknown(scheme);
            assert_eq!(error.field(), Some("url"));
            assert!(error.to_string().contains(reported), "{error}");
            assert!(error.to_string().ends_with("memory:"), "{error}");
        }
    }
}
