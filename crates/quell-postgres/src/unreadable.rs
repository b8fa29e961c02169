//! Jobs whose rows cannot be decoded (R25): set aside, listed and restored.
//!
//! A transaction that meets such a row is rolled back, the row is set aside in one of its own, and
//! the call starts again without it: the loop is in `store`. The row moves whole among the ended, so
//! a process that can decode it puts it back as it was.

use quell_core::history::Event;
use quell_core::{
    Error, JobId, JobState, Lease, LeaseToken, QueueName, Result, UnreadableJob, UnreadablePage,
    unreadable,
};
use sqlx::postgres::PgRow;
use tracing::warn;

use crate::leases::draw;
use crate::names::Names;
use crate::read::Reader;
use crate::row::{get, signed, time, unsigned};
use crate::tx::Tx;
use crate::write::storable;

impl Tx<'_> {
    /// Sets the job aside that `error` names; `false` where it is set aside already or is gone.
    pub(crate) async fn set_aside(&mut self, id: JobId, error: &Error) -> Result<bool> {
        // The row is locked where it is: in one of the two tables.
        const MOVE: &str = concat!(
            "with gone as (delete from quell.job where id = $1 returning *)
             insert into quell.ended as j select * from gone returning ",
            draw!("j")
        );
        const MARK: &str = "with was as (
                 select id, state from quell.ended where id = $1 and state + 0 <> 6 for update),
             gone as (delete from quell.ended e using was w where e.id = w.id returning e as job),
             marked as (
                 insert into quell.ended
                 select (json_populate_record(g.job, '{\"state\": 6, \"part\": 0}')).* from gone g
              returning id),
             kept as (
                 update quell.idempotency set state = 6 where job_id in (select id from marked))
             insert into quell.unreadable as u (job_id, set_aside_at, was, reason)
             select id, $2, state, $3 from was
                 on conflict (job_id) do update set
                    set_aside_at = excluded.set_aside_at, was = excluded.was,
                    reason = excluded.reason
          returning job_id";
        const FREED: &str = "select q.name, n.due_at
               from quell.ended e
               join quell.job n on n.id = quell.next_window(e.task_id, e.key)
               join quell.lane l on l.id = n.lane_id
               join quell.queue q on q.id = l.queue_id
              where e.id = $1";
        let (what, reason) = ("set an unreadable job aside", storable(&unreadable::reason(error)));
        let number = signed(id.get());
        let moved = self.fetch(what, self.sql.query(MOVE).bind(number)).await?;
        for row in &moved {
            let token = LeaseToken::new(unsigned(get(row, 0)?));
            self.forget_leases(&[Lease { job: id, token }]).await?;
        }
        self.read_clock().await?;
        let mark = self.sql.query(MARK).bind(number).bind(self.now.as_micros());
        if self.fetch(what, mark.bind(reason.clone())).await?.is_empty() {
            return Ok(false);
        }
        // R11, R31: what it held back may start.
        for row in &self.fetch(what, self.sql.query(FREED).bind(number)).await? {
            self.news.wake(&QueueName::new(get::<&str, _>(row, 0)?)?, time(row, 1)?);
        }
        self.free_slots().await?;
        self.news.ended.push(id);
        warn!(job = %id, reason, "job set aside: its row cannot be decoded");
        let t = self.now;
        self.tell(|| Event::SetAside { t, job: id, reason });
        Ok(true)
    }

    /// Puts those of these jobs back whose rows can be decoded.
    pub(crate) async fn restore(&mut self, ids: &[JobId]) -> Result<Vec<JobId>> {
        const WAS: &str = "select job_id, was from quell.unreadable
              where job_id = any($1) order by job_id for update";
        // R16: as with a redrive, keys that are free stay so. R19: the row tells its state again.
        const FORGET: [&str; 3] = [
            "delete from quell.unreadable where job_id = $1",
            "delete from quell.hold
              where job_id = $1 and until in ('\"started\"', '\"done\"')",
            "update quell.idempotency set state = null where job_id = $1",
        ];
        let numbers: Vec<i64> = ids.iter().map(|id| signed(id.get())).collect();
        let rows = self.fetch("read unreadable jobs", self.sql.query(WAS).bind(numbers)).await?;
        self.read_clock().await?;
        let mut restored = Vec::new();
        for row in &rows {
            let (Some(was), number) = (state_before(row, 1), get::<i64, _>(row, 0)?) else {
                continue;
            };
            let id = JobId::new(unsigned(number));
            if self.restore_one(id, was).await?.is_some() {
                for sql in FORGET {
                    self.run("restore a job", self.sql.query(sql).bind(number)).await?;
                }
                restored.push(id);
            }
        }
        restored.sort_by_key(|id| ids.iter().position(|asked| asked == id));
        Ok(restored)
    }
}

impl Reader<'_> {
    /// A page of the jobs that are set aside, newest first.
    pub(crate) async fn unreadable(&mut self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        const PAGE: &str = "select e.id, e.lane_id, u.was, u.set_aside_at, u.reason
               from quell.unreadable u join quell.ended e on e.part = 0 and e.id = u.job_id
              where u.job_id < $1 order by u.job_id desc limit $2";
        let before = page.before.map_or(i64::MAX, |id| signed(id.get()));
        let query = self.sql.query(PAGE).bind(before);
        let query = query.bind(i64::try_from(page.size()).unwrap_or(i64::MAX));
        let rows = self.fetch("read unreadable jobs", query).await?;
        self.know_lanes(&rows).await?;
        rows.iter().map(|row| decode_unreadable(row, self.names())).collect()
    }
}

fn decode_unreadable(row: &PgRow, names: &Names) -> Result<UnreadableJob> {
    let lane = names.lane(get(row, 1)?);
    let (queue, task) = lane.map(|lane| (lane.queue.clone(), lane.task.clone())).unzip();
    Ok(UnreadableJob {
        id: JobId::new(unsigned(get(row, 0)?)),
        queue,
        task,
        was: state_before(row, 2),
        set_aside_at: time(row, 3)?,
        reason: get(row, 4)?,
    })
}

fn state_before(row: &PgRow, index: usize) -> Option<JobState> {
    let code: i16 = get(row, index).ok()?;
    JobState::from_code(u8::try_from(code).ok()?).filter(|state| *state != JobState::Unreadable)
}
