//! What operators see and do.

use quell_core::{
    ErrorKind, ExplainTarget, JobFilter, JobId, JobState, NewTrigger, Receipt, Retention,
    SettledAs, TriggerId,
};

use crate::rig::{Rig, fails, key, keyed, lease, plain, secs, task};

/// Which job took it, why it was due then, which attempts ran.
pub async fn r15_a_job_a_trigger_and_a_key_are_explained(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let trigger = rig.at(4).trigger(keyed("a")).await.trigger().expect("an id");
    let run = rig.at(14).claim_one().await;
    let successor = rig.at(15).trigger(keyed("a")).await.job().expect("a job");
    rig.settle(lease(&run), fails(secs(1), false)).await;

    let shown = rig.explain(&ExplainTarget::Trigger(trigger)).await.expect("is known");
    assert_eq!((shown.job.id, shown.job.absorbed_by), (run.id, Some(successor)));
    assert_eq!((shown.attempts.len(), shown.open_window), (1, Some(successor)));
    let text = shown.to_string();
    for needle in ["was taken by job", "the quiet period", "failed after", "boom", "absorbed   by"]
    {
        assert!(text.contains(needle), "{needle:?} is missing in:\n{text}");
    }
    let target = ExplainTarget::Key { task: Some(task("t")), key: key("a") };
    let shown = rig.explain(&target).await.expect("is known");
    assert_eq!((shown.job.id, shown.absorbed), (successor, vec![run.id]));
    let alone = rig.trigger(NewTrigger { task: task("u"), ..plain("1") }).await;
    let shown = rig.explain(&ExplainTarget::Job(alone.job().expect("a job"))).await;
    assert_eq!(shown.expect("is known").keys, None, "its task has no keys to judge");
    let unknown = [
        ExplainTarget::Trigger(TriggerId { job: run.id, seq: 3 }),
        ExplainTarget::Job(JobId::new(9_999)),
        ExplainTarget::Key { task: Some(task("u")), key: key("a") },
    ];
    for target in unknown {
        assert_eq!(rig.explain(&target).await, None, "{target:?}");
    }
}

/// A key that differs on every trigger debounces nothing.
pub async fn r15_useless_keys_are_pointed_out(rig: Rig) {
    let mut last = None;
    for n in 0..60 {
        last = rig.trigger(keyed(&format!("request-{n}"))).await.job();
    }
    let target = ExplainTarget::Job(last.expect("a job"));
    let shown = rig.explain(&target).await.expect("is known");
    assert!(shown.keys.is_some_and(|keys| keys.is_useless()), "{:?}", shown.keys);
    assert!(shown.to_string().contains("its debounce does nothing"), "{shown}");
}

/// Fresh attempts; or into the open window of its key.
pub async fn r26_a_redrive_brings_fresh_attempts_or_joins_the_window(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let run = rig.at(10).claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    assert_eq!(rig.states().await, [JobState::Dead]);
    let became = rig.redrive(run.id).await.expect("redrives");
    assert_eq!(became, SettledAs::Scheduled { due: rig.now() });
    let again = rig.claim_one().await;
    assert_eq!((again.attempt, again.failures), (1, 0));
    rig.settle(lease(&again), fails(secs(1), true)).await;

    let window = rig.trigger(keyed("a")).await.job().expect("a job");
    let became = rig.redrive(run.id).await.expect("redrives");
    assert!(matches!(became, SettledAs::Absorbed { by, .. } if by == window), "{became:?}");
    assert_eq!(rig.job(window).await.window.triggers, 2);
    let error = rig.redrive(run.id).await.expect_err("it is not dead any more");
    assert_eq!(error.kind(), ErrorKind::IllegalMove);
}

