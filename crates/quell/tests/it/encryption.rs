//! Encrypted payloads, outputs and results (R43), on every kind of store. Another handle of the same
//! store, which has no key, sees what is at rest.

use std::sync::Arc;
use std::time::Duration;

use quell::dead::{DeadExport, Redrive};
use quell::encryption::Keyring;
use quell::job::{Adjustment, ExplainTarget, JobFilter};
use quell::sqlite::{SqliteOptions, Synchronous};
use quell::store::Store;
use quell::worker::PollSettings;
use quell::{
    Batch, Collected, Ctx, DerivedKey, ErrorKind, Fold, JobId, JobState, Policy, Quell, Receipt,
    Result, Task, TaskError,
};
use quell_conformance::rig::until;
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;

/// What no store may have.
const CANARY: &str = "CANARY-4711";
/// How long a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(50);

fn keys(name: &str) -> String {
    Keyring::generate(name).unwrap()
}

fn keyring(text: &str) -> Arc<Keyring> {
    Arc::new(Keyring::parse(text).unwrap())
}

/// Sends a parcel, once; one to "nowhere" is dead at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Parcel {
    to: String,
    text: String,
}

impl Parcel {
    fn to(to: &str) -> Self {
        Parcel { to: to.to_owned(), text: CANARY.to_owned() }
    }
}

impl Task for Parcel {
    const NAME: &'static str = "parcel";
    type Output = String;

    fn policy() -> Policy {
        Policy::queue("post").debounce(SOON..=SOON).attempts(1)
    }

    fn debounce_key(&self) -> Option<String> {
        Some(self.to.clone())
    }
}

async fn send(parcel: Parcel, ctx: Ctx<()>) -> std::result::Result<String, TaskError> {
    let text = parcel.text.clone();
    let sent: String = ctx.effect("send").run(|_| async { Ok(format!("sent {text}")) }).await?;
    if parcel.to == "nowhere" {
        return Err(TaskError::permanent("there is no such place"));
    }
    Ok(format!("{sent} to {}", parcel.to))
}

/// Gathers payloads.
#[derive(Serialize, Deserialize)]
struct Note(String);

impl Task for Note {
    const NAME: &'static str = "note";
    type Output = Vec<String>;

    fn policy() -> Policy {
        Policy::queue("notes")
            .debounce(SOON..=Duration::from_secs(5))
            .fold(Fold::Collect { cap: 3 })
    }

    fn debounce_key(&self) -> Option<String> {
        Some("all".to_owned())
    }
}

async fn gather(notes: Collected<Note>, _: Ctx<()>) -> std::result::Result<Vec<String>, TaskError> {
    Ok(notes.into_iter().map(|Note(text)| text).collect())
}

/// Everything that a handle of the store can read.
async fn all_of(store: &dyn Store) -> Result<String> {
    let jobs = store.jobs(&JobFilter::default()).await?;
    let mut all = format!("{:?}", store.schedules().await?);
    for job in &jobs {
        let explained = store.explain(None, &ExplainTarget::Job(job.id)).await?;
        let result = store.result(job.id).await?;
        all.push_str(&format!("{job:?} {explained:?} {result:?}"));
    }
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    all.push_str(&format!("{:?}", store.exports(&ids).await?));
    Ok(all)
}

async fn expect_nothing_of_it(store: &dyn Store) -> Result<()> {
    let all = all_of(store).await?;
    assert!(all.contains("$sealed") && !all.contains(CANARY), "{all}");
    Ok(())
}

/// The whole life of encrypted jobs; what it waits for takes `PATIENCE` at most.
pub(crate) async fn the_store_has_ciphertext_and_clients_see_plain_text(
    store: Arc<dyn Store>,
) -> Result<()> {
    let quell = Quell::with_store(Arc::clone(&store)).encryption(keyring(&keys("k1"))).build()?;
    let poll = PollSettings { base: SOON, ceiling: Duration::from_millis(200) };
    let worker = quell.worker(()).register(send).register(gather).poll(poll);
    let asked = async {
        outputs_and_repeats(&quell).await?;
        gathered(&quell).await?;
        expect_nothing_of_it(&*store).await?;
        dead_and_back(&quell, &*store).await?;
        scheduled(&quell).await?;
        expect_nothing_of_it(&*store).await
    };
    let mut ended = None;
    worker.run_until(async { ended = Some(asked.await) }).await?;
    ended.unwrap()
}

