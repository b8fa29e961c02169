//! One chaos run: faults until enough was seen, then rest, then the verdict.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use quell::store::Store;
use quell::{Job, JobId, JobState};
use quell_conformance::effort::cases;
use quell_conformance::rig::all_jobs;

use super::fault::{Fault, Kind};
use super::ground::Ground;
use super::judge::{self, Story, Tables};
use super::operator::Operator;
use super::plan::{Deck, Plan};
use super::processes::{PATIENCE, Processes};
use super::seen::{Counts, Tally, needs};
use super::workload::books::Books;

/// No run does harm for longer; what it has not seen by then fails it. The suite's limit is 10
/// minutes for a test.
const LONGEST: Duration = Duration::from_secs(300);
/// Everything must come to rest within this time. A job whose leases expired several times in a row waits for
/// up to 16 times what its attempt took (R25).
const REST: Duration = Duration::from_secs(200);
/// How many faults go by between two looks at what was seen.
const FAULTS_BETWEEN_LOOKS: usize = 5;

/// Triggers and attempts between two faults.
const SOME_WORK: usize = 10;

/// What a run is about.
pub(super) struct Run {
    pub(super) deck: Deck,
    /// Faults in any case; more where not enough was seen.
    pub(super) faults: usize,
    /// Between two faults.
    pub(super) longest_wait: Duration,
}

/// A number from the environment.
fn setting(name: &str) -> Option<usize> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Does harm until enough was seen, and judges the histories.
pub(super) async fn hold(folder: &Path, ground: &mut Ground, run: Run) -> Counts {
    // A run that takes longer, on a loaded machine, ends as soon as it has seen enough.
    let long = Duration::from_secs(cases(60, 200));
    let asked_for = setting("QUELL_CHAOS_ROUNDS");
    let faults = asked_for.unwrap_or(run.faults);
    let seed = setting("QUELL_CHAOS_SEED").unwrap_or(11);
    let (mut operator, mut processes) = begin(folder, ground).await;
    let (mut tally, mut revived) = (Tally::new(folder), 0);
    let needs = needs(run.deck, Books::open(&ground.url()).unwrap().is_some());
    declared(&mut tally).await;
    let began = Instant::now();
    for (done, (wait, fault)) in Plan::new(seed as u64, run.deck, run.longest_wait).enumerate() {
        let is_due = done >= faults || (asked_for.is_none() && began.elapsed() > long);
        if is_due && done % FAULTS_BETWEEN_LOOKS == 0 {
            let mut missing = tally.look().missing(&needs);
            if missing.is_empty() {
                missing = judge::limits_reached(folder).missing(&judge::SLOTS_REACHED);
            }
            if missing.is_empty() {
                break;
            }
            let is_late = began.elapsed() > LONGEST && (asked_for.is_none() || done > 2 * faults);
            assert!(!is_late, "not enough was seen: {missing:?}");
        }
        tokio::time::sleep(wait).await;
        // Three of four faults meet processes at work, however slow the machine; one follows the
        // fault before it closely.
        if done % 4 > 0 {
            some_work(&mut tally).await;
        }
        harm(ground, &mut processes, &mut operator, fault).await;
        revived += processes.revive();
        tally.fault(fault.kind);
        if (done + 1) % 100 == 0 {
            eprintln!("{} faults", done + 1);
        }
    }
    let mut counts = rest(folder, ground, &mut processes, &operator, judge::JUDGED).await;
    counts.add("processes that gave up and were started again", revived);
    counts.extend(tally.look().clone());
    eprintln!("seed {seed}: {counts}");
    counts
}

