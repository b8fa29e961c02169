//! Quell on PostgreSQL.

use anyhow::Result;
use peer_common::Starts;
use pg_common::{PostgresPeer, SILENCE, Settings};
use quell::WorkerBuilder;

use crate::{Measured, Tuning};

impl Tuning for Settings {
    fn words(self) -> &'static str {
        match self {
            Settings::Defaults => "8 connections, concurrency 32",
            Settings::Best => "8 connections, concurrency 256",
            Settings::Failover => "as best, leases of 6 s",
        }
    }

    fn applied_to(self, worker: WorkerBuilder<Starts>) -> WorkerBuilder<Starts> {
        match self {
            Settings::Defaults => worker,
            Settings::Best => worker.concurrency(256),
            Settings::Failover => worker.concurrency(256).lease(SILENCE),
        }
    }
}

impl PostgresPeer for Measured<Settings> {
    const UNFINISHED: &'static str = "select count(*) from quell.job where $1 > 0";

    async fn close(self) -> Result<()> {
        Ok(())
    }
}
