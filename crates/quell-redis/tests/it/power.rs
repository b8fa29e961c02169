//! A power cut: the append-only file ends where the disk had it, in the middle of anything. What
//! comes up is whole, and what is missing is the end of the story and nothing else.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::rig::{fails, keyed, lease, plain, secs};
use quell_core::{
    Batch, Job, JobFilter, JobId, JobState, NewTrigger, Outcome, Payload, Settlement, Store,
};
use quell_redis::RedisStore;
use quell_services::Redis;
use redis::aio::MultiplexedConnection;

use crate::place::{Place, dump, server};

/// How many calls the story has.
const CALLS: usize = 60;
/// How many places the file is cut off at.
const CUTS: u64 = 60;

/// The file that grows.
fn file(server: &Redis) -> PathBuf {
    let folder = server.folder().join("appendonlydir");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.to_str().unwrap().ends_with(".incr.aof")).unwrap()
}

/// The rows after a call, and how long the file was once it was answered.
struct Moment {
    rows: Vec<String>,
    length: u64,
}

/// The call of this number: triggers, starts, and ends of three kinds.
async fn call(store: &RedisStore, number: usize) {
    let now = Some(Rig::START + secs(number as u64));
    match number % 5 {
        0 => {
            let payload = Payload::from_stored(number.to_string());
            let triggers = vec![NewTrigger { payload, ..plain("1") }, keyed("k")];
            store.enqueue(now, vec![Batch { triggers, dedup: None }]).await.unwrap();
        }
        1 => drop(store.enqueue(now, vec![Batch::one(plain("2"))]).await.unwrap()),
        2 => drop(store.claim(now, &Rig::claim_of(2)).await.unwrap()),
        3 => {
            let jobs = store.jobs(&JobFilter::default()).await.unwrap();
            // Ends of several kinds may take several steps.
            let runs = jobs.iter().filter(|job| job.state == JobState::Running).take(1);
            let ends = [Outcome::succeeded(), fails(secs(1), false), fails(secs(1), true)];
            let ends = runs.zip(ends.into_iter().cycle().skip(number / 5)).map(|(job, outcome)| {
                let token = job.token;
                Settlement { lease: quell_core::Lease { job: job.id, token }, outcome }
            });
            store.settle(now, ends.collect()).await.unwrap();
        }
        _ => drop(store.reap(now, 9).await.unwrap()),
    }
}

/// Plays the story; returns the rows after each call with the length of the file.
async fn play(server: &Redis, place: &Place, redis: &mut MultiplexedConnection) -> Vec<Moment> {
    let store = place.open().await;
    let mut moments = Vec::new();
    for number in 0..CALLS {
        call(&store, number).await;
        written(redis).await;
        let length = std::fs::metadata(file(server)).unwrap().len();
        moments.push(Moment { rows: dump(redis).await, length });
    }
    moments
}

