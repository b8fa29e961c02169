//! The whole suite, the comparison with the model and the simulation on a store with a timer, which is what
//! `timer=` opens.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quell_conformance::sim::Place;
use quell_conformance::{Opened, Rig};
use quell_core::history::Sink;
use quell_core::{
    Answer, Capabilities, EndNotification, JobId, NextDue, Now, Operation, Result, Store,
    Timestamp, Wakeups,
};
use quell_engine::Engine;
use quell_portable::{MemoryTable, MemoryTimer, Partition, Timed};

use crate::world::LOCK;

/// How much later than something is due a worker looks by itself, as its message comes first.
const GRACE: Duration = Duration::from_secs(2);

/// A store whose table and timer have the time of each call. It answers as one without a timer where the
/// timer makes a difference: a worker is to look by itself later than something is due, and not at all
/// for what is paused, because messages announce both.
#[derive(Debug)]
struct Polled {
    store: Timed<MemoryTable>,
    table: MemoryTable,
    timer: MemoryTimer,
}

fn polled(table: &MemoryTable, timer: &MemoryTimer, history: Option<Sink>) -> Polled {
    let partition = Partition::new(table.clone(), "p").with_timer(Arc::new(timer.clone()));
    let engine = Engine::new(partition);
    let engine = match history {
        Some(sink) => engine.with_history(sink),
        None => engine,
    };
    let store = Timed::new(engine).unwrap();
    Polled { store, table: table.clone(), timer: timer.clone() }
}

fn fresh() -> (MemoryTable, MemoryTimer) {
    (MemoryTable::new(Rig::START), MemoryTimer::new(Rig::START, LOCK))
}

/// When something is due, and not when a worker looks for it.
fn exact(next: NextDue) -> NextDue {
    let is_later = |due: &Timestamp| *due > next.now && *due < Timestamp::MAX;
    let due = next.due.map(|due| if is_later(&due) { due.before(GRACE) } else { due });
    NextDue { due, ..next }
}

#[async_trait]
impl Store for Polled {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        if let Some(now) = now {
            self.table.advance(now);
            self.timer.advance(now);
        }
        let claim = match &operation {
            Operation::Claim { claim } => Some(claim.clone()),
            _ => None,
        };
        Ok(match self.store.call(now, operation).await? {
            Answer::NextDue(next) => Answer::NextDue(exact(next)),
            Answer::Peek(next) => Answer::Peek(next.into_iter().map(exact).collect()),
            Answer::Claim(mut claimed) => {
                claimed.next = exact(claimed.next);
                if let (None, true, Some(claim)) =
                    (claimed.next.due, claimed.jobs.is_empty(), claim)
                {
                    let next = self.store.next_due(now, &claim.queue, &claim.tasks).await?;
                    claimed.next.due = exact(next).due;
                }
                Answer::Claim(claimed)
            }
            answer => answer,
        })
    }

    fn wakeups(&self) -> Wakeups {
        self.store.wakeups()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.store.ended(job)
    }
}

fn opened(history: Option<Sink>) -> Opened {
    let (table, timer) = fresh();
    Opened { store: Arc::new(polled(&table, &timer, history)), guard: Box::new(()) }
}

mod conformance {
    use super::*;

    async fn open() -> Opened {
        opened(None)
    }

    async fn open_recorded(sink: Sink) -> Opened {
        opened(Some(sink))
    }

    quell_conformance::suite!(open, open_recorded);
}

fn place() -> Place {
    let (table, timer) = fresh();
    Place::new(move |sink| {
        let store: Arc<dyn Store> = Arc::new(polled(&table, &timer, Some(sink)));
        async move { store }
    })
}

quell_conformance::simulation!("timed", place);
