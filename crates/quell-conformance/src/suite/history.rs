//! The event history that a store writes: the checker's only input, so it must say all there is.
//!
//! Clients and workers write the rest; a store writes what only it knows.

use std::sync::{Arc, Mutex, PoisonError};

use quell_core::history::{Event, History, Sink};
use quell_core::job::Adjustment;
use quell_core::window::DueReason;
use quell_core::{
    JobId, JobState, Lease, NewTrigger, QueueSettings, Retention, SettledAs, Settlement,
    TaskSettings,
};

use crate::rig::{Rig, fails, key, keyed, lease, plain, secs};

/// Keeps the events of a store.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    events: Arc<Mutex<Vec<Event>>>,
}

impl History for Recorder {
    fn record(&self, event: &Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
    }
}

impl Recorder {
    /// A sink to open a store with.
    #[must_use]
    pub fn sink(&self) -> Sink {
        Arc::new(self.clone())
    }

    /// What came since the last call.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What came since the last call, which ended with one change of a window: its job, count, the
    /// second it is due, and why.
    fn window(&self) -> (JobId, u64, u64, DueReason) {
        let events = self.take();
        match events.as_slice() {
            [.., Event::Window { job, count, due, reason, .. }] => {
                let changes = events.iter().filter(|event| matches!(event, Event::Window { .. }));
                assert_eq!(changes.count(), 1, "{events:#?}");
                (*job, *count, Rig::second(*due), *reason)
            }
            _ => panic!("one change of a window was to be recorded: {events:#?}"),
        }
    }
}

/// Opened, joined, flushed, absorbed into, rescheduled: with everything a checker needs.
pub async fn every_change_of_a_window_is_recorded(mut rig: Rig, recorder: Recorder) {
    let job = rig.trigger(keyed("a")).await.job().expect("a job");
    assert_eq!(recorder.window(), (job, 1, 10, DueReason::Quiet));
    rig.at(4).trigger(keyed("a")).await;
    let opened = recorder.take();
    let expected = Event::Window {
        t: rig.now(),
        job,
        task: crate::rig::task("t"),
        queue: crate::rig::queue(),
        partition: None,
        key: Some(key("a")),
        priority: 0,
        first: Rig::START,
        last: rig.now(),
        count: 2,
        suppressed: 0,
        due: Rig::START + secs(14),
        bound: Some(Rig::START + secs(60)),
        nb: quell_core::Timestamp::MIN,
        reason: DueReason::Quiet,
        shape: quell_core::job::Shape::default(),
    };
    assert_eq!(opened, [expected]);
    rig.at(5).flush("a").await;
    assert_eq!(recorder.window(), (job, 2, 5, DueReason::Flushed));
    let run = rig.claim_one().await;
    let t = rig.now();
    assert_eq!(recorder.take(), [Event::claimed(t, &Rig::claim_of(1_000), &run)]);

    let successor = rig.at(6).trigger(keyed("a")).await.job().expect("a job");
    assert_eq!(recorder.window(), (successor, 1, 16, DueReason::Quiet));
    rig.fail(&run, secs(30)).await;
    assert_eq!(recorder.window(), (successor, 3, 36, DueReason::Backoff));
    let run = rig.at(36).claim_one().await;
    recorder.take();
    rig.fail(&run, secs(7)).await;
    assert_eq!(recorder.window(), (successor, 3, 43, DueReason::Backoff));
    let run = rig.at(43).claim_one().await;
    recorder.take();
    rig.succeed(&run).await;
    let ended = Settlement { lease: lease(&run), outcome: quell_core::Outcome::succeeded() };
    assert_eq!(recorder.take(), [Event::settled(rig.now(), &ended, SettledAs::Succeeded)]);
}

