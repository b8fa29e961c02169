//! A private Chromium without a window, driven by its own protocol.
//!
//! Messages pass through pipes, so no port is open, and the browser ends with the process that started it,
//! however that ends. It reaches the loopback address only.
//!
//! Invariant: a call has an answer or an error before its deadline.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::packages::{alone, install_while_alone, is_root};
use crate::process::{Process, await_that};

/// Where Debian's package has it. The script in `/usr/bin` would add the machine's own flags.
const PROGRAM: &str = "/usr/lib/chromium/chromium";
/// With fonts that look the same everywhere.
const PACKAGES: [&str; 2] = ["chromium", "fonts-dejavu-core"];
/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an end may take, before it is forced.
const END: Duration = Duration::from_secs(10);
/// The most events that wait to be taken; the oldest go first.
const MAX_EVENTS: usize = 20_000;
/// The shell hands over the pipes as the descriptors that the browser expects.
const HAND_OVER: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null";

/// A browser of its own, with a profile in a temporary folder.
#[derive(Debug)]
pub struct Chromium {
    line: Arc<Line>,
    // Taken at the end, in this order: the pipe closes, so the browser ends, and so does the reader.
    input: Mutex<Option<ChildStdin>>,
    process: Option<Process>,
    reader: Option<JoinHandle<()>>,
    folder: TempDir,
}

/// Answers and events that wait for their callers.
#[derive(Debug, Default)]
struct Line {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    answers: HashMap<u64, Value>,
    events: VecDeque<Value>,
    closed: bool,
}

impl Chromium {
    /// Starts a browser, which is installed where it is missing.
    ///
    /// # Errors
    /// Where it cannot be installed or started, with what it logged.
    pub fn start() -> anyhow::Result<Self> {
        ensure_chromium()?;
        let folder = tempfile::Builder::new().prefix("quell-chromium-").tempdir()?;
        let log = File::create(folder.path().join("log"))?;
        let mut command = Command::new("sh");
        command.args(["-c", HAND_OVER, PROGRAM]).args(flags(folder.path()));
        for variable in ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TMPDIR"] {
            command.env(variable, folder.path());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut process = Process::start(&mut command)?;
        let (input, output) = process.pipes()?;
        let line = Arc::new(Line::default());
        let reader = std::thread::spawn({
            let line = Arc::clone(&line);
            move || line.read(output)
        });
        let input = Mutex::new(Some(input));
        let browser =
            Chromium { line, input, process: Some(process), reader: Some(reader), folder };
        browser.call(None, "Browser.getVersion", &json!({}))?;
        Ok(browser)
    }

    /// Calls a method of the browser, or of a session with one of its pages.
    ///
    /// # Errors
    /// Where the browser refuses it, does not answer within a minute, or has ended.
    pub fn call(
        &self,
        session: Option<&str>,
        method: &str,
        params: &Value,
    ) -> anyhow::Result<Value> {
        let id = {
            let mut state = self.line.lock();
            state.next = state.next.saturating_add(1);
            state.next
        };
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        self.send(&message).with_context(|| format!("{method}: {}", self.log()))?;
        match self.line.answer(id) {
            Some(mut answer) => match answer.get_mut("error") {
                Some(error) => bail!("{method} is refused: {}", error["message"]),
                None => Ok(answer["result"].take()),
            },
            None => bail!("{method} has no answer: {}", self.log()),
        }
    }

    /// Takes the events of a session that have come, in order.
    #[must_use]
    pub fn take_events(&self, session: &str) -> Vec<Value> {
        let mut state = self.line.lock();
        let events = std::mem::take(&mut state.events);
        let (taken, left): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| event["sessionId"] == session);
        state.events = left.into();
        taken
    }

    fn send(&self, message: &Value) -> anyhow::Result<()> {
        let mut bytes = serde_json::to_vec(message)?;
        bytes.push(0);
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        let input = input.as_mut().context("the browser has ended")?;
        input.write_all(&bytes).context("the browser has ended")?;
        input.flush().context("the browser has ended")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(mut process) = self.process.take() {
            let has_ended = await_that(END, || process.has_ended());
            let _gone =
                if has_ended { Ok(()) } else { process.stop([Signal::TERM, Signal::KILL], END) };
        }
        if let Some(reader) = self.reader.take() {
            let _panicked = reader.join();
        }
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sorts messages into answers and events until the pipe closes.
    fn read(&self, output: ChildStdout) {
        let mut output = BufReader::new(output);
        let mut bytes = Vec::new();
        while output.read_until(0, &mut bytes).is_ok_and(|length| length > 0) {
            bytes.pop();
            if let Ok(message) = serde_json::from_slice::<Value>(&bytes) {
                self.lock().sort(message);
                self.news.notify_all();
            }
            bytes.clear();
        }
        self.lock().closed = true;
        self.news.notify_all();
    }

    /// The answer to a call; none where the pipe closes or the patience ends before.
    fn answer(&self, id: u64) -> Option<Value> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.lock();
        loop {
            if let Some(answer) = state.answers.remove(&id) {
                return Some(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.closed || left.is_zero() {
                return None;
            }
            let waited = self.news.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn sort(&mut self, message: Value) {
        if let Some(id) = message["id"].as_u64() {
            self.answers.insert(id, message);
            return;
        }
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(message);
    }
}

/// Without a window, without a network but loopback, and with everything in a folder.
fn flags(folder: &Path) -> Vec<String> {
    let mut flags: Vec<String> = [
        "--headless",
        "--remote-debugging-pipe",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        "--no-proxy-server",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-default-apps",
        "--disable-extensions",
        "--disable-breakpad",
        "--disable-domain-reliability",
        "--metrics-recording-only",
        "--no-pings",
        "--no-first-run",
        "--no-default-browser-check",
        "--password-store=basic",
        "--mute-audio",
        "--hide-scrollbars",
        "--disable-gpu",
        // Where it is small, as in containers, pages crash.
        "--disable-dev-shm-usage",
        "--force-color-profile=srgb",
        "--lang=en",
    ]
    .map(str::to_owned)
    .into();
    flags.push(format!("--user-data-dir={}", folder.join("profile").display()));
    if is_root() {
        // The sandbox needs a user without privileges.
        flags.push("--no-sandbox".to_owned());
    }
    flags.push("about:blank".to_owned());
    flags
}

/// Installs Debian's Chromium where it is missing.
///
/// # Errors
/// Where that is not possible, with what apt said.
pub fn ensure_chromium() -> anyhow::Result<()> {
    let _alone = alone()?;
    if !Path::new(PROGRAM).exists() {
        install_while_alone(&PACKAGES)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a process has this text in its command line.
    fn runs_with(text: &str) -> bool {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|of| std::fs::read(of.path().join("cmdline")).ok());
        lines.any(|line| String::from_utf8_lossy(&line).contains(text))
    }

    #[test]
    fn a_browser_answers_and_ends_with_its_value() {
        let browser = Chromium::start().unwrap();
        let folder = browser.folder.path().to_str().unwrap().to_owned();
        assert!(runs_with(&folder));
        let page = browser.call(None, "Target.createTarget", &json!({ "url": "about:blank" }));
        assert!(page.unwrap()["targetId"].is_string());
        let refused = browser.call(None, "Target.nothing", &json!({})).unwrap_err().to_string();
        assert!(refused.starts_with("Target.nothing is refused"), "{refused}");
        drop(browser);
        assert!(await_that(PATIENCE, || !runs_with(&folder)), "a process of the browser is left");
        assert!(!Path::new(&folder).exists());
    }
}
