//! Accepting triggers: loads the rows they touch, lets the core decide, writes what changed.
//!
//! Triggers of one key fold in memory, so a hot key costs one row write per commit.

use quell_core::accept::{Refused, accept, accept_promised};
use quell_core::history::Event;
use quell_core::touched::{Needs, Touched};
use quell_core::{Batch, Fold, Job, JobState, Receipt, Result, Timestamp};

use crate::error::explain;
use crate::idempotency::{load_records, write_records};
use crate::keys::{json, load_holds, load_memories, write_holds, write_memories};
use crate::row::{decode, job_columns};
use crate::tally::LaneState;
use crate::tx::Tx;
use crate::write::{insert_new, insert_plain, update_joined};

/// How triggers are accepted.
type Rule = fn(&mut Touched, &Batch) -> Result<Vec<Receipt>, Refused>;

impl Tx<'_> {
    /// Accepts batches, each whole or not at all.
    pub(crate) async fn accept(&mut self, batches: &[Batch]) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.accept_by(batches, accept).await
    }

    /// Accepts batches that were promised before: those of committed transactions and of schedules.
    pub(crate) async fn accept_promised(
        &mut self,
        batches: &[Batch],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.accept_by(batches, accept_promised).await
    }

    async fn accept_by(
        &mut self,
        batches: &[Batch],
        rule: Rule,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let thresholds = self
            .settings
            .iter()
            .filter_map(|(queue, settings)| Some((queue.clone(), settings.debounce?)))
            .collect();
        let mut touched = Touched::new(self.now, self.next_id, thresholds);
        let needs = Needs::of(batches);
        self.load_windows(&mut touched, &needs).await?;
        touched.add_holds(load_holds(&mut self.db, self.names, needs.holds).await?);
        touched.add_memories(load_memories(&mut self.db, self.names, needs.memories).await?);
        touched.add_records(load_records(&mut self.db, self.names, needs.records).await?);
        let receipts = batches.iter().map(|batch| Ok(rule(&mut touched, batch)?)).collect();
        self.next_id = touched.next_id();
        self.write(&touched).await?;
        Ok(receipts)
    }

    /// Loads open windows, and whether attempts of their keys run.
    async fn load_windows(&mut self, touched: &mut Touched, needs: &Needs<'_>) -> Result<()> {
        const WINDOWS: &str = concat!(
            "select ",
            job_columns!("case when ?3 then j.payload end"),
            " from json_each(?2) k
              cross join quell_job j on j.task_id = ?1 and j.key = k.value and j.hold >= 0
             union all
             select ",
            job_columns!("null"),
            " from json_each(?2) k
              -- R10: a closed window holds back newer ones, and the first of them is enough to know.
              cross join quell_job j on j.id = (select -max(c.hold) from quell_job c
                                                 where c.task_id = ?1 and c.key = k.value
                                                   and c.hold < 0)"
        );
        for (task, keys) in &needs.windows {
            let Some(task_id) = self.names.task_id(task) else { continue };
            let rows = sqlx::query(WINDOWS)
                .bind(task_id)
                .bind(json(keys)?)
                .bind(needs.reads_payload.get(task).copied().unwrap_or(true))
                .fetch_all(&mut *self.db)
                .await;
            for row in rows.map_err(|e| explain("read open windows", e))? {
                let job = decode(&row, self.names)?;
                if let Some(key) = job.key.clone() {
                    touched.add_job((job.task.clone(), key), job);
                }
            }
        }
        Ok(())
    }

    async fn write(&mut self, touched: &Touched) -> Result<()> {
        let (new, changed) = (touched.new_keyed(), touched.changed());
        let now = self.now;
        for job in changed.iter().chain(&new) {
            if job.state != JobState::Scheduled {
                // Only a leading edge counts triggers in a job that does not wait.
                self.tell(|| Event::suppressed(now, job));
                continue;
            }
            self.keys_wait |= job.waits;
            self.tell(|| Event::window(now, job));
            if touched.is_news(job) {
                self.wake(&job.queue, job.window.due_at);
            }
        }
        self.count_moved(touched, &changed).await?;
        // A window that closes gives up its place before another opens.
        update_joined(&mut self.db, self.names, &changed).await?;
        insert_new(&mut self.db, self.names, &mut self.tally, &new).await?;
        self.write_unkeyed(touched.new_unkeyed()).await?;
        write_holds(&mut self.db, self.names, &touched.taken()).await?;
        write_records(&mut self.db, self.names, &touched.recorded()).await?;
        write_memories(&mut self.db, self.names, &touched.remembered()).await
    }

    /// R7: a join may move a window to another queue, or to a higher priority.
    async fn count_moved(&mut self, touched: &Touched, changed: &[&Job]) -> Result<()> {
        for job in changed {
            let Some((queue, priority)) = touched.moved_from(job) else { continue };
            let from = self.names.intern(&mut self.db, queue, &job.task, priority).await?;
            let to = self.names.intern(&mut self.db, &job.queue, &job.task, job.priority).await?;
            let [from, to] = [from, to].map(|lane| LaneState::new(lane.id, job.state));
            self.tally.move_one(from, to);
        }
        Ok(())
    }

    async fn write_unkeyed(&mut self, jobs: &[Job]) -> Result<()> {
        let now = self.now;
        for job in jobs {
            self.tell(|| Event::window(now, job));
            self.wake(&job.queue, job.window.due_at);
        }
        let is_plain =
            |job: &&Job| job.window.asked_at == Timestamp::MIN && job.shape.fold == Fold::Last;
        let (plain, others): (Vec<&Job>, Vec<&Job>) = jobs.iter().partition(is_plain);
        for run in plain.chunk_by(|a, b| lane(a) == lane(b)) {
            insert_plain(&mut self.db, self.names, &mut self.tally, run).await?;
        }
        insert_new(&mut self.db, self.names, &mut self.tally, &others).await
    }
}

/// What jobs of one lane share.
fn lane(job: &Job) -> impl PartialEq + '_ {
    (job.priority, &job.task, &job.queue, &job.partition)
}
