//! What attempts record of their effects on the outside (R23): rows loaded, the core's rules asked,
//! rows written.

use std::collections::HashMap;

use quell_core::effect::{self, Begun, Done};
use quell_core::{Effect, EffectName, JobId, Key, Lease, LeaseToken, Payload, Result, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::explain;
use crate::read::Reader;
use crate::row::{decode, get, job_columns, optional_time, signed, time, unsigned};
use crate::tx::Tx;

impl Tx<'_> {
    pub(crate) async fn begin_effect(
        &mut self,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun> {
        const COUNT: &str = "select count(*) from quell_effect where job_id = ?1";
        self.check_lease(lease).await?;
        let known = self.effect(lease.job, name).await?;
        let count = sqlx::query_scalar(COUNT).bind(signed(lease.job.get()));
        let effects: i64 =
            count.fetch_one(&mut *self.db).await.map_err(|e| explain("count effects", e))?;
        let intent = Effect::intended(self.now, lease.token, name, key);
        let effects = usize::try_from(effects).unwrap_or(usize::MAX);
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
        self.check_lease(lease).await?;
        let known = self.effect(lease.job, name).await?;
        match effect::end(self.now, lease, name, known, result)? {
            Some(ended) => self.put_effect(lease.job, &ended).await,
            None => Ok(()),
        }
    }

    async fn check_lease(&mut self, lease: &Lease) -> Result<()> {
        const JOB: &str =
            concat!("select ", job_columns!("null"), " from quell_job j where j.id = ?1");
        let row = sqlx::query(JOB).bind(signed(lease.job.get()));
        let row = row.fetch_optional(&mut *self.db).await;
        let row = row.map_err(|e| explain("read a job", e))?;
        let job = row.map(|row| decode(&row, self.names)).transpose()?;
        effect::check_lease(self.now, lease, job.as_ref())
    }

    async fn effect(&mut self, job: JobId, name: &EffectName) -> Result<Option<Effect>> {
        Ok(read_effects(&mut self.db, job, Some(name)).await?.pop())
    }

    pub(crate) async fn put_effect(&mut self, job: JobId, effect: &Effect) -> Result<()> {
        const PUT: &str = "insert or replace into quell_effect
                (job_id, name, key, begun_at, begun_by, done_at, done_by, result)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let done = effect.done.as_ref();
        sqlx::query(PUT)
            .bind(signed(job.get()))
            .bind(effect.name.as_str().to_owned())
            .bind(effect.key.as_str().to_owned())
            .bind(effect.begun_at.as_micros())
            .bind(signed(effect.begun_by.get()))
            .bind(done.map(|done| done.at.as_micros()))
            .bind(done.map(|done| signed(done.by.get())))
            .bind(done.map(|done| done.result.as_str().to_owned()))
            .execute(&mut *self.db)
            .await
            .map_err(|e| explain("record an effect", e))?;
        Ok(())
    }
}

impl Reader {
    /// A job's effects, by name.
    pub(crate) async fn effects(&mut self, job: JobId) -> Result<Vec<Effect>> {
        read_effects(self.connection(), job, None).await
    }

    /// The effects of these jobs, a JSON array, by name.
    pub(crate) async fn effects_of(&mut self, ids: &str) -> Result<HashMap<JobId, Vec<Effect>>> {
        const OF: &str = "select name, key, begun_at, begun_by, done_at, done_by, result, job_id
               from quell_effect where job_id in (select value from json_each(?1))
              order by job_id, name";
        let rows = sqlx::query(OF).bind(ids.to_owned()).fetch_all(self.connection()).await;
        let mut effects: HashMap<JobId, Vec<Effect>> = HashMap::new();
        for row in &rows.map_err(|e| explain("read effects", e))? {
            let id = JobId::new(unsigned(get(row, 7)?));
            effects.entry(id).or_default().push(decode_effect(row)?);
        }
        Ok(effects)
    }
}

async fn read_effects(
    db: &mut SqliteConnection,
    job: JobId,
    name: Option<&EffectName>,
) -> Result<Vec<Effect>> {
    const ALL: &str = "select name, key, begun_at, begun_by, done_at, done_by, result
           from quell_effect where job_id = ?1 order by name";
    const ONE: &str = "select name, key, begun_at, begun_by, done_at, done_by, result
           from quell_effect where job_id = ?1 and name = ?2";
    let query = match name {
        None => sqlx::query(ALL).bind(signed(job.get())),
        Some(name) => sqlx::query(ONE).bind(signed(job.get())).bind(name.as_str().to_owned()),
    };
    let rows = query.fetch_all(db).await.map_err(|e| explain("read effects", e))?;
    rows.iter().map(decode_effect).collect()
}

fn decode_effect(row: &SqliteRow) -> Result<Effect> {
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
