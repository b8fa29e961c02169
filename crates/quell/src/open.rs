//! From a URL to a store, by the features of the build.

use std::sync::Arc;

use quell_core::history::Sink;
use quell_core::{Error, MemoryStore, Result};

use crate::{Clock, Quell, QuellBuilder, SystemClock};

/// Opens the store behind a URL; the events that only it sees go to `history`.
pub(crate) async fn open_store(url: &str, history: Option<Sink>) -> Result<QuellBuilder> {
    match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("memory") => {
            let clock = Arc::new(SystemClock::for_store());
            let store = MemoryStore::new(clock.now());
            let store = history.into_iter().fold(store, MemoryStore::with_history);
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
        // The rest may hold a password.
        scheme => Err(Error::invalid(
            "url",
            format!(
                "store url begins with {:?}, which this build does not know: use sqlite://FILE, \
                 postgres://HOST/DATABASE or memory:",
                scheme.unwrap_or("")
            ),
        )),
    }
}
