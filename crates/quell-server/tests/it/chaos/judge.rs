//! The verdict on a chaos run: the store's own rows, every process's history, and `quell check` on
//! all of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell::history::Event;
use quell::{ExplainTarget, Job, JobFilter, JobId, JobState, Receipt, SettledAs, Store};

use super::crew::BEAT;
use crate::binary::quell;

/// What a run showed.
#[derive(Debug)]
pub(super) struct Verdict {
    /// Triggers accepted.
    pub(super) accepted: usize,
    /// Calls that failed, or whose outcome nobody knows.
    pub(super) failed: usize,
    /// Attempts that began.
    pub(super) started: usize,
    /// Leases that lapsed.
    pub(super) lapsed: usize,
    /// Settlements that came after their lease was gone.
    pub(super) refused: usize,
    /// Stamped triggers among those accepted.
    pub(super) stamped: usize,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Verdict { accepted, failed, started, lapsed, refused, stamped } = self;
        write!(
            f,
            "{accepted} triggers accepted ({stamped} with a stamp), {failed} calls failed, \
             {started} attempts, {lapsed} leases lapsed, {refused} late settlements refused"
        )
    }
}

/// The files that processes wrote their events to.
fn histories(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect()
}

/// Every event of every process; a torn last line is what a kill may leave.
pub(super) fn events(folder: &Path) -> Vec<Event> {
    let mut events = Vec::new();
    for path in histories(folder) {
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

pub(super) async fn all_jobs(store: &dyn Store) -> BTreeMap<JobId, Job> {
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

/// Judges a run that has come to rest.
pub(super) fn judge(folder: &Path, url: &str, jobs: &BTreeMap<JobId, Job>) -> Verdict {
    let events = events(folder);
    none_lost(&events, jobs);
    one_at_a_time(&events);
    checked(folder, url);
    let count = |wanted: fn(&Event) -> bool| events.iter().filter(|event| wanted(event)).count();
    Verdict {
        accepted: count(|event| matches!(event, Event::TriggerOk { .. })),
        failed: count(|event| {
            matches!(event, Event::TriggerFail { .. } | Event::TriggerInfo { .. })
        }),
        started: count(|event| matches!(event, Event::Start { .. })),
        lapsed: count(|event| matches!(event, Event::Lapse { .. })),
        refused: count(|event| matches!(event, Event::Settle { became: SettledAs::Refused, .. })),
        stamped: count(|event| matches!(event, Event::StampOk { .. })),
    }
}

/// R36: the ticks that fired are all there were, and each is a job that knows it.
pub(super) async fn each_tick_is_one_job(store: &dyn Store, jobs: &BTreeMap<JobId, Job>) -> usize {
    let mut ticks = BTreeMap::new();
    for job in jobs.values().filter(|job| job.task.as_str() == BEAT) {
        let told = store.explain(&ExplainTarget::Job(job.id)).await.unwrap().unwrap();
        let [tick] = &told.ticks[..] else { panic!("{told}") };
        let twice = ticks.insert(tick.tick, job.id);
        assert_eq!(twice, None, "tick {} fired twice: {told}", tick.tick);
    }
    let info = store.schedules().await.unwrap().remove(0);
    let first = *ticks.first_key_value().expect("ticks").0;
    let all = std::iter::once(first).chain(info.schedule.spec.ticks(first));
    let all: Vec<_> = all.take_while(|tick| Some(*tick) <= info.last).collect();
    assert_eq!(ticks.keys().copied().collect::<Vec<_>>(), all, "some ticks were missed");
    ticks.len()
}

/// What `quell check` says of all histories and the store's rows.
pub(super) fn checked(folder: &Path, url: &str) {
    let mut command = quell(&["check", "--store", url]);
    let checked = command.args(histories(folder)).output().unwrap();
    let said = [checked.stdout, checked.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(checked.status.success() && said.contains(" 0 violations"), "{said}");
}

/// R1 and R2: what was accepted is there, and has run or been absorbed.
fn none_lost(events: &[Event], jobs: &BTreeMap<JobId, Job>) {
    for event in events {
        if let Event::TriggerOk { receipt, .. } = event {
            let (Receipt::Accepted { trigger, .. } | Receipt::Debounced { trigger, .. }) = receipt
            else {
                panic!("an unexpected receipt: {receipt:?}")
            };
            let job = jobs.get(&trigger.job).unwrap_or_else(|| panic!("{trigger} is lost"));
            assert!(trigger.seq <= job.window.triggers, "{trigger} is lost: {job:?}");
        }
    }
    for job in jobs.values() {
        match job.state {
            JobState::Succeeded => assert!(job.started_at >= Some(job.window.last_at), "{job:?}"),
            JobState::Absorbed => assert!(jobs.contains_key(&job.absorbed_by.unwrap()), "{job:?}"),
            _ => panic!("nothing else was asked for: {job:?}"),
        }
    }
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
