//! The store as a process sees it: at the other end of a network.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use quell_core::{
    Answer, Capabilities, EndNotification, Error, ErrorKind, JobId, Operation, Result, Store,
    Timestamp, Wakeups,
};
use tokio::sync::oneshot;

use super::process::ProcessClock;
use super::world::World;

/// One process's connection.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) world: Arc<World>,
    pub(super) clock: Arc<ProcessClock>,
}

impl Remote {
    /// Makes a call over the network. The message may arrive after its caller's death, and twice
    /// where `may_repeat`.
    async fn send(&self, may_repeat: bool, operation: Operation) -> Result<Answer> {
        let (answer, answered) = oneshot::channel();
        let fate = self.world.fate(self.clock.name());
        let (process, name) = (self.clock.index(), self.clock.name().to_owned());
        self.world.after(fate.there, move |world| {
            let perform = |world: &Arc<World>, operation| {
                let (store, now) = (world.stores().store_of(process), world.store_time());
                world.perform(Box::pin(async move { store.call(Some(now), operation).await }))
            };
            let result = if fate.fails_before || world.is_down() {
                Err(gone(ErrorKind::Unavailable))
            } else {
                let again = (fate.twice && may_repeat).then(|| operation.clone());
                let result = perform(world, operation);
                if let Some(operation) = again {
                    drop(perform(world, operation));
                }
                // Its hints reach every subscriber.
                world.stir(World::ALL);
                if fate.fails_after || fate.slow {
                    world.fault("network", &name);
                }
                if fate.fails_after { Err(gone(ErrorKind::UnknownOutcome)) } else { result }
            };
            world.after(fate.back, move |world| {
                // A process that was killed receives nothing.
                let _unheard = answer.send(result);
                world.stir(process);
            });
        });
        answered.await.unwrap_or_else(|_| Err(gone(ErrorKind::UnknownOutcome)))
    }
}

fn gone(kind: ErrorKind) -> Error {
    Error::new(kind, "the simulated network broke the call")
}

#[async_trait]
impl Store for Remote {
    fn capabilities(&self) -> Capabilities {
        self.world.store().capabilities()
    }

    /// Some processes make two calls at a time.
    fn concurrent_enqueues(&self) -> usize {
        1 + self.clock.index() % 2
    }

    fn wakeups(&self) -> Wakeups {
        let (world, clock) = (Arc::clone(&self.world), Arc::clone(&self.clock));
        let hints = self.world.stores().hints();
        Box::pin(stream::unfold((hints, world, clock), async |(mut hints, world, clock)| {
            loop {
                let hint = hints.next().await?;
                if let Some(delay) = world.receives(clock.name()) {
                    clock.sleep(delay).await;
                    return Some((hint, (hints, world, clock)));
                }
            }
        }))
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.world.stores().store_of(self.clock.index()).ended(job)
    }

    /// The time of the store counts, not that of the process.
    async fn call(&self, _: Option<Timestamp>, operation: Operation) -> Result<Answer> {
        match operation {
            // What was set aside is the operator's to see, beside the network.
            Operation::Unreadable { .. } | Operation::Restore { .. } => {
                self.world.store().call(Some(self.world.store_time()), operation).await
            }
            Operation::Enqueue { .. } | Operation::Claim { .. } | Operation::RunSchedule { .. } => {
                self.send(false, operation).await
            }
            operation => self.send(true, operation).await,
        }
    }
}
