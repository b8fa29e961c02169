//! A panic anywhere in an attempt ends that attempt and nothing else: it is on record as panicked,
//! and its key and its slot are free (R25).

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell::failure::Class;
use quell::job::AttemptOutcome;
use quell::store::MemoryStore;
use quell::testing::TestKit;
use quell::{Ctx, ErrorKind, JobId, JobState, Policy, Quell, Result, Task, TaskError, Timestamp};
use quell_conformance::faulty::{Faulty, NthCall};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::tasks::secs;

/// Where the next attempt of a [`Bomb`] panics; the attempts after it go well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Place {
    Nowhere,
    Body,
    Payload,
    Decode,
    Display,
    Source,
    ErrorDrop,
    DisplayAndDrop,
    Classifier,
    Encode,
    Output,
    Future,
    PanicPayload,
}

#[derive(Serialize)]
struct Bomb {
    place: Place,
    key: String,
    #[serde(skip)]
    is_attempt: bool,
}

thread_local! {
    /// Whether an attempt has decoded its payload: only the first one panics.
    static DECODE: AtomicBool = const { AtomicBool::new(false) };
}

impl<'de> Deserialize<'de> for Bomb {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Plain {
            place: Place,
            key: String,
        }
        let Plain { place, key } = Plain::deserialize(from)?;
        let first = !DECODE.with(|done| done.swap(true, Ordering::SeqCst));
        assert!(!(first && place == Place::Decode), "decoding panics");
        Ok(Bomb { place, key, is_attempt: first })
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        let panics = self.is_attempt && self.place == Place::Payload;
        assert!(!panics || std::thread::panicking(), "the payload panics");
    }
}

impl Task for Bomb {
    const NAME: &'static str = "bomb";
    type Output = Fragile;

    fn policy() -> Policy {
        Policy::default()
            .debounce(secs(1)..=secs(2))
            .min_backoff(secs(30))
            .jitter(quell::Jitter::None)
            .timeout(secs(100))
            .classify(|error| match error.downcast_ref::<Bad>() {
                Some(Bad(Place::Classifier)) => panic!("the classifier panics"),
                _ => Class::Transient,
            })
    }

    fn debounce_key(&self) -> Option<String> {
        Some(self.key.clone())
    }
}

/// An output that panics when it is encoded or dropped.
struct Fragile(Place);

impl Serialize for Fragile {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        assert!(self.0 != Place::Encode, "encoding panics");
        to.serialize_unit()
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(self.0 != Place::Output || std::thread::panicking(), "the output panics");
    }
}

/// An error that panics when it is shown or dropped.
#[derive(Debug)]
struct Bad(Place);

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // What a date with an impossible format does.
            Place::Display | Place::DisplayAndDrop => Err(fmt::Error),
            _ => f.write_str("bad"),
        }
    }
}

impl std::error::Error for Bad {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        assert!(self.0 != Place::Source, "the source panics");
        None
    }
}

impl Drop for Bad {
    fn drop(&mut self) {
        let panics = matches!(self.0, Place::ErrorDrop | Place::DisplayAndDrop);
        assert!(!panics || std::thread::panicking(), "the error panics");
    }
}

/// Held by a future that is dropped while it waits; its drop panics.
struct OnDrop;

impl Drop for OnDrop {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "the future panics");
    }
}

/// The payload of a panic; its drop panics, too.
struct Twice;

impl Drop for Twice {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "the panic's payload panics");
    }
}

async fn bomb(bomb: Bomb, ctx: Ctx<()>) -> std::result::Result<Fragile, TaskError> {
    let place = if ctx.attempt() == 1 { bomb.place } else { Place::Nowhere };
    match place {
        Place::Body => panic!("the body panics"),
        Place::Display
        | Place::Source
        | Place::ErrorDrop
        | Place::DisplayAndDrop
        | Place::Classifier => Err(Bad(place))?,
        Place::Future => {
            let _held = OnDrop;
            ctx.sleep(secs(1_000)).await;
            panic!("it is dropped before")
        }
        Place::PanicPayload => std::panic::panic_any(Twice),
        Place::Nowhere | Place::Payload | Place::Decode => Ok(Fragile(Place::Nowhere)),
        Place::Encode | Place::Output => Ok(Fragile(place)),
    }
}

