//! Operations that this store makes by statements of its own: lists and looks that know its indexes, and
//! calls that mostly find nothing to do. Some come before a step of the engine.

use quell_core::heartbeat::{Beaten, Heartbeat};
use quell_core::{Answer, ExplainTarget, Now, Operation, Result, Timestamp};

use crate::backend::PostgresBackend;
use crate::leases::{forget_left_query, has_expired};
use crate::row::{get, time};
use crate::schedules::look_for_ticks;
use crate::tx::one_shot;
use crate::workers::beat_query;

impl PostgresBackend {
    /// Takes an operation; none leaves it to the engine.
    pub(crate) async fn take(&self, now: Now, operation: &Operation) -> Result<Option<Answer>> {
        let answer = match operation {
            Operation::Jobs { filter } => {
                Answer::Jobs(reading!(self, long, |reader| reader.jobs(filter))?)
            }
            Operation::Explain { target } => {
                // Only keys that expire need the time.
                let now = match target {
                    ExplainTarget::IdempotencyKey { .. } | ExplainTarget::DedupKey { .. } => {
                        self.peek_clock(self.asked(now)).await?
                    }
                    ExplainTarget::Job(_)
                    | ExplainTarget::Trigger(_)
                    | ExplainTarget::Key { .. } => Timestamp::MIN,
                };
                Answer::Explain(reading!(self, long, |reader| reader.explain(now, target))?)
            }
            Operation::Backlog { of } => {
                let now = self.peek_clock(self.asked(now)).await?;
                Answer::Backlog(reading!(self, long, |reader| reader.backlog(now, of))?)
            }
            Operation::Attempts { id } => {
                Answer::Attempts(reading!(self, |reader| reader.attempts(*id))?)
            }
            Operation::Dead { filter } => {
                Answer::Dead(reading!(self, long, |reader| reader.dead(filter))?)
            }
            Operation::CountDead { filter } => {
                Answer::CountDead(reading!(self, long, |reader| reader.count_dead(filter))?)
            }
            Operation::Overview {} => {
                let asked = self.asked(now);
                let overview = reading!(self, long, |reader| reader.overview(asked))?;
                self.saw(overview.now);
                Answer::Overview(overview)
            }
            Operation::Heartbeat { beat } => match self.beat_again(now, beat).await? {
                Some(beaten) => Answer::Heartbeat(beaten),
                None => return Ok(None),
            },
            Operation::Reap { .. } => {
                if has_expired(&self.upkeep, &self.sql, self.asked(now)).await? {
                    let left = forget_left_query(&self.sql, self.asked(now));
                    one_shot(&self.upkeep, &self.sql, left).await?;
                    return Ok(None);
                }
                Answer::Reap(Vec::new())
            }
            Operation::Tick { limit } => {
                let seen = look_for_ticks(&self.upkeep, &self.sql, self.asked(now)).await?;
                self.saw(seen.now);
                if *limit > 0 && seen.next.is_some_and(|next| next <= seen.now) {
                    self.fold_first(now).await?;
                    return Ok(None);
                }
                Answer::Tick(seen)
            }
            Operation::Flush { .. }
            | Operation::CancelKey { .. }
            | Operation::RunSchedule { .. }
            | Operation::Backfill { .. } => {
                self.fold_first(now).await?;
                return Ok(None);
            }
            _ => return Ok(None),
        };
        Ok(Some(answer))
    }

    /// Changes the row of a worker, if it has one: one statement.
    async fn beat_again(&self, now: Now, beat: &Heartbeat) -> Result<Option<Beaten>> {
        let query = beat_query(&self.sql, self.asked(now), beat)?;
        let rows = one_shot(&self.upkeep, &self.sql, query).await?;
        self.warmth.fade();
        let Some(row) = rows.first() else { return Ok(None) };
        self.saw(time(row, 0)?);
        Ok(Some(Beaten { drained: get(row, 1)? }))
    }
}
