//! Nothing accepted is lost, made up or counted twice (P1, P2, P3, P4, P15).

use std::collections::{BTreeMap, BTreeSet};

use quell_core::history::Event;
use quell_core::{JobId, JobState, Receipt, SettledAs, TriggerId};

use super::views::{JobView, OpState, OpView, TaskKey};
use super::{Book, Line, Property, Violation, broken};

/// Every accepted trigger is in one job, and that job ran after it or ended on record.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    seen: BTreeMap<TriggerId, usize>,
}

impl Property for Coverage {
    fn on(&mut self, _: &Book, at: usize, line: &Line, found: &mut Vec<Violation>) {
        let (Event::TriggerOk { receipt, .. }
        | Event::Ticked { receipt, .. }
        | Event::ScheduleRun { receipt, .. }) = &line.event
        else {
            return;
        };
        let Some(trigger) = receipt.trigger() else { return };
        if let Some(before) = self.seen.insert(trigger, at) {
            broken(found, "P4", [before, at], format!("trigger {trigger} was given out twice"));
        }
    }

    fn finish(&mut self, book: &Book, lines: &[Line], found: &mut Vec<Violation>) {
        for op in book.ops.values() {
            if let OpState::Answered(receipt, at) = &op.state {
                answered(book, op, receipt, *at, found);
            }
        }
        if book.complete {
            counts(book, found);
        }
        rows(book, lines, found);
    }
}

fn answered(book: &Book, op: &OpView, receipt: &Receipt, at: usize, found: &mut Vec<Violation>) {
    let Some(trigger) = receipt.trigger() else { return };
    let Some(job) = book.jobs.get(&trigger.job) else {
        // A killed process may have taken the job's events with it; its row tells, where rows are.
        if book.complete || book.has_rows {
            let lost = format!("trigger {trigger} was accepted, but its job never was");
            broken(found, "P2", [op.at, at], lost);
        }
        return;
    };
    if job.task != op.task || job.key != op.key {
        let other = format!("trigger {trigger} went to a job of another task or key");
        broken(found, "P4", [op.at, at].into_iter().chain(job.lines.first().copied()), other);
    }
    if book.complete {
        matches(job, trigger, receipt, at, found);
    }
    if !job.suppressed.contains(&trigger.seq)
        && let Err(why) = covered(book, trigger.job, trigger.seq)
    {
        let last = book.jobs.get(&book.last_heir(trigger.job)).into_iter();
        let shown = [op.at, at].into_iter().chain(job.newest(3));
        let shown: Vec<usize> = shown.chain(last.flat_map(|last| last.newest(3))).collect();
        broken(found, "P2", shown, format!("trigger {trigger} was accepted and lost: {why}"));
    }
}

/// A receipt says what happened to the window.
fn matches(
    job: &JobView,
    trigger: TriggerId,
    receipt: &Receipt,
    at: usize,
    found: &mut Vec<Violation>,
) {
    let Some(joined) = job.joined_at(trigger.seq) else {
        let shown = job.newest(2).chain([at]);
        broken(found, "P4", shown, format!("job {} never counted trigger {trigger}", trigger.job));
        return;
    };
    let opened = matches!(receipt, Receipt::Accepted { .. });
    if opened != (trigger.seq == 1) {
        let wrong = format!("the receipt of {trigger} does not say what became of it");
        broken(found, "P4", [joined.at, at], wrong);
    }
}

