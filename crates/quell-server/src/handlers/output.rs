//! What a declared task returns (R19): the JSON that its command printed, or its target answered.
//!
//! By then the work has succeeded, so what cannot be kept is left out, and is no failure.

use quell::{JobResult, Payload};
use tracing::{debug, warn};

use super::Invocation;

/// The most that is read of what may be an output, in bytes.
pub(super) const MOST: usize = JobResult::MAX_OUTPUT_BYTES;

/// What was printed or answered, whole; else why it is not there.
pub(super) type Said = Result<Vec<u8>, String>;

/// Why what was said is not there: there was too much of it.
pub(super) fn too_large() -> String {
    format!("it has more than {MOST} bytes: keep it elsewhere and return where it is")
}

/// The output in what was said; none where it is empty, no JSON, or not there.
pub(super) fn output(call: &Invocation, said: Said) -> Option<Payload> {
    let Invocation { task, job, .. } = call;
    let bytes = match said {
        Ok(bytes) => bytes,
        Err(why) => {
            warn!(%task, %job, %why, "the output of an attempt that succeeded is not kept");
            return None;
        }
    };
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    if text.is_empty() || text == "null" {
        return None;
    }
    let read = Payload::from_text(text);
    if read.is_err() {
        debug!(%task, %job, bytes = bytes.len(), "what an attempt said is no JSON, and no output");
    }
    read.ok()
}
