//! What a store refuses: moves that do not exist, reports that no longer count, work on nothing.

use quell_core::payload::MAX_PAYLOAD_BYTES;
use quell_core::{
    Batch, ClaimedJob, Draw, ErrorKind, Job, JobId, JobState, Key, Lease, LeaseToken,
    MAX_KEY_BYTES, MAX_NAME_BYTES, NewTrigger, Outcome, Payload, QueueName, SettledAs, TaskName,
};

use crate::rig::{Rig, fails, key, keyed, lease, plain, secs, task};

/// One job in each state, by its debounce key, and the lease of its last attempt.
async fn one_job_in_each_state(rig: &mut Rig) -> Vec<(JobState, Lease)> {
    let mut jobs = Vec::new();
    let readable = JobState::ALL.into_iter().filter(|state| *state != JobState::Unreadable);
    for (round, state) in readable.enumerate() {
        rig.at(round as u64 * 100).trigger(keyed(state.name())).await;
        let job = rig.at(round as u64 * 100 + 10).claim_one().await;
        let held = lease(&job);
        match state {
            JobState::Scheduled => drop(rig.fail(&job, secs(100_000)).await),
            JobState::Running => {}
            JobState::Succeeded => rig.succeed(&job).await,
            JobState::Dead => drop(rig.settle(held, fails(secs(1), true)).await),
            JobState::Cancelled => rig.cancel(job.id).await.expect("cancels"),
            JobState::Absorbed => {
                rig.trigger(keyed("absorbed")).await;
                rig.fail(&job, secs(100_000)).await;
            }
            // No move leads there: see `unreadable`.
            JobState::Unreadable => {}
        }
        if state != JobState::Running {
            jobs.push((state, held));
        }
    }
    jobs
}

/// The state diagram: whatever it does not know is refused, and nothing is changed.
pub async fn r21_moves_that_do_not_exist_are_refused(mut rig: Rig) {
    for (state, held) in one_job_in_each_state(&mut rig).await {
        let before = rig.jobs().await;
        assert_eq!(rig.job(held.job).await.state, state);
        for outcome in [Outcome::succeeded(), Outcome::Released, fails(secs(1), false)] {
            assert_eq!(rig.settle(held, outcome).await, SettledAs::Refused, "{state}");
        }
        assert_eq!(rig.renew(held).await, None, "{state}");
        if state != JobState::Dead {
            let refused = rig.redrive(held.job).await.expect_err("only a dead job is redriven");
            assert_eq!(refused.kind(), ErrorKind::IllegalMove, "{state}: {refused}");
            assert!(refused.to_string().contains(state.name()), "{refused}");
        }
        if state != JobState::Scheduled {
            let refused = rig.cancel(held.job).await.expect_err("it has ended");
            assert_eq!(refused.kind(), ErrorKind::IllegalMove, "{state}: {refused}");
            assert!(refused.to_string().contains(&held.job.to_string()), "{refused}");
        }
        assert_eq!(rig.jobs().await, before, "a refused move changed something");
    }
}

/// Unknown jobs, keys and tasks are said to be unknown, and asking for them makes no row.
pub async fn r40_what_is_unknown_is_said_to_be(rig: Rig) {
    rig.trigger(keyed("a")).await;
    let before = rig.jobs().await;
    let unknown = JobId::new(9_999);
    let errors = [
        rig.cancel(unknown).await.expect_err("unknown"),
        rig.redrive(unknown).await.expect_err("unknown"),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("9999"), "{error}");
    }
    assert_eq!(rig.store.job(unknown).await.expect("reads"), None);
    assert!(rig.store.attempts(unknown).await.expect("reads").is_empty());
    let stranger = Lease { job: unknown, token: Rig::token(1) };
    assert_eq!(rig.settle(stranger, Outcome::succeeded()).await, SettledAs::Refused);
    assert_eq!(rig.renew(stranger).await, None);
    for (name, k) in [("t", "b"), ("u", "a")] {
        let (name, k) = (task(name), key(k));
        assert_eq!(rig.store.flush(Some(rig.now()), &name, &k).await.expect("looks"), None);
        assert_eq!(rig.store.cancel_key(Some(rig.now()), &name, &k).await.expect("looks"), None);
    }
    assert_eq!(rig.jobs().await, before);
}

