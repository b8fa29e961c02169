//! The audit: who changed what, when, from where, and what it was before and after.
//!
//! Entries go to the log, to a file that is only ever appended to, and to the newest that the API shows. An entry
//! has names, ids and settings; it never has a token, a payload or a key.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::counter;
use tracing::{error, info};

use crate::view::AuditEntry;

/// The newest entries that are kept in memory.
const KEPT: usize = 1_000;

/// Where entries go.
#[derive(Clone, Debug, Default)]
pub struct Audit(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    file: Mutex<Option<File>>,
    newest: Mutex<VecDeque<AuditEntry>>,
}

impl Audit {
    /// Goes on in a file, which is made for its owner alone where there is none, as after a rename.
    ///
    /// # Errors
    /// Why the file cannot be opened; entries go to the one before then.
    pub fn reopen(&self, path: &Path) -> std::io::Result<()> {
        let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        *self.0.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        Ok(())
    }

    /// Records an entry. Where the file cannot be written, the log has the entry and says so.
    pub fn record(&self, entry: AuditEntry) {
        let text = serde_json::to_string(&entry).unwrap_or_default();
        info!(
            target: "quell_server::audit",
            operation = entry.operation,
            path = entry.path,
            status = entry.status,
            peer = entry.by.peer.as_deref(),
            token = entry.by.name.as_deref(),
            "operator request"
        );
        let mut file = self.0.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &mut *file {
            // One write: entries of several servers in one file do not mix.
            if let Err(why) = file.write_all(format!("{text}\n").as_bytes()) {
                counter!("quell_audit_failures_total").increment(1);
                error!(%why, entry = text, "the audit file cannot be written: free some space");
            }
        }
        drop(file);
        let mut newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.len() == KEPT {
            newest.pop_back();
        }
        newest.push_front(entry);
    }

    /// The newest entries of this server, the newest first; at most this many.
    #[must_use]
    pub fn newest(&self, limit: usize) -> Vec<AuditEntry> {
        let newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.iter().take(limit).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Caller;

    fn entry(path: &str) -> AuditEntry {
        AuditEntry {
            at: "2026-03-01T00:00:00Z".to_owned(),
            by: Caller::default(),
            operation: "queues_pause".to_owned(),
            method: "POST".to_owned(),
            path: path.to_owned(),
            status: 200,
            count: None,
            before: None,
            after: None,
        }
    }

    #[test]
    fn entries_are_appended_and_the_newest_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let open = || {
            let audit = Audit::default();
            audit.reopen(&path).unwrap();
            audit
        };
        open().record(entry("/before"));
        let audit = open();
        for n in 0..1_001 {
            audit.record(entry(&format!("/{n}")));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1_002);
        assert!(text.starts_with("{\"at\"") && text.contains("/before"), "{text}");
        let newest = audit.newest(usize::MAX);
        assert_eq!((newest.len(), newest[0].path.as_str()), (1_000, "/1000"));
    }
}
