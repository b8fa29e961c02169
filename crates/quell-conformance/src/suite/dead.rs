//! Dead jobs: found, shown, redriven with an edited payload, discarded, carried between stores
//! (R25, R26).

use quell_core::idempotency::Idempotency;
use quell_core::payload::MAX_PAYLOAD_BYTES;
use quell_core::window::Debounce;
use quell_core::{
    AttemptOutcome, Batch, DeadExport, DeadFilter, DeadPlace, ErrorKind, ExplainTarget, Failure,
    FailureKind, Fold, Job, JobId, JobState, Key, Limits, NewTrigger, Outcome, Payload, QueueName,
    Receipt, Redrive, SettledAs, TaskName,
};

use crate::rig::{Rig, debounce, fails, key, keyed, keyed_with, lease, plain, secs, task};

fn dies(error: &str) -> Outcome {
    let (error, ended) = (error.to_owned(), AttemptOutcome::Failed);
    Outcome::Failed(Failure { error, ended, kind: FailureKind::Permanent })
}

fn edited(id: JobId, payload: &str) -> Redrive {
    Redrive { id, payload: Some(Payload::from_text(payload).expect("JSON")) }
}

/// A job that died of `error` at this second, after a failed attempt.
async fn dead(rig: &mut Rig, second: u64, error: &str) -> JobId {
    rig.at(second).trigger(plain("1")).await;
    let run = rig.claim_one().await;
    rig.fail(&run, secs(0)).await;
    let run = rig.claim_one().await;
    assert_eq!(rig.settle(lease(&run), dies(error)).await, SettledAs::Dead);
    run.id
}

async fn ids(rig: &Rig, filter: &DeadFilter) -> Vec<JobId> {
    let dead = rig.store.dead(filter).await.expect("the store lists the dead");
    dead.into_iter().map(|job| job.id).collect()
}

async fn export(rig: &Rig, id: JobId) -> DeadExport {
    let mut exports = rig.store.exports(&[id]).await.expect("the store exports");
    assert_eq!(exports.len(), 1, "{}", rig.dump().await);
    exports.remove(0)
}

async fn discard(rig: &Rig, ids: &[JobId]) -> Vec<JobId> {
    rig.store.discard(Some(rig.now()), ids, "a test message").await.expect("the store discards")
}

async fn redrive(rig: &Rig, redrive: &Redrive) -> SettledAs {
    rig.store.redrive(Some(rig.now()), redrive).await.expect("the store redrives")
}

/// A window that gathered more than one trigger may bring is carried to a store and edited at its
/// size.
pub async fn r26_a_large_window_is_carried_and_edited_at_its_size(mut rig: Rig) {
    let large = format!("\"{}\"", "x".repeat(MAX_PAYLOAD_BYTES / 2));
    let collect = Fold::Collect { cap: 9 };
    for _ in 0..3 {
        let debounce = Debounce { max_bytes: Some(2 << 20), ..debounce() };
        rig.trigger(keyed_with("a", debounce, collect.clone(), &large)).await;
    }
    let run = rig.at(10).claim_one().await;
    rig.settle(lease(&run), dies("too much")).await;
    let exported = export(&rig, run.id).await;
    let expected = format!("[{large},{large},{large}]");
    assert!(exported.job.payload.as_str() == expected, "all three were gathered");
    exported.validate(&Limits::default()).expect("what was exported can be imported");
    discard(&rig, &[run.id]).await;
    let exports = std::slice::from_ref(&exported);
    let imported = rig.store.import_dead(Some(rig.now()), exports).await.expect("imports")[0];
    let other = edited(imported.id, &expected.replace('x', "y"));
    other.validate(&Limits::default()).expect("an edit may be as large");
    redrive(&rig, &other).await;
    let run = rig.claim_one().await;
    assert!(run.payload.as_str() == expected.replace('x', "y"), "the edit runs");
}

