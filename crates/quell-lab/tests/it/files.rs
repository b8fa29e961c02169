//! Files of events that vanish at the end of a test.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use quell_core::Key;
use quell_core::window::Thresholds;
use quell_lab::Rule;
use quell_lab::trace::{Source, Trace};
use tempfile::TempDir;

pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let file = self.0.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        file.into_os_string().into_string().unwrap()
    }

    /// A CSV file with the columns timestamp and key; times in seconds.
    pub(crate) fn csv(&self, name: &str, events: &[(f64, &str)]) -> String {
        let rows = events.iter().map(|(at, key)| format!("{at},{key}\n"));
        self.write(name, format!("timestamp,key\n{}", rows.collect::<String>()))
    }

    pub(crate) fn gzip(&self, name: &str, bytes: &[u8]) -> String {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        self.write(name, packer.finish().unwrap())
    }
}

/// A trace of these events: seconds and keys; an empty key is none.
pub(crate) fn trace(events: &[(f64, &str)]) -> Trace {
    let files = Files::new();
    let source = Source::new(files.csv("events.csv", events));
    let key = |row: &serde_json::Value| {
        row["key"].as_str().filter(|key| !key.is_empty()).map(Key::new).transpose()
    };
    Trace::read(&source.key(key).payloads()).unwrap()
}

/// A rule with these thresholds, in seconds.
pub(crate) fn rule(min: u64, max: u64) -> Rule {
    Rule::new(Thresholds::new(Duration::from_secs(min), Duration::from_secs(max)).unwrap())
}
