//! Recorded effects: where an attempt breaks off decides nothing about how often they happen (R23).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use quell::effect::EffectName;
use quell::effect::MAX_RESULT_BYTES;
use quell::store::EffectStart;
use quell::store::{Lease, MemoryStore};
use quell::testing::TestKit;
use quell::worker::PollSettings;
use quell::{Ctx, Jitter, JobId, JobState, Key, Once, Policy, Result, Task, TaskError};
use quell_conformance::faulty::{Faulty, NthCall};
use serde::{Deserialize, Serialize};

use crate::tasks::secs;

/// The world outside: charges by their keys, and what was asked of it.
#[derive(Debug, Default)]
struct Outside(Mutex<World>);

#[derive(Debug, Default)]
struct World {
    turn: usize,
    charged: BTreeMap<Key, u32>,
    calls: u32,
    verified: u32,
    once: u32,
    received: Vec<Once<u32>>,
}

impl Outside {
    fn with<R>(&self, with: impl FnOnce(&mut World) -> R) -> R {
        with(&mut self.0.lock().unwrap())
    }

    /// A payment service: a key that it knows is no new charge.
    fn charge(&self, key: Key) -> u32 {
        self.with(|world| {
            world.calls += 1;
            let next = 100 + u32::try_from(world.charged.len()).unwrap();
            *world.charged.entry(key).or_insert(next)
        })
    }

    fn find(&self, key: &Key) -> Option<u32> {
        self.with(|world| {
            world.verified += 1;
            world.charged.get(key).copied()
        })
    }
}

type App = Arc<Outside>;

/// Charges once, and does what its words say, one for each attempt.
#[derive(Serialize, Deserialize)]
struct Pay(Vec<String>);

impl Pay {
    fn new(words: &[&str]) -> Self {
        Pay(words.iter().map(|word| (*word).to_owned()).collect())
    }
}

impl Task for Pay {
    const NAME: &'static str = "pay";
    type Output = ();

    fn policy() -> Policy {
        let policy = Policy::queue("pay").attempts(4).min_backoff(secs(1)).max_backoff(secs(1));
        policy.jitter(Jitter::None).timeout(secs(5))
    }
}

async fn pay(task: Pay, ctx: Ctx<App>) -> Result<(), TaskError> {
    let (ctx, outside) = (&ctx, ctx.state());
    let turn = outside.with(|world| {
        world.turn += 1;
        world.turn - 1
    });
    let word = task.0.get(turn).map_or("", String::as_str);
    if word == "before" {
        return Err(TaskError::retry("before the intent"));
    }
    let charged: u32 = ctx
        .effect("charge")
        .verify(|key| async move {
            match word {
                "unverified" => Err(TaskError::retry("the bank is shut")),
                "hopeless" => Err(TaskError::permanent("the bank is gone")),
                _ => Ok(outside.find(&key)),
            }
        })
        .run(|key| async move {
            match word {
                "intent" => return Err(TaskError::retry("after the intent")),
                "hang" => ctx.sleep(secs(60)).await,
                "panic" => panic!("after the intent"),
                _ => {}
            }
            let charged = outside.charge(key);
            if word == "called" {
                return Err(TaskError::retry("after the call"));
            }
            Ok(charged)
        })
        .await?;
    assert_eq!(charged, 100, "every attempt receives the one charge");
    match word {
        "recorded" => Err(TaskError::retry("after the record")),
        "snooze" => Err(TaskError::snooze(secs(1))),
        "twice" => ctx.effect("charge").run(|_| async { Ok(1) }).await.map(drop),
        _ => Ok(()),
    }
}