/// What a job went through is recorded in that order: the end of an attempt before what it led to.
pub async fn an_end_is_recorded_before_what_it_led_to(mut rig: Rig, recorder: Recorder) {
    rig.trigger(keyed("a")).await;
    let run = rig.at(10).claim_one().await;
    rig.renew(lease(&run)).await;
    recorder.take();
    rig.fail(&run, secs(7)).await;
    let events = recorder.take();
    assert!(matches!(events[..], [Event::Settle { .. }, Event::Window { .. }]), "{events:#?}");
    let run = rig.at(17).claim_one().await;
    recorder.take();
    rig.at(47).reap().await;
    let events = recorder.take();
    assert!(matches!(events[..], [Event::Expire { .. }, Event::Window { .. }]), "{events:#?}");
    rig.settle(lease(&run), quell_core::Outcome::succeeded()).await;
    let events = recorder.take();
    let refused = |event: &Event| matches!(event, Event::Settle { became: SettledAs::Refused, .. });
    assert!(events.len() == 1 && refused(&events[0]), "{events:#?}");
}

/// Expired leases, cancels, redrives and removals, each with what became of the job.
pub async fn expiries_cancels_and_redrives_are_recorded(mut rig: Rig, recorder: Recorder) {
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    recorder.take();
    rig.at(30).reap().await;
    let t = rig.now();
    let token = Rig::token(1);
    let became = SettledAs::Scheduled { due: t };
    assert_eq!(recorder.take()[0], Event::Expire { t, job: run.id, token, became, crash: false });

    let run = rig.claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    recorder.take();
    let became = rig.redrive(run.id).await.expect("redrives");
    assert_eq!(recorder.take()[0], Event::Redrive { t, job: run.id, became, edited: false });
    rig.adjust(run.id, Adjustment::default().priority(0)).await.expect("it waits");
    let (run_now, priority) = (false, Some(0));
    assert_eq!(recorder.take(), [Event::Adjust { t, job: run.id, run_now, priority }]);
    rig.cancel(run.id).await.expect("cancels");
    assert_eq!(recorder.take(), [Event::Cancel { t, job: run.id }]);

    let window = rig.trigger(keyed("a")).await.job().expect("a job");
    recorder.take();
    let gone = rig.store.cancel_key(Some(t), &crate::rig::task("t"), &key("a")).await;
    assert_eq!(gone.expect("cancels"), Some(window));
    assert_eq!(recorder.take(), [Event::Cancel { t, job: window }]);
    let t = rig.at(7_200).now();
    rig.store.prune(Some(t), &Retention::default(), 1).await.expect("prunes");
    assert_eq!(recorder.take(), [Event::Prune { t, job: run.id }]);
}

/// What was edited, discarded and imported, with the reason and where it came from.
pub async fn discards_and_imports_are_recorded(rig: Rig, recorder: Recorder) {
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    let (t, id) = (rig.now(), run.id);
    let exports = rig.store.exports(&[id]).await.expect("reads");
    recorder.take();
    let reason = "a test message";
    rig.store.discard(Some(t), &[id, id], reason).await.expect("discards");
    assert_eq!(recorder.take(), [Event::Discard { t, job: id, reason: reason.to_owned() }]);

    let came = rig.store.import_dead(Some(t), &exports).await.expect("imports").remove(0).id;
    let job = rig.job(came).await;
    assert_eq!(recorder.take(), [Event::imported(t, &job, exports[0].origin())]);
    rig.store.import_dead(Some(t), &exports).await.expect("imports");
    rig.store.discard(Some(t), &[id], reason).await.expect("discards");
    assert_eq!(recorder.take(), []);

    let payload = Some(quell_core::Payload::from_stored("2"));
    let redrive = quell_core::Redrive { id: came, payload };
    let became = rig.store.redrive(Some(t), &redrive).await.expect("redrives");
    assert_eq!(recorder.take()[0], Event::Redrive { t, job: came, became, edited: true });
}

