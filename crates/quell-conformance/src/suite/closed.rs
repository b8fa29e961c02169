//! Windows that are full (R10): they close, newer triggers open others, and all of a key run in
//! their order (R11).

use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::edge::Edge;
use quell_core::idempotency::Idempotency;
use quell_core::window::{Debounce, DueReason};
use quell_core::{
    Batch, ClaimedJob, ExplainTarget, Failure, FailureKind, Fold, JobId, JobState, NewTrigger,
    Outcome, Payload, QueueSettings, Receipt, Redrive, SettledAs,
};

use crate::rig::{Rig, debounce, fails, key, keyed_with, lease, secs};

fn limited(max_bytes: u32) -> Debounce {
    Debounce { max_bytes: Some(max_bytes), ..debounce() }
}

/// A trigger of a key whose windows hold `cap` payloads.
fn collects(cap: u32, payload: &str) -> NewTrigger {
    keyed_with("a", debounce(), Fold::Collect { cap }, payload)
}

fn lists() -> Fold {
    Fold::Accumulate { fields: ["ids".to_owned()].into() }
}

/// Triggers, and the job that took it.
async fn job_of(rig: &Rig, trigger: NewTrigger) -> JobId {
    rig.trigger(trigger).await.job().expect("a job")
}

/// Runs the key's windows to their ends, each as soon as it may start; returns their payloads.
async fn run_all(rig: &mut Rig) -> Vec<String> {
    let mut payloads = Vec::new();
    for _ in 0..100 {
        let jobs = rig.claim().await;
        assert!(jobs.len() <= 1, "R11: one at a time: {jobs:?}");
        let Some(run) = jobs.first() else { break };
        payloads.push(run.payload.as_str().to_owned());
        rig.succeed(run).await;
    }
    payloads
}

fn dies() -> Outcome {
    let (error, ended) = ("no".to_owned(), quell_core::AttemptOutcome::Failed);
    Outcome::Failed(Failure { error, ended, kind: FailureKind::Permanent })
}