/// Succeeded after an hour, dead never, in small batches.
pub async fn r37_ended_jobs_go_after_their_retention(rig: Rig) {
    for n in 0..5 {
        rig.trigger(plain(&n.to_string())).await;
    }
    let jobs = rig.claim().await;
    for job in &jobs[..4] {
        rig.succeed(job).await;
    }
    rig.settle(lease(&jobs[4]), fails(secs(1), true)).await;
    let keep = Retention::default();
    assert_eq!(rig.prune(3_599, &keep, 99).await, 0);
    assert_eq!(rig.prune(3_600, &keep, 3).await, 3);
    assert_eq!(rig.prune(3_600, &keep, 3).await, 1);
    assert_eq!(rig.states().await, [JobState::Dead]);
    let short = Retention { dead: Some(secs(10)), ..keep };
    assert_eq!(rig.prune(3_601, &short, 9).await, 1);
    let gone = ExplainTarget::Job(jobs[4].id);
    assert_eq!(rig.explain(&gone).await, None);
    assert!(rig.store.attempts(jobs[4].id).await.expect("reads").is_empty());
}

/// What has ended stays ended; what is unknown is said to be.
pub async fn r26_illegal_moves_are_refused(rig: Rig) {
    rig.trigger(plain("1")).await;
    let job = rig.claim_one().await;
    let running = rig.redrive(job.id).await.expect_err("running");
    assert_eq!(running.kind(), ErrorKind::IllegalMove);
    rig.succeed(&job).await;
    let before = rig.jobs().await;
    let cancel = |id| rig.store.cancel(Some(rig.now()), id, "no longer wanted");
    let redrive = |id| rig.redrive(id);
    let unknown = JobId::new(777);
    assert_eq!(cancel(job.id).await.expect_err("ended").kind(), ErrorKind::IllegalMove);
    assert_eq!(redrive(job.id).await.expect_err("ended").kind(), ErrorKind::IllegalMove);
    assert_eq!(cancel(unknown).await.expect_err("unknown").kind(), ErrorKind::NotFound);
    assert_eq!(redrive(unknown).await.expect_err("unknown").kind(), ErrorKind::NotFound);
    assert_eq!(rig.jobs().await, before);

    rig.trigger(keyed("a")).await;
    let window = rig.trigger(keyed("a")).await.job().expect("a job");
    cancel(window).await.expect("cancels");
    assert_eq!(rig.job(window).await.error.as_deref(), Some("no longer wanted"));
}

/// Newest first, by task, state and key, without gaps.
pub async fn jobs_are_listed_page_by_page(rig: Rig) {
    for n in 0..7 {
        rig.trigger(plain(&n.to_string())).await;
    }
    let Receipt::Accepted { job: window, .. } = rig.trigger(keyed("a")).await else {
        panic!("not accepted")
    };
    rig.trigger(NewTrigger { task: task("u"), ..plain("8") }).await;
    let all = JobFilter { limit: 4, ..JobFilter::default() };
    let first = rig.list(&all).await;
    let before = first.last().copied();
    let second = rig.list(&JobFilter { before, ..all.clone() }).await;
    let joined: Vec<JobId> = first.iter().chain(&second).copied().collect();
    assert_eq!(joined.len(), 8);
    assert!(joined.windows(2).all(|pair| pair[0] > pair[1]), "{joined:?}");
    let by_key = JobFilter { key: Some(key("a")), ..JobFilter::default() };
    assert_eq!(rig.list(&by_key).await, [window]);
    let by_task = JobFilter { task: Some(task("u")), ..JobFilter::default() };
    assert_eq!(rig.list(&by_task).await.len(), 1);
    let by_state = JobFilter { state: Some(JobState::Dead), ..JobFilter::default() };
    assert!(rig.list(&by_state).await.is_empty());
    let queue = Some(quell_core::QueueName::new("other").expect("a name"));
    let there = NewTrigger { queue: queue.clone().expect("a name"), ..plain("9") };
    let there = rig.trigger(there).await.job().expect("a job");
    assert_eq!(rig.list(&JobFilter { queue, ..JobFilter::default() }).await, [there]);
}
