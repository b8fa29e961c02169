//! No more than the limits allow, at every instant (P21).
//!
//! The starts that rates count are kept here as the history has them, apart from how any store
//! keeps them.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::history::Event;
use quell_core::{JobId, Key, QueueName, QueueSettings, Rate, Timestamp};

use super::doubts::{Doubt, Doubts};
use super::views::JobView;
use super::{Act, Book, Found, Line, Property};

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

/// How long a claimed job may take to its handler, where nothing is wrong.
pub(super) const HAND_OVER: Duration = Duration::from_millis(150);

/// P21: no limit of a queue, a worker or a partition is exceeded, of attempts at once or of starts;
/// rates hold for what the store gives and for what handlers get.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Attempts that handlers got, of queues as a whole and of their partitions.
    handed: BTreeMap<(QueueName, Option<Key>), Vec<Handed>>,
    doubts: Doubts,
}

/// An attempt that its handler got.
#[derive(Clone, Copy, Debug)]
struct Handed {
    t: Timestamp,
    /// Whether it was in its worker's hands for longer than may be, through no fault of its own.
    late: bool,
}

impl Property for Limits {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found) {
        self.doubts.on(book, line, found);
        match &line.event {
            Event::Claimed { .. } => claimed(book, at, line, &mut self.doubts, found),
            Event::Start { t, job, token, .. } => {
                let Some(view) = book.jobs.get(job) else { return };
                if let Some(claim) = view.claims.iter().find(|claim| claim.token == *token) {
                    let slow = t.since(claim.t) > HAND_OVER;
                    let harmed = !book.faults || book.fault.is_some_and(|fault| fault > claim.at);
                    let handed = Handed { t: *t, late: slow && harmed };
                    self.handed(book, (*job, view), handed, at, found);
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Book, _: &[Line], found: &mut Found) {
        self.doubts.finish(found);
    }
}

/// Whether the limits of a queue were changed so shortly before `t` that a claim which looked from
/// `looked_from` on may not have met them.
pub(super) fn changed(
    book: &Book,
    queue: &QueueName,
    (looked_from, t): (Timestamp, Timestamp),
) -> Option<String> {
    let set = book.queue_set.get(queue)?;
    let just =
        (looked_from.since(*set) < book.slack).then(|| "its limits were just changed".to_owned());
    just.or_else(|| book.excuse(Act::Operate, *set, t))
}

/// Whether a running job takes one of the slots.
type Counts<'a> = &'a dyn Fn(&JobView) -> bool;

fn claimed(book: &Book, at: usize, line: &Line, doubts: &mut Doubts, found: &mut Found) {
    let Event::Claimed { t, job, queue, worker, .. } = &line.event else { return };
    let time = (line.looked_from(*t), *t);
    let Some(settings) = book.queues.get(queue) else { return };
    let partition = book.jobs.get(job).and_then(|view| view.partition.as_ref());
    let mine = |view: &JobView| view.worker.as_ref() == Some(worker);
    let same = |view: &JobView| partition.is_some() && view.partition.as_ref() == partition;
    let slots: [(_, _, Counts<'_>); 3] = [
        ("the queue", settings.concurrency, &|_| true),
        ("its worker", settings.worker_concurrency, &mine),
        ("its partition", settings.partition_concurrency.filter(|_| partition.is_some()), &same),
    ];
    for (whose, limit, counts) in slots {
        let Some(limit) = limit else { continue };
        let taken = || book.running_jobs_in(queue).filter(|(_, view)| counts(view));
        let surely = |(id, view): &(JobId, &JobView)| book.may_have_ended(*id, view, *t).is_none();
        let (running, sure) = (taken().count(), taken().filter(surely).count());
        let full = format!("job {job} started though {running} slots of {whose} were taken");
        if running < as_count(limit) {
            found.holds("P21");
        } else if sure < as_count(limit) {
            found.cannot("P21", "attempts of a process that was killed may have ended");
        } else {
            let doubt = Doubt {
                property: "P21",
                t: *t,
                done: line.seen_from().unwrap_or(*t),
                running: taken().map(|(id, view)| (id, view.token)).collect(),
                ends: (running + 1).saturating_sub(as_count(limit)),
                shown: taken().flat_map(|(_, view)| view.newest(2)).take(20).chain([at]).collect(),
                message: full,
            };
            doubts.unless(changed(book, queue, time), doubt, book, found);
        }
    }
    let whole = ("the queue", settings.rate, None);
    let part =
        ("its partition", settings.partition_rate.filter(|_| partition.is_some()), partition);
    for (whose, rate, scope) in [whole, part] {
        let Some(rate) = rate else { continue };
        if book.starts.recent(queue, scope, rate, *t) < as_count(rate.limit) {
            found.holds("P21");
            continue;
        }
        let full = format!("job {job} started as one too many of {whose} within its period");
        found.unless(changed(book, queue, time), "P21", [at], full);
    }
}

impl Limits {
    /// Rates, as handlers see them. They are handed their jobs some moments after the claim, so
    /// starts may be that much closer to each other than claims.
    fn handed(
        &mut self,
        book: &Book,
        (job, view): (JobId, &JobView),
        handed: Handed,
        at: usize,
        found: &mut Found,
    ) {
        let queue = &view.queue;
        let Some(settings) = book.queues.get(queue) else { return };
        let partition = view.partition.as_ref();
        let part = settings.partition_rate.filter(|_| partition.is_some());
        for (rate, scope) in [(settings.rate, None), (part, partition.cloned())] {
            let Some(rate) = rate else { continue };
            let starts = self.handed.entry((queue.clone(), scope)).or_default();
            let since = book.queue_set.get(queue).copied().unwrap_or(Timestamp::MIN);
            let from = handed.t.before(rate.period.saturating_sub(HAND_OVER));
            let counts = |one: &&Handed| from < one.t && since <= one.t;
            let recent: Vec<&Handed> = starts.iter().filter(counts).collect();
            let late = handed.late || recent.iter().any(|one| one.late);
            if recent.len() < as_count(rate.limit) {
                found.holds("P21");
            } else if late {
                found.cannot("P21", "a fault kept jobs from their handlers");
            } else {
                let many = format!("job {job} was handed over as one too many of its period");
                let time = (handed.t, handed.t);
                found.unless(changed(book, queue, time), "P21", [at], many);
            }
            starts.push(handed);
        }
    }
}

/// Whether the limits of its partition let a scheduled job start at `t`.
pub(super) fn partition_has_room(book: &Book, job: &JobView, t: Timestamp) -> bool {
    let Some(partition) = &job.partition else { return true };
    let Some(settings) = book.queues.get(&job.queue) else { return true };
    let lately = book
        .ended_lately(t)
        .filter(|view| view.queue == job.queue && view.partition.as_ref() == Some(partition))
        .count();
    let has_slot = settings
        .partition_concurrency
        .is_none_or(|limit| running_of(book, &job.queue, partition) + lately < as_count(limit));
    let has_start = settings.partition_rate.is_none_or(|rate| {
        book.starts.recent(&job.queue, Some(partition), rate, t) < as_count(rate.limit)
    });
    has_slot && has_start
}

fn running_of(book: &Book, queue: &QueueName, partition: &Key) -> usize {
    let of_partition = |(_, view): &(JobId, &JobView)| view.partition.as_ref() == Some(partition);
    book.running_jobs_in(queue).filter(of_partition).count()
}

fn as_count(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}
