//! What a declared task returns (R19): the JSON that its command printed, or its target answered.
//!
//! By then the work has succeeded, so what cannot be kept is left out, and is no failure.

use quell::{JobResult, Payload};
use tracing::{debug, warn};

use super::Invocation;

/// The most that is read of what may be an output, in bytes.
pub(super) const MOST: usize = JobResult::MAX_OUTPUT_BYTES;

/// The whole text that a command printed or a target returned; else why it is missing.
pub(super) type Printed = Result<Vec<u8>, String>;

/// The reason of an output that is too large.
pub(super) fn too_large() -> String {
    format!("more than {MOST} bytes, the limit: store it elsewhere and return its address")
}

/// The output in a text; none where that is empty, not JSON, or missing.
pub(super) fn output(call: &Invocation, printed: Printed) -> Option<Payload> {
    let Invocation { task, job, .. } = call;
    let bytes = match printed {
        Ok(bytes) => bytes,
        Err(why) => {
            warn!(%task, %job, %why, "output not stored, the attempt succeeded");
            return None;
        }
    };
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    if text.is_empty() || text == "null" {
        return None;
    }
    let read = Payload::from_text(text);
    if read.is_err() {
        debug!(%task, %job, bytes = bytes.len(), "output is not JSON, not stored");
    }
    read.ok()
}
