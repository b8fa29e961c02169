//! The ids of jobs that steps of the engine make. Ids come from a sequence that all writers draw from, and
//! how many a step needs is known once it has decided: so it decides with drafts, and its commit draws as
//! many ids as it made jobs, once its rows are locked (R10).
//!
//! Invariant: no draft is written or returned, and none is used twice by a process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_core::history::Event;
use quell_core::{Answer, JobId, Receipt, Result};
use quell_engine::{Row, RowName};

/// Drafts begin here, where no id comes.
const FIRST: u64 = 1 << 62;

tokio::task_local! {
    /// What the drafts of the call became that runs in this task.
    static BECAME: RefCell<Numbers>;
}

/// The drafts of one process.
#[derive(Debug, Default)]
pub(crate) struct Drafts(AtomicU64);

/// What drafts became.
#[derive(Debug, Default)]
pub(crate) struct Numbers(BTreeMap<JobId, JobId>);

impl Drafts {
    /// The first of as many drafts in a row.
    pub(crate) fn draw(&self, jobs: usize) -> u64 {
        let jobs = u64::try_from(jobs).unwrap_or(u64::MAX);
        FIRST.saturating_add(self.0.fetch_add(jobs, Ordering::Relaxed))
    }
}

/// The answer of a call, with the jobs that its drafts became.
pub(crate) async fn numbered(call: impl Future<Output = Result<Answer>>) -> Result<Answer> {
    let numbered = async {
        let answer = call.await?;
        Ok(BECAME.with(|became| became.borrow().answer(answer)))
    };
    BECAME.scope(RefCell::default(), numbered).await
}

impl Numbers {
    /// The drafts from this one on became these jobs, in this order.
    pub(crate) fn new(first: u64, ids: &[JobId]) -> Self {
        let drafts = (first..).map(JobId::new);
        Numbers(drafts.zip(ids.iter().copied()).collect())
    }

    /// Keeps them for the answer of the call that runs in this task.
    pub(crate) fn keep(self) {
        // A call whose answer names no job has no such place.
        let _kept = BECAME.try_with(|became| became.borrow_mut().0.extend(self.0));
    }

    fn answer(&self, answer: Answer) -> Answer {
        let mut answer = answer;
        match &mut answer {
            Answer::RunSchedule(receipt) => self.take_receipt(receipt),
            Answer::Tick(ticked) => {
                ticked.fired.iter_mut().for_each(|fired| self.take_receipt(&mut fired.receipt));
            }
            Answer::ImportDead(imported) => {
                imported.iter_mut().for_each(|one| one.id = self.of(one.id));
            }
            _ => {}
        }
        answer
    }

    /// The job that a draft became; any other id is its own.
    fn of(&self, id: JobId) -> JobId {
        self.0.get(&id).copied().unwrap_or(id)
    }

    fn take_receipt(&self, receipt: &mut Receipt) {
        match receipt {
            Receipt::Accepted { job, trigger, .. } | Receipt::Debounced { job, trigger, .. } => {
                *job = self.of(*job);
                trigger.job = *job;
            }
            Receipt::Duplicate { job } | Receipt::Existing { job, .. } => *job = self.of(*job),
            _ => {}
        }
    }

    /// A row with the jobs that its drafts became.
    pub(crate) fn row(&self, name: RowName, row: Option<Row>) -> (RowName, Option<Row>) {
        if self.0.is_empty() {
            return (name, row);
        }
        let name = match name {
            RowName::Job(id) => RowName::Job(self.of(id)),
            RowName::Attempts(id) => RowName::Attempts(self.of(id)),
            RowName::Effects(id) => RowName::Effects(self.of(id)),
            RowName::Past(id) => RowName::Past(self.of(id)),
            other => other,
        };
        let row = row.map(|row| match row {
            Row::Job(job) if self.of(job.id) != job.id => {
                let id = self.of(job.id);
                Row::Job(std::sync::Arc::new(quell_core::Job { id, ..(*job).clone() }))
            }
            Row::Hold(mut hold) => {
                hold.job = self.of(hold.job);
                Row::Hold(hold)
            }
            Row::Record(mut record) => {
                record.job = self.of(record.job);
                Row::Record(record)
            }
            Row::Memory(mut memory) => {
                memory.leader = self.of(memory.leader);
                Row::Memory(memory)
            }
            Row::Tick(mut tick) => {
                tick.job = tick.job.map(|job| self.of(job));
                Row::Tick(tick)
            }
            other => other,
        });
        (name, row)
    }

    /// Events with the jobs that their drafts became. They are for checkers: what has no JSON form is
    /// left as it is.
    pub(crate) fn events(&self, events: &mut [Event]) {
        if self.0.is_empty() {
            return;
        }
        for event in events {
            let Ok(mut text) = serde_json::to_string(event) else { continue };
            for (draft, job) in &self.0 {
                text = text.replace(&draft.get().to_string(), &job.get().to_string());
            }
            if let Ok(numbered) = serde_json::from_str(&text) {
                *event = numbered;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r10_an_answer_names_the_jobs_that_its_drafts_became() {
        let drafts = Drafts::default();
        assert_eq!((drafts.draw(2), drafts.draw(1)), (FIRST, FIRST + 2));
        let receipt = |job| Receipt::Duplicate { job: JobId::new(job) };
        for (answered, named) in [(FIRST + 1, 9), (5, 5)] {
            let call = async {
                Numbers::new(FIRST, &[JobId::new(7), JobId::new(9)]).keep();
                Ok(Answer::RunSchedule(receipt(answered)))
            };
            let answer = numbered(call).await.unwrap();
            assert!(matches!(answer, Answer::RunSchedule(same) if same == receipt(named)));
        }
    }
}