/// Whether the trigger at this place of a job has run, or may still, or ended on record.
fn covered(book: &Book, id: JobId, seq: u64) -> Result<(), String> {
    let mut id = id;
    let mut seq = Some(seq);
    let mut steps = 0;
    loop {
        let Some(job) = book.jobs.get(&id) else { return Err(format!("job {id} is unknown")) };
        match job.state {
            JobState::Succeeded => {
                let last = job.claims.last();
                let ran = last.filter(|c| matches!(c.end, Some((.., SettledAs::Succeeded))));
                // An event that a kill took with it is no proof; the row is (see `rows`).
                let Some(ran) = ran else { return Ok(()) };
                return match seq {
                    Some(seq) if seq > ran.count => Err(format!(
                        "job {id} succeeded, but its run covered {} triggers only",
                        ran.count
                    )),
                    _ => Ok(()),
                };
            }
            JobState::Dead | JobState::Cancelled | JobState::Unreadable => return Ok(()),
            JobState::Scheduled | JobState::Running if !book.is_drained() => return Ok(()),
            JobState::Scheduled | JobState::Running => {
                let row = job.row.is_some_and(JobState::is_ended);
                let state = job.state;
                return if row && !book.complete {
                    Ok(())
                } else {
                    Err(format!("job {id} is {state} at the end"))
                };
            }
            JobState::Absorbed => {
                let Some((heir, shown)) = job.heir else {
                    return Err(format!("job {id} was absorbed by nobody"));
                };
                if shown.is_none() && book.complete {
                    return Err(format!(
                        "job {heir} absorbed job {id} but did not take its triggers"
                    ));
                }
                (id, seq) = (heir, None);
            }
        }
        steps += 1;
        if steps > book.jobs.len() {
            return Err(format!("job {id} absorbs itself"));
        }
    }
}

/// P3: no key counts more triggers than were made, and P4: none counts fewer than were accepted.
fn counts(book: &Book, found: &mut Vec<Violation>) {
    let mut made: BTreeMap<TaskKey, (u64, u64)> = BTreeMap::new();
    for op in book.ops.values() {
        let Some(key) = op.key.clone() else { continue };
        let (accepted, perhaps) = made.entry((op.task.clone(), key)).or_default();
        match &op.state {
            OpState::Answered(receipt, _) if receipt.trigger().is_some() => *accepted += 1,
            OpState::Unknown => *perhaps += 1,
            OpState::Answered(..) | OpState::Failed => {}
        }
    }
    let mut counted: BTreeMap<TaskKey, (u64, BTreeSet<usize>)> = BTreeMap::new();
    for job in book.jobs.values() {
        let Some(key) = job.task_key() else { continue };
        let (count, lines) = counted.entry(key).or_default();
        if job.state != JobState::Absorbed {
            *count += job.count;
        }
        lines.extend(job.newest(1));
    }
    for (key, (count, lines)) in counted {
        let (accepted, perhaps) = made.get(&key).copied().unwrap_or_default();
        let came = book.imported.get(&key).copied().unwrap_or_default();
        let (accepted, perhaps) = (accepted, perhaps + came);
        let (task, name) = (&key.0, &key.1);
        if count > accepted + perhaps {
            let most = accepted + perhaps;
            let phantom = format!("{task} {name} counts {count} triggers of {most} that were made");
            broken(found, "P3", lines, phantom);
        } else if count < accepted {
            let few = format!("{task} {name} counts {count} triggers of {accepted} accepted ones");
            broken(found, "P4", lines, few);
        }
    }
}

/// The rows at the end: each job is there unless it was removed, and is what the events say (P1,
/// P15, P32).
fn rows(book: &Book, lines: &[Line], found: &mut Vec<Violation>) {
    if !book.has_rows {
        return;
    }
    for (id, job) in &book.jobs {
        match job.row {
            None if job.pruned => {}
            None if job.state == JobState::Dead => {
                broken(found, "P15", job.newest(3), format!("dead job {id} is gone"));
            }
            None if book.complete || job.state != JobState::Scheduled => {
                broken(found, "P1", job.newest(3), format!("job {id} is gone"));
            }
            Some(row) if book.complete && row != job.state => {
                let said = format!("job {id} is {row}, but the events say {}", job.state);
                broken(found, "P11", job.newest(4), said);
            }
            Some(row) if !row.is_ended() => {
                let rests = format!("job {id} is {row} at the end");
                broken(found, "P32", job.newest(4), rests);
            }
            None | Some(_) => {}
        }
    }
    for (at, line) in lines.iter().enumerate() {
        let Event::Row { job, state: JobState::Succeeded, last, started, .. } = &line.event else {
            continue;
        };
        if started.is_none_or(|started| started < *last) {
            let early = format!("job {job} succeeded by a run that began before its last trigger");
            broken(found, "P2", [at], early);
        }
    }
}
