//! How a program runs its futures: all of it on two threads, and each task joined.

use tokio::task::JoinSet;

/// Runs a program on a runtime of two threads, the same for every peer.
///
/// # Errors
///
/// Fails when the program does, and when the runtime cannot start.
pub fn run(program: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(program)
}

/// Waits until all tasks have ended.
///
/// # Errors
///
/// The first error of a task, or its panic.
pub async fn join<E>(mut tasks: JoinSet<Result<(), E>>) -> anyhow::Result<()>
where
    anyhow::Error: From<E>,
    E: 'static,
{
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
