//! The lists of dead jobs (R25), which read their own index.

use quell_core::{DeadFilter, DeadPlace, Job, JobId, Result};
use sqlx::postgres::PgRow;
use sqlx::{Postgres, QueryBuilder};

use crate::error::explain;
use crate::read::{Reader, push_names};
use crate::row::{ENDED_AT, get, job_columns, signed, time, unsigned};
use crate::sql::Sql;
use crate::tx::first;

impl Reader<'_> {
    /// A page of the dead, the latest death first.
    pub(crate) async fn dead(&mut self, filter: &DeadFilter) -> Result<Vec<Job>> {
        let (mut jobs, mut filter) = (Vec::new(), filter.clone());
        loop {
            let wanted = filter.page();
            let query = select_dead(self.sql, &filter);
            let rows = self.fetch_built("read the dead", query).await?;
            jobs.extend(self.readable(&rows).await?);
            let Some(last) = rows.last().filter(|_| rows.len() >= wanted && jobs.is_empty()) else {
                return Ok(jobs);
            };
            let id = JobId::new(unsigned(get(last, 0)?));
            filter.before = Some(DeadPlace { died_at: time(last, ENDED_AT)?, id });
        }
    }

    pub(crate) async fn count_dead(&mut self, filter: &DeadFilter) -> Result<u64> {
        const COUNT: &str = "select count(*) from quell.ended j where j.part = 0 and j.state = 3";
        let mut query = QueryBuilder::<Postgres>::new(self.sql.text(COUNT).as_ref());
        push_filter(&mut query, self.sql, filter);
        let rows = self.fetch_built("count the dead", query).await?;
        get(first(&rows)?, 0).map(unsigned)
    }

    async fn fetch_built(
        &mut self,
        what: &'static str,
        mut query: QueryBuilder<Postgres>,
    ) -> Result<Vec<PgRow>> {
        let query = query.build().persistent(self.sql.is_persistent());
        self.db.fetch_all(query).await.map_err(|e| explain(what, e))
    }
}

/// The rows of a page of the dead, the latest death first.
fn select_dead(sql: &Sql, filter: &DeadFilter) -> QueryBuilder<Postgres> {
    const DEAD: &str = concat!(
        "select ",
        job_columns!("j.payload", "false"),
        " from quell.ended j where j.part = 0 and j.state = 3"
    );
    let mut query = QueryBuilder::<Postgres>::new(sql.text(DEAD).as_ref());
    push_filter(&mut query, sql, filter);
    if let Some(before) = filter.before {
        // The first bound is for the index, which does not know the second.
        let (died_at, id) = (before.died_at.as_micros(), signed(before.id.get()));
        query.push(" and j.ended_at <= ").push_bind(died_at);
        query.push(" and (j.ended_at, j.id) < (").push_bind(died_at).push(", ");
        query.push_bind(id).push(")");
    }
    let page = i64::try_from(filter.page()).unwrap_or(i64::MAX);
    query.push(" order by j.ended_at desc, j.id desc limit ").push_bind(page);
    query
}

/// All of a filter but its page.
fn push_filter(query: &mut QueryBuilder<Postgres>, sql: &Sql, filter: &DeadFilter) {
    push_names(query, sql, filter.task.as_ref(), filter.queue.as_ref());
    if let Some(error) = &filter.error {
        // In this collation, as in every other store, only the ASCII characters A to Z have a case.
        query.push(" and strpos(lower(j.error collate \"C\"), ");
        query.push_bind(error.to_ascii_lowercase()).push(") > 0");
    }
    if let Some(after) = filter.died_after {
        query.push(" and j.ended_at >= ").push_bind(after.as_micros());
    }
    if let Some(before) = filter.died_before {
        query.push(" and j.ended_at < ").push_bind(before.as_micros());
    }
}
