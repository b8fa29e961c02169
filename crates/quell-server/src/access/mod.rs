//! Who may do what: tokens with scopes, limited to tasks and queues.
//!
//! A token is a random text, and only its digest is kept. [`Grant`] is what it permits; the routes ask it, and
//! know no tokens. Without any token in the configuration everything is permitted, and the server listens on
//! loopback only.

mod grant;
mod tokens;

pub use grant::{Grant, Limits, Pattern, Right, Scope};
pub use tokens::{Made, NewToken, Token, TokenInfo, Tokens};
