//! The processes of a chaos run: workers of both kinds and callers on one store, each with an event
//! history of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Two of `quell serve`, one of the library alone.
pub(super) const WORKERS: usize = 3;
/// Processes that trigger.
pub(super) const CALLERS: usize = 2;
/// The schedule of the configuration, and the task that it triggers.
pub(super) const BEAT: &str = "beat";
/// Nothing takes longer on a machine that works.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a process may still write to one file while its disk is full. Its history stays below.
const ROOM: u64 = 128 << 10;

/// One process and the number of its files.
struct Member {
    child: Child,
    number: usize,
}

/// Everyone.
pub(super) struct Crew {
    folder: PathBuf,
    /// The store that they share.
    url: String,
    workers: Vec<Member>,
    callers: Vec<Member>,
    /// Processes started so far.
    started: usize,
}

impl Crew {
    pub(super) fn start(folder: &Path, url: &str) -> Crew {
        std::fs::create_dir(folder.join("stamps")).unwrap();
        write_config(folder, url);
        let (workers, callers) = (Vec::new(), Vec::new());
        let (folder, url) = (folder.to_owned(), url.to_owned());
        let mut crew = Crew { folder, url, workers, callers, started: 0 };
        for index in 0..WORKERS {
            let worker = crew.worker(index);
            crew.workers.push(worker);
        }
        for index in 0..CALLERS {
            let caller = crew.caller(index);
            crew.callers.push(caller);
        }
        crew
    }

    pub(super) fn kill_worker(&mut self, index: usize) {
        end(&mut self.workers[index].child);
        self.workers[index] = self.worker(index);
    }

    pub(super) fn kill_caller(&mut self, index: usize) {
        end(&mut self.callers[index].child);
        self.callers[index] = self.caller(index);
    }

    /// Asks a worker to end; it must do so in order and in time.
    pub(super) async fn term_worker(&mut self, index: usize) {
        if self.listens(&self.workers[index]) {
            ends_when_asked(&mut self.workers[index].child).await;
        }
        self.kill_worker(index);
    }

    pub(super) async fn stop_worker(&self, index: usize, length: Duration) {
        signal(&self.workers[index].child, "-STOP");
        tokio::time::sleep(length).await;
        signal(&self.workers[index].child, "-CONT");
    }

    pub(super) async fn fill_disk_of_caller(&mut self, index: usize, length: Duration) {
        self.kill_caller(index);
        fill_disk(&self.callers[index].child, length).await;
    }

    pub(super) async fn fill_disk_of_worker(&mut self, index: usize, length: Duration) {
        self.kill_worker(index);
        fill_disk(&self.workers[index].child, length).await;
    }

    /// The configuration of its servers.
    pub(super) fn config(&self) -> PathBuf {
        self.folder.join("quell.toml")
    }

    /// No more triggers.
    pub(super) fn hush(&mut self) {
        self.callers.iter_mut().for_each(|caller| end(&mut caller.child));
    }

    /// Starts again who gave up, as a supervisor does; it must have said why.
    pub(super) fn revive(&mut self) -> usize {
        let ended = |member: &mut Member| member.child.try_wait().unwrap().is_some();
        let callers: Vec<usize> = (0..CALLERS).filter(|i| ended(&mut self.callers[*i])).collect();
        for index in &callers {
            self.gave_up_in_order(&self.callers[*index]);
            self.callers[*index] = self.caller(*index);
        }
        callers.len() + self.revive_workers()
    }

    pub(super) fn revive_workers(&mut self) -> usize {
        let ended = |member: &mut Member| member.child.try_wait().unwrap().is_some();
        let workers: Vec<usize> = (0..WORKERS).filter(|i| ended(&mut self.workers[*i])).collect();
        for index in &workers {
            self.gave_up_in_order(&self.workers[*index]);
            self.workers[*index] = self.worker(*index);
        }
        workers.len()
    }

    fn gave_up_in_order(&self, member: &Member) {
        let said = std::fs::read_to_string(self.file(member.number, "err")).unwrap();
        let in_order = said.contains("error: ") && !said.contains("panicked");
        assert!(in_order, "process {} ended by itself: {said:?}", member.number);
    }

    /// Whether it got so far that it ends in order when asked.
    fn listens(&self, member: &Member) -> bool {
        let history = std::fs::read_to_string(self.file(member.number, "jsonl"));
        history.is_ok_and(|text| text.contains("\"event\":\"worker\""))
    }

    /// Ends everyone in order.
    pub(super) async fn dismiss(&mut self) {
        for index in 0..WORKERS {
            let deadline = Instant::now() + PATIENCE;
            while !self.listens(&self.workers[index]) {
                assert!(Instant::now() < deadline, "worker {index} does not begin");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ends_when_asked(&mut self.workers[index].child).await;
        }
    }

    fn worker(&mut self, index: usize) -> Member {
        if index == 0 {
            return self.torment(&["work"]);
        }
        let config = self.config();
        self.spawn(&["serve", "--config", text(&config)])
    }

    fn caller(&mut self, index: usize) -> Member {
        self.torment(&["call", &index.to_string()])
    }

    fn torment(&mut self, role: &[&str]) -> Member {
        let (url, stamps) = (self.url.clone(), self.folder.join("stamps"));
        let places = ["--store", &url, "--stamps", text(&stamps)];
        self.spawn(&[&["torment"], role, &places].concat())
    }

    /// Through a shell that ignores SIGXFSZ for it: a write past the limit then fails, as on a
    /// full disk.
    fn spawn(&mut self, args: &[&str]) -> Member {
        self.started += 1;
        let number = self.started;
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_quell")]);
        command.args(args).arg("--history").arg(self.file(number, "jsonl"));
        command.env("QUELL_LOG", "off").env_remove("QUELL_SERVER").stdout(Stdio::null());
        command.stderr(File::create(self.file(number, "err")).unwrap());
        Member { child: command.spawn().unwrap(), number }
    }

    fn file(&self, number: usize, ending: &str) -> PathBuf {
        self.folder.join(format!("{number}.{ending}"))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.workers.iter_mut().chain(&mut self.callers).for_each(|one| end(&mut one.child));
    }
}

fn write_config(folder: &Path, url: &str) {
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{url}\"\n\
         [worker]\nlease = \"300ms\"\ngrace = \"1s\"\nconcurrency = 4\n\
         [tasks.note]\nkey = \"{{{{ k }}}}\"\ndebounce = {{ min = \"5ms\", max = \"40ms\" }}\n\
         retry = {{ max_attempts = 1000, max_crashes = 100000, min_backoff = \"1ms\", max_backoff = \"5ms\" }}\n\
         exec = {{ command = [\"sh\", \"-c\", \"sleep 0.01\"] }}\n\
         [tasks.{BEAT}]\nretry = {{ max_attempts = 1000, max_crashes = 100000, max_backoff = \"1s\" }}\n\
         exec = {{ command = [\"true\"] }}\n\
         [schedules.{BEAT}]\ntask = \"{BEAT}\"\nevery = \"130ms\"\ncatch_up = \"all\"\n"
    );
    std::fs::write(folder.join("quell.toml"), text).unwrap();
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