/// R19: the same payload is known again by its fingerprint, though no two ciphertexts are equal.
async fn outputs_and_repeats(quell: &Quell) -> Result<()> {
    let first = quell.trigger(Parcel::to("ann")).idempotency_key("once").await?;
    let job = first.job().unwrap();
    let result = quell.result(job, PATIENCE).await?;
    assert_eq!(result.output.unwrap().decode::<String>()?, format!("sent {CANARY} to ann"));
    let again = quell.trigger(Parcel::to("ann")).idempotency_key("once").await?;
    match again {
        Receipt::Existing { job: known, output: Some(output), .. } if known == job => {
            assert!(output.as_str().contains(CANARY), "{output:?}");
        }
        other => panic!("{other:?}"),
    }
    let other = quell.trigger(Parcel::to("bob")).idempotency_key("once").await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::IdempotencyConflict, "{other}");
    let shown = quell.job(job).await?.unwrap();
    assert_eq!(shown.payload.decode::<Parcel>()?, Parcel::to("ann"));
    let explained = quell.explain(&ExplainTarget::Job(job)).await?.unwrap();
    assert!(format!("{:?}", explained.effects).contains(CANARY), "{explained:?}");
    Ok(())
}

/// R10: each payload of a window is encrypted by itself.
async fn gathered(quell: &Quell) -> Result<()> {
    let notes = ["one", "two", "three"].map(|text| Note(format!("{CANARY} {text}")));
    let receipts = quell.trigger_many(notes).await?;
    let result = quell.result(receipts[0].job().unwrap(), PATIENCE).await?;
    let wanted = ["one", "two", "three"].map(|text| format!("{CANARY} {text}"));
    assert_eq!(result.output.unwrap().decode::<Vec<String>>()?, wanted);
    Ok(())
}

/// R26: an export is plain, an import and an edit are encrypted.
async fn dead_and_back(quell: &Quell, store: &dyn Store) -> Result<()> {
    let job = quell.trigger(Parcel::to("nowhere")).await?.job().unwrap();
    assert_eq!(quell.result(job, PATIENCE).await?.state, JobState::Dead);
    expect_nothing_of_it(store).await?;
    let export = quell.dead().export(job).await?;
    let is_plain = |export: &DeadExport| {
        let text = format!("{:?} {:?}", export.job.payload, export.effects);
        assert_eq!(text.matches(CANARY).count(), 2, "{text}");
    };
    is_plain(&export);
    quell.dead().discard(job, "it comes back").await?;
    let imported = quell.dead().import(&[export]).await?[0].id;
    is_plain(&quell.dead().export(imported).await?);
    expect_nothing_of_it(store).await?;
    // An export by one who has no key is as it is at rest, and can be imported, too.
    let closed = store.exports(&[imported]).await?;
    quell.dead().discard(imported, "it comes back").await?;
    let imported = quell.dead().import(&closed).await?[0].id;
    is_plain(&quell.dead().export(imported).await?);

    let edited = Parcel { to: "ann".to_owned(), text: format!("{CANARY} edited") };
    let edited = Redrive::from(imported).payload(quell::Payload::encode(&edited)?);
    quell.dead().redrive(edited).await?;
    let result = quell.result(imported, PATIENCE).await?;
    // R23: the effect is not repeated for another payload.
    let output = result.output.unwrap().decode::<String>()?;
    assert_eq!(output, format!("sent {CANARY} to ann"));
    let past = quell.explain(&ExplainTarget::Job(imported)).await?.unwrap().past;
    assert_eq!(past.original.unwrap().decode::<Parcel>()?, Parcel::to("nowhere"));
    Ok(())
}