/// The latest death first, by task, queue, error text and time, in pages and counted.
pub async fn r25_the_dead_are_found_by_what_they_died_of(mut rig: Rig) {
    let refused = dead(&mut rig, 10, "Connection refused: 50% of 3").await;
    let timed_out = dead(&mut rig, 20, "timed out").await;
    let other = NewTrigger {
        task: task("u"),
        queue: QueueName::new("other").expect("a name"),
        ..plain("1")
    };
    rig.at(30).trigger(other).await;
    let asked = quell_core::Claim {
        queue: QueueName::new("other").expect("a name"),
        tasks: [task("u")].into(),
        ..Rig::claim_of(9)
    };
    let run = rig.claim_with(&asked).await.remove(0);
    rig.settle(lease(&run), dies("connection REFUSED")).await;
    rig.trigger(plain("2")).await;
    let lives = rig.claim_one().await;
    rig.succeed(&lives).await;

    let none = DeadFilter::default;
    let error = |text: &str| DeadFilter { error: Some(text.into()), ..none() };
    let at = |second| Some(Rig::START + secs(second));
    let newest = [run.id, timed_out, refused];
    assert_eq!(ids(&rig, &none()).await, newest);
    let table: [(DeadFilter, &[JobId]); 9] = [
        (error("CONNECTION refused"), &[run.id, refused]),
        (error("50% of"), &[refused]),
        (error("5_%"), &[]),
        (DeadFilter { task: Some(task("u")), ..none() }, &[run.id]),
        (DeadFilter { task: Some(task("never")), ..none() }, &[]),
        (DeadFilter { queue: Some(crate::rig::queue()), ..none() }, &[timed_out, refused]),
        (DeadFilter { died_after: at(20), ..none() }, &[run.id, timed_out]),
        (DeadFilter { died_before: at(20), ..none() }, &[refused]),
        (DeadFilter { died_before: at(30), ..error("refused") }, &[refused]),
    ];
    for (filter, expected) in table {
        assert_eq!(ids(&rig, &filter).await, expected, "{filter:?}");
        let count = rig.store.count_dead(&filter).await.expect("counts");
        assert_eq!(count, expected.len() as u64, "{filter:?}");
    }
    let mut before: Option<DeadPlace> = None;
    for id in newest {
        let page = DeadFilter { limit: 1, before, ..none() };
        let jobs = rig.store.dead(&page).await.expect("lists");
        assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id]);
        assert_eq!(rig.store.count_dead(&page).await.expect("counts"), 3, "of all pages");
        before = DeadPlace::of(&jobs[0]);
    }
    assert!(ids(&rig, &DeadFilter { before, ..none() }).await.is_empty());
}

/// Those that died at one moment come in the order of their ids, without gaps between pages.
pub async fn r25_deaths_of_one_moment_are_paged_without_gaps(rig: Rig) {
    for n in 0..7 {
        rig.trigger(plain(&n.to_string())).await;
    }
    let runs = rig.claim().await;
    for run in &runs {
        rig.settle(lease(run), dies("no")).await;
    }
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let page = DeadFilter { before, limit: 3, ..DeadFilter::default() };
        let jobs = rig.store.dead(&page).await.expect("lists");
        let Some(last) = jobs.last() else { break };
        before = DeadPlace::of(last);
        seen.extend(jobs.iter().map(|job| job.id));
    }
    let expected: Vec<JobId> = runs.iter().rev().map(|run| run.id).collect();
    assert_eq!(seen, expected);
}

/// Attempts of every life stay on record, and the count of starts goes on.
pub async fn r26_a_redriven_job_keeps_its_history(mut rig: Rig) {
    let id = dead(&mut rig, 10, "first death").await;
    rig.at(20).redrive(id).await.expect("redrives");
    let run = rig.at(21).claim_one().await;
    assert_eq!((run.id, run.attempt, run.token.starts()), (id, 1, 3));
    rig.settle(lease(&run), dies("second death")).await;

    let DeadExport { job, attempts, past, .. } = export(&rig, id).await;
    let shown = |n: usize| (attempts[n].token.starts(), attempts[n].error.as_deref());
    assert_eq!(attempts.len(), 3);
    assert_eq!([shown(0), shown(1)], [(1, Some("boom")), (2, Some("first death"))]);
    assert_eq!(shown(2), (3, Some("second death")));
    assert_eq!((job.starts(), job.error.as_deref()), (3, Some("second death")));
    assert_eq!(past, quell_core::Past::default());
    let alone = rig.store.exports(&[JobId::new(9_999), id, id]).await.expect("reads");
    assert_eq!(
        alone.len(),
        2,
        "an unknown job is left out, and one that is named twice comes twice"
    );
}

