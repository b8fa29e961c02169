//! How many jobs there are, as every commit counts them.

use quell_core::{JobState, QueueName, Result, TaskName};
use quell_engine::{Tally, add_to};

use crate::row::{corrupt, number};
use crate::shard::Shard;

impl Shard {
    /// How many jobs there are of each queue and task in each state.
    pub(crate) async fn counts(&self) -> Result<Tally> {
        let (_, [pairs]) = self.read_hashes("count jobs", Vec::new(), [self.keys.counts()]).await?;
        let mut counts = Tally::new();
        for (field, count) in pairs {
            let wrong = || corrupt(format_args!("the count {field:?}"));
            let mut words = field.split(' ');
            let queue = QueueName::new(words.next().ok_or_else(wrong)?)?;
            let task = TaskName::new(words.next().ok_or_else(wrong)?)?;
            let code = words.next().and_then(|code| code.parse().ok());
            let state = code.and_then(JobState::from_code).ok_or_else(wrong)?;
            let jobs = number(&count).and_then(|jobs| i64::try_from(jobs).ok());
            add_to(&mut counts, (queue, task, state), jobs.ok_or_else(wrong)?);
        }
        Ok(counts)
    }
}