/// Runs one job to its end; returns what the outside saw, and the job's state and error.
async fn story<T: Task + Send>(
    task: T,
    register: impl FnOnce(quell::WorkerBuilder<App>) -> quell::WorkerBuilder<App>,
) -> Result<(App, TestKit, JobState, String)> {
    let outside = App::default();
    let state = Arc::clone(&outside);
    let kit = TestKit::start(|quell| register(quell.worker(state)))?;
    let id = kit.quell().trigger(task).await?.job().unwrap();
    kit.advance(secs(200)).await;
    let job = kit.quell().store().job(id).await?.unwrap();
    Ok((outside, kit, job.state, job.error.unwrap_or_default()))
}

#[tokio::test]
async fn r23_wherever_an_attempt_breaks_off_there_is_one_charge() -> Result<()> {
    // What attempts do in turn; how often the outside was called, and asked.
    let table: [(&[&str], u32, u32); 10] = [
        (&[], 1, 0),
        (&["before"], 1, 0),
        (&["intent"], 1, 1),
        (&["panic"], 1, 1),
        (&["hang"], 1, 1),
        (&["called"], 1, 1),
        (&["recorded"], 1, 0),
        (&["snooze", "recorded", "snooze"], 1, 0),
        (&["intent", "unverified", "called"], 1, 2),
        (&["intent", "intent", "called"], 1, 3),
    ];
    for (words, calls, verified) in table {
        let (outside, kit, state, error) = story(Pay::new(words), |w| w.register(pay)).await?;
        assert_eq!(state, JobState::Succeeded, "{words:?}: {error}");
        outside.with(|world| {
            let seen = (world.charged.len(), world.calls, world.verified);
            assert_eq!(seen, (1, calls, verified), "{words:?}");
        });
        let effects = kit.quell().store().effects(JobId::new(1)).await?;
        assert_eq!(effects[0].done.as_ref().map(|done| done.result.as_str()), Some("100"));
        let key = outside.with(|world| world.charged.keys().next().cloned());
        assert_eq!(Some(&effects[0].key), key.as_ref(), "the key on record is the outside's");
    }
    Ok(())
}

#[tokio::test]
async fn r23_where_verification_fails_nothing_is_performed() -> Result<()> {
    let shut = ["intent", "unverified", "unverified", "unverified"];
    let table: [(&[&str], &str); 2] =
        [(&shut, "the bank is shut"), (&["intent", "hopeless"], "the bank is gone")];
    for (words, says) in table {
        let (outside, _kit, state, error) = story(Pay::new(words), |w| w.register(pay)).await?;
        assert_eq!(state, JobState::Dead, "{words:?}");
        assert!(error.contains("`charge`") && error.contains(says), "{error}");
        assert!(error.contains("nothing was done"), "{error}");
        outside.with(|world| assert_eq!((world.calls, world.charged.len()), (0, 0)));
    }
    Ok(())
}

#[tokio::test]
async fn r23_r26_a_redriven_job_charges_no_more() -> Result<()> {
    let words = ["recorded", "recorded", "recorded", "recorded"];
    let (outside, kit, state, _) = story(Pay::new(&words), |w| w.register(pay)).await?;
    assert_eq!(state, JobState::Dead);
    kit.quell().store().redrive(Some(kit.now()), &JobId::new(1).into()).await?;
    kit.advance(secs(10)).await;
    assert_eq!(kit.succeeded("pay").await?.len(), 1);
    outside.with(|world| assert_eq!((world.turn, world.calls), (5, 1)));
    Ok(())
}

/// Without a verification the outside is called again, with the same key.
#[tokio::test]
async fn r23_without_a_verification_the_key_is_what_protects() -> Result<()> {
    let (outside, _kit, state, error) = story(Pay::new(&[]), |worker| {
        worker.register(|_: Pay, ctx: Ctx<App>| async move {
            let outside = ctx.state();
            let charge = ctx.effect("charge").run(|key| async move {
                let charged = outside.charge(key);
                let broken = outside.with(|world| world.calls < 3);
                if broken { Err(TaskError::retry("the answer was lost")) } else { Ok(charged) }
            });
            charge.await.map(drop)
        })
    })
    .await?;
    assert_eq!(state, JobState::Succeeded, "{error}");
    outside.with(|world| assert_eq!((world.calls, world.charged.len()), (3, 1)));
    Ok(())
}