/// The job runs with the payload that it was given; the one before the first edit is shown.
pub async fn r26_an_edited_payload_runs_and_the_original_is_kept(mut rig: Rig) {
    let id = dead(&mut rig, 10, "no").await;
    for payload in ["{\"to\":2}", "{\"to\":3}"] {
        let became = redrive(&rig, &edited(id, payload)).await;
        assert_eq!(became, SettledAs::Scheduled { due: rig.now() });
        let run = rig.claim_one().await;
        assert_eq!(run.payload.as_str(), payload);
        rig.settle(lease(&run), dies("no")).await;
    }
    let original = |export: &DeadExport| export.past.original.clone();
    let kept = export(&rig, id).await;
    assert_eq!(kept.job.payload.as_str(), "{\"to\":3}");
    assert_eq!(original(&kept).expect("kept").as_str(), "1");
    let shown = rig.explain(&ExplainTarget::Job(id)).await.expect("is known");
    assert!(shown.to_string().contains("edited     its payload; before it was 1"), "{shown}");

    redrive(&rig, &Redrive::from(id)).await;
    let run = rig.claim_one().await;
    assert_eq!(run.payload.as_str(), "{\"to\":3}", "an edit stays");
    rig.succeed(&run).await;
    let shown = rig.explain(&ExplainTarget::Job(id)).await.expect("is known");
    assert_eq!(shown.past.original.expect("kept").as_str(), "1");

    let same = dead(&mut rig, 20, "no").await;
    redrive(&rig, &edited(same, "1")).await;
    let shown = rig.explain(&ExplainTarget::Job(same)).await.expect("is known");
    assert_eq!(shown.past.original, None, "nothing was edited");
}

/// It is folded in as older; the original stays with the job that was absorbed.
pub async fn r26_an_edited_payload_joins_the_open_window(mut rig: Rig) {
    let collects = || keyed_with("a", debounce(), Fold::Collect { cap: 9 }, "1");
    rig.trigger(collects()).await;
    let run = rig.at(10).claim_one().await;
    rig.settle(lease(&run), dies("no")).await;
    let window = rig.trigger(collects()).await.job().expect("a job");

    let before = rig.jobs().await;
    let wrong = rig.store.redrive(Some(rig.now()), &edited(run.id, "{}")).await;
    let wrong = wrong.expect_err("an object cannot be gathered into");
    assert_eq!((wrong.kind(), wrong.field()), (ErrorKind::Invalid, Some("payload")));
    assert_eq!(rig.jobs().await, before);

    let became = redrive(&rig, &edited(run.id, "[7,8]")).await;
    assert!(matches!(became, SettledAs::Absorbed { by, .. } if by == window), "{became:?}");
    assert_eq!(rig.job(window).await.payload.as_str(), "[7,8,1]");
    let shown = rig.explain(&ExplainTarget::Job(run.id)).await.expect("is known");
    assert_eq!(shown.past.original.expect("kept").as_str(), "[1]");
    let successor = rig.explain(&ExplainTarget::Job(window)).await.expect("is known");
    assert_eq!(successor.past.original, None);
}

/// An edit of what is not dead is refused and changes nothing.
pub async fn r26_only_the_dead_are_edited(mut rig: Rig) {
    let waits = rig.trigger(keyed("a")).await.job().expect("a job");
    rig.at(1).trigger(plain("1")).await;
    let runs = rig.claim_one().await;
    let before = rig.jobs().await;
    for (id, kind) in [
        (waits, ErrorKind::IllegalMove),
        (runs.id, ErrorKind::IllegalMove),
        (JobId::new(777), ErrorKind::NotFound),
    ] {
        let refused = rig.store.redrive(Some(rig.now()), &edited(id, "2")).await;
        assert_eq!(refused.expect_err("it is not dead").kind(), kind);
    }
    assert_eq!(rig.jobs().await, before);
    let shown = rig.explain(&ExplainTarget::Job(waits)).await.expect("is known");
    assert_eq!(shown.past.original, None);
}

