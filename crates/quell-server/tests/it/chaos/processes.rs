//! The processes of a chaos run: workers of both kinds and callers on one store, each with an event
//! history and a record of its own.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quell::history::Event;
use quell_check::Line;

use super::workload;
use super::workload::record::now;
use super::workload::tasks::LEASE;
use crate::binary::quell;

/// Two of the library alone and two of `quell serve`. The first one registers one more task.
pub(super) const WORKERS: usize = 4;
/// Workers of the library alone.
const IN_CODE: usize = 2;
/// Processes that trigger.
pub(super) const CALLERS: usize = 2;
/// The schedule of the configuration, and the task that it triggers.
pub(super) const BEAT: &str = "beat";
/// Nothing takes longer, however loaded the machine is.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
/// What a process may still write to one file while its disk is full. Its history stays below.
const ROOM: u64 = 128 << 10;
/// The history of a process that has done some work is longer.
const SOME_WORK: u64 = 6 << 10;

/// One process and the number of its files.
struct Member {
    child: Child,
    number: usize,
}

/// Every process of a run.
pub(super) struct Processes {
    folder: PathBuf,
    /// The store that they share.
    url: String,
    workers: Vec<Member>,
    callers: Vec<Member>,
    /// Processes started so far.
    started: usize,
    /// The numbers of those that did not end in order.
    gone: BTreeSet<usize>,
    /// Whose policies they have.
    deploy: u32,
    /// Whether callers trigger attempts that take longer than their leases.
    long: bool,
}

impl Processes {
    pub(super) fn start(folder: &Path, url: &str, long: bool) -> Processes {
        std::fs::create_dir(folder.join("stamps")).unwrap();
        write_configs(folder, url);
        let mut processes = Processes {
            folder: folder.to_owned(),
            url: url.to_owned(),
            workers: Vec::new(),
            callers: Vec::new(),
            started: 0,
            gone: BTreeSet::new(),
            deploy: 0,
            long,
        };
        for index in 0..WORKERS {
            let worker = processes.worker(index);
            processes.workers.push(worker);
        }
        for index in 0..CALLERS {
            let caller = processes.caller(index);
            processes.callers.push(caller);
        }
        processes
    }

    /// Kills a worker that has done some work, so that kills do not outrun the machine.
    pub(super) async fn kill_worker(&mut self, index: usize) {
        self.some_work(self.workers[index].number).await;
        self.kill_worker_now(index);
    }

    pub(super) fn kill_worker_now(&mut self, index: usize) {
        end(&mut self.workers[index].child);
        self.is_gone(true, index);
        self.workers[index] = self.worker(index);
    }

    pub(super) async fn kill_caller(&mut self, index: usize) {
        self.some_work(self.callers[index].number).await;
        end(&mut self.callers[index].child);
        self.is_gone(false, index);
        self.callers[index] = self.caller(index);
    }