/// R36: a schedule's payload waits encrypted.
async fn scheduled(quell: &Quell) -> Result<()> {
    let hour = Duration::from_secs(3_600);
    quell.schedule("hourly", Parcel::to("zoe")).every(hour).await?;
    let listed = quell.schedules().await?;
    assert_eq!(listed[0].schedule.trigger.payload.decode::<Parcel>()?, Parcel::to("zoe"));
    let job = quell.run_schedule(&listed[0].schedule.name).await?.job().unwrap();
    let output = quell.result(job, PATIENCE).await?.output.unwrap();
    assert_eq!(output.decode::<String>()?, format!("sent {CANARY} to zoe"));
    Ok(())
}

/// A store in a file, and where that is.
async fn in_a_file() -> Result<(Arc<dyn Store>, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("app.db")).synchronous(Synchronous::Normal);
    Ok((Arc::new(options.open().await?), folder))
}

/// Not in the file, and not in what is beside it.
#[tokio::test]
async fn r43_a_file_and_its_journal_have_ciphertext() -> Result<()> {
    let (store, folder) = in_a_file().await?;
    the_store_has_ciphertext_and_clients_see_plain_text(store).await?;
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(files.len() > 1, "the journal is there, too: {files:?}");
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let canary = CANARY.as_bytes();
        assert!(!bytes.windows(canary.len()).any(|part| part == canary), "{}", file.display());
    }
    Ok(())
}

/// R4, R22: what travels in callers' own transactions is encrypted, too.
#[tokio::test]
async fn r43_triggers_and_outputs_in_transactions_are_encrypted() -> Result<()> {
    async fn settle(_: Parcel, ctx: Ctx<SqlitePool>) -> std::result::Result<String, TaskError> {
        let mut tx = ctx.state().begin().await?;
        ctx.settle_in_with(&mut tx, CANARY).await?;
        tx.commit().await?;
        Ok(String::new())
    }

    let (store, folder) = in_a_file().await?;
    let file = SqliteConnectOptions::new().filename(folder.path().join("app.db"));
    let pool = SqlitePool::connect_with(file).await.unwrap();
    let quell = Quell::with_store(Arc::clone(&store)).encryption(keyring(&keys("k1"))).build()?;
    let mut tx = pool.begin().await.unwrap();
    quell.trigger(Parcel::to("ann")).within(&mut tx).await?;
    tx.commit().await.unwrap();
    let asked = async {
        let jobs = || async { quell.jobs(&JobFilter::default()).await.unwrap() };
        until("the job ended", || async { jobs().await.iter().any(|job| job.ended_at.is_some()) })
            .await;
        let job = jobs().await.remove(0);
        assert_eq!(job.payload.decode::<Parcel>().unwrap(), Parcel::to("ann"));
        assert_eq!(job.output.unwrap().decode::<String>().unwrap(), CANARY);
        expect_nothing_of_it(&*store).await.unwrap();
    };
    quell.worker(pool.clone()).register(settle).run_until(asked).await
}

/// Without the key a job waits, no attempt spent, and no handler is given ciphertext; with it, it runs.
#[tokio::test]
async fn r43_a_job_waits_for_its_key() -> Result<()> {
    let (store, _folder) = in_a_file().await?;
    let (old, new) = (keys("old"), keys("new"));
    let client = Quell::with_store(Arc::clone(&store)).encryption(keyring(&new)).build()?;
    let at_work = keyring(&old);
    let quell = Quell::with_store(store).encryption(Arc::<Keyring>::clone(&at_work)).build()?;
    let job = client.trigger(Parcel::to("ann")).await?.job().unwrap();
    let asked = async {
        until("the job met a worker without its key", || async {
            let job = client.job(job).await.unwrap().unwrap();
            job.state == JobState::Scheduled && job.starts() == 1
        })
        .await;
        let waits = client.job(job).await.unwrap().unwrap();
        assert_eq!((waits.attempt, waits.error.as_deref()), (0, None), "{waits:?}");
        at_work.replace(&format!("{old}{}", new.lines().next().unwrap())).unwrap();
        client.adjust(job, Adjustment::default().run_now(true)).await.unwrap();
        until("it ran", || async {
            client.job(job).await.unwrap().unwrap().state == JobState::Succeeded
        })
        .await;
        // No caller takes ciphertext for an output.
        let refused = client.result(job, Duration::ZERO).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("the key old"), "{refused}");
    };
    quell.worker(()).register(send).run_until(asked).await
}