/// Dead jobs go with their attempts; nothing else does.
pub async fn r25_a_discard_takes_the_dead_and_nobody_else(mut rig: Rig) {
    let gone = dead(&mut rig, 10, "no").await;
    let stays = dead(&mut rig, 11, "no").await;
    let waits = rig.trigger(keyed("a")).await.job().expect("a job");
    rig.trigger(plain("2")).await;
    let runs = rig.claim_one().await;
    rig.trigger(plain("3")).await;
    let done = rig.claim_one().await;
    rig.succeed(&done).await;

    let asked = [waits, gone, runs.id, JobId::new(777), done.id, gone];
    assert_eq!(discard(&rig, &asked).await, [gone]);
    assert_eq!(discard(&rig, &asked).await, []);
    assert_eq!(discard(&rig, &[]).await, []);
    assert_eq!(rig.explain(&ExplainTarget::Job(gone)).await, None);
    assert!(rig.store.attempts(gone).await.expect("reads").is_empty());
    assert!(rig.store.exports(&[gone]).await.expect("reads").is_empty());
    let refused = rig.redrive(gone).await.expect_err("it is gone");
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert!(refused.to_string().contains("discard"), "{refused}");
    let lives: Vec<(JobId, JobState)> =
        rig.jobs().await.iter().map(|job| (job.id, job.state)).collect();
    let expected = [
        (stays, JobState::Dead),
        (waits, JobState::Scheduled),
        (runs.id, JobState::Running),
        (done.id, JobState::Succeeded),
    ];
    assert_eq!(lives, expected);
    assert_eq!(rig.store.attempts(stays).await.expect("reads").len(), 2);
}

/// Dead jobs of another store are imported with ids of their own, and run when they are redriven.
pub async fn r26_exports_of_another_store_come_in(mut rig: Rig) {
    let id = dead(&mut rig, 10, "no").await;
    let mine = export(&rig, id).await;
    let foreign = |number: u64, key: Option<Key>| {
        let (task, queue) = (TaskName::new("t"), QueueName::new("elsewhere"));
        let (task, queue) = (task.expect("a name"), queue.expect("a name"));
        let job = Job { id: JobId::new(number), task, queue, key, priority: 3, ..mine.job.clone() };
        DeadExport { job, ..mine.clone() }
    };
    let exports = [foreign(4_000, None), foreign(4_001, Some(key("k")))];
    rig.at(50);
    let came = rig.store.import_dead(Some(rig.now()), &exports).await.expect("imports");
    assert!(came.iter().all(|one| !one.known && one.id > id && one.id.get() < 4_000), "{came:?}");

    for (came, export_there) in came.iter().zip(&exports) {
        let here = export(&rig, came.id).await;
        let (job, past) = export_there.arrive(came.id);
        let job = Job { priority: here.job.priority, ..job };
        assert_eq!(here.job, job);
        assert_eq!((here.attempts, here.past), (mine.attempts.clone(), past));
    }
    let shown = rig.explain(&ExplainTarget::Job(came[0].id)).await.expect("is known");
    assert!(shown.to_string().contains("it was job 4000 where it was accepted"), "{shown}");

    rig.redrive(came[1].id).await.expect("redrives");
    let queue = QueueName::new("elsewhere").expect("a name");
    let asked = quell_core::Claim { queue, ..Rig::claim_of(9) };
    let run = rig.claim_with(&asked).await.remove(0);
    let token = Rig::token(mine.job.starts() + 1);
    assert_eq!((run.id, run.token, run.key), (came[1].id, token, Some(key("k"))));
}

