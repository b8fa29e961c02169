//! What a store knows of its own failure without a call: health checks ask for it often.

use std::fmt;

/// Why a store accepts no triggers, as far as it knows without a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Its disk is full: writes fail until there is space again.
    Full(String),
    /// What it opened is gone: no call of this store succeeds any more. Open it again.
    Lost(String),
}

impl Trouble {
    /// Whether it lasts until the store is opened again.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Trouble::Lost(_))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Trouble::Full(why) | Trouble::Lost(why)) = self;
        f.write_str(why)
    }
}
