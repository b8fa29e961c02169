//! Events as files and as traces, and rules for them.

use std::io::Write as _;
use std::time::Duration;

use quell_core::Key;
use quell_core::window::Thresholds;
use quell_lab::Rule;
use quell_lab::trace::{Source, Trace};
use quell_testkit::Files;

/// These bytes, compressed.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
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
