//! Ends of jobs that callers wait for (R19), here and in other processes.
//!
//! When a caller here waits for longer than a moment, this process notifies the others, and again
//! while the caller waits. A process that ends such a job publishes its end. An end without waiting
//! callers therefore costs a look at two empty maps. The number of jobs that other processes wait
//! for is bounded, and each is forgotten unless they repeat it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_core::{EndNotification, JobId};
use quell_engine::EndWaiters;
use tokio::time::Instant;

use crate::push::Outbox;

/// How often others are notified of a caller that still waits.
const RENEWED: Duration = Duration::from_secs(30);
/// How long this process remembers that others wait for a job, unless they repeat it.
const KNOWN: Duration = Duration::from_secs(60);
/// The most jobs that this process remembers as awaited by others, and the most that it has notified
/// others of.
const MOST: usize = 10_000;

/// Who waits for ends.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    here: EndWaiters,
    elsewhere: Mutex<Elsewhere>,
}

impl Ends {
    /// Waits here for the end of a job.
    pub(crate) fn wait_for(&self, job: JobId) -> EndNotification {
        self.here.wait_for(job)
    }

    /// Whether anyone waits for any job.
    pub(crate) fn are_awaited(&self) -> bool {
        self.here.hub().is_awaited() || !self.elsewhere().known_until.is_empty()
    }

    /// Notifies callers that wait here that this process ended these jobs; returns the jobs whose ends
    /// other processes must be notified of.
    pub(crate) fn ended_here(&self, jobs: &[JobId]) -> Vec<JobId> {
        self.here.hub().notify(jobs.iter().copied());
        self.elsewhere().take(jobs, Instant::now())
    }

    /// Others wait for these jobs.
    pub(crate) fn await_elsewhere(&self, jobs: &[JobId]) {
        self.elsewhere().put(jobs, Instant::now());
    }

    /// Others have ended these jobs.
    pub(crate) fn ended_elsewhere(&self, jobs: Vec<JobId>) {
        self.here.hub().notify(jobs);
    }

    /// It is unknown which jobs others have ended: all callers that wait here are notified.
    pub(crate) fn lost_touch(&self) {
        self.here.hub().tell_all();
    }

    fn elsewhere(&self) -> MutexGuard<'_, Elsewhere> {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notifies other processes of the jobs that callers here wait for, until the task that runs it is
/// dropped.
pub(crate) async fn ask(ends: Arc<Ends>, outbox: Arc<Outbox>) {
    let mut asked = Asked::default();
    loop {
        ends.here.begun(asked.renewal()).await;
        outbox.put_waits(asked.news(ends.here.hub().awaited(), Instant::now()));
    }
}

/// What other processes wait for.
#[derive(Debug, Default)]
struct Elsewhere {
    known_until: BTreeMap<JobId, Instant>,
    /// When all entries that had expired were last removed.
    tidied_at: Option<Instant>,
}

impl Elsewhere {
    fn put(&mut self, jobs: &[JobId], now: Instant) {
        self.tidy(now);
        for job in jobs {
            if self.known_until.len() < MOST || self.known_until.contains_key(job) {
                self.known_until.insert(*job, now + KNOWN);
            }
        }
    }

    /// Removes and returns those of the jobs that others wait for: one notification is enough.
    fn take(&mut self, jobs: &[JobId], now: Instant) -> Vec<JobId> {
        if self.known_until.is_empty() {
            return Vec::new();
        }
        self.tidy(now);
        jobs.iter().copied().filter(|job| self.known_until.remove(job).is_some()).collect()
    }

    fn tidy(&mut self, now: Instant) {
        if self.tidied_at.is_none_or(|at| now >= at + KNOWN) {
            self.known_until.retain(|_, until| *until > now);
            self.tidied_at = Some(now);
        }
    }
}

/// The jobs that callers here wait for and other processes were notified of, and when.
#[derive(Debug, Default)]
struct Asked(BTreeMap<JobId, Instant>);

impl Asked {
    /// When the first of these notifications must be repeated, if a caller still waits.
    fn renewal(&self) -> Option<Instant> {
        self.0.values().min().map(|at| *at + RENEWED)
    }

    /// The jobs to notify them of now: several callers that wait for one job count once.
    fn news(&mut self, awaited: Vec<JobId>, now: Instant) -> Vec<JobId> {
        let awaited: BTreeSet<JobId> = awaited.into_iter().collect();
        self.0.retain(|job, at| awaited.contains(job) && now < *at + RENEWED);
        let room = MOST.saturating_sub(self.0.len());
        let unasked = awaited.into_iter().filter(|job| !self.0.contains_key(job));
        let news: Vec<JobId> = unasked.take(room).collect();
        self.0.extend(news.iter().map(|job| (*job, now)));
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    fn job(id: usize) -> JobId {
        JobId::new(id as u64)
    }

    #[test]
    fn r19_what_others_wait_for_is_told_once_and_forgotten_in_time() {
        let (start, mut elsewhere) = (Instant::now(), Elsewhere::default());
        assert!(elsewhere.take(&[job(1)], start).is_empty());
        elsewhere.put(&[job(1), job(2), job(3)], start);
        assert_eq!(elsewhere.take(&[job(1), job(9)], start), [job(1)]);
        assert!(elsewhere.take(&[job(1)], start).is_empty(), "it was notified");
        elsewhere.put(&[job(2)], start + KNOWN / 2);
        let later = start + KNOWN;
        assert_eq!(
            elsewhere.take(&[job(2), job(3)], later),
            [job(2)],
            "only the second still holds"
        );
        assert!(elsewhere.known_until.is_empty());
    }

    #[test]
    fn r19_what_others_wait_for_is_bounded() {
        let (start, mut elsewhere) = (Instant::now(), Elsewhere::default());
        let many: Vec<JobId> = (0..MOST).map(job).collect();
        elsewhere.put(&many, start);
        elsewhere.put(&[job(MOST)], start);
        assert!(elsewhere.take(&[job(MOST)], start).is_empty(), "there is no room");
        elsewhere.put(&[job(7)], start + KNOWN - MOMENT);
        elsewhere.put(&[job(MOST)], start + KNOWN);
        let known: Vec<JobId> = elsewhere.known_until.into_keys().collect();
        assert_eq!(known, [job(7), job(MOST)], "one was renewed, the others made room");
    }

    #[test]
    fn r19_others_are_told_once_of_a_job_and_again_while_someone_waits() {
        let (start, mut asked) = (Instant::now(), Asked::default());
        assert_eq!(asked.renewal(), None);
        assert_eq!(asked.news(vec![job(1)], start), [job(1)]);
        assert_eq!(asked.news(vec![job(1), job(2)], start + MOMENT), [job(2)]);
        assert_eq!(asked.renewal(), Some(start + RENEWED));
        assert_eq!(asked.news(vec![job(1), job(2)], start + RENEWED), [job(1)]);
        assert!(asked.news(vec![], start + RENEWED).is_empty());
        assert_eq!(asked.renewal(), None, "no caller waits any more");
        let many: Vec<JobId> = (0..=MOST).map(job).collect();
        assert_eq!(asked.news(many, start).len(), MOST);
    }
}
