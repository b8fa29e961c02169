//! Power loss: what is left on the disk is the file and some of its journal. What was acknowledged
//! before is there, and no batch is there in part (R1, R5).
//!
//! A reader that never ends keeps checkpoints away, so the file stays as it was and the journal
//! only grows: what was acknowledged lies within the length that the journal had then.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use quell_conformance::Rig;
use quell_conformance::rig::{all_jobs, keyed, plain};
use quell_core::{Batch, JobId, JobState, Lease, Outcome, Settlement, Store};
use quell_sqlite::{SqliteStore, Synchronous};
use tokio::task::JoinSet;

use crate::scene::Scene;

/// Triggers of one batch that are jobs of their own.
const BATCH: usize = 5;
const CALLERS: usize = 3;
const CALLS: usize = 12;
/// Random cuts, beside those around each acknowledgement.
const CUTS: usize = 30;
/// Bytes of a page, in which a file is written.
const PAGE: usize = 4096;

/// What a caller received.
#[derive(Clone, Copy, Debug)]
enum Reported {
    /// This trigger was accepted.
    Accepted(JobId, u64),
    /// This job's success counted.
    Succeeded(JobId),
}

/// What callers received, each with the length of the journal by then.
type Acknowledged = Vec<(usize, Reported)>;

/// The file and the journal of a store, as the disk has them.
#[derive(Clone)]
struct Disk {
    file: Vec<u8>,
    journal: Vec<u8>,
}

impl Disk {
    fn of(scene: &Scene) -> Disk {
        let journal = std::fs::read(journal_of(scene)).unwrap_or_default();
        Disk { file: std::fs::read(scene.path()).unwrap(), journal }
    }

    /// A store's folder after the power is back.
    fn restored(&self) -> Scene {
        let scene = Scene::new();
        std::fs::write(scene.path(), &self.file).unwrap();
        std::fs::write(journal_of(&scene), &self.journal).unwrap();
        scene
    }
}

fn journal_of(scene: &Scene) -> PathBuf {
    scene.path().with_extension("db-wal")
}

fn journal_length(scene: &Scene) -> usize {
    usize::try_from(std::fs::metadata(journal_of(scene)).unwrap().len()).unwrap()
}

/// Triggers batches of jobs with a mark and joins a window, and ends what can be claimed.
async fn call(scene: Arc<Scene>, store: Arc<SqliteStore>, caller: usize) -> Acknowledged {
    let mut reported = Vec::new();
    for call in 0..CALLS {
        let mark = (caller * CALLS + call).to_string();
        let mut triggers = vec![plain(&mark); BATCH];
        triggers.push(keyed("window"));
        let batches = vec![Batch { triggers, dedup: None }];
        let receipts = store.enqueue(None, batches).await.unwrap().remove(0).unwrap();
        let length = journal_length(&scene);
        let triggers = receipts.iter().map(|receipt| receipt.trigger().unwrap());
        reported.extend(triggers.map(|id| (length, Reported::Accepted(id.job, id.seq))));

        let claimed = store.claim(None, &Rig::claim_of(2)).await.unwrap().jobs;
        let succeed = |job: &quell_core::ClaimedJob| Settlement {
            lease: Lease { job: job.id, token: job.token },
            outcome: Outcome::succeeded(),
        };
        let settled = store.settle(None, claimed.iter().map(succeed).collect()).await.unwrap();
        let length = journal_length(&scene);
        reported.extend(settled.iter().map(|one| (length, Reported::Succeeded(one.lease.job))));
    }
    reported
}

/// Opens what is left and looks for what was returned while the journal was no longer than `length`;
/// returns how many jobs there are.
async fn survives(disk: &Disk, length: usize, reported: &Acknowledged, what: &str) -> usize {
    let scene = disk.restored();
    let store = scene.open().await;
    let jobs = all_jobs(&store).await;
    for (_, reported) in reported.iter().filter(|(by, _)| *by <= length) {
        let is_there = match reported {
            Reported::Accepted(job, seq) => {
                jobs.get(job).is_some_and(|job| *seq <= job.window.triggers)
            }
            Reported::Succeeded(job) => {
                jobs.get(job).is_some_and(|job| job.state == JobState::Succeeded)
            }
        };
        assert!(is_there, "{what}: {reported:?} is lost");
    }
    let mut batches: BTreeMap<&str, usize> = BTreeMap::new();
    for job in jobs.values().filter(|job| job.key.is_none()) {
        *batches.entry(job.payload.as_str()).or_default() += 1;
    }
    assert!(batches.values().all(|count| *count == BATCH), "{what}: torn batches: {batches:?}");
    let windowed: u64 =
        jobs.values().filter(|job| job.key.is_some()).map(|job| job.window.triggers).sum();
    assert_eq!(u64::try_from(batches.len()).unwrap(), windowed, "{what}: torn batches");
    let mut db = scene.connect().await;
    let sound: String =
        sqlx::query_scalar("pragma integrity_check").fetch_one(&mut db).await.unwrap();
    assert_eq!(sound, "ok", "{what}");
    // It goes on as if nothing had been.
    store.enqueue(None, vec![Batch::one(plain("\"after\""))]).await.unwrap();
    jobs.len()
}

