//! When something will be to do, by one look (R34): what an idle worker costs.

use std::sync::Arc;

use quell_core::{NextDue, Now, QueueName, Result, TaskName, Timestamp};

use crate::backend::RedisBackend;
use crate::known::Known;
use crate::look::Read;
use crate::open::VERSION;
use crate::shard::Time;

/// Lines of one queue that a look sees, those that are due first.
const MOST_HEADS: usize = 200;

/// When the first job of a queue's lines is due.
#[derive(Debug, Default)]
struct First {
    due: Option<Timestamp>,
    /// Whether there are more lines than were read, and none of those read was of the tasks.
    unsure: bool,
}

impl RedisBackend {
    /// None where the step must be taken that knows all cases.
    pub(crate) async fn next_due_of(
        &self,
        now: Now,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<Option<NextDue>> {
        let limits = |known: &Known| {
            let settings = known.settings(queue);
            settings.limits_rate() || settings.partition_concurrency.is_some()
        };
        if !limits(&self.shard.known()) {
            let (next, known) = self.look_at_heads(now.into(), &[(queue, tasks)]).await?;
            if let Some((next, false)) = next.into_iter().next().filter(|_| !limits(&known)) {
                return Ok(Some(next));
            }
        }
        self.next_by_script(now, queue, tasks).await
    }

    /// As [`Store::peek`](quell_core::Store::peek); none where that is not sure of a queue.
    pub(crate) async fn peek_all(
        &self,
        now: Now,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Option<Vec<NextDue>>> {
        let asked: Vec<(&QueueName, &[TaskName])> =
            queues.iter().map(|(queue, tasks)| (queue, &**tasks)).collect();
        let (looked, _) = self.look_at_heads(now.into(), &asked).await?;
        let sure = looked.into_iter().map(|(next, unsure)| Some(next).filter(|_| !unsure));
        Ok(sure.collect())
    }

    /// When the first jobs of these queues are due whatever limits say, and whether that is not
    /// sure, with the names and settings that were known.
    async fn look_at_heads(
        &self,
        time: Time,
        queues: &[(&QueueName, &[TaskName])],
    ) -> Result<(Vec<(NextDue, bool)>, Arc<Known>)> {
        let keys = &self.shard.keys;
        let mut known = self.shard.known();
        let mut reads = vec![
            Read::Fields(keys.meta(), vec![VERSION.to_owned()]),
            Read::lowest(keys.leases(), 1),
        ];
        reads.extend(queues.iter().map(|(queue, _)| Read::lowest(keys.heads(queue), MOST_HEADS)));
        let mut looked = self.shard.look("look for due jobs", time, &reads).await?;
        if looked.text()? != known.version {
            known = self.shard.learn().await?;
        }
        let expiry = looked.scored()?.pop().map(|(_, until)| until);
        let mut answers = Vec::with_capacity(queues.len());
        for (queue, tasks) in queues {
            let First { due, unsure } = first_of(&known, queue, tasks, &looked.scored()?);
            answers.push((NextDue { now: looked.now, due, expiry }, unsure));
        }
        Ok((answers, known))
    }
}

fn first_of(
    known: &Known,
    queue: &QueueName,
    tasks: &[TaskName],
    heads: &[(String, Timestamp)],
) -> First {
    let is_offered = |(name, _): &&(String, Timestamp)| {
        let lane = name.split(' ').next().and_then(|lane| lane.parse().ok());
        let lane = lane.and_then(|lane| known.lane(lane));
        lane.is_some_and(|lane| known.is_offered(lane, queue, tasks))
    };
    let due = heads.iter().find(is_offered).map(|(_, due)| *due);
    First { due, unsure: due.is_none() && heads.len() == MOST_HEADS }
}
