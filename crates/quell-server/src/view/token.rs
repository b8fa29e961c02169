//! Tokens, without what they are.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{Made, TokenInfo};

/// What is on record of a token.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = TokenInfo)]
pub struct Token {
    /// Its name.
    pub name: String,
    /// Its scopes.
    pub scopes: Vec<String>,
    /// The tasks that it is limited to; all where there are none.
    pub tasks: Vec<String>,
    /// The queues that it is limited to; all where there are none.
    pub queues: Vec<String>,
    /// When it was made, or replaced last.
    pub created_at: String,
    /// Until when it counts.
    pub expires_at: Option<String>,
    /// Until when the token that it replaced counts.
    pub replaced_until: Option<String>,
    /// When it was used last, by what this server knows.
    pub last_used_at: Option<String>,
}

/// All tokens.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// By name.
    pub tokens: Vec<Token>,
}

/// A token that was made: it is shown now and never again.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct MadeToken {
    /// The token.
    pub token: String,
    /// What is on record of it.
    pub info: Token,
}

impl fmt::Debug for MadeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadeToken").field("info", &self.info).finish_non_exhaustive()
    }
}

/// A token that was revoked.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RevokedToken {
    /// Its name.
    pub name: String,
    /// Always true.
    pub revoked: bool,
}

impl From<TokenInfo> for Token {
    fn from(info: TokenInfo) -> Self {
        let time = |at: jiff::Timestamp| at.to_string();
        let texts = |patterns: Vec<crate::access::Pattern>| {
            patterns.iter().map(crate::access::Pattern::to_string).collect()
        };
        Token {
            name: info.name,
            scopes: info.scopes,
            tasks: texts(info.limits.tasks),
            queues: texts(info.limits.queues),
            created_at: time(info.created_at),
            expires_at: info.expires_at.map(time),
            replaced_until: info.replaced_until.map(time),
            last_used_at: info.last_used_at.map(time),
        }
    }
}

impl From<Made> for MadeToken {
    fn from(made: Made) -> Self {
        MadeToken { token: made.token, info: made.info.into() }
    }
}
