//! A store as one of several shards: what it takes over of another that has it on record already.

use quell_core::heartbeat::WorkerRow;
use quell_core::{Result, TaskName, TaskSettings};

use crate::backend::{Access, Backend, Time, contended};
use crate::backoff::Backoff;
use crate::engine::Engine;
use crate::rows::{Row, RowName};
use crate::step::Step;

impl<B: Backend> Engine<B> {
    /// The rows of workers, of whatever age.
    ///
    /// # Errors
    /// What the backend answers.
    pub async fn worker_rows(&self) -> Result<Vec<WorkerRow>> {
        self.reading(Time::Last).await?.workers_with_drains().await
    }

    /// Writes the settings of a task, and puts nothing on record.
    ///
    /// # Errors
    /// As [`Steps::set_task`](quell_core::Steps::set_task).
    pub async fn take_over_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        let mut backoff = Backoff::new(self.backend.longest_pause());
        loop {
            let mut step =
                Step::begin(&self.backend, Time::Last, Access::Write { jobs: 0 }, false).await?;
            if step.set_task(task, settings).await?.is_some()
                && let Some(news) = step.commit().await?
            {
                self.spread(news);
                return Ok(());
            }
            if !backoff.again().await {
                return Err(contended("set a task"));
            }
        }
    }

    /// Writes the row of a worker, unless there is one.
    ///
    /// # Errors
    /// What the backend answers; of kind [`Contention`](quell_core::ErrorKind::Contention) where other
    /// processes change the row all the time.
    pub async fn take_over_worker(&self, row: &WorkerRow) -> Result<()> {
        let mut backoff = Backoff::new(self.backend.longest_pause());
        let name = RowName::Worker(row.worker.clone(), row.incarnation);
        loop {
            let mut step =
                Step::begin(&self.backend, Time::Last, Access::Write { jobs: 0 }, false).await?;
            step.load([name.clone()]).await?;
            if step.others.contains_key(&name) {
                return Ok(());
            }
            let row = row.clone();
            if let Some(drained) = row.drained.clone() {
                step.drain(&row.worker, row.incarnation, drained);
            }
            step.beside
                .put(name.clone(), Row::Worker(Box::new(WorkerRow { drained: None, ..row })));
            if step.commit().await?.is_some() {
                return Ok(());
            }
            if !backoff.again().await {
                return Err(contended("write a worker"));
            }
        }
    }
}