#[tokio::test]
async fn r25_a_panic_anywhere_in_an_attempt_is_on_record_and_frees_key_and_slot() -> Result<()> {
    let table = [
        (Place::Body, "the handler panicked: the body panics\nat "),
        (Place::Payload, "the handler panicked: the payload panics\nat "),
        (Place::Decode, "the handler panicked: decoding panics\nat "),
        (Place::Display, "the text of the handler's error panicked: a Display"),
        (Place::Source, "the text of the handler's error panicked: the source panics\nat "),
        (
            Place::ErrorDrop,
            "the drop of the handler's error panicked: the error panics\nbefore that: bad\nat ",
        ),
        (Place::DisplayAndDrop, "the text of the handler's error panicked: a Display"),
        (
            Place::Classifier,
            "the task's classifier panicked: the classifier panics\nbefore that: bad\nat ",
        ),
        (Place::Encode, "the handler panicked: encoding panics\nat "),
        (Place::Output, "the handler panicked: the output panics\nat "),
        (
            Place::Future,
            "the drop of the handler's future panicked: the future panics\nbefore that: \
            the attempt took longer than its timeout of 100s\nat ",
        ),
        (Place::PanicPayload, "the handler panicked: (no message)\nat "),
    ];
    for (place, begin) in table {
        DECODE.with(|done| done.store(false, Ordering::SeqCst));
        let kit = TestKit::start(|quell| {
            let worker = quell.worker(()).register(bomb).with_panic_hook();
            worker.concurrency(1).lease(secs(20))
        })?;
        let trigger = |place, key: &str| Bomb { place, key: key.to_owned(), is_attempt: false };
        let first = kit.quell().trigger(trigger(place, "k")).await?.job().unwrap();
        kit.advance(secs(1)).await;
        // Its slot is the only one.
        let second = kit.quell().trigger(trigger(Place::Nowhere, "l")).await?.job().unwrap();
        kit.advance(secs(105)).await;
        let store = kit.quell().store();
        let attempts = store.attempts(first).await?;
        assert_eq!(attempts[0].outcome, Some(AttemptOutcome::Panicked), "{place:?}: {attempts:?}");
        let error = attempts[0].error.clone().unwrap_or_default();
        assert!(error.starts_with(begin), "{place:?}: {error}");
        assert_eq!(store.job(second).await?.unwrap().state, JobState::Succeeded, "{place:?}");
        kit.advance(secs(30)).await;
        let job = store.job(first).await?.unwrap();
        assert_eq!((job.state, job.starts()), (JobState::Succeeded, 2), "{place:?}: {job:?}");
    }
    Ok(())
}
/// The variable that makes the test below a program whose handler panics.
const PROGRAM: &str = "QUELL_TEST_PANICS";

/// In programs of their own, as the hook is the process's.
#[tokio::test]
async fn r25_a_worker_sets_the_panic_hook_of_its_process_only_when_asked() -> Result<()> {
    if let Ok(asks) = std::env::var(PROGRAM) {
        return panics_under_an_own_hook(asks == "asks").await;
    }
    let name = "panics::r25_a_worker_sets_the_panic_hook_of_its_process_only_when_asked";
    for (how, is_set) in [("plain", false), ("asks", true)] {
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", name, "--nocapture"]).env(PROGRAM, how);
        let ended = program.output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{how}: {text}{}", String::from_utf8_lossy(&ended.stderr));
        let (before, kept) = text.split_once("recorded: ").unwrap();
        assert!(kept.starts_with("the handler panicked: the body panics\n"), "{how}: {kept}");
        let place = "\nat crates/quell/tests/it/panics.rs:";
        assert_eq!(kept.contains(place), is_set, "{how}: {kept}");
        assert_eq!(before.matches("own hook").count(), 1, "{how}: {text}");
    }
    Ok(())
}

async fn panics_under_an_own_hook(asks: bool) -> Result<()> {
    std::panic::set_hook(Box::new(|_| say("own hook")));
    let kit = TestKit::start(|quell| {
        let worker = quell.worker(()).register(bomb);
        if asks { worker.with_panic_hook() } else { worker }
    })?;
    let trigger = Bomb { place: Place::Body, key: "k".to_owned(), is_attempt: false };
    let job = kit.quell().trigger(trigger).await?.job().unwrap();
    kit.advance(secs(5)).await;
    let attempts = kit.quell().store().attempts(job).await?;
    let error = attempts[0].error.clone().unwrap_or_default();
    say(&format!("recorded: {error}"));
    Ok(())
}

fn say(text: &str) {
    std::io::stdout().write_all(format!("{text}\n").as_bytes()).unwrap();
}

/// Each call of a store, through a client: it panics before anything is done.
#[tokio::test]
async fn r39_a_panic_in_any_store_call_is_an_error_of_the_call() -> Result<()> {
    for case in quell_conformance::calls::table() {
        let now = Timestamp::from_secs(0);
        let count = Faulty::new(MemoryStore::new(now), NthCall::Panics(u64::MAX));
        (case.given)(&count, now, JobId::new(1)).await?;
        let fails = NthCall::Panics(count.calls());
        let store = Arc::new(Faulty::new(MemoryStore::new(now), fails));
        let quell = Quell::with_store(Arc::<Faulty<_>>::clone(&store)).build()?;
        (case.given)(&**quell.store(), now, JobId::new(1)).await?;
        let error = (case.call)(&**quell.store(), now, JobId::new(1)).await.unwrap_err();
        // An import is made of what was read before.
        let writes = case.writes && !error.to_string().contains("`exports`");
        let kind = if writes { ErrorKind::UnknownOutcome } else { ErrorKind::Internal };
        assert_eq!(error.kind(), kind, "{}: {error}", case.name);
        assert!(error.to_string().contains("panicked: the call panics"), "{}: {error}", case.name);
        assert!(store.was_reached(), "{}", case.name);
    }
    Ok(())
}
