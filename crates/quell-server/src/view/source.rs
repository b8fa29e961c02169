//! Webhook sources.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A webhook source, and how its deliveries went.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WebhookSource {
    /// Its name.
    pub name: String,
    /// How deliveries are verified: `github`, `gitlab`, `stripe`, `slack`, `shopify`, `standard`, `hmac` or
    /// `token`.
    pub provider: String,
    /// The task that it triggers, or the template of its name.
    pub task: String,
    /// Where it is delivered to.
    pub path: String,
    /// The deliveries that were taken, by their receipts, `ignored` and `challenge`.
    pub accepted: BTreeMap<String, u64>,
    /// The deliveries that were refused, by the reason: `unsigned`, `unreadable`, `media_type`, `too_large`,
    /// `timeout`, `unusable`, `unavailable`, `unknown_outcome` or `failed`.
    pub refused: BTreeMap<String, u64>,
    /// When one was taken last.
    pub last_accepted_at: Option<String>,
    /// When one was refused last.
    pub last_refused_at: Option<String>,
    /// Since when this server counts: since it read its configuration.
    pub since: String,
}

/// The webhook sources.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WebhookSources {
    /// By name.
    pub sources: Vec<WebhookSource>,
}
