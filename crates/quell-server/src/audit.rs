//! The audit: who changed what, when, from where, and what it was before and after.
//!
//! Entries go to the log, to a file that is only ever appended to, and to the newest that the API shows. An entry
//! has names, ids and settings; it never has a token, a payload or a key.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use metrics::counter;
use tracing::{error, info, warn};

use crate::view::AuditEntry;

/// The newest entries that are kept in memory.
const KEPT: usize = 1_000;
/// The same of refused requests, which push no others out: any caller can make them.
const KEPT_REFUSED: usize = 200;
/// Refused requests that are recorded at once, before they are counted only.
const REFUSED_AT_ONCE: u32 = 20;
/// How often a further one is recorded.
const REFUSED_INTERVAL: Duration = Duration::from_secs(1);

/// Where entries go.
#[derive(Clone, Debug, Default)]
pub struct Audit(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    file: Mutex<Option<File>>,
    newest: Mutex<VecDeque<AuditEntry>>,
    refused: Mutex<Refused>,
}

/// Refused requests: callers without any right can make them, so what is kept of them is bounded.
#[derive(Debug, Default)]
struct Refused {
    newest: VecDeque<AuditEntry>,
    /// How many were recorded of late, less one for each interval since.
    recorded: u32,
    since: Option<Instant>,
    suppressed: u64,
}

impl Refused {
    /// The number that was suppressed before one that is to be recorded; none where that is suppressed, too.
    fn pass(&mut self, now: Instant) -> Option<u64> {
        let passed =
            self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let whole = passed.as_secs() / REFUSED_INTERVAL.as_secs();
        if self.since.is_none() || whole > 0 {
            self.recorded = self.recorded.saturating_sub(u32::try_from(whole).unwrap_or(u32::MAX));
            self.since = Some(now);
        }
        if self.recorded >= REFUSED_AT_ONCE {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.recorded += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl Audit {
    /// Opens a file for entries, which is made for its owner alone where there is none, as after a rename.
    ///
    /// # Errors
    /// Why the file cannot be opened.
    pub fn open(path: &Path) -> std::io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)
    }

    /// Goes on in a file.
    pub fn go_on_in(&self, file: File) {
        *self.0.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    }

    /// Records an entry. Where the file cannot be written, the log has the entry and says so.
    pub fn record(&self, entry: AuditEntry) {
        info!(
            target: "quell_server::audit",
            operation = entry.operation,
            path = entry.path,
            status = entry.status,
            peer = entry.by.peer.as_deref(),
            token = entry.by.name.as_deref(),
            "operator request"
        );
        self.write(&entry);
        let mut newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
        keep(&mut newest, entry, KEPT);
    }

    /// Records a refused request. Of many, most are counted only, and the next entry has their number.
    pub fn refuse(&self, mut entry: AuditEntry, now: Instant) {
        let mut refused = self.0.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(suppressed) = refused.pass(now) else {
            counter!("quell_audit_suppressed_total").increment(1);
            return;
        };
        entry.suppressed = Some(suppressed).filter(|number| *number > 0);
        warn!(
            target: "quell_server::audit",
            operation = entry.operation,
            path = entry.path,
            status = entry.status,
            peer = entry.by.peer.as_deref(),
            token = entry.by.name.as_deref(),
            suppressed,
            "refused request"
        );
        self.write(&entry);
        keep(&mut refused.newest, entry, KEPT_REFUSED);
    }

    fn write(&self, entry: &AuditEntry) {
        let mut file = self.0.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &mut *file else { return };
        let text = serde_json::to_string(entry).unwrap_or_default();
        // One write: entries of several servers in one file do not mix.
        if let Err(why) = file.write_all(format!("{text}\n").as_bytes()) {
            counter!("quell_audit_failures_total").increment(1);
            error!(%why, entry = text, "the audit file cannot be written: free some space");
        }
    }

    /// The newest entries of this server, the newest first; at most this many.
    #[must_use]
    pub fn newest(&self, limit: usize) -> Vec<AuditEntry> {
        let newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = newest.iter().take(limit).cloned().collect();
        drop(newest);
        let refused = self.0.refused.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(refused.newest.iter().take(limit).cloned());
        drop(refused);
        all.sort_by_cached_key(|entry| Reverse(entry.at.parse::<Timestamp>().ok()));
        all.truncate(limit);
        all
    }
}

fn keep(newest: &mut VecDeque<AuditEntry>, entry: AuditEntry, most: usize) {
    if newest.len() == most {
        newest.pop_back();
    }
    newest.push_front(entry);
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
            suppressed: None,
        }
    }

    #[test]
    fn refused_requests_are_bounded_and_push_no_others_out() {
        let (audit, begin) = (Audit::default(), Instant::now());
        audit.record(entry("/operator"));
        let at = |secs| begin + Duration::from_secs(secs);
        for n in 0..10_000 {
            audit.refuse(entry(&format!("/{n}")), at(n / 1_000));
        }
        let newest = audit.newest(usize::MAX);
        // 20 at once, and one in each of the 9 seconds after.
        assert_eq!(newest.len(), 30, "{newest:?}");
        assert!(newest.iter().any(|entry| entry.path == "/operator"));
        audit.refuse(entry("/later"), at(60));
        let later = audit.newest(usize::MAX);
        let later = later.iter().find(|entry| entry.path == "/later").unwrap();
        assert_eq!(later.suppressed, Some(999));
        for n in 0..1_000 {
            audit.refuse(entry("/slow"), at(100 + 2 * n));
        }
        assert_eq!(audit.newest(usize::MAX).len(), 201);
    }

    #[test]
    fn entries_are_appended_and_the_newest_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let open = || {
            let audit = Audit::default();
            audit.go_on_in(Audit::open(&path).unwrap());
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
