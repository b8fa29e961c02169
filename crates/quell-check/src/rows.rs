//! The rows at the end: each job is there unless it was removed, is what the events say, and has
//! come to rest (P1, P2, P11, P15, P32).

use quell_core::history::Event;
use quell_core::{JobId, JobState, Timestamp};

use super::views::JobView;
use super::{Book, Found, Line, Property};

const NO_ROWS: &str = "the rows at the end are not on record";

/// P1, P15, P32, and what rows say of P2 and P11.
#[derive(Debug)]
pub(super) struct Rows;

impl Property for Rows {
    fn on(&mut self, _: &Book, _: usize, _: &Line, _: &mut Found) {}

    fn finish(&mut self, book: &Book, lines: &[Line], found: &mut Found) {
        for (id, job) in &book.jobs {
            if book.has_rows {
                row(book, *id, job, found);
            } else {
                found.cannot("P1", NO_ROWS);
                if job.state == JobState::Dead {
                    found.cannot("P15", NO_ROWS);
                }
                without_row(book, *id, job, found);
            }
        }
        for (at, line) in lines.iter().enumerate() {
            covers(book, at, &line.event, found);
        }
    }
}

/// P32 where there are no rows: by the events alone.
fn without_row(book: &Book, id: JobId, job: &JobView, found: &mut Found) {
    if book.healed.is_none() {
        found.cannot("P32", "the run had not come to rest");
    } else if job.state.is_ended() {
        found.holds("P32");
    } else {
        let rests = format!("job {id} is {} at the end", job.state);
        found.unless(book.may_have_ended(id, job, Timestamp::MAX), "P32", job.newest(4), rests);
    }
}

fn row(book: &Book, id: JobId, job: &JobView, found: &mut Found) {
    let kept = if job.state == JobState::Dead { "P15" } else { "P1" };
    let Some(row) = job.row else {
        if job.pruned {
            found.holds(kept);
            return;
        }
        let gone = format!("job {id} is {} and gone", job.state);
        found.unless(book.missing(job, Timestamp::MAX), kept, job.newest(3), gone);
        return;
    };
    found.holds(kept);
    if row == job.state {
        found.holds("P11");
    } else {
        let said = format!("job {id} is {row}, but the events say {}", job.state);
        let succeeded = book.may_have_succeeded(id, job).filter(|_| row == JobState::Succeeded);
        let excuse = succeeded.or_else(|| book.missing(job, Timestamp::MAX));
        found.unless(excuse, "P11", job.newest(4), said);
    }
    if row.is_ended() {
        found.holds("P32");
    } else {
        found.broken("P32", job.newest(4), format!("job {id} is {row} at the end"));
    }
}

/// P2: what succeeded was started after its last trigger.
fn covers(book: &Book, at: usize, event: &Event, found: &mut Found) {
    let Event::Row { job, state: JobState::Succeeded, last, started, .. } = event else { return };
    // What a leading edge does not run came later.
    let leads = book.jobs.get(job).is_some_and(|job| !job.suppressed.is_empty());
    if leads {
        found.cannot("P2", "triggers of a leading edge are counted by a run before them");
    } else if started.is_none_or(|started| started < *last) {
        let early = format!("job {job} succeeded by a run that began before its last trigger");
        found.broken("P2", [at], early);
    } else {
        found.holds("P2");
    }
}
