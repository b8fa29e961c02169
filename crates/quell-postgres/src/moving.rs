//! Jobs that move between states beside common successes: locked together with the windows of their
//! keys, changed by the core's rules, and written back.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::history::Event;
use quell_core::{
    AttemptOutcome, Job, JobId, JobState, Key, Lease, Result, SettledAs, TaskName, Timestamp,
};

use crate::error::corrupt;
use crate::row::{closed_before, decode, get, job_columns, next_window, signed, time, unsigned};
use crate::tx::Tx;
use crate::write::{Behind, storable};

/// Jobs that a call moves, locked in the order of their ids, and what it made of them.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    jobs: BTreeMap<JobId, Job>,
    changed: BTreeSet<JobId>,
    /// Dedup holds that follow an absorbed job.
    followed: Vec<(JobId, JobId)>,
    pub(crate) attempts: Vec<(Job, AttemptOutcome, Option<String>)>,
    behind: Behind,
    /// What those that ran when they were locked had.
    leases: BTreeMap<JobId, Lease>,
}

impl Moving {
    /// A job and the next window of its key, to be changed and put back (R10, R12).
    pub(crate) fn take(&self, id: JobId) -> Option<(Job, Option<Job>)> {
        let job = self.jobs.get(&id)?.clone();
        let next = self.other_windows(&job).next().cloned();
        Some((job, next))
    }

    /// The windows of the job's key that are locked here, in the order of their ids, without itself.
    fn other_windows(&self, job: &Job) -> impl DoubleEndedIterator<Item = &Job> {
        self.jobs.values().filter(move |other| {
            other.id != job.id
                && other.state == JobState::Scheduled
                && job.key.is_some()
                && (&other.task, &other.key) == (&job.task, &job.key)
        })
    }

    /// R10: a job that went back waits behind the closed window before it, and the next window of its
    /// key behind the job, if that is older. Of an open window nobody is told that it ends, so none
    /// is put behind it.
    fn line_up(&mut self, job: &Job, next: &Job) {
        if job.id > next.id {
            let is_before = |other: &&Job| other.is_closed_window() && other.id < job.id;
            let before = self.other_windows(job).rfind(is_before).map(|before| before.id);
            if let Some(before) = before.filter(|_| !job.shape.overlap) {
                self.behind.insert(job.id, before);
            }
        } else if job.is_closed_window() && !next.shape.overlap {
            // A claim that has just found it looks again, as its row changes.
            self.behind.insert(next.id, job.id);
            self.changed.insert(next.id);
            self.jobs.insert(next.id, next.clone());
        }
    }
}

/// A job that has ended.
const ENDED: &str = concat!(
    "select ",
    job_columns!("j.payload", "false"),
    " from quell.ended j where j.id = any($1) and j.state + 0 <> 6 for update of j"
);
/// A job that was set aside.
const ASIDE: &str = concat!(
    "select ",
    job_columns!("j.payload", "false"),
    " from quell.ended j where j.part = 0 and j.id = any($1) and j.state + 0 = 6 for update of j"
);

