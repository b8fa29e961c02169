//! Tests of the store on a real storage account, in place of Azurite, and of timers on a real queue of
//! Service Bus, in place of the stand-in.

use std::path::Path;

use anyhow::{Context, ensure};

use crate::run;

/// Where the connection string of the account is.
const ACCOUNT: &str = "AZURE_STORAGE_CONNECTION_STRING";
/// Where that of the queue of Service Bus is.
const QUEUE: &str = "AZURE_SERVICEBUS_CONNECTION_STRING";
/// What tests read; `quell-services` names them, too.
const TESTS: &str = "QUELL_TEST_AZURITE";
const QUEUE_TESTS: &str = "QUELL_TEST_SERVICE_BUS";
/// The tests that ask nothing of Azurite alone, such as a proxy before it.
const FILTER: &str = "test(/^store::/) | test(/^conditions::/) | test(/^partitions::/) | \
                      (test(/^bounds::/) - test(bounds::a_batch_above_a_bound_is_refused_with_nothing_sent)) | \
                      test(pages::pages_have_each_row_of_a_range_once_and_in_order) | \
                      test(time::r38_the_time_never_exceeds_the_services) | \
                      test(timed::r01_r34_a_store_that_gets_a_timer_leaves_nothing_behind) | \
                      test(timed::r34_a_storage_queue_of_a_url_wakes_workers_of_other_processes)";
/// The tests that ask nothing of the stand-in alone, such as faults.
const QUEUE_FILTER: &str = "test(/^servicebus::contract::/) | \
                            test(timed::r16_r17_r18_service_bus_keeps_dedup_keys)";

/// Runs them. Each test makes a table, and some a queue, that nothing removes.
pub(crate) fn live(root: &Path) -> anyhow::Result<()> {
    let account = variable(ACCOUNT)
        .with_context(|| format!("set {ACCOUNT} to the connection string of an empty account"))?;
    let queue = variable(QUEUE);
    let has_queue = queue.as_ref().is_none_or(|queue| queue.contains("EntityPath="));
    ensure!(has_queue, "{QUEUE}: give the connection string of an empty queue, with EntityPath");
    test(root, &account, &["-E", FILTER], None)?;
    // All of them use one queue.
    queue.map_or(Ok(()), |queue| {
        test(root, &account, &["--test-threads", "1", "-E", QUEUE_FILTER], Some(&queue))
    })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn test(root: &Path, account: &str, which: &[&str], queue: Option<&str>) -> anyhow::Result<()> {
    let all = ["nextest", "run", "--locked", "-p", "quell-azure", "--all-features"];
    let mut command = run::cargo_command(&[&all[..], which].concat());
    command.env(TESTS, account).env_remove(QUEUE_TESTS);
    run::run(root, command.envs(queue.map(|queue| (QUEUE_TESTS, queue))))
}