/// Waits until the file has everything: `everysec` writes later while an fsync is in progress.
async fn written(redis: &mut MultiplexedConnection) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let info: String = redis::cmd("INFO").arg("persistence").query_async(redis).await.unwrap();
        if info.lines().any(|line| line == "aof_buffer_length:0") {
            return;
        }
        assert!(Instant::now() < deadline, "the file is not written: {info}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Every job, from the newest.
async fn all(store: &RedisStore) -> BTreeMap<JobId, Job> {
    let filter = JobFilter { limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
    let jobs = store.jobs(&filter).await.unwrap();
    jobs.into_iter().map(|job| (job.id, job)).collect()
}

/// Everything that is left runs to its end, each job once at a time.
async fn goes_on(store: &RedisStore) {
    let mut now = Rig::START + secs(100_000);
    store.enqueue(Some(now), vec![Batch::one(plain("9"))]).await.unwrap().remove(0).unwrap();
    store.reap(Some(now), 99).await.unwrap();
    for _ in 0..CALLS {
        now = now + secs(1_000);
        let claimed = store.claim(Some(now), &Rig::claim_of(9)).await.unwrap();
        let mut jobs: Vec<JobId> = claimed.jobs.iter().map(|job| job.id).collect();
        jobs.dedup();
        assert_eq!(jobs.len(), claimed.jobs.len());
        let ends = claimed.jobs.iter();
        let ends = ends.map(|job| Settlement { lease: lease(job), outcome: Outcome::succeeded() });
        let ended = store.settle(Some(now), ends.collect()).await.unwrap();
        assert!(ended.iter().all(|end| end.became == quell_core::SettledAs::Succeeded));
    }
    let left: Vec<Job> =
        all(store).await.into_values().filter(|job| !job.state.is_ended()).collect();
    assert!(left.is_empty(), "{left:?}");
    let counted: u64 = store.counts().await.unwrap().iter().map(|counts| counts.jobs).sum();
    assert_eq!(counted, all(store).await.len() as u64);
}

/// Cuts the file off at this length, as it was before; returns what comes up.
async fn cut(
    server: &mut Redis,
    place: &Place,
    whole: &[u8],
    length: u64,
) -> (Vec<String>, MultiplexedConnection) {
    if server.is_running() {
        server.kill().unwrap();
    }
    std::fs::write(file(server), &whole[..usize::try_from(length).unwrap()]).unwrap();
    server.resume().unwrap();
    let mut redis = place.connect().await;
    (dump(&mut redis).await, redis)
}

/// What a disk may have kept after a power cut under `everysec`.
#[tokio::test]
async fn r01_r39_a_power_cut_loses_the_end_of_the_story_and_leaves_the_rest_whole() {
    let mut server = server(&["appendonly yes", "appendfsync everysec"]);
    let place = Place::on(&server);
    let mut redis = place.connect().await;
    let begun = dump(&mut redis).await;
    let moments = play(&server, &place, &mut redis).await;
    server.kill().unwrap();
    let whole = std::fs::read(file(&server)).unwrap();
    let end = whole.len() as u64;
    // The latest second, and single bytes of its last calls.
    let from = moments[CALLS / 4].length;
    let spread = (0..CUTS).map(|number| from + (end - from) * number / CUTS);
    let last = (end - 40..=end).step_by(3);
    let mut seen = BTreeMap::new();
    for length in spread.chain(last) {
        let (rows, _redis) = cut(&mut server, &place, &whole, length).await;
        // A file that ends within a call has nothing of it; opening the store wrote, too.
        let moment = moments.iter().rposition(|moment| moment.rows == rows);
        let moment =
            moment.unwrap_or_else(|| panic!("at {length}: half a call\n{begun:?}\n{rows:#?}"));
        let reported = moments.iter().rposition(|moment| moment.length <= length).unwrap();
        assert!(
            moment >= reported,
            "at {length}: call {reported} was on the disk, {moment} is there"
        );
        let next = moments.get(moment + 1);
        assert!(next.is_none_or(|next| next.length > length || next.rows == rows), "at {length}");
        if seen.insert(moment, ()).is_none() && moment % 4 == 0 {
            let store = place.open().await;
            goes_on(&store).await;
        }
    }
    assert!(seen.len() > 20, "{} states came up", seen.len());
}

/// Under `always`, whatever was acknowledged is in the file before.
#[tokio::test]
async fn r01_a_power_cut_loses_nothing_that_was_accepted_under_always() {
    let mut server = server(&["appendonly yes", "appendfsync always"]);
    let place = Place::on(&server);
    let mut redis = place.connect().await;
    let moments = play(&server, &place, &mut redis).await;
    server.kill().unwrap();
    let whole = std::fs::read(file(&server)).unwrap();
    for moment in moments.iter().skip(1).step_by(7) {
        // All that the disk need have when the answer comes.
        let (rows, _redis) = cut(&mut server, &place, &whole, moment.length).await;
        assert_eq!(rows, moment.rows);
    }
    goes_on(&place.open().await).await;
}
