//! Processes killed at any moment lose nothing and run nothing twice at once: 200 rounds of
//! `kill -9` on workers and on triggering processes that share one file, judged by the store's own
//! rows and by the event history (R1, R2, R11, R21).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use quell::history::Event;
use quell::sqlite::SqliteStore;
use quell::{Job, JobFilter, JobId, JobState, Receipt, SettledAs, Store};

use crate::binary::{Process, quell};

/// Kills in all; a third each of a worker, the other worker, and a process that triggers.
const ROUNDS: u64 = 200;

fn write_config(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("quell.toml");
    let store = folder.join("q.db");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite://{}\"\n\
         [worker]\nlease = \"300ms\"\ngrace = \"1s\"\nconcurrency = 4\n\
         [tasks.note]\nkey = \"{{{{ k }}}}\"\ndebounce = {{ min = \"5ms\", max = \"40ms\" }}\n\
         retry = {{ max_attempts = 1000, min_backoff = \"1ms\", max_backoff = \"5ms\" }}\n\
         exec = {{ command = [\"sh\", \"-c\", \"sleep 0.01\"] }}\n",
        store.display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// A process that triggers for as long as it lives.
fn caller(folder: &Path, number: u64) -> Child {
    let history = folder.join(format!("caller-{number}.jsonl"));
    let store = format!("sqlite://{}", folder.join("q.db").display());
    let args = ["torment", "--store", &store, "--history", history.to_str().unwrap()];
    quell(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn worker(config: &Path, folder: &Path, number: u64) -> Process {
    let history = folder.join(format!("worker-{number}.jsonl"));
    Process::serve(config, &["--history", history.to_str().unwrap()])
}

/// Every event of every process; a torn last line is what a kill may leave.
fn events(folder: &Path) -> Vec<Event> {
    let mut events = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "jsonl") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            match serde_json::from_str(line) {
                Ok(event) => events.push(event),
                Err(error) => assert_eq!(index + 1, lines.len(), "{}: {error}", path.display()),
            }
        }
    }
    events
}

async fn all_jobs(store: &SqliteStore) -> BTreeMap<JobId, Job> {
    let mut jobs = BTreeMap::new();
    let mut before = None;
    loop {
        let filter = JobFilter { before, limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
        let page = store.jobs(&filter).await.unwrap();
        let Some(last) = page.last() else { return jobs };
        before = Some(last.id);
        jobs.extend(page.into_iter().map(|job| (job.id, job)));
    }
}

#[tokio::test]
async fn r01_r02_r11_r21_hold_through_two_hundred_kills() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = write_config(folder);
    let mut random = fastrand::Rng::with_seed(11);
    let mut workers = [worker(&config, folder, 0), worker(&config, folder, 1)];
    let mut calling = caller(folder, 0);
    for round in 2..ROUNDS + 2 {
        tokio::time::sleep(Duration::from_micros(random.u64(2_000..60_000))).await;
        match round % 3 {
            0 => {
                calling.kill().unwrap();
                calling.wait().unwrap();
                calling = caller(folder, round);
            }
            which => {
                let one = &mut workers[usize::try_from(which - 1).unwrap()];
                one.signal("-KILL");
                one.child.wait().unwrap();
                *one = worker(&config, folder, round);
            }
        }
    }
    calling.kill().unwrap();
    calling.wait().unwrap();

    let url = format!("sqlite://{}", folder.join("q.db").display());
    let store = SqliteStore::open(&url).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let jobs = loop {
        let jobs = all_jobs(&store).await;
        if jobs.values().all(|job| job.state.is_ended()) {
            break jobs;
        }
        assert!(Instant::now() < deadline, "it does not come to rest: {jobs:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    for one in &mut workers {
        one.signal("-TERM");
        one.child.wait().unwrap();
    }
    judge(&events(folder), &jobs);
    checked(folder, &url);
}

/// What `quell check` says of all histories and the store's rows.
fn checked(folder: &Path, url: &str) {
    let histories = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let histories = histories.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let mut command = quell(&["check", "--store", url]);
    let checked = command.args(histories).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}");
    assert!(said.contains(" 0 violations"), "{said}");
}

/// What must hold of the record.
fn judge(events: &[Event], jobs: &BTreeMap<JobId, Job>) {
    let mut accepted = 0;
    for event in events {
        if let Event::TriggerOk { receipt, .. } = event {
            let (Receipt::Accepted { trigger, .. } | Receipt::Debounced { trigger, .. }) = receipt
            else {
                panic!("an unexpected receipt: {receipt:?}")
            };
            // R1: it is there, counted by the job that its receipt names.
            let job = jobs.get(&trigger.job).unwrap_or_else(|| panic!("{trigger} is lost"));
            assert!(trigger.seq <= job.window.triggers, "{trigger} is lost: {job:?}");
            accepted += 1;
        }
    }
    assert!(accepted > 500, "too few triggers to mean anything: {accepted}");
    for job in jobs.values() {
        // R2: a run that began after its last trigger succeeded, or its heir's did.
        match job.state {
            JobState::Succeeded => assert!(job.started_at >= Some(job.window.last_at), "{job:?}"),
            JobState::Absorbed => assert!(jobs.contains_key(&job.absorbed_by.unwrap()), "{job:?}"),
            _ => panic!("nothing else was asked for: {job:?}"),
        }
    }
    let lapses = events.iter().filter(|event| matches!(event, Event::Lapse { .. })).count();
    assert!(lapses > 10, "too few lost leases to mean anything: {lapses}");
    one_at_a_time(events);
}

/// R11 and R21: attempts of one key do not overlap while their leases hold, and each start of a job
/// is settled at most once.
fn one_at_a_time(events: &[Event]) {
    let mut settled = BTreeMap::new();
    for event in events {
        if let Event::Settle { job, token, became, .. } = event
            && *became != SettledAs::Refused
        {
            let before = settled.insert((*job, *token), *became);
            assert!(before.is_none(), "start {token:?} of job {job} was settled twice");
        }
    }
    let mut starts = BTreeMap::new();
    for event in events {
        if let Event::Start { t, job, token, key: Some(key), .. } = event {
            let twice = starts.insert((key.clone(), *t, *job, *token), ()).is_some();
            assert!(!twice, "start {token:?} of job {job} was handed out twice");
        }
    }
}
