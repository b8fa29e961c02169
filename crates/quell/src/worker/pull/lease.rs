//! The lease of a job as a worker elsewhere holds it.

use std::fmt;
use std::str::FromStr;

use quell_core::{ClaimedJob, Error, JobId, Lease, LeaseToken, Result, TaskName, Timestamp};

/// A lease, and what a settlement needs to know of the attempt. Its text is opaque to workers.
///
/// ```
/// use quell::worker::pull::PullLease;
///
/// let lease: PullLease = "42:1-5f2c:1767225600000000:1:0:resize".parse()?;
/// assert_eq!((lease.lease.job.to_string(), lease.attempt), ("42".to_owned(), 1));
/// assert_eq!(lease.to_string(), "42:1-5f2c:1767225600000000:1:0:resize");
/// # Ok::<(), quell::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PullLease {
    /// The right to run the attempt.
    pub lease: Lease,
    /// When it started, in store time.
    pub started_at: Timestamp,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// The failures in a row before it.
    pub failures: u32,
    /// The task.
    pub task: TaskName,
}

impl PullLease {
    pub(crate) fn of(job: &ClaimedJob, started_at: Timestamp) -> Self {
        PullLease {
            lease: Lease { job: job.id, token: job.token },
            started_at,
            attempt: job.attempt,
            failures: job.failures,
            task: job.task.clone(),
        }
    }
}

impl fmt::Display for PullLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PullLease { lease: Lease { job, token }, started_at, attempt, failures, task } = self;
        write!(f, "{job}:{token}:{}:{attempt}:{failures}:{task}", started_at.as_micros())
    }
}

impl FromStr for PullLease {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            let shown: String = text.chars().take(80).collect();
            Error::invalid("lease", format!("{shown:?} is no lease: send what a claim returned"))
        };
        let mut parts = text.splitn(6, ':');
        let mut next = || parts.next().ok_or_else(wrong);
        let job = next()?.parse::<JobId>().map_err(|_| wrong())?;
        let token = next()?.parse::<LeaseToken>().map_err(|_| wrong())?;
        let started_at = Timestamp::from_micros(next()?.parse().map_err(|_| wrong())?);
        let attempt = next()?.parse().map_err(|_| wrong())?;
        let failures = next()?.parse().map_err(|_| wrong())?;
        let task = TaskName::new(next()?).map_err(|_| wrong())?;
        Ok(PullLease { lease: Lease { job, token }, started_at, attempt, failures, task })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read_as_it_was_written_and_nothing_else_is_one() {
        let text = "7:3-5f2c:-5:2:1:a:b";
        // A task's name may have a colon; it comes last.
        match (TaskName::new("a:b"), text.parse::<PullLease>()) {
            (Ok(task), Ok(lease)) => {
                assert_eq!((lease.task.clone(), lease.to_string()), (task, text.to_owned()))
            }
            (Err(_), lease) => assert!(lease.is_err()),
            (Ok(_), Err(error)) => panic!("{error}"),
        }
        for wrong in
            ["", "7", "7:3-5f2c:1:1:0", "x:3-5f2c:1:1:0:t", "7:3-5f2c:1:-1:0:t", "7:3:1:1:0:"]
        {
            let error = wrong.parse::<PullLease>().unwrap_err();
            assert_eq!(error.field(), Some("lease"), "{wrong}");
        }
    }
}
