//! One page of a list: where a command reads it, and how much it prints.

use super::source::Source;

/// The arguments of a page.
#[derive(Debug, clap::Args)]
pub(crate) struct Page {
    /// At most this many, up to 200.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub(crate) limit: u16,
    #[command(flatten)]
    pub(crate) source: Source,
}
