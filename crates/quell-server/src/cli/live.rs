//! A server or a store that a command reads again and again: `quell tail` and `quell top`.
//!
//! Invariant: each method is one request, and both places answer the same.

use std::time::Duration;

use quell::Quell;
use quell::dead::DeadFilter;
use quell::job::{JobFilter, JobSearch};
use serde::de::DeserializeOwned;

use super::source::{Refusal, Remote, Source, open_store};
use crate::config::duration;
use crate::view::{Alert, Alerts, Causes, Count, Counts, Jobs, Queue, Queues, Workers};

/// How long one request may take: what is late is shown as away.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(100);

/// How often to look: an option.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let every = duration::parse(text)?;
    if every < SHORTEST {
        return Err(format!("{text}: give 100ms or more"));
    }
    Ok(every)
}

/// The place that is read.
#[derive(Debug)]
pub(super) enum Live {
    Server(Remote),
    Store(Box<Quell>),
}

impl Live {
    /// Opens a store, or makes a client of a server. It asks for nothing yet.
    pub(super) async fn open(source: &Source) -> anyhow::Result<Self> {
        Ok(match &source.store {
            Some(url) => Live::Store(Box::new(open_store(url).await?)),
            None => Live::Server(Remote::new(&source.server, PATIENCE)?),
        })
    }

    /// Closes a store.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        match self {
            Live::Server(_) => Ok(()),
            Live::Store(quell) => Ok(quell.close().await?),
        }
    }

    /// A page of jobs, the newest first, without payloads.
    pub(super) async fn jobs(&self, filter: &JobFilter) -> anyhow::Result<Jobs> {
        self.try_jobs(filter).await?.map_err(anyhow::Error::msg)
    }

    /// The same; none where the token permits only lists that name a task or a queue.
    pub(super) async fn permitted_jobs(&self, filter: &JobFilter) -> anyhow::Result<Option<Jobs>> {
        permitted(self.try_jobs(filter).await)
    }

    async fn try_jobs(&self, filter: &JobFilter) -> anyhow::Result<Result<Jobs, Refusal>> {
        match self {
            Live::Server(remote) => {
                let mut query = vec![("limit", filter.page().to_string())];
                query.extend(filter.task.iter().map(|task| ("task", task.to_string())));
                query.extend(filter.queue.iter().map(|queue| ("queue", queue.to_string())));
                query.extend(filter.state.iter().map(|state| ("state", state.to_string())));
                query.extend(filter.key.iter().map(|key| ("key", key.to_string())));
                query.extend(filter.before.iter().map(|before| ("before", before.to_string())));
                remote.get(&["v1", "jobs"], &query).await
            }
            Live::Store(quell) => {
                let search = JobSearch { filter: filter.clone(), ..JobSearch::default() };
                Ok(Ok(Jobs::new(&quell.search(&search).await?, false)))
            }
        }
    }

    /// The number of jobs by queue, task and state.
    pub(super) async fn counts(&self) -> anyhow::Result<Counts> {
        match self {
            Live::Server(remote) => get(remote, "counts").await,
            Live::Store(quell) => {
                let counts = quell.counts().await?;
                Ok(Counts { counts: counts.iter().map(Count::from).collect() })
            }
        }
    }

    /// The queues.
    pub(super) async fn queues(&self) -> anyhow::Result<Queues> {
        match self {
            Live::Server(remote) => get(remote, "queues").await,
            Live::Store(quell) => {
                let queues = quell.queues().await?;
                Ok(Queues { queues: queues.iter().map(Queue::from).collect(), next_after: None })
            }
        }
    }

    /// The most frequent causes of death.
    pub(super) async fn causes(&self, limit: usize) -> anyhow::Result<Option<Causes>> {
        match self {
            Live::Server(remote) => {
                let query = [("limit", limit.to_string())];
                permitted(remote.get(&["v1", "dead", "causes"], &query).await)
            }
            Live::Store(quell) => {
                let filter = DeadFilter { limit, ..DeadFilter::default() };
                Ok(Some(Causes::new(&quell.dead().causes(&filter).await?, limit)))
            }
        }
    }

    /// The workers; none where the token does not permit the list.
    pub(super) async fn workers(&self) -> anyhow::Result<Option<Workers>> {
        match self {
            Live::Server(remote) => permitted(remote.get(&["v1", "workers"], &[]).await),
            Live::Store(quell) => Ok(Some(Workers::from(&quell.workers().await?))),
        }
    }

    /// The alerts; none where the token does not permit the list.
    pub(super) async fn alerts(&self) -> anyhow::Result<Option<Alerts>> {
        match self {
            Live::Server(remote) => permitted(remote.get(&["v1", "alerts"], &[]).await),
            Live::Store(quell) => {
                let rows = quell.store().alerts().await?;
                let alerts = rows.iter().map(|row| Alert::new(None, Some(row))).collect();
                Ok(Some(Alerts { alerts }))
            }
        }
    }
}

async fn get<T: DeserializeOwned>(remote: &Remote, what: &str) -> anyhow::Result<T> {
    remote.get(&["v1", what], &[]).await?.map_err(anyhow::Error::msg)
}

/// None in place of what the token does not permit.
fn permitted<T>(answer: anyhow::Result<Result<T, Refusal>>) -> anyhow::Result<Option<T>> {
    match answer? {
        Ok(answer) => Ok(Some(answer)),
        Err(refusal) if refusal.kind.as_deref() == Some("forbidden") => Ok(None),
        Err(refusal) => Err(anyhow::Error::msg(refusal)),
    }
}

/// A job of tests: one that waits, of task `t`.
#[cfg(test)]
pub(super) fn sample_job(id: u64) -> crate::view::Job {
    let name = |text: &str| text.to_owned();
    crate::view::Job {
        id: quell::JobId::new(id),
        task: quell::TaskName::new("t").unwrap(),
        queue: quell::QueueName::new("default").unwrap(),
        partition: None,
        key: None,
        state: quell::JobState::Scheduled,
        priority: 0,
        payload: None,
        triggers: 12,
        not_run: 0,
        first_at: Some(format!("2026-11-28T00:00:{:02}Z", id % 60)),
        last_at: None,
        due_at: Some(name("2026-11-28T00:01:30Z")),
        due_because: String::new(),
        not_before: None,
        waits_for_its_key: false,
        attempt: 2,
        failures: 0,
        starts: 0,
        lapses: 0,
        worker: None,
        started_at: Some(name("2026-11-27T23:58:55Z")),
        ended_at: None,
        absorbed_by: None,
        error: None,
        output: None,
        traces: Vec::new(),
    }
}
