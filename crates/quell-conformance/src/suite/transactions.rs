//! Triggers (R4) and settlements (R22) in callers' own transactions.
//!
//! Such transactions are a database's own, so these scenes are not in the suite's list: a store's tests
//! run each with a [`Connection`] to their database, by [`transaction_scenes!`](crate::transaction_scenes).

use std::time::Duration;

use async_trait::async_trait;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::window::Debounce;
use quell_core::{
    AttemptOutcome, Batch, Error, ErrorKind, Failure, FailureKind, Fold, JobState, Lease, Location,
    NewTrigger, Now, Outcome, Payload, Result, SettledAs, Settlement, When,
};

use crate::rig::{Rig, debounce, key, keyed, keyed_with, lease, plain};

/// The settlement of an attempt that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Success<'a> {
    /// The attempt.
    pub lease: Lease,
    /// When it ended.
    pub now: Now,
    /// What it made.
    pub output: Option<&'a Payload>,
}

/// A caller's own connection to the database of a store.
#[async_trait]
pub trait Connection: Send {
    /// Begins a transaction.
    async fn begin(&mut self);

    /// Commits the transaction, or rolls it back.
    async fn end(&mut self, commits: bool);

    /// Triggers in the transaction, or in one of its own where none is open.
    ///
    /// # Errors
    /// As the store's function.
    async fn trigger(&mut self, store: &Location, batch: &Batch) -> Result<()>;

    /// Settles an attempt that succeeded, in the same way.
    ///
    /// # Errors
    /// As the store's function.
    async fn settle(&mut self, store: &Location, success: Success<'_>) -> Result<()>;

    /// Adds a row to a table of the caller's own.
    async fn write(&mut self);

    /// How many rows that table has.
    async fn written(&mut self) -> u64;

    /// Why triggers were set aside, the oldest first; the store forgets them.
    async fn take_refused(&mut self) -> Vec<String>;

    /// Whether a claim may fail so beside other calls.
    fn excuses(&self, _claim: &Error) -> bool {
        false
    }
}

/// A test of each scene: `$rig` is a future of a rig and of a connection to its database.
#[macro_export]
macro_rules! transaction_scenes {
    ($rig:expr) => {
        $crate::transaction_scenes!($rig;
            r04_a_trigger_counts_from_the_commit,
            r04_a_rollback_leaves_no_trace_and_burns_no_key,
            r04_triggers_are_folded_in_their_order_and_dedup_is_decided_then,
            r04_r10_no_trigger_overtakes_one_of_its_key_however_many_wait,
            r40_triggers_that_cannot_be_meant_are_set_aside_with_the_field,
            r22_effects_and_settlement_commit_together_or_not_at_all,
            r19_r22_an_output_and_the_end_of_its_job_commit_together_or_not_at_all,
        );
    };
    ($rig:expr; $($scene:ident,)*) => {
        $(
            #[tokio::test]
            async fn $scene() {
                let (rig, mut db) = $rig.await;
                $crate::suite::transactions::$scene(rig, &mut db).await;
            }
        )*
    };
}

/// Two stores, each with a job that runs, under leases that are the same.
#[derive(Debug)]
pub struct TwoStores {
    /// The store whose job transactions settle.
    pub own: Rig,
    /// The other one.
    pub other: Rig,
    /// The lease of both jobs.
    pub lease: Lease,
}

impl TwoStores {
    /// Starts the jobs.
    pub async fn new(own: Rig, other: Rig) -> Self {
        own.trigger(plain("1")).await;
        other.trigger(plain("2")).await;
        let (run, run_there) = (own.claim_one().await, other.claim_one().await);
        assert_eq!(lease(&run), lease(&run_there), "else the test shows nothing");
        assert_ne!(location(&own).id, location(&other).id);
        TwoStores { own, other, lease: lease(&run) }
    }

    /// Where transactions find them: the own store first.
    #[must_use]
    pub fn locations(&self) -> (&Location, &Location) {
        (location(&self.own), location(&self.other))
    }