/// A forged, an old and a future token are no fence.
pub async fn r21_only_the_current_token_counts(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let first = rig.claim_one().await;
    rig.refuses_tokens(
        &first,
        [LeaseToken::NONE, first.token.next(Rig::DRAW), Rig::token(u64::MAX)],
    )
    .await;
    rig.settle(lease(&first), Outcome::Released).await;
    let second = rig.claim_one().await;
    let elsewhere = second.token.draw().get() ^ 1;
    let forged = [
        LeaseToken::NONE,
        first.token,
        second.token.next(Rig::DRAW),
        // As a store had it that gave the id, and lost that.
        LeaseToken::of(second.token.starts(), Draw::new(elsewhere)),
        LeaseToken::new(second.token.starts()),
        LeaseToken::new(i64::MAX as u64),
    ];
    rig.refuses_tokens(&second, forged).await;
    rig.at(1).succeed(&second).await;
}

impl Rig {
    async fn refuses_tokens(
        &mut self,
        job: &ClaimedJob,
        tokens: impl IntoIterator<Item = LeaseToken>,
    ) {
        let before: Vec<Job> = self.jobs().await;
        for token in tokens {
            let forged = Lease { job: job.id, token };
            let settled = self.settle(forged, Outcome::succeeded()).await;
            assert_eq!(settled, SettledAs::Refused, "{token}");
            assert_eq!(self.renew(forged).await, None, "{token}");
        }
        assert_eq!(self.jobs().await, before);
    }
}

/// Calls that ask for nothing are answered with nothing and do nothing.
pub async fn r40_empty_calls_are_fine(rig: Rig) {
    let now = Some(rig.now());
    assert!(rig.store.enqueue(now, Vec::new()).await.expect("accepts").is_empty());
    let empty = vec![Batch::default(), Batch::one(plain("1")), Batch::default()];
    let receipts = rig.store.enqueue(now, empty).await.expect("accepts");
    assert_eq!(receipts.iter().flatten().map(Vec::len).collect::<Vec<_>>(), [0, 1, 0]);
    assert!(rig.store.settle(now, Vec::new()).await.expect("settles").is_empty());
    assert!(rig.store.renew(now, &[], Rig::LEASE).await.expect("renews").is_empty());
    assert!(rig.store.reap(now, 0).await.expect("reaps").is_empty());
    assert!(rig.claim_with(&Rig::claim_of(0)).await.is_empty());
    assert_eq!(rig.jobs().await.len(), 1);
}

/// The longest names and keys and the largest payload come back as they went in.
pub async fn r40_the_largest_input_that_is_allowed_is_kept_whole(mut rig: Rig) {
    let text = "é".repeat(MAX_KEY_BYTES / 2);
    let name = "n".repeat(MAX_NAME_BYTES);
    let payload = Payload::encode(&"p".repeat(MAX_PAYLOAD_BYTES - 2)).expect("JSON");
    let trigger = NewTrigger {
        task: TaskName::new(&name).expect("a valid name"),
        queue: QueueName::new(&name).expect("a valid name"),
        payload: payload.clone(),
        priority: i16::MIN,
        dedup: Some(quell_core::dedup::Dedup::new(key(&text))),
        ..keyed(&text)
    };
    trigger.validate(&quell_core::Limits::default()).expect("it is within the limits");
    rig.trigger(trigger.clone()).await;
    assert_eq!(rig.trigger(trigger.clone()).await.outcome(), "duplicate");
    let claim = quell_core::Claim {
        queue: trigger.queue.clone(),
        tasks: std::sync::Arc::from([trigger.task.clone()]),
        ..Rig::claim_of(9)
    };
    let jobs = rig.at(10).claim_with(&claim).await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(
        (&jobs[0].task, jobs[0].key.as_ref().map(Key::as_str)),
        (&trigger.task, Some(&*text))
    );
    assert!(jobs[0].payload == payload, "the payload was changed");
}
