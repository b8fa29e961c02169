//! What may start starts at once (P7b).

use std::collections::BTreeMap;

use quell_core::history::Event;
use quell_core::{JobId, QueueName, QueueSettings, TaskName, Timestamp};

use super::limits::HAND_OVER;
use super::turns::is_in_front;
use super::views::{JobView, TaskKey};
use super::{Act, Book, Found, Line, Property};

/// P7b: once no harm is done, what is due and held back by nothing is claimed at once, and what is
/// claimed gets to its handler at once.
#[derive(Debug, Default)]
pub(super) struct Punctual {
    /// When the last attempt of a key ended.
    key_free: BTreeMap<TaskKey, Timestamp>,
    /// When a queue last was paused, full, or had its settings changed.
    queue_free: BTreeMap<QueueName, Timestamp>,
    /// When a task last was paused or resumed.
    task_free: BTreeMap<TaskName, Timestamp>,
}

impl Property for Punctual {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found) {
        match &line.event {
            Event::Settle { t, job, .. }
            | Event::Expire { t, job, .. }
            | Event::Cancel { t, job } => {
                let Some(view) = book.jobs.get(job) else { return };
                if let Some(key) = view.task_key() {
                    self.key_free.insert(key, *t);
                }
                // A slot may have come free.
                if book.queues.get(&view.queue).is_some_and(QueueSettings::limits_concurrency) {
                    self.queue_free.insert(view.queue.clone(), *t);
                }
            }
            // R41: another job of a partition may be next.
            Event::Window { t, job, .. } => {
                if let Some(view) = book.jobs.get(job).filter(|view| is_in_front(book, *job, view))
                {
                    self.queue_free.insert(view.queue.clone(), *t);
                }
            }
            Event::Queue { t, queue, .. } => {
                self.queue_free.insert(queue.clone(), *t);
            }
            Event::TaskChanged { t, task, .. } => {
                self.task_free.insert(task.clone(), *t);
            }
            Event::Claimed { t, job, .. } => {
                if let Some(view) = book.jobs.get(job) {
                    self.claimed(book, view, (*job, *t), at, found);
                }
            }
            Event::Start { t, job, token, .. } => {
                let Some(view) = book.jobs.get(job) else { return };
                let claim = view.claims.iter().find(|claim| claim.token == *token);
                if let Some(claim) = claim {
                    handed(book, (*job, *t), (claim.t, claim.at), at, found);
                }
            }
            _ => {}
        }
    }
}

/// Since when no harm is done, and how late a start may be; else why that is not known.
fn calm(book: &Book) -> Result<(Timestamp, std::time::Duration), &'static str> {
    let punctual = book.punctual.ok_or("the record does not say how late a start may be")?;
    let calm = if book.any_fault { book.healed } else { Some(Timestamp::MIN) };
    Ok((calm.ok_or("a fault is at work")?, punctual))
}

/// Between the claim and the handler lie the store's answer and the worker's hands.
fn handed(
    book: &Book,
    (job, t): (JobId, Timestamp),
    (claimed, claim): (Timestamp, usize),
    at: usize,
    found: &mut Found,
) {
    let (calm, punctual) = match calm(book) {
        Ok(calm) => calm,
        Err(why) => return found.cannot("P7b", why),
    };
    let held = t.since(claimed.max(calm));
    if held <= punctual + HAND_OVER {
        found.holds("P7b");
    } else {
        let waited = format!("job {job} was in its worker's hands for {held:?}");
        found.broken("P7b", [claim, at], waited);
    }
}

impl Punctual {
    fn claimed(
        &self,
        book: &Book,
        view: &JobView,
        (job, t): (JobId, Timestamp),
        at: usize,
        found: &mut Found,
    ) {
        let (calm, punctual) = match calm(book) {
            Ok(calm) => calm,
            Err(why) => return found.cannot("P7b", why),
        };
        let key_free = view.task_key().and_then(|key| self.key_free.get(&key));
        if book.queues.get(&view.queue).is_some_and(QueueSettings::limits_rate) {
            found.cannot("P7b", "a rate may hold it back for as long as its period");
            return;
        }
        let queue_free = self.queue_free.get(&view.queue);
        let task_free = self.task_free.get(&view.task);
        // A window that was joined or moved is due at another time, and the news takes its way.
        let moved = view.dues.last().map(|(line, ..)| *line).and_then(|line| {
            view.joins.iter().find(|joined| joined.at == line).map(|joined| joined.t)
        });
        let held = [Some(&view.due), Some(&calm), key_free, queue_free, task_free, moved.as_ref()];
        let free = held.into_iter().flatten().max().copied().unwrap_or(calm);
        let late = t.since(free);
        if late <= punctual {
            found.holds("P7b");
            return;
        }
        let waited = format!("job {job} started {late:?} late though nothing held it back");
        let excuse = book.excuse(Act::Any, free, t);
        found.unless(excuse, "P7b", view.newest(2).chain([at]), waited);
    }
}
