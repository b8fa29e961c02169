//! The event history as a file: one JSON line per event, one `write` each, so that a kill loses at
//! most a torn last line.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use quell::history::{Event, History};

/// Appends events to a file.
#[derive(Debug)]
pub struct FileSink(File);

impl FileSink {
    /// Opens the file, making it when missing.
    ///
    /// # Errors
    /// Says why it cannot be opened.
    pub fn append(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        Ok(FileSink(file.with_context(|| format!("cannot write {}", path.display()))?))
    }
}

impl History for FileSink {
    fn record(&self, event: &Event) {
        let Ok(mut line) = serde_json::to_vec(event) else { return };
        line.push(b'\n');
        if let Err(error) = (&self.0).write_all(&line) {
            tracing::error!(%error, "an event could not be recorded");
        }
    }
}
