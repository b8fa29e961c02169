//! The indexes that the engine's steps read. Of those that it does not read, other operations are made by
//! statements of their own, which know the tables: lists, what alerts look at, claims and upkeep.

use quell_core::{Error, ErrorKind, JobId, Result, Timestamp};
use quell_engine::{Entry, Index, Place, RowName, Scan, Seen};
use sqlx::postgres::PgRow;

use crate::backend::PostgresBackend;
use crate::keyed::of_job;
use crate::row::{get, signed, unsigned};
use crate::step::Step;

impl PostgresBackend {
    /// Reads indexes, one answer for each in their order.
    pub(crate) async fn scan_indexes(&self, step: &mut Step, scans: &[Scan]) -> Result<Vec<Seen>> {
        let jobs: Option<Vec<JobId>> = scans.iter().map(|scan| of_job(&scan.index)).collect();
        if let Some(jobs) = jobs {
            return self.names_of_jobs(step, &jobs).await;
        }
        let mut seen = Vec::with_capacity(scans.len());
        for scan in scans {
            seen.push(self.scan_index(step, scan).await?);
        }
        Ok(seen)
    }

    async fn scan_index(&self, step: &mut Step, scan: &Scan) -> Result<Seen> {
        match &scan.index {
            Index::Of(id) => Ok(self.names_of_jobs(step, &[*id]).await?.pop().unwrap_or_default()),
            Index::Closed(key) => self.closed_windows(step, key, scan.limit).await,
            Index::Leases if step.writes() => self.expired_leases(step, scan).await,
            Index::Plan => self.planned(step, scan).await,
            Index::Fired(schedule) => self.fired(step, schedule, scan).await,
            Index::Unreadable => self.asides(step, scan).await,
            Index::Rows(kind) => self.rows_of(step, *kind, scan).await,
            index @ (Index::Line(..)
            | Index::Begun(_)
            | Index::Leases
            | Index::Waiting
            | Index::Ended
            | Index::Dead
            | Index::Expiry
            | Index::Ticks
            | Index::Jobs) => {
                // The engine looks there only for what it counts, and counts by the rows where it cannot:
                // this store's counts follow from its tables.
                let message = format!("this store keeps no index {index:?} that a step reads");
                Err(Error::new(ErrorKind::Corrupt, message))
            }
        }
    }

    /// Jobs by when their leases expire, locked with them. Rows that another call holds are skipped: it
    /// may be a caller's transaction that ends the job.
    async fn expired_leases(&self, step: &mut Step, scan: &Scan) -> Result<Seen> {
        let expired =
            self.lock_expired(step, scan.to.unwrap_or(Timestamp::MAX), scan.limit).await?;
        let entry = |(until, id)| {
            let (place, name) = (Place::at(until), RowName::Job(id));
            Entry { place, name, note: None }
        };
        let entries: Vec<Entry> = expired.into_iter().map(entry).collect();
        Ok(Seen { more: entries.len() >= scan.limit, entries })
    }

    /// Jobs that are set aside, the newest first.
    async fn asides(&self, step: &mut Step, scan: &Scan) -> Result<Seen> {
        const PAGE: &str = "select u.job_id from quell.unreadable u
              where u.job_id < $1 order by u.job_id desc limit $2";
        let before = match &scan.after {
            Some((_, RowName::Job(id))) => signed(id.get()),
            _ => i64::MAX,
        };
        let query = self.sql.query(PAGE).bind(before);
        let query = query.bind(i64::try_from(scan.limit).unwrap_or(i64::MAX));
        let rows = step.fetch(self, "read unreadable jobs", query).await?;
        let entry = |row: &PgRow| {
            let name = RowName::Job(JobId::new(unsigned(get(row, 0)?)));
            Ok(Entry { place: Place::NONE, name, note: None })
        };
        let entries = rows.iter().map(entry).collect::<Result<Vec<Entry>>>()?;
        Ok(Seen { more: entries.len() >= scan.limit, entries })
    }
}
