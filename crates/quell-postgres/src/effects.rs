//! What attempts record of their effects on the outside (R23): the job's row is locked, so that its
//! lease cannot end meanwhile, then the core's rules are asked and the record is written.

use std::collections::HashMap;

use quell_core::effect::{self, Begun, Done};
use quell_core::{
    DeadLetter, Effect, EffectName, JobId, JobState, Key, Lease, LeaseToken, Payload, Result,
    Timestamp,
};
use sqlx::postgres::PgRow;

use crate::read::Reader;
use crate::row::{decode, get, job_columns, optional_time, signed, time, unsigned};
use crate::tx::{Tx, first};

impl Tx<'_> {
    pub(crate) async fn begin_effect(
        &mut self,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun> {
        const COUNT: &str = "select count(*) from quell.effect where job_id = $1";
        self.lock_lease(lease).await?;
        let known = self.effect(lease.job, name).await?;
        let query = self.sql.query(COUNT).bind(signed(lease.job.get()));
        let rows = self.fetch("count effects", query).await?;
        let effects = usize::try_from(get::<i64, _>(first(&rows)?, 0)?).unwrap_or(usize::MAX);
        let intent = Effect::intended(self.now, lease.token, name, key);
        let begun = intent.begin(lease.job, known.as_ref(), effects)?;
        if known.is_none() {
            self.put_effect(lease.job, &intent).await?;
        }
        Ok(begun)
    }

    pub(crate) async fn end_effect(
        &mut self,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        self.lock_lease(lease).await?;
        let known = self.effect(lease.job, name).await?;
        match effect::end(self.now, lease, name, known, result)? {
            Some(ended) => self.put_effect(lease.job, &ended).await,
            None => Ok(()),
        }
    }

    /// Keeps the lease from ending until the transaction does; fails where it was lost.
    async fn lock_lease(&mut self, lease: &Lease) -> Result<()> {
        const LOCK: &str = concat!(
            "select ",
            job_columns!("null::text", "false"),
            " from quell.job j where j.id = $1 for no key update"
        );
        let query = self.sql.query(LOCK).bind(signed(lease.job.get()));
        let rows = self.fetch("lock a job", query).await?;
        self.know_lanes(&rows).await?;
        self.read_clock().await?;
        let mut job = rows.first().map(|row| decode(row, self.names)).transpose()?;
        let ends = self.lease_ends(&[*lease]).await?;
        if let Some(job) = job.as_mut().filter(|job| job.state == JobState::Running) {
            job.lease_until = ends.get(&job.id).copied();
        }
        effect::check_lease(self.now, lease, job.as_ref())
    }

    async fn effect(&mut self, job: JobId, name: &EffectName) -> Result<Option<Effect>> {
        const ONE: &str = "select name, key, begun_at, begun_by, done_at, done_by, result
               from quell.effect where job_id = $1 and name = $2";
        let query = self.sql.query(ONE).bind(signed(job.get())).bind(name.as_str().to_owned());
        let rows = self.fetch("read an effect", query).await?;
        rows.first().map(decode_effect).transpose()
    }

    /// Writes what came with imported jobs.
    pub(crate) async fn write_effects(&mut self, came: &[(JobId, &DeadLetter)]) -> Result<()> {
        for (id, letter) in came {
            for effect in &letter.effects {
                self.put_effect(*id, effect).await?;
            }
        }
        Ok(())
    }

    async fn put_effect(&mut self, job: JobId, effect: &Effect) -> Result<()> {
        const PUT: &str = "insert into quell.effect
                (job_id, name, key, begun_at, begun_by, done_at, done_by, result)
             values ($1, $2, $3, $4, $5, $6, $7, $8)
                 on conflict (job_id, name) do update
                set done_at = excluded.done_at, done_by = excluded.done_by,
                    result = excluded.result";
        let done = effect.done.as_ref();
        let query = self
            .sql
            .query(PUT)
            .bind(signed(job.get()))
            .bind(effect.name.as_str().to_owned())
            .bind(effect.key.as_str().to_owned())
            .bind(effect.begun_at.as_micros())
            .bind(signed(effect.begun_by.get()))
            .bind(done.map(|done| done.at.as_micros()))
            .bind(done.map(|done| signed(done.by.get())))
            .bind(done.map(|done| done.result.as_str().to_owned()));
        self.run("record an effect", query).await
    }
}

impl Reader<'_> {
    /// A job's effects, by name.
    pub(crate) async fn effects(&mut self, job: JobId) -> Result<Vec<Effect>> {
        const ALL: &str = "select name, key, begun_at, begun_by, done_at, done_by, result
               from quell.effect where job_id = $1 order by name";
        let query = self.sql.query(ALL).bind(signed(job.get()));
        self.fetch("read effects", query).await?.iter().map(decode_effect).collect()
    }

    /// The effects of these jobs, by name.
    pub(crate) async fn effects_of(&mut self, jobs: &[i64]) -> Result<HashMap<JobId, Vec<Effect>>> {
        const OF: &str = "select name, key, begun_at, begun_by, done_at, done_by, result, job_id
               from quell.effect where job_id = any($1) order by job_id, name";
        let mut effects: HashMap<JobId, Vec<Effect>> = HashMap::new();
        for row in &self.fetch("read effects", self.sql.query(OF).bind(jobs.to_vec())).await? {
            let id = JobId::new(unsigned(get(row, 7)?));
            effects.entry(id).or_default().push(decode_effect(row)?);
        }
        Ok(effects)
    }
}

fn decode_effect(row: &PgRow) -> Result<Effect> {
    let (name, key): (&str, &str) = (get(row, 0)?, get(row, 1)?);
    let by = |number: i64| LeaseToken::new(unsigned(number));
    let done: (Option<Timestamp>, Option<i64>, Option<&str>) =
        (optional_time(row, 4)?, get(row, 5)?, get(row, 6)?);
    let done = match done {
        (Some(at), Some(token), Some(result)) => {
            Some(Done { at, by: by(token), result: Payload::from_stored(result) })
        }
        _ => None,
    };
    Ok(Effect {
        name: EffectName::new(name)?,
        key: Key::new(key)?,
        begun_at: time(row, 2)?,
        begun_by: by(get(row, 3)?),
        done,
    })
}
