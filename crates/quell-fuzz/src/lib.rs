//! What must hold of any input that a stranger sends. Each function takes bytes and panics where
//! they break a promise; nothing it meets may hang, overflow the stack or take memory without bound.
//!
//! The fuzz targets below `fuzz/` feed them; this crate's test replays the committed corpora on
//! every run, without any fuzzer.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a fuzz target reports a finding by a panic"
)]

mod http;
mod texts;

pub use http::http_body;
pub use texts::{config, history, key_template, payload_fold, trace, values};

/// What is tried on an input.
pub type Check = fn(&[u8]);

/// Every check by the name of its target and its corpus.
pub const CHECKS: [(&str, Check); 7] = [
    ("config", config),
    ("history", history),
    ("http_body", http_body),
    ("key_template", key_template),
    ("payload_fold", payload_fold),
    ("trace", trace),
    ("values", values),
];

/// The input as text in `N` parts, which a line of `----` divides; none where there are fewer.
fn parts<const N: usize>(data: &[u8]) -> Option<[&str; N]> {
    let text = std::str::from_utf8(data).ok()?;
    let mut parts = text.splitn(N, "\n----\n");
    let mut taken = [""; N];
    for part in &mut taken {
        *part = parts.next()?;
    }
    Some(taken)
}
