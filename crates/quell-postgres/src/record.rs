//! How many attempts a job keeps on record (R25).

use quell_core::record::given_up;
use quell_core::{Job, Result};

use crate::row::signed;
use crate::tx::Tx;

impl Tx<'_> {
    /// Gives up attempts of a job whose newest is on record, where there are many.
    pub(crate) async fn give_up_attempts(&mut self, job: &Job) -> Result<()> {
        const GIVE_UP: &str =
            "delete from quell.attempt where job_id = $1 and token between $2 and $3";
        let Some(tokens) = given_up(job.token) else { return Ok(()) };
        let query = self.sql.query(GIVE_UP).bind(signed(job.id.get()));
        let query = query.bind(signed(tokens.start().get())).bind(signed(tokens.end().get()));
        self.run("give up attempts", query).await
    }
}