/// Exactly at its limit it is open, and a byte more closes it, for each fold that gathers.
pub async fn r10_a_window_closes_at_its_byte_limit_and_the_next_trigger_opens_another(
    mut rig: Rig,
) {
    let table: [(Fold, [&str; 3], &str); 3] = [
        (Fold::Merge, [r#"{"a":1}"#, r#"{"b":2}"#, r#"{"c":3}"#], r#"{"a":1,"b":2}"#),
        (Fold::Collect { cap: 9 }, ["11", "22", "3"], "[11,22]"),
        (lists(), [r#"{"ids":[1]}"#, r#"{"ids":[2]}"#, r#"{"ids":[3]}"#], r#"{"ids":[1,2]}"#),
    ];
    for (row, (fold, payloads, full)) in table.into_iter().enumerate() {
        let begin = row as u64 * 100;
        let k = format!("k{row}");
        let limit = limited(u32::try_from(full.len()).expect("short"));
        let trigger = |payload| keyed_with(&k, limit, fold.clone(), payload);
        let first = job_of(rig.at(begin), trigger(payloads[0])).await;
        let joined = rig.at(begin + 2).trigger(trigger(payloads[1])).await;
        assert!(matches!(joined, Receipt::Debounced { job, .. } if job == first), "{joined:?}");
        rig.at(begin + 3).claim_none().await;

        let opened = rig.trigger(trigger(payloads[2])).await;
        let Receipt::Accepted { job: second, trigger, due } = opened else { panic!("{opened:?}") };
        assert_ne!(first, second);
        assert_eq!((trigger.seq, Rig::second(due)), (1, begin + 13), "a window of its own");
        let run = rig.claim_one().await;
        assert_eq!((run.id, run.payload.as_str(), run.triggers), (first, full, 2), "{fold:?}");
        assert_eq!(rig.job(first).await.window.reason, DueReason::Full);
        rig.succeed(&run).await;
        rig.claim_none().await;
        let run = rig.at(begin + 13).claim_one().await;
        assert_eq!((run.id, run.triggers), (second, 1));
        rig.succeed(&run).await;
    }
}

/// Payloads that replace each other are one trigger's each, which has a bound of its own.
pub async fn r10_windows_that_keep_one_payload_never_close(mut rig: Rig) {
    for (row, fold) in [Fold::Last, Fold::First].into_iter().enumerate() {
        let begin = row as u64 * 100;
        for second in 0..5 {
            let trigger = keyed_with("a", limited(1), fold.clone(), r#""long""#);
            rig.at(begin + second).trigger(trigger).await;
        }
        let run = rig.at(begin + 14).claim_one().await;
        assert_eq!((run.triggers, run.payload.as_str()), (5, r#""long""#), "{fold:?}");
        rig.succeed(&run).await;
    }
}

/// A mebibyte unless the task says otherwise; the newest trigger's limit counts.
pub async fn r10_a_window_holds_a_mebibyte_unless_its_task_says_otherwise(mut rig: Rig) {
    let large = format!("\"{}\"", "x".repeat(500_000));
    let trigger = |debounce| keyed_with("a", debounce, Fold::Collect { cap: 9 }, &large);
    let first = job_of(&rig, trigger(debounce())).await;
    assert_eq!(job_of(&rig, trigger(debounce())).await, first);
    assert_eq!(job_of(&rig, trigger(limited(2 << 20))).await, first, "it may be larger now");
    let second = job_of(&rig, trigger(debounce())).await;
    assert_ne!(first, second);
    let run = rig.claim_one().await;
    assert_eq!((run.id, run.triggers, run.payload.as_str().len()), (first, 3, 1_500_010));
    rig.succeed(&run).await;
    assert_eq!(rig.at(10).claim_one().await.triggers, 1);
}

/// No trigger is refused for its window's limit: it has a window of its own.
pub async fn r10_a_trigger_above_the_limit_has_a_window_of_its_own(mut rig: Rig) {
    let trigger = |payload| keyed_with("a", limited(5), Fold::Collect { cap: 9 }, payload);
    let mut jobs = Vec::new();
    for payload in [r#""long""#, r#""long""#, "1", "2"] {
        jobs.push(job_of(&rig, trigger(payload)).await);
    }
    assert!(jobs[0] != jobs[1] && jobs[1] != jobs[2] && jobs[2] == jobs[3], "{jobs:?}");
    let all = run_all(rig.at(10)).await;
    assert_eq!(all, [r#"["long"]"#, r#"["long"]"#, "[1,2]"]);
}

/// However long nothing may start: the queue is paused, the key runs, or backs off.
pub async fn r10_collect_never_holds_more_than_its_cap_while_the_queue_is_paused(mut rig: Rig) {
    let paused = |paused| QueueSettings { paused, ..QueueSettings::default() };
    rig.set_queue(paused(true)).await;
    for n in 0..7 {
        rig.at(n).trigger(collects(3, &n.to_string())).await;
    }
    rig.at(500).claim_none().await;
    rig.set_queue(paused(false)).await;
    assert_eq!(run_all(&mut rig).await, ["[0,1,2]", "[3,4,5]", "[6]"]);

    rig.at(600).trigger(collects(2, "0")).await;
    let run = rig.at(610).claim_one().await;
    for n in 1..5 {
        rig.trigger(collects(2, &n.to_string())).await;
    }
    rig.at(611).succeed(&run).await;
    assert_eq!(run_all(rig.at(700)).await, ["[1,2]", "[3,4]"]);

    rig.at(800).trigger(collects(2, "0")).await;
    let run = rig.at(810).claim_one().await;
    rig.fail(&run, secs(50)).await;
    for n in 1..4 {
        rig.at(811).trigger(collects(2, &n.to_string())).await;
    }
    rig.at(859).claim_none().await;
    assert_eq!(run_all(rig.at(860)).await, ["[0,1]", "[2,3]"]);
}

/// Each waits for the end of the one before it, in one call or many, and newest comes last.
pub async fn r10_r11_closed_windows_run_one_at_a_time_in_order(mut rig: Rig) {
    let triggers = (0..5).map(|n| collects(1, &n.to_string())).collect();
    let receipts = rig.trigger_batch(Batch { triggers, dedup: None }).await;
    let mut jobs: Vec<JobId> = receipts.iter().map(|one| one.job().expect("a job")).collect();
    jobs.push(job_of(rig.at(1), collects(1, "5")).await);
    jobs.push(job_of(rig.at(2), collects(1, "6")).await);
    let mut ran = Vec::new();
    for second in 20.. {
        let runs = rig.at(second).claim().await;
        let Some(run) = runs.first() else { break };
        assert_eq!(runs.len(), 1, "{runs:?}");
        rig.claim_none().await;
        ran.push(run.id);
        rig.succeed(run).await;
    }
    assert_eq!(ran, jobs);
}

/// A failure keeps its place: what came later waits for its backoff, too.
pub async fn r10_r12_a_closed_window_that_fails_runs_again_before_newer_ones(mut rig: Rig) {
    for n in 0..5 {
        rig.trigger(collects(2, &n.to_string())).await;
    }
    let run = rig.claim_one().await;
    let became = rig.fail(&run, secs(30)).await;
    assert_eq!(became, SettledAs::Scheduled { due: Rig::START + secs(30) });
    let row = rig.job(run.id).await;
    assert!(row.is_closed_window() && row.window.triggers == 2, "{row:?}");
    // R27: the window behind it waits, and is late, however long its turn takes to come.
    let seen = rig.store.overview(Some(rig.now())).await.expect("looks");
    assert_eq!(seen.lanes[0].first_due, Some(Rig::START));
    rig.at(29).trigger(collects(2, "5")).await;
    rig.at(29).claim_none().await;
    assert_eq!(run_all(rig.at(100)).await, ["[0,1]", "[2,3]", "[4,5]"]);
}

/// Whatever brings the job back, it is a closed window that runs first; its last failure is its
/// death, for nothing newer covers its triggers.
pub async fn r10_r12_an_absorption_that_does_not_fit_stays_a_window_of_its_own(mut rig: Rig) {
    let lease_expires = None;
    let ends = [
        Some(fails(secs(20), false)),
        Some(Outcome::Snoozed { delay: secs(20) }),
        Some(Outcome::Released),
        lease_expires,
    ];
    for (row, end) in ends.into_iter().enumerate() {
        let begin = row as u64 * 1_000;
        for payload in ["0", "1"] {
            rig.at(begin).trigger(collects(3, payload)).await;
        }
        let run = rig.at(begin + 10).claim_one().await;
        for payload in ["2", "3"] {
            rig.trigger(collects(3, payload)).await;
        }
        let became = match end.clone() {
            Some(outcome) => rig.settle(lease(&run), outcome).await,
            None => rig.at(begin + 40).reap().await[0].became,
        };
        assert!(matches!(became, SettledAs::Scheduled { .. }), "{end:?}: {became:?}");
        let row = rig.job(run.id).await;
        assert_eq!((row.state, row.shape.closed), (JobState::Scheduled, true), "{end:?}");
        rig.trigger(collects(3, "4")).await;
        rig.trigger(collects(3, "5")).await;
        assert_eq!(run_all(rig.at(begin + 200)).await, ["[0,1]", "[2,3,4]", "[5]"], "{end:?}");
    }

    rig.at(9_000).trigger(collects(1, "0")).await;
    let run = rig.at(9_010).claim_one().await;
    rig.trigger(collects(1, "1")).await;
    assert_eq!(rig.settle(lease(&run), fails(secs(1), true)).await, SettledAs::Dead);
    assert_eq!(run_all(rig.at(9_100)).await, ["[1]"]);
}

/// What fits into the open window stays out of it while a closed one is between them.
pub async fn r10_r12_no_job_is_absorbed_past_a_closed_window(mut rig: Rig) {
    rig.trigger(collects(2, "0")).await;
    let run = rig.at(10).claim_one().await;
    for payload in ["1", "2", "3"] {
        rig.trigger(collects(2, payload)).await;
    }
    let became = rig.fail(&run, secs(1)).await;
    assert!(matches!(became, SettledAs::Scheduled { .. }), "{became:?}");
    assert_eq!(run_all(rig.at(100)).await, ["[0]", "[1,2]", "[3]"]);
}

/// A dead job that does not fit into the key's open window runs before it, and an edit counts for
/// what it has become.
pub async fn r10_r26_a_redriven_job_that_does_not_fit_runs_first(mut rig: Rig) {
    for (row, payload) in [None, Some("[7,8]"), Some("[7]")].into_iter().enumerate() {
        let begin = row as u64 * 1_000;
        for payload in ["0", "1"] {
            rig.at(begin).trigger(collects(3, payload)).await;
        }
        let run = rig.at(begin + 10).claim_one().await;
        rig.settle(lease(&run), dies()).await;
        for payload in ["2", "3"] {
            rig.trigger(collects(3, payload)).await;
        }
        let payload = payload.map(|text| Payload::from_text(text).expect("JSON"));
        let redrive = Redrive { id: run.id, payload };
        let became = rig.store.redrive(Some(rig.now()), &redrive).await.expect("it is dead");
        let all = run_all(rig.at(begin + 100)).await;
        match row {
            0 => assert_eq!(all, ["[0,1]", "[2,3]"], "{became:?}"),
            1 => assert_eq!(all, ["[7,8]", "[2,3]"], "{became:?}"),
            _ => assert_eq!(all, ["[7,2,3]"], "{became:?}"),
        }
    }
}

/// An old job that is redriven while a newer one runs becomes the open window; the newer one fails
/// and waits for it. None is stuck and none overtakes, whatever comes next.
pub async fn r10_r26_windows_run_in_the_order_of_their_ids_whatever_was_put_back(mut rig: Rig) {
    for row in 0..6 {
        let begin = row * 10_000;
        let mut jobs = Vec::new();
        // The first two die.
        for (at, payload) in [(0, "0"), (100, "1")] {
            jobs.push(job_of(rig.at(begin + at), collects(3, payload)).await);
            let run = rig.at(begin + at + 10).claim_one().await;
            rig.settle(lease(&run), dies()).await;
        }
        for payload in ["20", "21"] {
            jobs.push(job_of(rig.at(begin + 200), collects(3, payload)).await);
        }
        let running = rig.at(begin + 210).claim_one().await;
        let redrive = Redrive { id: jobs[0], payload: None };
        rig.store.redrive(Some(rig.now()), &redrive).await.expect("it is dead");
        let joined = job_of(&rig, collects(3, "2")).await;
        assert_eq!(joined, jobs[0], "the old job is the open window");
        let became = rig.fail(&running, secs(1)).await;
        assert!(matches!(became, SettledAs::Scheduled { .. }), "{became:?}");
        assert!(rig.job(running.id).await.is_closed_window());
        let expected: &[&str] = match row {
            0 => &["[0,2]", "[20,21]"],
            1 => {
                // It is closed, and another window opens.
                for payload in ["3", "4", "5"] {
                    rig.trigger(collects(3, payload)).await;
                }
                &["[0,2,3]", "[20,21]", "[4,5]"]
            }
            2 => {
                let (task, k) = (crate::rig::task("t"), key("a"));
                let cancelled = rig.store.cancel_key(Some(rig.now()), &task, &k).await;
                assert_eq!(cancelled.expect("cancels"), Some(jobs[0]));
                rig.trigger(collects(3, "3")).await;
                &["[20,21]", "[3]"]
            }
            3 => {
                let redrive = Redrive { id: jobs[1], payload: None };
                rig.store.redrive(Some(rig.now()), &redrive).await.expect("it is dead");
                assert_eq!(rig.job(jobs[1]).await.state, JobState::Absorbed);
                &["[1,0,2]", "[20,21]"]
            }
            4 => {
                // Attempts may overlap for a while, and then no more.
                for overlap in [true, false] {
                    let debounce = Debounce { overlap, ..debounce() };
                    let fold = Fold::Collect { cap: 9 };
                    rig.trigger(keyed_with("a", debounce, fold, "3")).await;
                }
                &["[0,2,3,3]", "[20,21]"]
            }
            _ => {
                // It waits for its turn when it is cancelled.
                rig.cancel(running.id).await.expect("it waits");
                &["[0,2]"]
            }
        };
        assert_eq!(run_all(rig.at(begin + 900)).await, expected, "{row}");
        rig.claim_none().await;
    }
}

/// What an edit brought counts against the cap, as long as the window gathers.
pub async fn r10_r26_an_edit_counts_against_the_cap(mut rig: Rig) {
    rig.trigger(collects(3, "0")).await;
    let run = rig.at(10).claim_one().await;
    rig.settle(lease(&run), dies()).await;
    let payload = Some(Payload::from_text("[7, 8]").expect("JSON"));
    let redrive = Redrive { id: run.id, payload };
    rig.store.redrive(Some(rig.now()), &redrive).await.expect("it is dead");
    rig.trigger(collects(3, "1")).await;
    rig.trigger(collects(3, "2")).await;
    assert_eq!(run_all(rig.at(100)).await, ["[7, 8,1]", "[2]"]);
}

/// A trigger that does not fit into the window that leads its burst runs, too.
pub async fn r10_r13_what_does_not_fit_into_a_leading_window_leads_another(mut rig: Rig) {
    let with = |edge, payload: &str| {
        keyed_with("a", Debounce { edge, ..debounce() }, Fold::Collect { cap: 2 }, payload)
    };
    for n in 0..5 {
        rig.trigger(with(Edge::Leading, &n.to_string())).await;
    }
    assert_eq!(run_all(&mut rig).await, ["[0,1]", "[2,3]", "[4]"]);
    let late = rig.at(5).trigger(with(Edge::Leading, "3")).await;
    assert!(matches!(late, Receipt::Debounced { .. }), "the burst goes on: {late:?}");
    assert!(run_all(rig.at(90)).await.is_empty());

    for n in 0..5 {
        rig.at(100).trigger(with(Edge::Both, &n.to_string())).await;
    }
    assert_eq!(run_all(&mut rig).await, ["[0,1]", "[2,3]"], "full ones are due");
    assert_eq!(run_all(rig.at(110)).await, ["[4]"]);
}

/// A second window would start within the period of the first, so a throttled one gathers on.
pub async fn r10_r13_a_throttled_window_does_not_close(mut rig: Rig) {
    let throttle = Debounce::throttle(secs(10)).expect("valid");
    let trigger = |payload: &str| keyed_with("a", throttle, Fold::Collect { cap: 1 }, payload);
    rig.trigger(trigger("0")).await;
    let run = rig.claim_one().await;
    for payload in ["1", "2"] {
        rig.trigger(trigger(payload)).await;
    }
    rig.succeed(&run).await;
    rig.at(9).claim_none().await;
    assert_eq!(run_all(rig.at(10)).await, ["[1,2]"]);
}

/// By key an operator means the open window; a closed one is cancelled by its id, and then the next
/// one is first.
pub async fn r07_r10_a_key_names_its_open_window(mut rig: Rig) {
    let mut jobs = Vec::new();
    for n in 0..4 {
        jobs.push(job_of(&rig, collects(1, &n.to_string())).await);
    }
    let run = rig.claim_one().await;
    assert_eq!(run.id, jobs[0]);
    rig.cancel(jobs[1]).await.expect("it waits");
    assert_eq!(rig.flush("a").await, Some(jobs[3]));
    rig.claim_none().await;
    rig.succeed(&run).await;
    let run = rig.claim_one().await;
    assert_eq!(run.id, jobs[2]);
    let (task, k) = (crate::rig::task("t"), key("a"));
    let cancelled = rig.store.cancel_key(Some(rig.now()), &task, &k).await.expect("cancels");
    assert_eq!(cancelled, Some(jobs[3]));
    assert_eq!(rig.flush("a").await, None);
    jobs.push(job_of(&rig, collects(1, "4")).await);
    assert_ne!(jobs[4], jobs[3], "the key opens another window");
    rig.succeed(&run).await;
    assert_eq!(run_all(rig.at(50)).await, ["[4]"]);
}

/// A closed window that is cancelled while it is the next one lets the one behind it start.
pub async fn r10_r11_a_cancelled_window_holds_back_nothing(mut rig: Rig) {
    let mut jobs = Vec::new();
    for n in 0..3 {
        jobs.push(job_of(&rig, collects(1, &n.to_string())).await);
    }
    assert!(rig.job(jobs[1]).await.waits && rig.job(jobs[2]).await.waits);
    rig.cancel(jobs[0]).await.expect("it waits");
    let run: ClaimedJob = rig.claim_one().await;
    assert_eq!(run.id, jobs[1]);
    rig.cancel(jobs[1]).await.expect("it runs");
    assert_eq!(rig.at(10).claim_one().await.id, jobs[2]);
}

/// Where attempts may overlap, full windows are due like others.
pub async fn r10_r11_closed_windows_overlap_where_attempts_may(rig: Rig) {
    let both = Debounce { overlap: true, ..debounce() };
    for n in 0..5 {
        rig.trigger(keyed_with("a", both, Fold::Collect { cap: 2 }, &n.to_string())).await;
    }
    let runs = rig.claim().await;
    let payloads: Vec<&str> = runs.iter().map(|run| run.payload.as_str()).collect();
    assert_eq!(payloads, ["[0,1]", "[2,3]"]);
    for run in &runs {
        rig.succeed(run).await;
    }
}

/// Dedup and idempotency keys stay with the window that took their trigger.
pub async fn r10_r16_r19_keys_name_the_window_that_took_them(mut rig: Rig) {
    let with = |n: u8| NewTrigger {
        dedup: Some(Dedup { key: key(&format!("d{n}")), until: HoldUntil::Done }),
        idempotency: Some(Idempotency { key: key(&format!("i{n}")), retention: secs(3_600) }),
        ..collects(1, &n.to_string())
    };
    let mut jobs = Vec::new();
    for n in 0..3 {
        jobs.push(job_of(&rig, with(n)).await);
    }
    let dedup = |n| NewTrigger { idempotency: None, ..with(n) };
    for (n, job) in (0..).zip(&jobs) {
        assert_eq!(rig.trigger(dedup(n)).await, Receipt::Duplicate { job: *job });
        let known = rig.trigger(with(n)).await;
        let waits = JobState::Scheduled;
        assert_eq!(known, Receipt::Existing { job: *job, state: waits, output: None });
    }
    assert_eq!(run_all(rig.at(10)).await, ["[0]", "[1]", "[2]"]);
    let known = rig.trigger(with(0)).await;
    assert!(
        matches!(known, Receipt::Existing { job, state: JobState::Succeeded, .. } if job == jobs[0]),
        "{known:?}"
    );
}

/// An explanation says why a window does not gather, or does not start.
pub async fn r10_r15_closed_windows_are_explained(rig: Rig) {
    let mut jobs = Vec::new();
    for n in 0..3 {
        jobs.push(job_of(&rig, collects(1, &n.to_string())).await);
    }
    let full = rig.explain(&ExplainTarget::Job(jobs[1])).await.expect("is known");
    assert_eq!(full.open_window, Some(jobs[2]));
    let text = full.to_string();
    assert!(text.contains("closed     it is full") && text.contains("waits      "), "{text}");
    let (task, k) = (Some(crate::rig::task("t")), key("a"));
    let open = rig.explain(&ExplainTarget::Key { task, key: k }).await.expect("is known");
    assert_eq!((open.job.id, open.open_window), (jobs[2], None));
    assert!(!open.to_string().contains("it is full"), "{open}");
}
