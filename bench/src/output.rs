//! What happens to results: they are printed, written as JSON where asked for, and recorded where
//! asked for. The arguments for it are the same for every store.

use std::io::Write;
use std::path::PathBuf;

use crate::report::record_section;

// These structs have no doc comments: clap would show them in the help of a command.

#[derive(Debug, clap::Args)]
pub(crate) struct Recording {
    /// Append the results to the month's file in bench/archive.
    #[arg(long)]
    pub(crate) record: bool,
}

impl Recording {
    /// Prints these tables, and records them with what they are about.
    pub(crate) fn finish(&self, about: &str, tables: &str) -> anyhow::Result<()> {
        self.finish_with(|| Ok(about.to_owned()), tables)
    }

    /// The same, where it takes work to say what they are about.
    pub(crate) fn finish_with(
        &self,
        about: impl FnOnce() -> anyhow::Result<String>,
        tables: &str,
    ) -> anyhow::Result<()> {
        write!(std::io::stdout(), "{tables}")?;
        if self.record { record_section(&about()?, tables) } else { Ok(()) }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Write one JSON object per measurement to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) recording: Recording,
}

impl Output {
    /// Writes these lines of JSON where they are asked for.
    pub(crate) fn write_json(&self, lines: &str) -> anyhow::Result<()> {
        if let Some(file) = &self.json {
            std::fs::write(file, lines)?;
        }
        Ok(())
    }
}

// Of a measurement without peers and without a choice of workloads.
#[derive(Debug, clap::Args)]
pub(crate) struct PlainArgs {
    /// Smaller sizes and one round.
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) recording: Recording,
}
