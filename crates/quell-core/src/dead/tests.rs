//! Tables for filters, edits and exports.

use crate::dead::{
    DeadExport, DeadFilter, DeadPlace, MAX_REASON_BYTES, MAX_SEARCH_BYTES, Past, Redrive,
    validate_reason,
};
use crate::effect::{Done, MAX_EFFECTS, MAX_RESULT_BYTES};
use crate::job::Shape;
use crate::payload::{MAX_FOLDED_BYTES, MAX_PAYLOAD_BYTES};
use crate::{
    Attempt, AttemptOutcome, Draw, Effect, EffectName, Fold, Job, JobId, JobState, Key, LeaseToken,
    Limits, NewTrigger, Payload, QueueName, TaskName, Timestamp, WorkerId,
};

fn token(start: u64) -> LeaseToken {
    LeaseToken::of(start, Draw::new(9))
}

fn dead() -> Job {
    let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
    let trigger = NewTrigger::new(task, queue, Payload::from_stored("1"));
    let job = Job::unkeyed(JobId::new(3), &trigger, Timestamp::from_secs(0));
    Job {
        state: JobState::Dead,
        token: token(2),
        ended_at: Some(Timestamp::from_secs(9)),
        error: Some("Connection REFUSED".to_owned()),
        ..job
    }
}

fn exported() -> DeadExport {
    let attempt = |start| Attempt {
        token: token(start),
        worker: WorkerId::new("w").unwrap(),
        started_at: Timestamp::from_secs(1),
        ended_at: Some(Timestamp::from_secs(2)),
        outcome: Some(AttemptOutcome::Failed),
        error: Some("no".to_owned()),
    };
    let (attempts, effects) = (vec![attempt(1), attempt(2)], Vec::new());
    DeadExport { job: dead(), attempts, effects, past: Past::default() }
}

#[test]
fn r25_a_filter_asks_for_each_thing_and_all_of_them() {
    let time = Timestamp::from_secs;
    let none = DeadFilter::default;
    let place = |secs, id| Some(DeadPlace { died_at: time(secs), id: JobId::new(id) });
    let table = [
        (none(), true),
        (DeadFilter { task: TaskName::new("t").ok(), ..none() }, true),
        (DeadFilter { task: TaskName::new("u").ok(), ..none() }, false),
        (DeadFilter { queue: QueueName::new("r").ok(), ..none() }, false),
        (DeadFilter { error: Some("connection refused".into()), ..none() }, true),
        (DeadFilter { error: Some("timeout".into()), ..none() }, false),
        (DeadFilter { died_after: Some(time(9)), ..none() }, true),
        (DeadFilter { died_after: Some(time(10)), ..none() }, false),
        (DeadFilter { died_before: Some(time(9)), ..none() }, false),
        (DeadFilter { died_before: Some(time(10)), ..none() }, true),
        (DeadFilter { before: place(9, 3), ..none() }, false),
        (DeadFilter { before: place(9, 4), ..none() }, true),
        (DeadFilter { before: place(8, 4), ..none() }, false),
    ];
    for (filter, matches) in table {
        assert_eq!(filter.matches(&dead()), matches, "{filter:?}");
    }
    assert!(!none().matches(&Job { state: JobState::Succeeded, ..dead() }));
    assert_eq!([0, 7, 999].map(|limit| DeadFilter { limit, ..none() }.page()), [50, 7, 200]);
}

#[test]
fn r40_a_filter_and_a_reason_that_cannot_be_meant_are_refused() {
    let field = |filter: DeadFilter| filter.validate().unwrap_err().field().map(str::to_owned);
    for error in [String::new(), "a\0b".into(), "x".repeat(MAX_SEARCH_BYTES + 1)] {
        assert_eq!(
            field(DeadFilter { error: Some(error), ..Default::default() }).as_deref(),
            Some("error")
        );
    }
    let now = Some(Timestamp::from_secs(5));
    let never = DeadFilter { died_after: now, died_before: now, ..Default::default() };
    assert_eq!(field(never).as_deref(), Some("died_before"));
    for reason in [" ", "a\0b", &"x".repeat(MAX_REASON_BYTES + 1)] {
        assert_eq!(validate_reason(reason).unwrap_err().field(), Some("reason"));
    }
    assert!(validate_reason(&"x".repeat(MAX_REASON_BYTES)).is_ok());
}

#[test]
fn a_place_in_the_list_round_trips() {
    let place = DeadPlace::of(&dead()).unwrap();
    assert_eq!(place.to_string(), "9000000.3");
    assert_eq!(place.to_string().parse::<DeadPlace>().unwrap(), place);
    for bad in ["", "7", "7.", ".3", "x.3", "7.0"] {
        assert_eq!(bad.parse::<DeadPlace>().unwrap_err().field(), Some("before"), "{bad}");
    }
}

#[test]
fn r26_the_first_payload_stays_on_record() {
    let text = |text: &str| Payload::from_text(text).unwrap();
    let mut job = dead();
    assert_eq!(job.edit(&text("1")).unwrap(), None);
    let past = Past::default().edited(job.edit(&text("2")).unwrap().unwrap());
    let past = past.edited(job.edit(&text("3")).unwrap().unwrap());
    assert_eq!((job.payload, past.original), (text("3"), Some(text("1"))));

    let mut gathers = Job { key: Key::new("k").ok(), ..dead() };
    gathers.shape.fold = Fold::Collect { cap: 9 };
    assert_eq!(gathers.edit(&text("{}")).unwrap_err().field(), Some("payload"));
    assert!(gathers.edit(&text(" [1]")).is_ok());
}

