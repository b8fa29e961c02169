//! Puts jobs back that were set aside because their rows could not be decoded (R25): by an older
//! process, or by this one before it was updated.

use quell_core::{ErrorKind, Now, Result, Store, UnreadablePage};
use tracing::{debug, info};

/// The most pages of unreadable jobs that one round tries, the newest first.
const PAGES: usize = 10;

/// Restores what this process can decode. Where nothing is set aside, it is one look.
pub(super) async fn restore_unreadable(store: &dyn Store, now: Now) {
    match restore(store, now).await {
        Ok(0) => {}
        Ok(jobs) => info!(jobs, "restored jobs that were set aside as unreadable"),
        // A store that lists nothing shows none of them.
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        Err(error) => debug!(%error, "unreadable jobs could not be tried, trying again"),
    }
}

async fn restore(store: &dyn Store, now: Now) -> Result<usize> {
    let (mut page, mut restored) = (UnreadablePage::default(), 0);
    for _ in 0..PAGES {
        let jobs = store.unreadable(&page).await?;
        let Some(last) = jobs.last() else { break };
        page.before = Some(last.id);
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        restored += store.restore(now, &ids).await?.len();
        if jobs.len() < page.size() {
            break;
        }
    }
    Ok(restored)
}
