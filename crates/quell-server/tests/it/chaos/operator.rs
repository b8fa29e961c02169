//! An operator of a chaos run: sets queues up, pauses and resumes, with an event history of its own.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell::history::Sink;
use quell::queue::{QueueSettings, TaskSettings};
use quell::schedule::{ScheduleName, ScheduleState};
use quell::store::Store;
use quell::{Job, JobState, Quell, QueueName, TaskName, Timestamp};
use quell_server::history::FileSink;

use super::judge::Pause;
use super::processes::{BEAT, PATIENCE};
use super::workload::record::now;
use super::workload::tasks::{ORDER, URGENT, queues};

/// One operator.
pub(super) struct Operator {
    sink: Arc<FileSink>,
    quell: Quell,
    store: Arc<dyn Store>,
    /// Since when the queue and the task are paused.
    paused: [Option<Timestamp>; 2],
    pauses: Vec<Pause>,
}

impl Operator {
    /// Sets the queues of the load up.
    pub(super) async fn start(folder: &Path, url: &str) -> Operator {
        let sink = Arc::new(FileSink::append(&folder.join("operator.jsonl")).unwrap());
        let history: Sink = Arc::<FileSink>::clone(&sink);
        let quell = Quell::recorded(url, history).await.unwrap().build().unwrap();
        let store = Arc::clone(quell.store());
        let operator = Operator { sink, quell, store, paused: [None; 2], pauses: Vec::new() };
        for (queue, settings) in queues() {
            operator.set_queue(queue, &settings).await;
        }
        operator
    }

    /// Pauses the queue of stamped tasks, or resumes it.
    pub(super) async fn pause_queue(&mut self, paused: bool) {
        let called = now();
        self.set_queue(URGENT, &QueueSettings { paused, ..QueueSettings::default() }).await;
        self.note(URGENT, 0, called);
    }

    /// Pauses the task of orders, or resumes it.
    pub(super) async fn pause_task(&mut self, paused: bool) {
        let called = now();
        let (task, settings) =
            (TaskName::new(ORDER).unwrap(), TaskSettings::default().paused(paused));
        let set = async || self.store.set_task(None, &task, &settings).await;
        insist(&format!("task {task} cannot be set"), set).await;
        self.note(ORDER, 1, called);
    }

    /// A pause begins with its receipt and ends with the call to resume.
    fn note(&mut self, name: &str, index: usize, called: Timestamp) {
        match self.paused[index].take() {
            None => self.paused[index] = Some(now()),
            Some(from) => {
                let (is_of_queue, name) = (index == 0, name.to_owned());
                self.pauses.push(Pause { is_of_queue, name, from, until: called });
            }
        }
    }

    /// Pauses the schedule, as nothing comes to rest while the clock triggers.
    pub(super) async fn pause_schedule(&self) {
        let name = ScheduleName::new(BEAT).unwrap();
        let pause = async || {
            let set = self.store.set_schedule_state(None, &name, ScheduleState::Paused).await;
            set.map_err(|error| error.to_string())?;
            let ticked = self.store.tick(None, 0).await.map_err(|error| error.to_string())?;
            ticked.next.map_or(Ok(()), |next| Err(format!("it ticks next at {next}")))
        };
        insist("the schedule cannot be paused", pause).await;
    }

    /// Puts dead jobs back (R26).
    pub(super) async fn redrive(&self, dead: &[Job]) {
        for job in dead {
            let redrive = async || {
                let Err(error) = self.quell.dead().redrive(job.id).await else { return Ok(()) };
                // A call without an answer may have done it.
                match self.store.job(job.id).await {
                    Ok(Some(now)) if now.state != JobState::Dead => Ok(()),
                    _ => Err(error),
                }
            };
            insist(&format!("job {} cannot be redriven", job.id), redrive).await;
        }
    }

    /// Ends its record: it does nothing more.
    pub(super) fn ends(&self) {
        self.sink.end();
    }

    /// What was paused in the run.
    pub(super) fn pauses(&self) -> Vec<Pause> {
        self.pauses.clone()
    }

    async fn set_queue(&self, queue: &str, settings: &QueueSettings) {
        let queue = QueueName::new(queue).unwrap();
        let set = async || self.store.set_queue(None, &queue, settings).await;
        insist(&format!("queue {queue} cannot be set"), set).await;
    }
}

/// Makes a call again until it succeeds.
async fn insist<E: Display>(failure: &str, call: impl AsyncFn() -> Result<(), E>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = call().await {
        assert!(Instant::now() < deadline, "{failure}: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