/// Sends once, and notes the answer.
async fn mail(task: Pay, ctx: Ctx<App>) -> Result<(), TaskError> {
    let outside = ctx.state();
    let turn = outside.with(|world| {
        world.turn += 1;
        world.turn - 1
    });
    let word = task.0.get(turn).map_or("", String::as_str);
    let sent = ctx.once("email").run(|| async move {
        let sent = outside.with(|world| {
            world.once += 1;
            world.once
        });
        if word == "fail" { Err(TaskError::retry("the answer was lost")) } else { Ok(sent) }
    });
    let sent = sent.await?;
    outside.with(|world| world.received.push(sent));
    if word == "again" { Err(TaskError::retry("after the record")) } else { Ok(()) }
}

#[tokio::test]
async fn r23_once_is_never_twice_and_reports_an_unclear_outcome() -> Result<()> {
    let table: [(&[&str], &[Once<u32>]); 3] = [
        (&[], &[Once::Done(1)]),
        (&["again", "again"], &[Once::Done(1), Once::Done(1), Once::Done(1)]),
        (&["fail", "again"], &[Once::Unclear, Once::Unclear]),
    ];
    for (words, received) in table {
        let (outside, _kit, state, error) = story(Pay::new(words), |w| w.register(mail)).await?;
        assert_eq!(state, JobState::Succeeded, "{words:?}: {error}");
        outside.with(|world| {
            assert_eq!((world.once, world.received.as_slice()), (1, received), "{words:?}");
        });
    }
    Ok(())
}

/// What an effect is asked to be that it cannot.
async fn misuse(task: Pay, ctx: Ctx<App>) -> Result<(), TaskError> {
    let outside = ctx.state();
    let charge = |name: &str| ctx.effect(name).run(|key| async move { Ok(outside.charge(key)) });
    match task.0.first().map_or("", String::as_str) {
        "empty" => charge("").await.map(drop),
        "spaced" => charge("a charge").await.map(drop),
        "long" => charge(&"x".repeat(129)).await.map(drop),
        "longest" => charge(&"x".repeat(128)).await.map(drop),
        "twice" => {
            charge("charge").await?;
            charge("charge").await.map(drop)
        }
        "large" => {
            let large = "x".repeat(MAX_RESULT_BYTES);
            let ran = ctx.effect("charge").run(|key| async move {
                outside.charge(key);
                Ok(large)
            });
            ran.await.map(drop)
        }
        "changed" => {
            if outside.with(|world| world.calls) == 0 {
                charge("charge").await?;
                return Err(TaskError::retry("after the record"));
            }
            let text: String = ctx.effect("charge").run(|_| async { Ok(String::new()) }).await?;
            Err(TaskError::retry(format!("{text} is a number")))
        }
        other => Err(TaskError::permanent(other.to_owned())),
    }
}

#[tokio::test]
async fn r23_r40_what_cannot_be_meant_is_refused_at_once() -> Result<()> {
    // How often the outside was called, and what the error says; none where all is well.
    let table = [
        ("empty", 0, Some("1 to 128")),
        ("spaced", 0, Some("letters, digits")),
        ("long", 0, Some("129 bytes")),
        ("longest", 1, None),
        ("twice", 1, Some("used twice in one attempt")),
        ("large", 1, Some("it happened, but its result cannot be recorded")),
        ("changed", 1, Some("does not match the type")),
    ];
    for (word, calls, says) in table {
        let (outside, kit, state, error) = story(Pay::new(&[word]), |w| w.register(misuse)).await?;
        let expected = if says.is_some() { JobState::Dead } else { JobState::Succeeded };
        assert_eq!(state, expected, "{word}: {error}");
        assert!(error.contains(says.unwrap_or_default()), "{word}: {error}");
        outside.with(|world| assert_eq!(world.calls, calls, "{word}"));
        let on_record = kit.quell().store().effects(JobId::new(1)).await?.len();
        assert_eq!(on_record, usize::try_from(calls).unwrap(), "{word}");
    }
    Ok(())
}

