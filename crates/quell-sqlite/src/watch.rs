//! Noticing the commits of other processes, and of callers' own transactions (R19, R34).
//!
//! `PRAGMA data_version` changes when any other connection commits; reading it takes no lock and
//! writes nothing. It is read only while someone listens or waits for a job's end, and only when the file system says that
//! the write-ahead log may have changed: asking that costs a third of asking SQLite.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quell_core::{Cancelled, EndHub, JobId, Timestamp, WakeHub};
use sqlx::SqliteConnection;
use tracing::warn;

use crate::files::sibling;
use crate::row::{signed, unsigned};

/// Between two looks: short for those who wait, and a third of a percent of a core.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks after one failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
/// File times are coarse, so that a log this young may have changed again unseen.
const YOUNG: Duration = Duration::from_millis(100);
/// After this number of looks SQLite is asked whatever the file system says: some know no times.
const TRUST: u32 = 50;

/// The write-ahead log as the file system shows it.
#[derive(Debug)]
struct Log {
    path: Option<PathBuf>,
    seen: Option<(SystemTime, u64)>,
    trusted: u32,
}

impl Log {
    fn new(database: &Path) -> Self {
        Log { path: sibling(database, "-wal"), seen: None, trusted: 0 }
    }

    /// Whether someone may have committed since the last call.
    fn may_have_changed(&mut self) -> bool {
        let metadata = self.path.as_ref().and_then(|path| std::fs::metadata(path).ok());
        let seen = metadata.and_then(|data| Some((data.modified().ok()?, data.len())));
        let is_old =
            |(modified, _): (SystemTime, u64)| modified.elapsed().is_ok_and(|age| age > YOUNG);
        let is_same = seen.is_some_and(is_old) && seen == self.seen && self.trusted < TRUST;
        self.seen = seen;
        self.trusted = if is_same { self.trusted + 1 } else { 0 };
        !is_same
    }
}

/// Watches until the task that runs it is dropped.
pub(crate) async fn watch(
    mut db: SqliteConnection,
    database: PathBuf,
    hub: Arc<WakeHub>,
    ends: Arc<EndHub>,
) {
    let mut log = Log::new(&database);
    let mut known = Seen::default();
    let mut failing = false;
    loop {
        tokio::time::sleep(if failing { PAUSE_AFTER_ERROR } else { PAUSE }).await;
        let has_subscribers = hub.has_subscribers() || ends.is_awaited();
        if !has_subscribers || !(log.may_have_changed() || failing) {
            continue;
        }
        // The first time it differs, too: what happened before is not known.
        match look(&mut db, known, &hub, &ends).await {
            Ok(seen) => {
                failing = false;
                known = seen;
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

/// What the last look showed.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    version: Option<i64>,
    /// How many running jobs have been cancelled (R21).
    cancels: Option<i64>,
}

/// Looks whether anyone else has committed, and publishes it.
async fn look(
    db: &mut SqliteConnection,
    known: Seen,
    hub: &WakeHub,
    ends: &EndHub,
) -> sqlx::Result<Seen> {
    let version = sqlx::query_scalar::<_, i64>("pragma data_version").fetch_one(&mut *db).await?;
    if known.version == Some(version) {
        return Ok(known);
    }
    hub.wake(None, Timestamp::MIN);
    let cancels = sqlx::query_scalar::<_, i64>("select cancels from quell_meta");
    let cancels = cancels.fetch_one(&mut *db).await?;
    // At the first look, what was cancelled before it counts, too.
    if known.cancels.unwrap_or(0) != cancels {
        hub.cancelled(Cancelled::Any);
    }
    tell_ends(db, ends).await?;
    Ok(Seen { version: Some(version), cancels: Some(cancels) })
}

/// Publishes the ends of awaited jobs that have ended, or are gone.
async fn tell_ends(db: &mut SqliteConnection, ends: &EndHub) -> sqlx::Result<()> {
    const ENDED: &str = "select l.value from json_each(?1) l
          where not exists (select 1 from quell_job j where j.id = l.value and j.state < 2)";
    let awaited = ends.awaited();
    if awaited.is_empty() {
        return Ok(());
    }
    let ids: Vec<String> = awaited.iter().map(|job| signed(job.get()).to_string()).collect();
    let query = sqlx::query_scalar::<_, i64>(ENDED).bind(format!("[{}]", ids.join(",")));
    let ended = query.fetch_all(db).await?;
    ends.notify(ended.into_iter().map(|id| JobId::new(unsigned(id))));
    Ok(())
}
