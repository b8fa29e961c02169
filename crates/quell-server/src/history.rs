//! The event history as a file: one JSON line per event, one `write` each, so that a kill loses at
//! most what was in flight.
//!
//! The first line of a process is a `begin` and the last one of a process that ended well an `end`
//! ([`FileSink::end`]): `quell check` takes a process without an end for one that was killed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use quell::Timestamp;
use quell::history::{Event, History, call_made};
use quell_check::Line;

/// Appends events to a file.
#[derive(Debug)]
pub struct FileSink {
    file: File,
    path: PathBuf,
    /// Names this process among those that wrote to the file: numbers of calls are its own.
    process: String,
    /// Whether events carry payloads.
    payloads: bool,
    /// Whether a write failed: nothing more is written, so that what is missing is the rest.
    broken: AtomicBool,
}

impl FileSink {
    /// Opens the file, creating it where it is missing, and records that this process begins.
    ///
    /// # Errors
    /// Says why it cannot be opened or written.
    pub fn append(path: &Path) -> anyhow::Result<Self> {
        let explain = || format!("cannot write {}", path.display());
        let mut options = File::options();
        // A new file is its owner's alone: events have keys.
        options.create(true).append(true).read(true).mode(0o600);
        let open = options.open(path);
        let mut file = open.with_context(explain)?;
        if ends_in_a_torn_line(&mut file).with_context(explain)? {
            file.write_all(b"\n").with_context(explain)?;
        }
        let process = format!("{}-{:08x}", std::process::id(), fastrand::u32(..));
        let (path, broken) = (path.to_owned(), AtomicBool::new(false));
        let sink = FileSink { file, path, process, payloads: false, broken };
        sink.write(&Event::Begin { t: host_time() }).with_context(explain)?;
        Ok(sink)
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same with the payloads of triggers and attempts.
    #[must_use]
    pub fn with_payloads(self) -> Self {
        FileSink { payloads: true, ..self }
    }

    /// Records that this process ends and that everything it did is on record. Call it when nothing
    /// is in flight any more; after an error, do not.
    pub fn end(&self) {
        self.record(&Event::End);
    }

    fn write(&self, event: &Event) -> std::io::Result<()> {
        let (w, c) = (Some(host_time()), call_made());
        let line = Line { w, c, ..Line::new(&*self.process, event.clone()) };
        let mut line = serde_json::to_vec(&line)?;
        line.push(b'\n');
        (&self.file).write_all(&line)
    }
}

impl History for FileSink {
    fn wants_payloads(&self) -> bool {
        self.payloads
    }

    fn record(&self, event: &Event) {
        if self.broken.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.write(event) {
            self.broken.store(true, Ordering::Relaxed);
            tracing::error!(%error, "cannot write the event history, no more events are recorded");
        }
    }
}

/// Whether a process was killed while it wrote to the file.
fn ends_in_a_torn_line(file: &mut File) -> std::io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// The time on the host's clock.
#[must_use]
pub fn host_time() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = since.map(|since| since.as_micros()).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}