/// Waits until the schedule is on record: the checker must excuse each tick of one that a process declared
/// as it was lost.
async fn declared(tally: &mut Tally) {
    let deadline = Instant::now() + PATIENCE;
    while tally.look().of("schedules on record") == 0 {
        assert!(Instant::now() < deadline, "no process declares the schedule");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until triggers were accepted and attempts started; not for long, as a fault may last.
async fn some_work(tally: &mut Tally) {
    let done = |counts: &Counts| [counts.of("triggers accepted"), counts.of("attempts")];
    let (deadline, before) = (Instant::now() + Duration::from_secs(4), done(tally.look()));
    while Instant::now() < deadline {
        let now = done(tally.look());
        if now.iter().zip(before).all(|(now, before)| *now >= before + SOME_WORK) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The operator and the processes of a run.
pub(super) async fn begin(folder: &Path, ground: &Ground) -> (Operator, Processes) {
    let url = ground.url();
    if let Some(books) = Books::open(&url).unwrap() {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = books.create().await {
            assert!(Instant::now() < deadline, "the tables cannot be created: {error}");
        }
    }
    (Operator::start(folder, &url).await, Processes::start(folder, &url, ground.is_cluster()))
}

async fn harm(
    ground: &mut Ground,
    processes: &mut Processes,
    operator: &mut Operator,
    fault: Fault,
) {
    match fault.kind {
        Kind::PauseQueue => {
            operator.pause_queue(true).await;
            // A worker that begins in a pause heeds it, too.
            processes.term_worker(fault.member).await;
            tokio::time::sleep(fault.length).await;
            operator.pause_queue(false).await;
        }
        Kind::PauseTask => {
            operator.pause_task(true).await;
            tokio::time::sleep(fault.length).await;
            operator.pause_task(false).await;
        }
        _ => ground.harm(processes, fault).await,
    }
}

/// Lets everything come to rest, and judges it, these properties among it.
pub(super) async fn rest(
    folder: &Path,
    ground: &mut Ground,
    processes: &mut Processes,
    operator: &Operator,
    properties: &[&str],
) -> Counts {
    let rested = come_to_rest(ground, processes, operator).await;
    let printed = judge::checked(folder, &ground.url(), properties);
    eprintln!("{printed}");
    let is_whole = !printed.contains("did not end its record");
    assert_eq!(is_whole, processes.gone().is_empty(), "{printed}");
    verdict(folder, ground, processes, rested).await
}

/// What is there once nothing moves any more.
pub(super) struct Rested {
    story: Story,
    ticks: usize,
}

impl Rested {
    /// Whether there is such a job.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.story.jobs.contains_key(&job)
    }
}

/// Lets everything come to rest.
pub(super) async fn come_to_rest(
    ground: &mut Ground,
    processes: &mut Processes,
    operator: &Operator,
) -> Rested {
    ground.calm();
    processes.hush().await;
    let store = ground.store().await;
    operator.pause_schedule().await;
    // Jobs that died of crashes run once more, so that every promise is judged of them, too.
    let mut died = Vec::new();
    let jobs = loop {
        let jobs = settled_jobs(&*store, processes).await;
        let dead: Vec<Job> =
            jobs.values().filter(|job| job.state == JobState::Dead).cloned().collect();
        if dead.is_empty() {
            break jobs;
        }
        operator.redrive(&dead).await;
        died.extend(dead);
    };
    processes.dismiss().await;
    let ticks = judge::each_tick_is_one_job(&*store, &jobs).await;
    operator.ends();
    Rested { story: Story { jobs, died, pauses: operator.pauses(), ..Story::default() }, ticks }
}

/// What the judges say of the histories and records in a folder.
pub(super) async fn verdict(
    folder: &Path,
    ground: &mut Ground,
    processes: &Processes,
    Rested { story, ticks }: Rested,
) -> Counts {
    let (outputs, tables) = (outputs(&story.jobs), tables(&ground.url()).await);
    let story = story.read(folder, processes.gone());
    let judged = judge::judge(&story, &outputs, tables.as_ref());
    let mut counts = judged.unwrap_or_else(|broken| panic!("{broken}"));
    counts.add("ticks", ticks);
    ground.check().await;
    counts
}

/// Every row, once each has ended.
async fn settled_jobs(store: &dyn Store, processes: &mut Processes) -> BTreeMap<JobId, Job> {
    let deadline = Instant::now() + REST;
    loop {
        processes.revive_workers();
        let jobs = all_jobs(store).await;
        let open: Vec<&Job> = jobs.values().filter(|job| !job.state.is_ended()).collect();
        if open.is_empty() {
            return jobs;
        }
        assert!(Instant::now() < deadline, "it does not come to rest: {open:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn outputs(jobs: &BTreeMap<JobId, Job>) -> BTreeMap<JobId, String> {
    let output = |job: &Job| Some((job.id, job.output.as_ref()?.as_str().to_owned()));
    jobs.values().filter_map(output).collect()
}

async fn tables(url: &str) -> Option<Tables> {
    let books = Books::open(url).unwrap()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match books.read().await {
            Ok(tables) => return Some(tables),
            Err(error) => assert!(Instant::now() < deadline, "the tables cannot be read: {error}"),
        }
    }
}
