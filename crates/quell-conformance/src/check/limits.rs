//! No more than the limits allow, at every instant (P21).
//!
//! The starts that rates count are kept here as the history tells them, apart from how any store
//! keeps them.

use std::collections::BTreeMap;

use quell_core::history::Event;
use quell_core::{Key, QueueName, QueueSettings, Rate, Timestamp};

use super::views::JobView;
use super::{Book, Line, Property, Violation, broken};

/// The starts that rates count, of queues as a whole and of their partitions.
#[derive(Debug, Default)]
pub struct Starts(BTreeMap<(QueueName, Option<Key>), Vec<Timestamp>>);

impl Starts {
    /// A rate counts from when it was set; a longer period counts what the shorter one did.
    pub(super) fn set(
        &mut self,
        queue: &QueueName,
        was: &QueueSettings,
        to: &QueueSettings,
        t: Timestamp,
    ) {
        for ((of, partition), starts) in &mut self.0 {
            if of != queue {
                continue;
            }
            let pair = match partition {
                None => was.rate.zip(to.rate),
                Some(_) => was.partition_rate.zip(to.partition_rate),
            };
            match pair {
                Some((was, to)) if was.period < to.period => {
                    starts.retain(|at| t.before(was.period) < *at);
                }
                Some(_) => {}
                None => starts.clear(),
            }
        }
    }

    pub(super) fn record(&mut self, queue: &QueueName, partition: Option<&Key>, t: Timestamp) {
        for scope in [None, partition.cloned()].into_iter().take(1 + partition.iter().count()) {
            self.0.entry((queue.clone(), scope)).or_default().push(t);
        }
    }

    /// How many starts a rate counts at `t`.
    fn recent(
        &self,
        queue: &QueueName,
        partition: Option<&Key>,
        rate: Rate,
        t: Timestamp,
    ) -> usize {
        let starts = self.0.get(&(queue.clone(), partition.cloned()));
        let counts = |at: &&Timestamp| t.before(rate.period) < **at;
        starts.map_or(0, |starts| starts.iter().filter(counts).count())
    }
}

/// P21: no limit of a queue, a worker or a partition is exceeded, of attempts at once or of starts.
#[derive(Debug, Default)]
pub(super) struct Limits;

impl Property for Limits {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Vec<Violation>) {
        let Event::Claimed { t, job, queue, worker, .. } = &line.event else { return };
        let Some(settings) = book.queues.get(queue).filter(|_| book.complete) else { return };
        let of_queue = || book.running_in(queue);
        let by_worker = of_queue().filter(|view| view.worker.as_ref() == Some(worker)).count();
        let partition = book.jobs.get(job).and_then(|view| view.partition.as_ref());
        let of_partition = partition.map_or(0, |name| running_of(book, queue, name));
        let slots = [
            ("the queue", settings.concurrency, of_queue().count()),
            ("its worker", settings.worker_concurrency, by_worker),
            ("its partition", settings.partition_concurrency, of_partition),
        ];
        for (whose, limit, running) in slots {
            if limit.is_some_and(|limit| running >= as_count(limit)) {
                let full =
                    format!("job {job} started though {running} slots of {whose} were taken");
                broken(found, "P21", [at], full);
            }
        }
        let rates = [
            ("the queue", settings.rate, None),
            ("its partition", settings.partition_rate.filter(|_| partition.is_some()), partition),
        ];
        for (whose, rate, scope) in rates {
            let Some(rate) = rate else { continue };
            let recent = book.starts.recent(queue, scope, rate, *t);
            if recent >= as_count(rate.limit) {
                let full =
                    format!("job {job} started as one too many of {whose} within its period");
                broken(found, "P21", [at], full);
            }
        }
    }
}

/// Whether the limits of its partition let a scheduled job start at `t`.
pub(super) fn partition_has_room(book: &Book, job: &JobView, t: Timestamp) -> bool {
    let Some(partition) = &job.partition else { return true };
    let Some(settings) = book.queues.get(&job.queue) else { return true };
    let has_slot = settings
        .partition_concurrency
        .is_none_or(|limit| running_of(book, &job.queue, partition) < as_count(limit));
    let has_start = settings.partition_rate.is_none_or(|rate| {
        book.starts.recent(&job.queue, Some(partition), rate, t) < as_count(rate.limit)
    });
    has_slot && has_start
}

fn running_of(book: &Book, queue: &QueueName, partition: &Key) -> usize {
    book.running_in(queue).filter(|view| view.partition.as_ref() == Some(partition)).count()
}

fn as_count(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}
