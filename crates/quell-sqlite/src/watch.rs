//! Noticing the commits of other processes, and of callers' own transactions (R34).
//!
//! `PRAGMA data_version` changes when any other connection commits; reading it takes no lock and
//! writes nothing. It is read only while someone listens.

use std::sync::Arc;
use std::time::Duration;

use quell_core::{Timestamp, WakeHub};
use sqlx::SqliteConnection;
use tracing::warn;

/// Between two looks: short for those who wait, and under a fifth of a percent of a core.
const PAUSE: Duration = Duration::from_millis(15);
/// Between two looks after one failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// Watches until the task that runs it is dropped.
pub(crate) async fn watch(mut db: SqliteConnection, hub: Arc<WakeHub>) {
    let mut known = None;
    let mut failing = false;
    loop {
        tokio::time::sleep(if failing { PAUSE_AFTER_ERROR } else { PAUSE }).await;
        if !hub.is_heard() {
            continue;
        }
        let version = sqlx::query_scalar::<_, i64>("pragma data_version").fetch_one(&mut db).await;
        match version {
            Ok(version) => {
                failing = false;
                if known != Some(version) {
                    hub.wake(None, Timestamp::MIN);
                }
                known = Some(version);
            }
            Err(error) => {
                // Polling is the safety net meanwhile.
                if !failing {
                    warn!(%error, "cannot notice the commits of others, polling instead");
                }
                failing = true;
            }
        }
    }
}
