//! What a job keeps of the policy that its triggers brought, and the bounds of its window (R10).

use serde::{Deserialize, Serialize};

use crate::edge::Edge;
use crate::payload::WINDOW_BYTES;
use crate::{Fold, Payload};

/// What a keyed job keeps of its policy, for the moves that no trigger brings one to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// How payloads are folded.
    pub fold: Fold,
    /// Which end of the burst runs.
    pub edge: Edge,
    /// The throttle's period, where the edge is [`Edge::Throttle`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<std::time::Duration>,
    /// Whether attempts of one key may run at the same time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlap: bool,
    /// The bytes that the folded payload may have; none for the default (R10).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u32>,
    /// Whether the window is full and takes no further trigger (R10). It counts while the job is
    /// scheduled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// How many elements more than triggers a collected payload has, because an edit or another fold
    /// brought them; negative for fewer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub surplus: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(surplus: &i64) -> bool {
    *surplus == 0
}

impl Shape {
    /// Whether a window may hold this payload of several triggers (R10).
    pub(crate) fn may_hold(&self, payload: &Payload, elements: u64) -> bool {
        let max_bytes = self.max_bytes.unwrap_or(WINDOW_BYTES);
        // R13: two windows of a throttled key would start within one period.
        self.edge == Edge::Throttle || self.fold.may_hold(payload, elements, max_bytes)
    }
}
