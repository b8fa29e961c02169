//! The first jobs of several lines, merged as far as no line with more jobs could be next.
//!
//! Of each of the lines that are due first, a small portion is read. Then only those lines are read on that
//! end the page before it is full: a long line among many short ones costs what it adds to the page, and
//! no line is read from its beginning again.

use std::collections::HashSet;

use quell_core::Timestamp;

use crate::keys::Keys;
use crate::line::{At, Line, Page};
use crate::look::{Read, Score};
use crate::portions::{Order, Walk};

/// How much longer a portion is after one without a job that follows the place, and the most that it may be.
const FASTER: usize = 4;
const MOST_JOBS: usize = 10_000;
/// How many more lines are begun at once, as a multiple of those that were begun before.
const MORE_LINES: usize = 3;

/// A page of lines that is being read.
pub(crate) struct Merge<'l> {
    /// The line that is due first is in front.
    lines: &'l [Line],
    after: Option<At>,
    limit: usize,
    /// How far each of the first lines was read.
    begun: Vec<Begun>,
    /// What was read, each job with the number of its line.
    jobs: Vec<(At, usize)>,
}

/// A line that was read in part, or to its end.
struct Begun {
    walk: Walk,
    /// How many jobs were asked for last.
    asked: usize,
}

impl Begun {
    /// The last job that was read, if more may follow it.
    fn end(&self) -> Option<&At> {
        self.walk.last().filter(|_| !self.walk.is_over())
    }
}

impl<'l> Merge<'l> {
    pub(crate) fn new(lines: &'l [Line], after: Option<At>, limit: usize) -> Self {
        Merge { lines, after, limit, begun: Vec::new(), jobs: Vec::new() }
    }

    /// The numbers of the lines to read next; none when the page is known.
    pub(crate) fn next_lines(&mut self, keys: &Keys) -> Vec<usize> {
        self.jobs.sort_unstable();
        let Some(end) = self.end() else { return Vec::new() };
        let known = self.known(Some(&end));
        if known >= self.limit {
            return Vec::new();
        }
        // What comes behind this job is not on the page.
        let last = self.jobs.get(self.limit.saturating_sub(1)).map(|(at, _)| at);
        let is_near = |at: &At| last.is_none_or(|last| at < last);
        let on = self.begun.iter().enumerate();
        let on = on.filter(|(_, line)| line.end().is_some_and(is_near)).map(|(number, _)| number);
        let mut next: Vec<usize> = on.collect();
        let unread = self.lines.iter().enumerate().skip(self.begun.len()).take(self.may_begin());
        let unread = unread.take_while(|(_, line)| is_near(&first_of(line)));
        next.extend(unread.map(|(number, _)| number));
        let left = self.limit.saturating_sub(known);
        let share = left.checked_div(next.len()).unwrap_or(0).saturating_add(1);
        for number in &next {
            match self.begun.get_mut(*number) {
                Some(line) => line.asked = line.asked.max(share),
                None => self.begin(*number, keys, share.saturating_add(1)),
            }
        }
        next
    }

    /// How many more lines may be begun: at first those that the place is in, and one for each job.
    fn may_begin(&self) -> usize {
        if self.begun.is_empty() {
            let is_before = |line: &&Line| self.after.as_ref().is_some_and(|at| line.first <= at.0);
            let before = self.lines.iter().filter(is_before).count();
            return before.saturating_add(self.limit).saturating_add(1);
        }
        self.begun.len().saturating_mul(MORE_LINES)
    }

    fn begin(&mut self, number: usize, keys: &Keys, asked: usize) {
        let Some(line) = self.lines.get(number) else { return };
        let key = keys.line(&line.name);
        let walk = match &self.after {
            Some(at) => Walk::after(key, Order::Lowest, at.clone()),
            None => Walk::new(key, Order::Lowest, Score::Min),
        };
        self.begun.push(Begun { walk, asked });
    }

    /// The read of a line's next portion.
    pub(crate) fn read(&self, number: usize) -> Option<Read> {
        self.begun.get(number).map(|line| line.walk.read(line.asked))
    }

    /// Takes the answer to that read.
    pub(crate) fn take(&mut self, number: usize, members: Vec<(String, Timestamp)>) {
        let Some(line) = self.begun.get_mut(number) else { return };
        let jobs = line.walk.take(members, line.asked);
        // Those of one moment up to the place, which is no member of this line.
        if jobs.is_empty() {
            line.asked = line.asked.saturating_mul(FASTER).min(MOST_JOBS);
        }
        let jobs = jobs.into_iter();
        self.jobs.extend(jobs.map(|(member, at)| ((at, member), number)));
    }

    /// The place behind which jobs may be missing.
    fn end(&self) -> Option<At> {
        let unread = self.lines.get(self.begun.len()).map(first_of);
        self.begun.iter().filter_map(Begun::end).cloned().chain(unread).min()
    }

    /// How many jobs come before that.
    fn known(&self, end: Option<&At>) -> usize {
        self.jobs.partition_point(|(at, _)| end.is_none_or(|end| at <= end))
    }

    /// The page. A job that moves while lines are read counts where it comes first.
    pub(crate) fn page(mut self) -> Page {
        self.jobs.sort_unstable();
        let mut met = HashSet::new();
        self.jobs.retain(|((_, member), _)| met.insert(member.clone()));
        let end = self.end();
        let known = self.known(end.as_ref());
        let more = end.is_some() || known > self.limit;
        self.jobs.truncate(known.min(self.limit));
        Page { jobs: self.jobs, more }
    }
}

/// No job of a line comes before this.
fn first_of(line: &Line) -> At {
    (line.first, String::new())
}