/// Settings of queues and tasks, and that a queue was deleted.
pub async fn what_operators_set_is_recorded(rig: Rig, recorder: Recorder) {
    let (queue, task, t) = (crate::rig::queue(), crate::rig::task("t"), rig.now());
    let settings = QueueSettings { worker_concurrency: Some(3), ..QueueSettings::default() };
    rig.next_due().await;
    rig.set_queue(settings.clone()).await;
    assert_eq!(recorder.take(), [Event::Queue { t, queue: queue.clone(), settings }]);
    let settings = TaskSettings::default().paused(true);
    rig.store.set_task(Some(rig.now()), &task, &settings).await.expect("pauses");
    let settings = settings.kept(None, t);
    assert_eq!(recorder.take(), [Event::TaskChanged { t, task, settings }]);
    for _ in 0..2 {
        rig.store.delete_queue(Some(rig.now()), &queue).await.expect("deletes");
    }
    assert_eq!(recorder.take(), [Event::QueueDeleted { t, queue }]);
}

/// A duplicate, a refusal, a call without effect: nothing happened, so nothing is recorded.
pub async fn what_changes_nothing_is_not_recorded(mut rig: Rig, recorder: Recorder) {
    let dedup = Some(quell_core::dedup::Dedup::new(key("d")));
    let deduped = || NewTrigger { dedup: dedup.clone(), ..keyed("a") };
    let job = rig.trigger(deduped()).await.job().expect("a job");
    recorder.take();
    rig.at(3).trigger(deduped()).await;
    rig.redrive(job).await.expect_err("it is not dead");
    rig.cancel(JobId::new(9_999)).await.expect_err("unknown");
    rig.flush("b").await;
    rig.renew(Lease { job, token: Rig::token(9) }).await;
    rig.reap().await;
    rig.claim_none().await;
    assert_eq!(recorder.take(), []);
}

/// After a messy run the last event of each open window says what its row says.
pub async fn the_last_event_of_a_window_is_its_row(mut rig: Rig, recorder: Recorder) {
    for second in 0..300_u64 {
        rig.at(second);
        rig.reap().await;
        for job in rig.claim().await {
            match (second + job.id.get()) % 4 {
                0 => rig.succeed(&job).await,
                1 => drop(rig.fail(&job, secs(7)).await),
                2 => drop(rig.settle(lease(&job), quell_core::Outcome::Released).await),
                _ => {} // Its lease expires.
            }
        }
        if second % 7 < 3 {
            rig.trigger(keyed(if second % 2 == 0 { "a" } else { "b" })).await;
        }
        if second % 41 == 0 {
            rig.flush("b").await;
        }
    }
    let events = recorder.take();
    let open = rig.jobs().await.into_iter().filter(|job| job.state == JobState::Scheduled);
    let mut seen = 0;
    for job in open {
        let of_job =
            |event: &&Event| matches!(event, Event::Window { job: id, .. } if *id == job.id);
        let Some(Event::Window { count, due, bound, nb, .. }) = events.iter().rev().find(of_job)
        else {
            panic!("nothing is recorded of job {}", job.id)
        };
        let window = job.window;
        assert_eq!(
            (*count, *due, *bound, *nb),
            (window.triggers, window.due_at, window.bound_at, window.not_before),
            "{job:?}"
        );
        seen += 1;
    }
    assert!(seen > 0, "{}", rig.dump().await);
}

/// Two ends in one call are recorded one after the other, each before what it led to.
pub async fn two_ends_in_one_call_are_told_in_their_order(mut rig: Rig, recorder: Recorder) {
    for k in ["a", "b"] {
        rig.trigger(keyed(k)).await;
    }
    let runs = rig.at(10).claim().await;
    recorder.take();
    let ends = runs
        .iter()
        .map(|run| Settlement { lease: lease(run), outcome: fails(secs(7), false) })
        .collect();
    rig.store.settle(Some(rig.now()), ends).await.expect("settles");
    let reported: Vec<(bool, JobId)> = recorder
        .take()
        .iter()
        .filter_map(|event| match event {
            Event::Settle { job, .. } => Some((true, *job)),
            Event::Window { job, .. } => Some((false, *job)),
            _ => None,
        })
        .collect();
    let expected = runs.iter().flat_map(|run| [(true, run.id), (false, run.id)]);
    assert_eq!(reported, expected.collect::<Vec<_>>());
}
