//! Jobs whose rows cannot be decoded (R25): set aside, listed and restored.
//!
//! A write call that meets such a row rolls back, sets the row aside in a transaction of its own and
//! starts again without it ([`Tx::set_aside`]; the loop is in `store`). Nothing of the row changes
//! but its state, its place among its key's jobs and its mark of waiting, so a process that can
//! decode it puts it back whole.

use quell_core::history::Event;
use quell_core::{
    Error, JobId, JobState, QueueName, Result, TaskName, UnreadableJob, UnreadablePage, unreadable,
};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tracing::warn;

use crate::error::explain;
use crate::keys::json;
use crate::names::Names;
use crate::read::Reader;
use crate::row::{decode, get, job_columns, signed, time, unsigned};
use crate::tally::{decode_lane_state, lane_state_columns};
use crate::tx::Tx;

impl Tx<'_> {
    /// Sets the job aside that `error` names; `false` where it is set aside already or is gone.
    pub(crate) async fn set_aside(&mut self, id: JobId, error: &Error) -> Result<bool> {
        const WAS: &str = concat!(
            "select ",
            lane_state_columns!(),
            " from quell_job where id = ?1 and state is not 6"
        );
        const RECORD: &str = "insert into quell_unreadable (job_id, was, set_aside_at, reason)
             select id, state, ?2, ?3 from quell_job where id = ?1
             on conflict (job_id) do update set
                 was = excluded.was, set_aside_at = excluded.set_aside_at, reason = excluded.reason";
        // R19: records of the job answer with its state; they are as those of a dead job.
        const CHANGES: [&str; 2] = [
            "update quell_job set state = 6, hold = null, waits = 0, lane_id = lane_id where id = ?1",
            "update quell_idempotency set state = 6 where job_id = ?1",
        ];
        let reason = unreadable::reason(error);
        let what = "set an unreadable job aside";
        let was = sqlx::query(WAS).bind(signed(id.get())).fetch_optional(&mut *self.db).await;
        let Some(was) = was.map_err(|e| explain(what, e))? else { return Ok(false) };
        let was = decode_lane_state(&was, 0)?;
        self.tally.move_one(was, was.with(JobState::Unreadable));
        sqlx::query(RECORD)
            .bind(signed(id.get()))
            .bind(self.now.as_micros())
            .bind(reason.clone())
            .execute(&mut *self.db)
            .await
            .map_err(|e| explain(what, e))?;
        for sql in CHANGES {
            let changed = sqlx::query(sql).bind(signed(id.get())).execute(&mut *self.db).await;
            changed.map_err(|e| explain(what, e))?;
        }
        // R11, R31: what it held back may start.
        self.free_all_keys().await?;
        self.free_slots();
        self.news.ended.push(id);
        warn!(job = %id, reason, "job set aside: its row cannot be decoded");
        let t = self.now;
        self.tell(|| Event::SetAside { t, job: id, reason });
        Ok(true)
    }

    /// Puts those of these jobs back whose rows can be decoded.
    pub(crate) async fn restore(&mut self, ids: &[JobId]) -> Result<Vec<JobId>> {
        const ROWS: &str = concat!(
            "select ",
            job_columns!("j.payload"),
            ", u.was from json_each(?1) k
              cross join quell_unreadable u on u.job_id = k.value
              cross join quell_job j on j.id = u.job_id and j.state = 6"
        );
        let asked = json(&ids.iter().map(|id| signed(id.get())).collect::<Vec<_>>())?;
        let rows = sqlx::query(ROWS).bind(asked).fetch_all(&mut *self.db).await;
        let mut restored = Vec::new();
        for row in &rows.map_err(|e| explain("read unreadable jobs", e))? {
            let Some(was) = state_before(row, WAS) else { continue };
            match decode(row, self.names) {
                Ok(mut job) => {
                    let successor = self.heir_of(&job).await;
                    // A successor that cannot be decoded is set aside when something needs it.
                    let Ok(mut successor) = successor else { continue };
                    let waits = matches!(was, JobState::Scheduled | JobState::Running);
                    job.restore(self.now, was, successor.as_mut().filter(|_| waits));
                    self.write_restored(&mut job, successor.as_ref()).await?;
                    restored.push(job.id);
                }
                Err(error) if error.unreadable_job().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(restored)
    }

    async fn write_restored(
        &mut self,
        job: &mut quell_core::Job,
        successor: Option<&quell_core::Job>,
    ) -> Result<()> {
        // R16: as with a redrive, keys that are free stay so. R19: the row tells its state again.
        const FORGET: [&str; 3] = [
            "delete from quell_unreadable where job_id = ?1",
            "delete from quell_hold
              where job_id = ?1 and until in ('\"started\"', '\"done\"')",
            "update quell_idempotency set state = null where job_id = ?1",
        ];
        for sql in FORGET {
            let forgot = sqlx::query(sql).bind(signed(job.id.get())).execute(&mut *self.db).await;
            forgot.map_err(|e| explain("restore a job", e))?;
        }
        let (t, place) = (self.now, self.told());
        let due = job.window.due_at;
        self.heed_key(job, quell_core::SettledAs::Scheduled { due }).await?;
        self.put_back(job, successor).await?;
        let (id, state) = (job.id, job.state);
        self.tell_at(place, || Event::Restored { t, job: id, state });
        Ok(())
    }
}

impl Reader {
    /// A page of the jobs that are set aside, newest first.
    pub(crate) async fn unreadable(&mut self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        const PAGE: &str = "select u.job_id, u.was, u.set_aside_at, u.reason, j.lane_id
               from quell_unreadable u join quell_job j on j.id = u.job_id
              where u.job_id < ?1 order by u.job_id desc limit ?2 + 0";
        let rows = sqlx::query(PAGE)
            .bind(page.before.map_or(i64::MAX, |id| signed(id.get())))
            .bind(i64::try_from(page.size()).unwrap_or(i64::MAX))
            .fetch_all(self.connection())
            .await
            .map_err(|e| explain("read unreadable jobs", e))?;
        rows.iter().map(|row| decode_unreadable(row, self.names())).collect()
    }
}

/// The column after those of the job.
const WAS: usize = crate::keys::NEXT;

fn decode_unreadable(row: &SqliteRow, names: &Names) -> Result<UnreadableJob> {
    let lane = row.try_get::<i64, _>(4).ok().and_then(|lane| names.lane(lane));
    let (queue, task): (Option<QueueName>, Option<TaskName>) =
        lane.map(|lane| (lane.queue.clone(), lane.task.clone())).unzip();
    Ok(UnreadableJob {
        id: JobId::new(unsigned(get(row, 0)?)),
        queue,
        task,
        was: state_before(row, 1),
        set_aside_at: time(row, 2)?,
        reason: get(row, 3)?,
    })
}

fn state_before(row: &SqliteRow, index: usize) -> Option<JobState> {
    let code = row.try_get::<i64, _>(index).ok()?;
    JobState::from_code(u8::try_from(code).ok()?).filter(|state| *state != JobState::Unreadable)
}