/// A payload that was changed, or put into another job's place, reaches no handler: the job is dead.
#[tokio::test]
async fn r43_a_payload_of_another_key_is_refused() -> Result<()> {
    let (store, _folder) = in_a_file().await?;
    let bare = Quell::with_store(Arc::clone(&store)).build()?;
    let quell = Quell::with_store(Arc::clone(&store)).encryption(keyring(&keys("k1"))).build()?;
    let rich = quell.trigger(Parcel::to("rich")).await?.job().unwrap();
    let stolen = store.job(rich).await?.unwrap().payload;
    let mut trigger = quell::trigger::NewTrigger::new(
        quell::TaskName::new("parcel")?,
        quell::QueueName::new("post")?,
        stolen,
    );
    trigger.keyed = None;
    let thief = bare.enqueue(Batch::one(trigger)).await?[0].job().unwrap();
    let asked = async {
        let result = quell.result(thief, PATIENCE).await.unwrap();
        assert_eq!(result.state, JobState::Dead);
        let error = result.error.unwrap();
        assert!(error.contains("the key k1") && error.contains("another job"), "{error}");
        assert_eq!(quell.result(rich, PATIENCE).await.unwrap().state, JobState::Succeeded);
    };
    quell.worker(()).register(send).run_until(asked).await
}

/// R36: a schedule outlives keys, so its payload goes on to the newest.
#[tokio::test]
async fn r36_r43_the_payload_of_a_schedule_is_encrypted_again_after_a_rotation() -> Result<()> {
    let (store, _folder) = in_a_file().await?;
    let plain = Quell::with_store(Arc::clone(&store)).build()?;
    let hour = Duration::from_secs(3_600);
    plain.schedule("hourly", Parcel::to("zoe")).every(hour).await?;
    let (old, new) = (keys("old"), Keyring::line("new")?);
    let ring = keyring(&old);
    let quell =
        Quell::with_store(Arc::clone(&store)).encryption(Arc::<Keyring>::clone(&ring)).build()?;
    let key_of = async || {
        let kept = store.schedules().await.unwrap().remove(0).schedule.trigger.payload;
        ["old", "new"].into_iter().find(|key| kept.as_str().contains(&format!("\"key\":\"{key}\"")))
    };
    assert_eq!((key_of().await, quell.renew_encryption().await?), (None, 1));
    assert_eq!((key_of().await, quell.renew_encryption().await?), (Some("old"), 0));
    ring.replace(&format!("{new}{old}"))?;
    assert_eq!(quell.renew_encryption().await?, 1);
    assert_eq!(key_of().await, Some("new"));
    // The old key may go.
    let fingerprint = old.lines().nth(1).unwrap();
    ring.replace(&format!("{new}{fingerprint}"))?;
    let listed = quell.schedules().await?.remove(0).schedule;
    assert_eq!(listed.trigger.payload.decode::<Parcel>()?, Parcel::to("zoe"));
    let job = quell.run_schedule(&listed.name).await?.job().unwrap();
    let asked = async {
        let result = quell.result(job, PATIENCE).await.unwrap();
        assert_eq!(result.state, JobState::Succeeded, "{result:?}");
    };
    quell.worker(()).register(send).run_until(asked).await
}

/// However many they are, and though they would go first.
#[tokio::test]
async fn r43_jobs_without_their_key_hold_up_no_other() -> Result<()> {
    let (store, _folder) = in_a_file().await?;
    let gone = Quell::with_store(Arc::clone(&store)).encryption(keyring(&keys("gone"))).build()?;
    let quell = Quell::with_store(store).encryption(keyring(&keys("k1"))).build()?;
    let waiting = (0..40).map(|n| Parcel::to(&format!("gone {n}")));
    gone.trigger_many(waiting).await?;
    let job = quell.trigger(Parcel::to("ann")).await?.job().unwrap();
    until("all are due", || async {
        let jobs = gone.jobs(&JobFilter::default()).await.unwrap();
        let now = gone.clock().now();
        jobs.iter().all(|job| job.window.due_at <= now)
    })
    .await;
    let asked = async {
        let result = quell.result(job, PATIENCE).await.unwrap();
        assert_eq!(result.state, JobState::Succeeded, "{result:?}");
    };
    let hardly_ever = Duration::from_secs(3_600);
    let poll = PollSettings { base: hardly_ever, ceiling: hardly_ever };
    quell.worker(()).register(send).concurrency(4).poll(poll).run_until(asked).await
}

