//! Tests of the store on a real storage account, in place of Azurite.

use std::path::Path;

use anyhow::Context;

use crate::run;

/// Where the connection string of the account is.
const ACCOUNT: &str = "AZURE_STORAGE_CONNECTION_STRING";
/// What tests read; `quell-services` names it, too.
const TESTS: &str = "QUELL_TEST_AZURITE";
/// The tests that ask nothing of Azurite alone, such as a proxy before it.
const FILTER: &str = "test(/^store::/) | test(/^conditions::/) | test(/^partitions::/) | \
                      test(timed::r01_r34_a_store_that_gets_a_timer_leaves_nothing_behind) | \
                      test(timed::r34_a_storage_queue_of_a_url_wakes_workers_of_other_processes)";

/// Runs them. Each test makes a table, and some a queue, that nothing removes.
pub(crate) fn live(root: &Path) -> anyhow::Result<()> {
    let connection = std::env::var(ACCOUNT)
        .ok()
        .filter(|connection| !connection.is_empty())
        .with_context(|| format!("set {ACCOUNT} to the connection string of an empty account"))?;
    let args = ["nextest", "run", "--locked", "-p", "quell-azure", "--all-features", "-E", FILTER];
    let mut command = run::cargo_command(&args);
    run::run(root, command.env(TESTS, connection))
}