/// An import of what is here, or came in before, changes nothing, however often it is made.
pub async fn r26_an_import_made_twice_makes_one_job(mut rig: Rig) {
    let id = dead(&mut rig, 10, "no").await;
    let mine = export(&rig, id).await;
    let import = async |rig: &Rig, exports: &[DeadExport]| {
        let came = rig.store.import_dead(Some(rig.now()), exports).await.expect("imports");
        came.into_iter().map(|one| (one.id, one.known)).collect::<Vec<_>>()
    };
    let before = rig.jobs().await;
    assert_eq!(import(&rig, std::slice::from_ref(&mine)).await, [(id, true)]);
    assert_eq!(rig.jobs().await, before, "it never left");

    let foreign =
        DeadExport { job: Job { id: JobId::new(4_000), ..mine.job.clone() }, ..mine.clone() };
    let both = [foreign.clone(), foreign.clone()];
    let came = import(&rig, &both).await;
    let new = came[0].0;
    assert_eq!(came, [(new, false), (new, true)]);
    assert_eq!(import(&rig, &both).await, [(new, true), (new, true)]);
    let carried_on = export(&rig, new).await;
    assert_eq!(import(&rig, &[carried_on]).await, [(new, true)]);
    rig.redrive(new).await.expect("redrives");
    assert_eq!(import(&rig, &both).await, [(new, true), (new, true)], "whatever became of it");

    assert_eq!(discard(&rig, &[id]).await, [id]);
    let back = import(&rig, std::slice::from_ref(&mine)).await;
    assert!(back[0].0 > new && !back[0].1, "what was discarded comes back: {back:?}");
    assert_eq!(export(&rig, back[0].0).await.attempts, mine.attempts);
}

/// What hangs on a dead job goes with it: a key that an edit or an import left belongs to no job.
pub async fn r25_r37_a_retention_takes_all_of_a_dead_job(mut rig: Rig) {
    let id = dead(&mut rig, 10, "no").await;
    let mine = export(&rig, id).await;
    let foreign = DeadExport { job: Job { id: JobId::new(4_000), ..mine.job.clone() }, ..mine };
    let now = Some(rig.now());
    let came = rig.store.import_dead(now, std::slice::from_ref(&foreign)).await.expect("imports");
    let keep = quell_core::Retention { dead: Some(secs(60)), ..Default::default() };
    assert_eq!(rig.prune(69, &keep, 9).await, 0);
    assert_eq!(rig.prune(70, &keep, 9).await, 2, "an imported job died when it died");
    let again = rig.store.import_dead(now, &[foreign]).await.expect("imports");
    assert!(!again[0].known && again[0].id > came[0].id, "{again:?}");
}

/// A dead job that a trigger's window takes in was dead; what it says of its end is its own.
pub async fn r26_a_redrive_of_many_of_one_key_makes_one_window(mut rig: Rig) {
    for second in [0, 20] {
        rig.at(second).trigger(keyed("a")).await;
        let run = rig.at(second + 10).claim_one().await;
        rig.settle(lease(&run), fails(secs(1), true)).await;
    }
    let both = ids(&rig, &DeadFilter::default()).await;
    for id in &both {
        rig.redrive(*id).await.expect("redrives");
    }
    let job = rig.job(both[0]).await;
    assert_eq!((job.state, job.window.triggers), (JobState::Scheduled, 2));
    assert_eq!(rig.job(both[1]).await.absorbed_by, Some(both[0]));
}

/// A key stands for the payload that came first, whatever payload the dead job is redriven with; and
/// it still names a job that was discarded, so nothing runs for it a second time.
pub async fn r19_r26_a_key_outlives_edits_and_discards(mut rig: Rig) {
    let asks = |payload: &str| {
        let idempotency = Some(Idempotency::new(key("k")));
        NewTrigger { idempotency, ..plain(payload) }
    };
    let id = rig.trigger(asks("1")).await.job().expect("a job");
    let tells = |state| Receipt::Existing { job: id, state, output: None };
    let run = rig.claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    let again = edited(id, "2");
    redrive(&rig, &again).await;
    let receipt = rig.trigger(asks("1")).await;
    assert_eq!(receipt, tells(JobState::Scheduled));
    let refused = rig.try_batch(Batch::one(asks("2"))).await.expect_err("another payload");
    assert_eq!(refused.kind(), ErrorKind::IdempotencyConflict);
    let run = rig.claim_one().await;
    assert_eq!(run.payload, Payload::from_stored("2"));
    rig.settle(lease(&run), fails(secs(1), true)).await;
    assert_eq!(discard(&rig, &[id]).await, [id]);
    let receipt = rig.at(60).trigger(asks("1")).await;
    assert_eq!(receipt, tells(JobState::Dead));
    assert!(rig.claim().await.is_empty());
}