/// A handler that goes on after its lease was lost records nothing, and charges nothing.
#[tokio::test]
async fn r21_r23_without_the_lease_nothing_is_performed() -> Result<()> {
    let outside = App::default();
    let state = Arc::clone(&outside);
    let kit = TestKit::start(|quell| {
        quell.worker(state).register(|_: Pay, ctx: Ctx<App>| async move {
            let job = ctx.job();
            let store = Arc::clone(ctx.quell().store());
            let now = ctx.quell().clock().store_time();
            store.cancel(now, job, "no longer wanted").await?;
            let outside = ctx.state();
            let charge = ctx.effect("charge").run(|key| async move { Ok(outside.charge(key)) });
            let error = charge.await.unwrap_err();
            assert!(format!("{error:?}").contains("was lost"), "{error:?}");
            outside.with(|world| world.once += 1);
            Err(error)
        })
    })?;
    kit.quell().trigger(Pay::new(&[])).await?;
    kit.advance(secs(10)).await;
    outside.with(|world| assert_eq!((world.once, world.calls), (1, 0)));
    Ok(())
}

/// A run with one fault; false where the fault was never reached.
async fn faulty(fails: NthCall) -> Result<bool> {
    let outside = App::default();
    let state = Arc::clone(&outside);
    let store = Arc::new(Faulty::new(MemoryStore::new(TestKit::START), fails));
    let kit = TestKit::start_on(Arc::<Faulty<_>>::clone(&store), |quell| {
        let poll = PollSettings { base: secs(15), ceiling: secs(15) };
        quell.worker(state).register(pay).lease(secs(20)).poll(poll)
    })?;
    let trigger = || kit.quell().trigger(Pay::new(&["called", "recorded"])).dedup("order 7");
    if trigger().await.is_err() {
        trigger().await?;
    }
    kit.advance(secs(300)).await;
    outside.with(|world| assert_eq!(world.charged.len(), 1, "{fails:?}: {world:?}"));
    Ok(store.was_reached())
}

#[tokio::test]
async fn r23_every_store_call_may_fail_and_there_is_one_charge() -> Result<()> {
    for fails in [NthCall::Before, NthCall::AfterDone] {
        let mut number = 0;
        while faulty(fails(number)).await? {
            number += 1;
        }
        assert!(number > 10, "only {number} calls");
    }
    Ok(())
}

/// What the library writes is what the store was asked for.
#[tokio::test]
async fn r23_an_intent_of_the_library_is_an_intent_of_the_store() -> Result<()> {
    let (_outside, kit, ..) = story(Pay::new(&["intent", "hopeless"]), |w| w.register(pay)).await?;
    let store = kit.quell().store();
    let effects = store.effects(JobId::new(1)).await?;
    assert_eq!((effects[0].name.as_str(), effects[0].done.as_ref()), ("charge", None));
    assert_eq!(effects[0].begun_by.starts(), 1);
    store.redrive(Some(kit.now()), &JobId::new(1).into()).await?;
    let claim = quell_conformance::Rig::claim_of(1);
    let claim = quell::store::Claim {
        queue: quell::QueueName::new("pay")?,
        tasks: [quell::TaskName::new("pay")?].into(),
        ..claim
    };
    let run = store.claim(Some(kit.now()), &claim).await?.jobs.remove(0);
    let lease = Lease { job: run.id, token: run.token };
    let (name, key) = (EffectName::new("charge")?, Key::new("mine")?);
    let begun = store.begin_effect(Some(kit.now()), &lease, &name, &key).await?;
    assert_eq!(begun, EffectStart::Intended { key: effects[0].key.clone() });
    Ok(())
}
