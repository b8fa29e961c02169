//! Who may do what: tokens with scopes, limited to tasks and queues.
//!
//! A token is a random text, and only its digest is kept. [`Grant`] is what it permits; the routes ask it, and
//! know no tokens. Without any token in the configuration everything is permitted, and the server listens on
//! loopback only.

mod attempts;
mod digest;
mod grant;
mod sessions;
mod tokens;

pub(crate) use attempts::Attempts;
pub(crate) use digest::Digest;

pub use grant::{Grant, Limits, Pattern, Right, Scope};
pub use sessions::Sessions;
pub(crate) use sessions::{Begun, NewSession};
pub use tokens::{Made, NewToken, Token, TokenInfo, Tokens};
