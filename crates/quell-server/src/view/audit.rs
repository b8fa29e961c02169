//! Entries of the audit.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Caller;

/// What an operator did.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// When it was answered, on the server's clock.
    pub at: String,
    /// Who asked for it, and from where.
    pub by: Caller,
    /// What it was, by the operation's id in this description; `actions_end` for the end of an action.
    pub operation: String,
    /// The method of the request.
    pub method: String,
    /// Its path.
    pub path: String,
    /// The status of the answer.
    pub status: u16,
    /// How many jobs it changed, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The settings that it changed, as they were read before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// The same, as they were read after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub after: Option<Value>,
    /// Of a refused request: how many were refused before it without an entry of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<u64>,
}

/// The newest entries of this server's audit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditEntries {
    /// The newest first.
    pub entries: Vec<AuditEntry>,
}
