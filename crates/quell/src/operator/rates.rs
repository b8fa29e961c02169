//! When rates let a waiting job start (R15, R31), by the starts that jobs have on record.
//!
//! The store counts starts and shows none of them, so the starts of a partition are those of its newest
//! jobs. They may be too few where a queue starts thousands of jobs in a period, or keeps ended ones for
//! a short time only.

use std::collections::BTreeSet;

use quell_core::limit::StartLog;
use quell_core::{Job, JobId, JobState, Key, NextDue, QueueSettings, Rate, Result, Timestamp};

use super::waiting::WaitReason;
use crate::Quell;

/// The most jobs of a partition whose earlier attempts are read.
const MOST_RETRIED: usize = 50;
/// The states of jobs that have started.
const STARTED: [JobState; 6] = [
    JobState::Running,
    JobState::Succeeded,
    JobState::Scheduled,
    JobState::Dead,
    JobState::Cancelled,
    JobState::Absorbed,
];

impl Quell {
    /// The rates that let a job start later: that of its queue, and that of its partition. `next` is when
    /// the next job of its task may start, whatever its partition; none where that says nothing of rates.
    pub(super) async fn rates_of(
        &self,
        job: &Job,
        settings: &QueueSettings,
        next: &NextDue,
    ) -> Result<Vec<WaitReason>> {
        let held = next.due.filter(|due| *due > next.now);
        let Some((of_partition, partition)) = settings.partition_rate.zip(job.partition.as_ref())
        else {
            let until = held.filter(|_| settings.limits_rate());
            return Ok(until.map(|until| WaitReason::Rate { until }).into_iter().collect());
        };
        let started = self.started_of(job).await?;
        let own = self.starts_of_partition(&started, partition, &of_partition, next.now).await?;
        let own = free_at(own, &of_partition, next.now);
        let of_queue = settings.rate.and_then(|rate| {
            let starts = started.iter().filter_map(|job| Some((job.started_at?, job.id))).collect();
            free_at(starts, &rate, next.now)
        });
        let mut reasons = Vec::new();
        // A time that is not the partition's own is the queue's, if that comes later or its jobs show it.
        let is_of_queue = |held: &Timestamp| match own {
            _ if settings.rate.is_none() => false,
            Some(own) => own < *held || (own > *held && of_queue.is_some()),
            None => true,
        };
        if let Some(held) = held.filter(is_of_queue) {
            let until = of_queue.map_or(held, |of_queue| of_queue.min(held));
            reasons.push(WaitReason::Rate { until });
        }
        // Without a rate of the queue only the partition's is left, whatever its jobs show.
        let own = own.or(held.filter(|_| settings.rate.is_none()));
        reasons.extend(own.map(|until| WaitReason::PartitionRate { until }));
        Ok(reasons)
    }

    /// The newest jobs of a job's queue that have started.
    async fn started_of(&self, job: &Job) -> Result<Vec<Job>> {
        let mut started = Vec::new();
        for state in STARTED {
            started.extend(self.some_of(&job.queue, state, None).await?);
        }
        started.retain(|job| job.started_at.is_some());
        Ok(started)
    }

    /// The starts of a partition that a rate may count, those of earlier attempts too.
    async fn starts_of_partition(
        &self,
        started: &[Job],
        partition: &Key,
        rate: &Rate,
        now: Timestamp,
    ) -> Result<BTreeSet<(Timestamp, JobId)>> {
        let since = now.before(rate.period);
        let own = started.iter().filter(|job| job.partition.as_ref() == Some(partition));
        let recent: Vec<_> =
            own.filter(|job| job.started_at.is_some_and(|at| at > since)).collect();
        let mut starts: BTreeSet<_> =
            recent.iter().filter_map(|job| Some((job.started_at?, job.id))).collect();
        for job in recent.iter().filter(|job| job.starts() > 1).take(MOST_RETRIED) {
            let attempts = self.store().attempts(job.id).await?;
            starts.extend(attempts.iter().map(|attempt| (attempt.started_at, job.id)));
        }
        Ok(starts)
    }
}

/// When a rate lets the next one start, if that is later than now.
fn free_at(starts: BTreeSet<(Timestamp, JobId)>, rate: &Rate, now: Timestamp) -> Option<Timestamp> {
    let log: StartLog = starts.into_iter().map(|(at, _)| at).collect();
    Some(log.free_at(rate, now)).filter(|free_at| *free_at > now)
}