impl Tx<'_> {
    /// Cancels a job, or puts a dead one back: `change` moves it, in view of its key's next window.
    pub(crate) async fn move_one(
        &mut self,
        id: JobId,
        change: impl FnOnce(Timestamp, &mut Job, Option<&mut Job>) -> Result<Option<SettledAs>>,
    ) -> Result<Option<SettledAs>> {
        let moving = self.lock(BTreeSet::from([id])).await?;
        self.move_locked(moving, id, change).await
    }

    /// Changes the open window of a key, and returns its id.
    pub(crate) async fn move_open_window(
        &mut self,
        task: &TaskName,
        key: &Key,
        change: impl FnOnce(Timestamp, &mut Job) -> Result<()>,
    ) -> Result<Option<JobId>> {
        loop {
            let Some(id) = self.open_window(task, key).await? else { return Ok(None) };
            let moving = self.lock(BTreeSet::from([id])).await?;
            // The lock may have been waited for: another call started, ended or closed the window.
            if moving.jobs.get(&id).is_some_and(Job::is_open_window) {
                let change = |now, job: &mut Job, _: Option<&mut Job>| {
                    change(now, job)?;
                    Ok(None)
                };
                self.move_locked(moving, id, change).await?;
                return Ok(Some(id));
            }
        }
    }

    /// The open window of a key, which is locked later: together with the one that comes before it, in
    /// the order of their ids.
    async fn open_window(&mut self, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        const WINDOW: &str = "select w.id
               from quell.task t
              cross join lateral (
                    select j.id from quell.job j
                     where j.task_id = t.id and j.key = $2 and j.state = 0 and not j.closed
                    offset 0) w
              where t.name = $1";
        let query = self.sql.query(WINDOW).bind(task.as_str().to_owned());
        let query = query.bind(key.as_str().to_owned());
        let rows = self.fetch("read an open window", query).await?;
        rows.first().map(|row| Ok(JobId::new(unsigned(get(row, 0)?)))).transpose()
    }

    async fn move_locked(
        &mut self,
        mut moving: Moving,
        id: JobId,
        change: impl FnOnce(Timestamp, &mut Job, Option<&mut Job>) -> Result<Option<SettledAs>>,
    ) -> Result<Option<SettledAs>> {
        let was_ended = !moving.jobs.contains_key(&id);
        if was_ended {
            self.lock_ended(&mut moving, id, ENDED).await?;
        }
        let Some((mut job, mut heir)) = moving.take(id) else { return Ok(None) };
        self.read_clock().await?;
        let ran = job.clone();
        let became = change(self.now, &mut job, heir.as_mut())?;
        if ran.state == JobState::Running {
            moving.attempts.push((ran, AttemptOutcome::Cancelled, job.error.clone()));
            self.news.cancelled.push(id);
        }
        let became = match became {
            Some(became) => self.heed_key(&mut job, became).await?,
            None => SettledAs::Cancelled,
        };
        self.put_back(&mut moving, job, heir);
        if was_ended {
            let moved = moving.jobs.get(&id).cloned();
            moving.changed.remove(&id);
            if let Some(moved) = moved {
                self.put(&[&moved], true, &moving.behind).await?;
            }
        }
        self.write_moved(moving).await?;
        Ok(Some(became))
    }

    /// Locks jobs that wait or run, and the next windows of their keys, in the order of their ids.
    pub(crate) async fn lock(&mut self, ids: BTreeSet<JobId>) -> Result<Moving> {
        const LOCK: &str = concat!(
            "select ",
            job_columns!("j.payload", "false"),
            " from quell.job j
              where j.id = any($1 || array(
                        select unnest(array[",
            next_window!("o"),
            ", ",
            closed_before!("o"),
            "]) from quell.job o
                         where o.id = any($1)))
              order by j.id
                for update of j"
        );
        self.lock_by(LOCK, ids.iter().map(|id| signed(id.get())).collect()).await
    }

    async fn lock_by(&mut self, sql: &'static str, ids: Vec<i64>) -> Result<Moving> {
        if ids.is_empty() {
            return Ok(Moving::default());
        }
        let rows = self.fetch("lock jobs", self.sql.query(sql).bind(ids)).await?;
        self.know_lanes(&rows).await?;
        let jobs = rows.iter().map(|row| decode(row, self.names).map(|job| (job.id, job)));
        let mut jobs = jobs.collect::<Result<BTreeMap<JobId, Job>>>()?;
        let running = jobs.values().filter(|job| job.state == JobState::Running);
        let leases: Vec<Lease> =
            running.map(|job| Lease { job: job.id, token: job.token }).collect();
        for (id, until) in self.lease_ends(&leases).await? {
            jobs.entry(id).and_modify(|job| job.lease_until = Some(until));
        }
        let leases = leases.into_iter().map(|lease| (lease.job, lease)).collect();
        Ok(Moving { jobs, leases, ..Moving::default() })
    }

    /// Puts a job back that was set aside, if its row can be decoded (R25).
    pub(crate) async fn restore_one(
        &mut self,
        id: JobId,
        was: JobState,
    ) -> Result<Option<JobState>> {
        let mut moving = Moving::default();
        match self.lock_ended(&mut moving, id, ASIDE).await {
            Err(error) if error.unreadable_job().is_some() => return Ok(None),
            locked => locked?,
        }
        let Some((mut job, mut successor)) = moving.take(id) else { return Ok(None) };
        let waits = matches!(was, JobState::Scheduled | JobState::Running);
        let place = self.told();
        job.restore(self.now, was, successor.as_mut().filter(|_| waits));
        let due = job.window.due_at;
        self.heed_key(&mut job, SettledAs::Scheduled { due }).await?;
        let state = job.state;
        self.put_back(&mut moving, job, successor);
        let moved = moving.jobs.get(&id).cloned();
        moving.changed.remove(&id);
        self.put(&moved.iter().collect::<Vec<_>>(), true, &moving.behind).await?;
        self.write_moved(moving).await?;
        let t = self.now;
        self.tell_at(place, || Event::Restored { t, job: id, state });
        Ok(Some(state))
    }

    /// Locks a job that has ended, as `which` selects it, and the next window of its key.
    async fn lock_ended(
        &mut self,
        moving: &mut Moving,
        id: JobId,
        which: &'static str,
    ) -> Result<()> {
        const WINDOW: &str = concat!(
            "select ",
            job_columns!("j.payload", "false"),
            " from quell.ended e
             cross join lateral (
                   select * from quell.job w
                    where w.id = any(array[",
            next_window!("e"),
            ", ",
            closed_before!("e"),
            "])
                    order by w.id
                      for update) j
             where e.id = any($1)"
        );
        let id = vec![signed(id.get())];
        let mut found = self.lock_by(which, id.clone()).await?;
        moving.jobs.append(&mut found.jobs);
        let mut window = self.lock_by(WINDOW, id).await?;
        window.jobs.retain(|_, job| job.state == JobState::Scheduled);
        moving.jobs.append(&mut window.jobs);
        Ok(())
    }

    pub(crate) async fn write_moved(&mut self, moving: Moving) -> Result<()> {
        self.record_attempts(&moving.attempts).await?;
        let changed: Vec<Job> =
            moving.changed.iter().filter_map(|id| moving.jobs.get(id).cloned()).collect();
        self.put(&changed.iter().collect::<Vec<_>>(), false, &moving.behind).await?;
        let left = changed.iter().filter(|job| job.state != JobState::Running);
        let leases = left.filter_map(|job| moving.leases.get(&job.id).copied());
        self.forget_leases(&leases.collect::<Vec<_>>()).await?;
        for (from, to) in &moving.followed {
            // A key that was taken until the start is free: the job has started.
            const FOLLOW: &str = "update quell.hold set job_id = $2
                  where job_id = $1 and until <> '\"started\"'";
            let query = self.sql.query(FOLLOW).bind(signed(from.get())).bind(signed(to.get()));
            self.run("move dedup keys", query).await?;
            self.hand_over_records(*from, *to).await?;
        }
        self.free_keys_of(&changed).await
    }

    /// Takes a moved job, and the next window of its key where that absorbed it or waits for it, to
    /// be written.
    pub(crate) fn put_back(&mut self, moving: &mut Moving, job: Job, heir: Option<Job>) {
        if let Some(next) = heir.as_ref().filter(|_| job.state == JobState::Scheduled) {
            moving.line_up(&job, next);
        }
        let heir = heir.filter(|heir| job.absorbed_by == Some(heir.id));
        if job.state.is_ended() {
            self.news.ended.push(job.id);
        }
        let rows = [Some(&job), heir.as_ref()].into_iter().flatten();
        for row in rows.filter(|row| row.state == JobState::Scheduled) {
            let now = self.now;
            self.tell(|| Event::window(now, row));
            self.news.wake(&row.queue, row.window.due_at);
        }
        if let Some(heir) = heir {
            moving.followed.push((job.id, heir.id));
            moving.changed.insert(heir.id);
            moving.jobs.insert(heir.id, heir);
        }
        moving.changed.insert(job.id);
        moving.jobs.insert(job.id, job);
    }

    /// R11: tells of windows that may start because these jobs ran or came before them. One that goes
    /// back may come after a window that it held back.
    async fn free_keys_of(&mut self, changed: &[Job]) -> Result<()> {
        const WINDOWS: &str = concat!(
            "select w.lane_id, w.due_at
               from unnest($1::int[], $2::text[]) k (task_id, key)
              cross join lateral (select ",
            next_window!("k"),
            " as id offset 0) n
               join quell.job w on w.id between n.id and n.id"
        );
        let stopped = changed.iter().filter(|job| job.state != JobState::Running);
        let (mut tasks, mut keys) = (Vec::new(), Vec::new());
        for job in stopped {
            let (Some(task), Some(key)) = (self.names.task_id(&job.task), &job.key) else {
                continue;
            };
            tasks.push(task);
            keys.push(key.as_str().to_owned());
        }
        if keys.is_empty() {
            return Ok(());
        }
        let query = self.sql.query(WINDOWS).bind(tasks).bind(keys);
        let mut freed = Vec::new();
        for row in &self.fetch("free keys", query).await? {
            freed.push((get(row, 0)?, time(row, 1)?));
        }
        self.free(&freed).await
    }

    pub(crate) async fn free(&mut self, freed: &[(i32, Timestamp)]) -> Result<()> {
        let (names, sql) = (self.names, self.sql);
        names.load(self.db(), sql, freed.iter().map(|(lane, _)| *lane)).await?;
        for (lane, due) in freed {
            let lane = names.lane(*lane).ok_or_else(|| corrupt("lane"))?;
            self.news.wake(&lane.queue, *due);
        }
        Ok(())
    }

    /// Puts attempts that did not succeed on record.
    async fn record_attempts(
        &mut self,
        attempts: &[(Job, AttemptOutcome, Option<String>)],
    ) -> Result<()> {
        const RECORD: &str = "insert into quell.attempt
                (job_id, token, worker, started_at, ended_at, outcome, error)
             values ($1, $2, $3, $4, $5, $6, $7)";
        for (job, outcome, error) in attempts {
            let (Some(worker), Some(started_at)) = (&job.worker, job.started_at) else { continue };
            let query = self
                .sql
                .query(RECORD)
                .bind(signed(job.id.get()))
                .bind(signed(job.token.get()))
                .bind(worker.as_str().to_owned())
                .bind(started_at.as_micros())
                .bind(self.now.as_micros())
                .bind(i16::from(outcome.code()))
                .bind(error.as_deref().map(storable));
            self.run("record an attempt", query).await?;
            self.give_up_attempts(job).await?;
        }
        Ok(())
    }
}
