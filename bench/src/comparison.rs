//! The arguments of a comparison of Quell with its peers on a server.

use crate::output::Output;

// No doc comment: clap would show it in the help of a command.
#[derive(Debug, clap::Args)]
pub(crate) struct Comparison {
    /// How Quell alone scales, in place of how it compares with its peers.
    #[arg(long)]
    pub(crate) scaling: bool,
    /// Smaller sizes and one round.
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Only workloads whose name has this in it.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

impl Comparison {
    /// Whether a workload of this name is asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }
}

#[cfg(test)]
impl Comparison {
    /// All workloads, not recorded.
    pub(crate) fn of_all(quick: bool) -> Self {
        let recording = crate::output::Recording { record: false };
        let output = Output { json: None, recording };
        Comparison { scaling: false, quick, output, only: String::new() }
    }
}
