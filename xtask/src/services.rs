//! The servers that tests share: one of each, for as long as the tests run.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use quell_services::{POSTGRES_URL, Postgres};

use crate::run::run;

/// Servers that run, and what tells tests where.
#[derive(Debug)]
pub(crate) struct Services {
    postgres: Postgres,
}

impl Services {
    /// Starts them; installs what is missing.
    pub(crate) fn start() -> anyhow::Result<Self> {
        // What a commit survives is tested on servers of their own.
        let settings = ["fsync=off", "synchronous_commit=off", "max_connections=400"];
        Ok(Services { postgres: Postgres::start(&settings).context("start PostgreSQL")? })
    }

    /// Tells a command where they are.
    pub(crate) fn tell<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env(POSTGRES_URL, self.postgres.url())
    }
}

/// Runs a command beside the servers.
pub(crate) fn with_services(root: &Path, command: &[String]) -> anyhow::Result<()> {
    let (program, args) = command.split_first().context("name a command")?;
    let services = Services::start()?;
    run(root, services.tell(Command::new(program).args(args)))
}
