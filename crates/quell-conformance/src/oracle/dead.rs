//! Operations on dead jobs (R25, R26), and the answers that both stores must give.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use quell_core::{DeadFilter, DeadPlace, JobId, Payload, Redrive, Store, Timestamp};

use super::{Op, Pair, both};
use crate::rig::task;

/// One operation on the dead.
#[derive(Clone, Debug)]
pub(super) enum DeadOp {
    /// Puts a job back, now and then with another payload, which is an array or not.
    Redrive {
        id: u64,
        payload: Option<bool>,
    },
    Discard(Vec<u64>),
    /// Exports all dead jobs.
    Export,
    /// Puts in what was kept, as it is or as if from another store.
    Import {
        foreign: bool,
    },
}

pub(super) fn dead_op() -> impl Strategy<Value = DeadOp> {
    prop_oneof![
        4 => (1_u64..12, prop::option::weighted(0.4, any::<bool>()))
            .prop_map(|(id, payload)| DeadOp::Redrive { id, payload }),
        1 => prop::collection::vec(1_u64..12, 0..4).prop_map(DeadOp::Discard),
        1 => Just(DeadOp::Export),
        1 => any::<bool>().prop_map(|foreign| DeadOp::Import { foreign }),
    ]
}

impl Pair {
    pub(super) async fn with_dead(&mut self, op: &Op, dead: &DeadOp) -> Result<(), TestCaseError> {
        let now = Some(self.now);
        match dead {
            DeadOp::Redrive { id, payload } => {
                let text = |array: &bool| if *array { "[77]" } else { "77" };
                let payload = payload.as_ref().map(|array| Payload::from_stored(text(array)));
                let redrive = Redrive { id: JobId::new(*id), payload };
                let answers = (
                    self.model.redrive(now, &redrive).await,
                    self.store.redrive(now, &redrive).await,
                );
                both(op, answers.0, answers.1)?;
            }
            DeadOp::Discard(ids) => {
                let ids: Vec<JobId> = ids.iter().copied().map(JobId::new).collect();
                let model = self.model.discard(now, &ids, "no use").await;
                both(op, model, self.store.discard(now, &ids, "no use").await)?;
            }
            DeadOp::Export => {
                let all = DeadFilter { limit: DeadFilter::MAX_PAGE, ..DeadFilter::default() };
                let dead = self.model.dead(&all).await.unwrap_or_default();
                let ids: Vec<JobId> = dead.iter().map(|job| job.id).collect();
                self.exports = self.model.exports(&ids).await.unwrap_or_default();
            }
            DeadOp::Import { foreign } => {
                let mut exports = self.exports.clone();
                if *foreign {
                    let far = |id: JobId| JobId::new(id.get() + 1_000);
                    exports.iter_mut().for_each(|export| export.job.id = far(export.job.id));
                }
                let model = self.model.import_dead(now, &exports).await;
                both(op, model, self.store.import_dead(now, &exports).await)?;
            }
        }
        Ok(())
    }

    /// The list of the dead, in pages and by each filter, and everything that is known of them.
    pub(super) async fn same_dead(&self, op: &Op) -> Result<(), TestCaseError> {
        let none = DeadFilter::default;
        let middle = Timestamp::from_micros(self.now.as_micros().saturating_sub(20_000_000));
        let filters = [
            none(),
            DeadFilter { task: Some(task("t")), limit: 2, ..none() },
            DeadFilter { queue: Some(super::queue_number(1)), ..none() },
            DeadFilter { error: Some("BOOM".into()), died_before: Some(middle), ..none() },
            DeadFilter { error: Some("%".into()), ..none() },
            DeadFilter { died_after: Some(middle), ..none() },
        ];
        // One of them at each step, so that steps stay cheap.
        let turn = self.steps % filters.len();
        for filter in filters.into_iter().skip(turn).take(1) {
            let (model, store) = (self.model.dead(&filter).await, self.store.dead(&filter).await);
            let page = both(op, model, store)?.unwrap_or_default();
            let counts =
                (self.model.count_dead(&filter).await, self.store.count_dead(&filter).await);
            both(op, counts.0, counts.1)?;
            let ids: Vec<JobId> = page.iter().rev().map(|job| job.id).collect();
            both(op, self.model.exports(&ids).await, self.store.exports(&ids).await)?;
            let before = page.get(page.len() / 2).and_then(DeadPlace::of);
            let rest = DeadFilter { before, ..filter };
            both(op, self.model.dead(&rest).await, self.store.dead(&rest).await)?;
        }
        Ok(())
    }
}