/// A disk whose file is as it was before `told`, and whose journal has all of it.
async fn written() -> (Arc<Scene>, Disk, Acknowledged) {
    let scene = Arc::new(Scene::new());
    let store = Arc::new(scene.options().synchronous(Synchronous::Full).open().await.unwrap());
    let mut reader = scene.connect().await;
    sqlx::raw_sql("pragma wal_checkpoint(truncate)").execute(&mut reader).await.unwrap();
    sqlx::raw_sql("begin; select count(*) from quell_job").execute(&mut reader).await.unwrap();
    let before = Disk::of(&scene);
    assert_eq!(before.journal.len(), 0, "the journal is empty at first");
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(call(Arc::clone(&scene), Arc::clone(&store), caller));
    }
    let reported: Acknowledged = callers.join_all().await.into_iter().flatten().collect();
    let disk = Disk::of(&scene);
    assert_eq!(disk.file.len(), before.file.len(), "no checkpoint has come between");
    assert!(disk.file == before.file, "no checkpoint has come between");
    assert!(
        reported.len() > CALLERS * CALLS * BATCH,
        "too little to mean anything: {}",
        reported.len()
    );
    (scene, disk, reported)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_r05_what_was_acknowledged_survives_a_power_cut_at_any_byte() {
    let (_scene, disk, reported) = written().await;
    let mut random = fastrand::Rng::with_seed(5);
    let whole = disk.journal.len();
    let mut cuts: Vec<usize> = (0..CUTS).map(|_| random.usize(..=whole)).collect();
    let acknowledged = reported.iter().map(|(length, _)| *length);
    cuts.extend(acknowledged.step_by(29).flat_map(|length| [length - 1, length, length + 1]));
    cuts.extend([0, 1, 31, 32, whole]);
    cuts.retain(|cut| *cut <= whole);
    cuts.sort_unstable();
    cuts.dedup();
    let mut before = 0;
    for cut in cuts {
        let mut cut_off = Disk { journal: disk.journal[..cut].to_vec(), ..disk.clone() };
        let what = format!("{cut} of {whole} bytes");
        let count = survives(&cut_off, cut, &reported, &what).await;
        assert!(count >= before, "{what}: {count} jobs, and {before} with fewer bytes");
        before = count;
        // A disk may have made room for what it did not write.
        cut_off.journal.resize(whole, 0);
        if random.bool() {
            random.fill(&mut cut_off.journal[cut..]);
        }
        let filled = survives(&cut_off, cut, &reported, &format!("{what}, then rubbish")).await;
        assert_eq!(filled, count, "{what}: rubbish counts");
    }
    assert!(before > CALLERS * CALLS * BATCH, "all of it is there in the end: {before}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_r05_what_was_acknowledged_survives_a_power_cut_in_a_checkpoint() {
    let (_scene, disk, reported) = written().await;
    let moved = disk.restored();
    let mut db = moved.connect().await;
    sqlx::raw_sql("pragma wal_checkpoint(passive)").execute(&mut db).await.unwrap();
    let after = Disk::of(&moved).file;
    assert_ne!(after.len(), disk.file.len(), "the checkpoint has moved something");
    let mut random = fastrand::Rng::with_seed(6);
    for round in 0..12 {
        // Pages are written in any order, and one perhaps in part.
        let mut file = disk.file.clone();
        file.resize(after.len(), 0);
        for (page, (there, written)) in file.chunks_mut(PAGE).zip(after.chunks(PAGE)).enumerate() {
            match random.u8(..4) {
                0 => {}
                1 if page > 0 => {
                    let part = random.usize(..PAGE);
                    there[..part].copy_from_slice(&written[..part]);
                }
                _ => there.copy_from_slice(written),
            }
        }
        let torn = Disk { file, journal: disk.journal.clone() };
        let what = format!("checkpoint {round}");
        survives(&torn, disk.journal.len(), &reported, &what).await;
    }
}
