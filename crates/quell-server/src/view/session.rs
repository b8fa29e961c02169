//! Sessions of browsers.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{Begun, Grant};

/// Who a request is from.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// The name of the token.
    pub name: String,
    /// Its scopes.
    pub scopes: Vec<String>,
    /// The tasks that it is limited to; of none, to no task.
    pub tasks: Vec<String>,
    /// The queues that it is limited to, likewise.
    pub queues: Vec<String>,
    /// When the session ends without a further request; null for a token.
    pub idle_until: Option<String>,
    /// When the session ends in any case; null for a token.
    pub expires_at: Option<String>,
}

impl Session {
    /// What a token's request is.
    pub(crate) fn of_token(name: String, grant: &Grant) -> Self {
        let limits = grant.limits().clone();
        Session {
            name,
            scopes: grant.scope_list(),
            tasks: limits.tasks.into_iter().map(String::from).collect(),
            queues: limits.queues.into_iter().map(String::from).collect(),
            idle_until: None,
            expires_at: None,
        }
    }
}

impl From<&Begun> for Session {
    fn from(begun: &Begun) -> Self {
        let now = Timestamp::now();
        let after = |left: Duration| {
            let left = SignedDuration::try_from(left).unwrap_or(SignedDuration::MAX);
            now.checked_add(left).ok().map(|at| at.to_string())
        };
        Session {
            idle_until: after(begun.idle),
            expires_at: after(begun.most),
            ..Session::of_token(begun.of.name.clone(), &begun.of.grant)
        }
    }
}

/// A session that has ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EndedSession {
    /// Always true.
    pub ended: bool,
}