#[test]
fn r26_r40_a_gathered_payload_has_a_limit_of_its_own_in_edits_and_imports() {
    let sized = |bytes: usize| Payload::from_stored(format!("[{}]", "1".repeat(bytes - 2)));
    let edit = |bytes| Redrive { id: dead().id, payload: Some(sized(bytes)) };
    let limits = Limits::default();
    assert!(edit(MAX_FOLDED_BYTES).validate(&limits).is_ok());
    let refused = edit(MAX_FOLDED_BYTES + 1).validate(&limits).unwrap_err();
    assert_eq!(refused.field(), Some("payload"));

    let large = || sized(2 * MAX_PAYLOAD_BYTES);
    let gathers = Shape { fold: Fold::Collect { cap: 9 }, ..Shape::default() };
    let with = |shape: &Shape, payload| {
        let mut exported = exported();
        (exported.job.shape, exported.job.payload) = (shape.clone(), payload);
        exported
    };
    assert!(with(&gathers, large()).validate(&limits).is_ok());
    let over = with(&gathers, sized(MAX_FOLDED_BYTES + 1)).validate(&limits).unwrap_err();
    assert_eq!(over.field(), Some("payload"));
    let plain = with(&Shape::default(), large()).validate(&limits).unwrap_err();
    assert_eq!(plain.field(), Some("payload"));

    assert!(Job { shape: gathers, ..dead() }.edit(&large()).is_ok());
    assert_eq!(dead().edit(&large()).unwrap_err().field(), Some("payload"));
}

#[test]
fn r40_an_export_that_no_store_wrote_is_refused() {
    let limits = Limits { payload_bytes: 8, ..Limits::default() };
    assert!(exported().validate(&limits).is_ok());
    let refused = |change: &dyn Fn(&mut DeadExport)| {
        let mut exported = exported();
        change(&mut exported);
        exported.validate(&limits).unwrap_err().field().map(str::to_owned)
    };
    assert_eq!(refused(&|l| l.job.state = JobState::Succeeded).as_deref(), Some("state"));
    assert_eq!(refused(&|l| l.job.ended_at = None).as_deref(), Some("state"));
    assert_eq!(refused(&|l| l.job.waits = true).as_deref(), Some("state"));
    assert_eq!(refused(&|l| l.job.absorbed_by = Some(JobId::new(1))).as_deref(), Some("state"));
    assert_eq!(refused(&|l| l.job.window.triggers = 0).as_deref(), Some("job"));
    assert_eq!(refused(&|l| l.job.token = LeaseToken::new(u64::MAX)).as_deref(), Some("job"));
    assert_eq!(refused(&|l| l.job.failures = u32::MAX).as_deref(), Some("job"));
    assert_eq!(
        refused(&|l| l.job.payload = Payload::from_stored("123456789")).as_deref(),
        Some("payload")
    );
    assert_eq!(refused(&|l| l.job.error = Some("x".repeat(99_999))).as_deref(), Some("error"));
    assert_eq!(refused(&|l| l.job.token = token(1)).as_deref(), Some("attempts"));
    assert_eq!(refused(&|l| l.attempts[0].outcome = None).as_deref(), Some("attempts"));
    assert_eq!(refused(&|l| l.attempts[0].token = token(2)).as_deref(), Some("attempts"));
    assert_eq!(refused(&|l| l.effects = vec![effect("a", 3)]).as_deref(), Some("effects"));
    assert_eq!(
        refused(&|l| l.effects = vec![effect("a", 1), effect("a", 2)]).as_deref(),
        Some("effects")
    );
    let many = || (0..=MAX_EFFECTS).map(|n| effect(&format!("e{n}"), 1)).collect();
    assert_eq!(refused(&|l| l.effects = many()).as_deref(), Some("effects"));
    let large = || Payload::encode(&"x".repeat(MAX_RESULT_BYTES)).unwrap();
    let done = || Some(Done { at: Timestamp::MIN, by: token(1), result: large() });
    let too_large = || vec![Effect { done: done(), ..effect("a", 1) }];
    assert_eq!(refused(&|l| l.effects = too_large()).as_deref(), Some("result"));
}

fn effect(name: &str, by: u64) -> Effect {
    let (name, key) = (EffectName::new(name).unwrap(), Key::new("k").unwrap());
    Effect::intended(Timestamp::from_secs(1), token(by), &name, &key)
}

#[test]
fn r26_an_export_is_known_by_the_job_that_it_was_at_first() {
    let (here, past) = exported().arrive(JobId::new(70));
    assert_eq!((here.id, past.origin), (JobId::new(70), Some(exported().origin())));
    let again = DeadExport { job: here, past, ..exported() };
    assert_eq!(again.origin(), exported().origin());
    assert!(exported().is_of(&dead()) && !again.is_of(&again.job));
    let edited =
        DeadExport { past: again.past.clone().edited(Payload::from_stored("[1]")), ..exported() };
    let acted = DeadExport { effects: vec![effect("a", 1), effect("b", 2)], ..exported() };
    for exported in [exported(), again, edited, acted] {
        let text = serde_json::to_string(&exported).unwrap();
        assert_eq!(serde_json::from_str::<DeadExport>(&text).unwrap(), exported);
        // As a client reads a server's answer.
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::from_value::<DeadExport>(value).unwrap(), exported);
    }
}