    /// A process did not end in order: it did nothing after now, which the histories say.
    fn is_gone(&mut self, is_worker: bool, index: usize) {
        let Member { child, number } =
            if is_worker { &self.workers[index] } else { &self.callers[index] };
        let (what, whom) = ("kill".to_owned(), child.id().to_string());
        self.gone.insert(*number);
        let line = Line::new("chaos", Event::Fault { t: now(), what, whom });
        let text = format!("{}\n", serde_json::to_string(&line).unwrap());
        let file = File::options().create(true).append(true).open(self.folder.join("deaths.jsonl"));
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Asks a worker to end; it must do so in order and in time.
    pub(super) async fn term_worker(&mut self, index: usize) {
        if self.begins(true, index).await {
            ends_when_asked(&mut self.workers[index].child).await;
            self.workers[index] = self.worker(index);
        }
    }

    async fn term_caller(&mut self, index: usize) -> bool {
        let begins = self.begins(false, index).await;
        if begins {
            ends_when_asked(&mut self.callers[index].child).await;
        }
        begins
    }

    /// A rolling deploy: one process after the other ends in order and starts with other policies.
    pub(super) async fn deploy(&mut self) {
        self.deploy += 1;
        for index in 0..WORKERS {
            self.term_worker(index).await;
        }
        for index in 0..CALLERS {
            if self.term_caller(index).await {
                self.callers[index] = self.caller(index);
            }
        }
    }

    pub(super) async fn stop_worker(&self, index: usize, length: Duration) {
        self.stand_still(index, true);
        tokio::time::sleep(length).await;
        self.stand_still(index, false);
    }

    /// Stops a worker, or lets it go on.
    pub(super) fn stand_still(&self, index: usize, still: bool) {
        signal(&self.workers[index].child, if still { "-STOP" } else { "-CONT" });
    }

    /// Stops a worker and a caller that wait for answers, which come while they stand still; `holds`
    /// keeps answers back, and lets them go.
    pub(super) async fn stop_in_calls(
        &self,
        index: usize,
        length: Duration,
        holds: impl Fn(bool),
    ) -> bool {
        let caller = index % CALLERS;
        holds(true);
        let waits = self.waits_for_an_answer(self.callers[caller].number).await;
        let stopped = [&self.workers[index].child, &self.callers[caller].child];
        stopped.iter().for_each(|child| signal(child, "-STOP"));
        holds(false);
        tokio::time::sleep(length).await;
        stopped.iter().for_each(|child| signal(child, "-CONT"));
        waits
    }

    /// Stops a caller; `ends` ends its connections meanwhile.
    pub(super) async fn stop_caller(&self, index: usize, ends: impl AsyncFnOnce()) {
        signal(&self.callers[index].child, "-STOP");
        ends().await;
        signal(&self.callers[index].child, "-CONT");
    }

    /// Waits until the last line of a caller is a call; not for long, as it may make another kind.
    async fn waits_for_an_answer(&self, number: usize) -> bool {
        let deadline = Instant::now() + Duration::from_secs(2);
        let file = self.file(number, "jsonl");
        loop {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            if text.lines().next_back().is_some_and(|line| line.contains("\"trigger_invoke\"")) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn fill_disk_of_caller(&mut self, index: usize, length: Duration) {
        self.kill_caller(index).await;
        fill_disk(&self.callers[index].child, length).await;
    }

    pub(super) async fn fill_disk_of_worker(&mut self, index: usize, length: Duration) {
        self.kill_worker(index).await;
        fill_disk(&self.workers[index].child, length).await;
    }

    /// The configuration of its servers.
    pub(super) fn config(&self) -> PathBuf {
        config(&self.folder, self.deploy)
    }

    /// The numbers of the processes that were killed or gave up.
    pub(super) fn gone(&self) -> &BTreeSet<usize> {
        &self.gone
    }

    /// No more triggers.
    pub(super) async fn hush(&mut self) {
        for index in 0..CALLERS {
            self.term_caller(index).await;
        }
    }

    /// Starts again what gave up, as a supervisor does; its error must say why.
    pub(super) fn revive(&mut self) -> usize {
        let ended = |member: &mut Member| member.child.try_wait().unwrap().is_some();
        let callers: Vec<usize> = (0..CALLERS).filter(|i| ended(&mut self.callers[*i])).collect();
        for index in &callers {
            self.gave_up_in_order(false, *index);
            self.callers[*index] = self.caller(*index);
        }
        callers.len() + self.revive_workers()
    }

    pub(super) fn revive_workers(&mut self) -> usize {
        let ended = |member: &mut Member| member.child.try_wait().unwrap().is_some();
        let workers: Vec<usize> = (0..WORKERS).filter(|i| ended(&mut self.workers[*i])).collect();
        for index in &workers {
            self.gave_up_in_order(true, *index);
            self.workers[*index] = self.worker(*index);
        }
        workers.len()
    }

    fn gave_up_in_order(&mut self, is_worker: bool, index: usize) {
        let number = if is_worker { &self.workers[index] } else { &self.callers[index] }.number;
        let errors = std::fs::read_to_string(self.file(number, "err")).unwrap();
        let in_order = errors.contains("error: ") && !errors.contains("panicked");
        assert!(in_order, "process {number} ended by itself: {errors:?}");
        eprintln!("process {number} gave up: {errors}");
        self.is_gone(is_worker, index);
    }

    /// Waits until a process got so far that it ends in order when asked; whether it did.
    async fn begins(&mut self, is_worker: bool, index: usize) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let members = if is_worker { &mut self.workers } else { &mut self.callers };
            let Member { child, number } = &mut members[index];
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            let number = *number;
            let history = std::fs::read_to_string(self.file(number, "jsonl")).unwrap_or_default();
            let first = if is_worker { "\"event\":\"worker\"" } else { "\"trigger_invoke\"" };
            if history.contains(first) {
                return true;
            }
            assert!(Instant::now() < deadline, "process {number} does not begin");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a process has done some work; not for long, as nothing may be there to do.
    async fn some_work(&self, number: usize) {
        let deadline = Instant::now() + Duration::from_secs(2);
        let file = self.file(number, "jsonl");
        let length = || std::fs::metadata(&file).map_or(0, |file| file.len());
        while length() < SOME_WORK && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends every worker in order.
    pub(super) async fn dismiss(&mut self) {
        for index in 0..WORKERS {
            if self.begins(true, index).await {
                ends_when_asked(&mut self.workers[index].child).await;
            } else {
                self.gave_up_in_order(true, index);
            }
        }
    }

    fn worker(&mut self, index: usize) -> Member {
        let deploy = self.deploy.to_string();
        if index < IN_CODE {
            let rare: &[&str] = if index == 0 { &["--rare"] } else { &[] };
            return self.process(&[&["work", &deploy], rare].concat());
        }
        let config = self.config();
        let serve = ["serve", "--config", text(&config)];
        self.spawn(|history| quell(&[&serve[..], &history].concat()))
    }

    fn caller(&mut self, index: usize) -> Member {
        let deploy = self.deploy.to_string();
        let long: &[&str] = if self.long { &["--long"] } else { &[] };
        self.process(&[&["call", &index.to_string(), &deploy], long].concat())
    }

    fn process(&mut self, role: &[&str]) -> Member {
        let (url, stamps) = (self.url.clone(), self.folder.join("stamps"));
        let places = ["--store", &url, "--stamps", text(&stamps)];
        self.spawn(|history| workload::process(&[role, &places, &history].concat()))
    }

    /// Through a shell that ignores SIGXFSZ for it: a write past the limit then fails, as on a
    /// full disk.
    fn spawn(&mut self, program: impl FnOnce([&str; 2]) -> Command) -> Member {
        self.started += 1;
        let number = self.started;
        let program = program(["--history", text(&self.file(number, "jsonl"))]);
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(program.get_program());
        command.args(program.get_args());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("QUELL_LOG", "off").env_remove("QUELL_SERVER").stdout(Stdio::null());
        command.stderr(File::create(self.file(number, "err")).unwrap());
        Member { child: command.spawn().unwrap(), number }
    }

    fn file(&self, number: usize, ending: &str) -> PathBuf {
        self.folder.join(format!("{number}.{ending}"))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.workers.iter_mut().chain(&mut self.callers).for_each(|one| end(&mut one.child));
    }
}

fn config(folder: &Path, deploy: u32) -> PathBuf {
    folder.join(format!("quell-{}.toml", deploy % 2))
}

/// One configuration for each deploy.
fn write_configs(folder: &Path, url: &str) {
    let lease = LEASE.as_millis();
    for (deploy, min, max, backoff) in [(0, 5, 40, 5), (1, 10, 60, 20)] {
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{url}\"\n\
             [worker]\nlease = \"{lease}ms\"\ngrace = \"1s\"\nconcurrency = 4\n\
             [tasks.note]\nkey = \"{{{{ k }}}}\"\n\
             debounce = {{ min = \"{min}ms\", max = \"{max}ms\" }}\n\
             retry = {{ max_attempts = 1000, min_backoff = \"1ms\", max_backoff = \"{backoff}ms\" }}\n\
             exec = {{ command = [\"sh\", \"-c\", \"sleep 0.01\"] }}\n\
             [tasks.{BEAT}]\nretry = {{ max_attempts = 1000, max_backoff = \"1s\" }}\n\
             exec = {{ command = [\"true\"] }}\n\
             [schedules.{BEAT}]\ntask = \"{BEAT}\"\nevery = \"130ms\"\ncatch_up = \"all\"\n"
        );
        std::fs::write(config(folder, deploy), text).unwrap();
    }
}

async fn fill_disk(child: &Child, length: Duration) {
    limit_files(child, &format!("{ROOM}:"));
    tokio::time::sleep(length).await;
    limit_files(child, "unlimited:");
}

fn limit_files(child: &Child, bytes: &str) {
    let (process, limit) = (child.id().to_string(), format!("--fsize={bytes}"));
    let limited = Command::new("prlimit").args(["--pid", &process, &limit]).output().unwrap();
    assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
}

fn end(child: &mut Child) {
    // It may have ended by itself: then there is nothing to kill.
    let _ended = child.kill();
    child.wait().unwrap();
}

async fn ends_when_asked(child: &mut Child) {
    signal(child, "-TERM");
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return assert!(status.success(), "it was asked to end and ended with {status}");
        }
        assert!(Instant::now() < deadline, "it does not end");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn signal(child: &Child, name: &str) {
    // It fails where the process has ended, which its exit status will say.
    let _sent = Command::new("kill").args([name, &child.id().to_string()]).output().unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