/// R23: an effect of the largest result can be recorded with encryption, too.
#[tokio::test]
async fn r23_r43_limits_are_the_same_with_encryption() -> Result<()> {
    async fn perform(task: Parcel, ctx: Ctx<()>) -> std::result::Result<String, TaskError> {
        let most = "x".repeat(quell::effect::MAX_RESULT_BYTES - 2);
        let made: String = ctx.effect("large").run(|_| async { Ok(most) }).await?;
        assert_eq!(made.len(), quell::effect::MAX_RESULT_BYTES - 2);
        Ok(task.to)
    }

    let (store, _folder) = in_a_file().await?;
    let quell = Quell::with_store(store).encryption(keyring(&keys("k1"))).build()?;
    let job = quell.trigger(Parcel::to("ann")).await?.job().unwrap();
    let asked = async {
        let result = quell.result(job, PATIENCE).await.unwrap();
        assert_eq!(result.state, JobState::Succeeded, "{result:?}");
    };
    quell.worker(()).register(perform).run_until(asked).await
}

/// Payloads from before the encryption, and of clients without it, run as they are.
#[tokio::test]
async fn r43_plain_payloads_still_run() -> Result<()> {
    let (store, _folder) = in_a_file().await?;
    let plain = Quell::with_store(Arc::clone(&store)).build()?;
    let quell = Quell::with_store(store).encryption(keyring(&keys("k1"))).build()?;
    let job = plain.trigger(Parcel::to("ann")).await?.job().unwrap();
    let asked = async {
        let result = quell.result(job, PATIENCE).await.unwrap();
        assert_eq!(result.state, JobState::Succeeded, "{result:?}");
    };
    quell.worker(()).register(send).run_until(asked).await
}

/// R10: a store cannot merge what it cannot read.
#[tokio::test]
async fn r43_payloads_that_are_merged_cannot_be_encrypted() -> Result<()> {
    #[derive(Serialize, Deserialize)]
    struct Merged;

    impl Task for Merged {
        const NAME: &'static str = "merged";
        type Output = ();

        fn policy() -> Policy {
            Policy::default().debounce(SOON..=SOON).fold(Fold::Merge)
        }

        fn debounce_key(&self) -> Option<String> {
            Some("k".to_owned())
        }
    }

    let (store, _folder) = in_a_file().await?;
    let quell = Quell::with_store(store).encryption(keyring(&keys("k1"))).build()?;
    let refused = quell.trigger(Merged).await.unwrap_err();
    assert_eq!((refused.kind(), refused.field()), (ErrorKind::Invalid, Some("fold")), "{refused}");
    assert_eq!(quell.counts().await?, [], "nothing was written");
    Ok(())
}

/// R20: the hash of a payload that can be guessed is not in the store, and repeats are known.
#[tokio::test]
async fn r43_keys_derived_from_payloads_are_keyed() -> Result<()> {
    #[derive(Serialize, Deserialize)]
    struct Pin(u16);

    impl Task for Pin {
        const NAME: &'static str = "pin";
        type Output = ();

        fn policy() -> Policy {
            Policy::default().idempotency(DerivedKey::of_payload())
        }
    }

    let (store, _folder) = in_a_file().await?;
    let quell = Quell::with_store(Arc::clone(&store)).encryption(keyring(&keys("k1"))).build()?;
    let job = quell.trigger(Pin(4_711)).await?.job();
    let again = quell.trigger(Pin(4_711)).await?;
    assert!(matches!(again, Receipt::Existing { .. }) && again.job() == job, "{again:?}");
    assert_ne!(quell.trigger(Pin(4_712)).await?.job(), job);
    // A client without the key derives another, which the store does not know.
    let plain = Quell::with_store(store).build()?;
    assert_ne!(plain.trigger(Pin(4_711)).await?.job(), job);
    Ok(())
}
