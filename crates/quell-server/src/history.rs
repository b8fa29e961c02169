//! The event history as a file: one JSON line per event, one `write` each, so that a kill loses at
//! most a torn last line.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use quell::history::{Event, History};
use quell_conformance::check::Line;

/// Appends events to a file.
#[derive(Debug)]
pub struct FileSink {
    file: File,
    /// Names this process among those that wrote to the file: numbers of calls are its own.
    process: String,
}

impl FileSink {
    /// Opens the file, making it when missing.
    ///
    /// # Errors
    /// Says why it cannot be opened.
    pub fn append(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        let process = format!("{}-{:08x}", std::process::id(), fastrand::u32(..));
        Ok(FileSink { file, process })
    }
}

impl History for FileSink {
    fn record(&self, event: &Event) {
        let line = Line { p: self.process.clone(), n: None, event: event.clone() };
        let Ok(mut line) = serde_json::to_vec(&line) else { return };
        line.push(b'\n');
        if let Err(error) = (&self.file).write_all(&line) {
            tracing::error!(%error, "an event could not be recorded");
        }
    }
}