    /// Calls in a transaction of the other store were refused, with the ids of both.
    pub fn assert_refused(&self, refusals: impl IntoIterator<Item = Result<()>>) {
        let (own, there) = self.locations();
        for refused in refusals {
            let error = refused.expect_err("is refused");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            assert!(text.contains(own.id.as_str()) && text.contains(there.id.as_str()), "{text}");
        }
    }
}

/// Where callers' transactions find the rig's store.
fn location(rig: &Rig) -> &Location {
    rig.store.location().expect("the store has transactions")
}

async fn trigger(rig: &Rig, db: &mut dyn Connection, trigger: NewTrigger) {
    db.trigger(location(rig), &Batch::one(trigger)).await.expect("the store takes the trigger");
}

/// A trigger joins its key's window when the transaction commits.
pub async fn r04_a_trigger_counts_from_the_commit(mut rig: Rig, db: &mut dyn Connection) {
    db.begin().await;
    trigger(&rig, db, keyed("k")).await;
    rig.at(4).claim_none().await;
    db.end(true).await;
    // The next call folds it, whatever the call is.
    rig.at(20).claim_none().await;
    let job = rig.jobs().await.pop().expect("the window is there");
    assert_eq!(Rig::second(job.window.first_at), 20);
    assert_eq!(rig.at(30).claim_one().await.triggers, 1);
}

/// A rollback undoes a trigger and releases its dedup key.
pub async fn r04_a_rollback_leaves_no_trace_and_burns_no_key(rig: Rig, db: &mut dyn Connection) {
    let once = NewTrigger { dedup: Some(Dedup::new(key("d"))), ..plain("1") };
    db.begin().await;
    trigger(&rig, db, once.clone()).await;
    db.end(false).await;
    rig.claim_none().await;
    assert_eq!(rig.trigger(once).await.outcome(), "accepted");
}

/// Triggers keep the order of their commits.
pub async fn r04_triggers_are_folded_in_their_order_and_dedup_is_decided_then(
    rig: Rig,
    db: &mut dyn Connection,
) {
    let once = NewTrigger { dedup: Some(Dedup::new(key("d"))), ..plain("9") };
    for payload in ["1", "2", "3"] {
        trigger(&rig, db, plain(payload)).await;
        trigger(&rig, db, once.clone()).await;
    }
    let started = rig.claim().await;
    let payloads: Vec<&str> = started.iter().map(|job| job.payload.as_str()).collect();
    assert_eq!(payloads, ["1", "9", "2", "3"]);
}

/// The same with more triggers than one call takes in.
pub async fn r04_r10_no_trigger_overtakes_one_of_its_key_however_many_wait(
    mut rig: Rig,
    db: &mut dyn Connection,
) {
    let of_key = |payload| NewTrigger { payload: Payload::from_stored(payload), ..keyed("k") };
    db.begin().await;
    for payload in ["\"other\""; 2_100] {
        trigger(&rig, db, plain(payload)).await;
    }
    trigger(&rig, db, of_key("\"first\"")).await;
    db.end(true).await;
    assert_eq!(rig.trigger(of_key("\"second\"")).await.outcome(), "debounced");
    rig.at(10);
    while let [others @ .., last] = &*rig.claim().await {
        if last.key.is_some() {
            assert_eq!((last.triggers, last.payload.as_str()), (2, "\"second\""));
            assert!(others.iter().all(|job| job.key.is_none()));
            return;
        }
    }
    panic!("the window is gone");
}

/// A program other than a client may write triggers that no client accepts.
pub async fn r40_triggers_that_cannot_be_meant_are_set_aside_with_the_field(
    rig: Rig,
    db: &mut dyn Connection,
) {
    let elapsed = HoldUntil::Elapsed(Duration::ZERO);
    let no_triggers = Debounce { max_triggers: Some(0), ..debounce() };
    let bad = [
        ("delay", NewTrigger { when: When::After(Duration::ZERO), ..plain("2") }),
        ("collect", NewTrigger { fold: Fold::Collect { cap: 0 }, ..plain("2") }),
        ("max_triggers", keyed_with("k", no_triggers, Fold::Last, "2")),
        ("ttl", NewTrigger { dedup: Some(Dedup { key: key("d"), until: elapsed }), ..plain("2") }),
    ];
    for (field, trigger) in bad {
        let batch = Batch { triggers: vec![plain("1"), trigger], dedup: None };
        db.trigger(location(&rig), &batch).await.expect("a transaction checks nothing");
        rig.claim_none().await;
        let kept = db.take_refused().await;
        let [refused] = &kept[..] else { panic!("{field}: {kept:?}") };
        assert!(refused.starts_with("triggers[1]: ") && refused.contains(field), "{refused}");
    }
}

/// The settlement of a worker whose handler settles in a transaction that did not commit.
fn in_transaction(lease: Lease) -> Settlement {
    let kind =
        FailureKind::Transient { backoff: Duration::from_secs(1), last: false, asked: false };
    let (error, ended) = ("did not commit".to_owned(), AttemptOutcome::Failed);
    Settlement { lease, outcome: Outcome::InTransaction(Failure { error, ended, kind }) }
}

/// An attempt's effects and its end are one transaction.
pub async fn r22_effects_and_settlement_commit_together_or_not_at_all(
    mut rig: Rig,
    db: &mut dyn Connection,
) {
    rig.trigger(plain("1")).await;
    for commits in [false, true] {
        let run = rig.at(if commits { 10 } else { 0 }).claim_one().await;
        let (lease, now) = (lease(&run), Some(rig.now()));
        db.begin().await;
        db.write().await;
        let success = Success { lease, now, output: None };
        db.settle(location(&rig), success).await.expect("the lease is held");
        db.end(commits).await;
        let settled = rig.store.settle(now, vec![in_transaction(lease)]).await.expect("settles");
        assert_eq!(settled[0].became == SettledAs::Succeeded, commits, "{settled:?}");
        assert_eq!(db.written().await, u64::from(commits));
        let job = rig.job(run.id).await;
        let state = if commits { JobState::Succeeded } else { JobState::Scheduled };
        assert_eq!((job.state, job.ended_at), (state, now.filter(|_| commits)));
    }
}

/// An output is part of the same transaction.
pub async fn r19_r22_an_output_and_the_end_of_its_job_commit_together_or_not_at_all(
    mut rig: Rig,
    db: &mut dyn Connection,
) {
    let output = Payload::from_text(r#"{"n": "\u0000 é"}"#).expect("JSON");
    let job = rig.trigger(plain("1")).await.job().expect("a job");
    for commits in [false, true] {
        let run = rig.at(if commits { 10 } else { 0 }).claim_one().await;
        let (lease, now) = (lease(&run), Some(rig.now()));
        db.begin().await;
        let success = Success { lease, now, output: Some(&output) };
        db.settle(location(&rig), success).await.expect("the lease is held");
        db.end(commits).await;
        rig.store.settle(now, vec![in_transaction(lease)]).await.expect("settles");
        let result = rig.store.result(job).await.expect("reads").expect("the job is there");
        let state = if commits { JobState::Succeeded } else { JobState::Scheduled };
        assert_eq!((result.state, result.output), (state, commits.then(|| output.clone())));
    }
}
