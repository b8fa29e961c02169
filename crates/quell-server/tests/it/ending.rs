//! How attempts end when they must: timeouts, leftovers of commands, shutdown.

use std::time::{Duration, Instant};

use quell::JobState;

use crate::binary::Process;
use crate::served::{file_says, serve};

fn first_attempt(reply: &serde_json::Value) -> (String, String) {
    let text = |name: &str| reply["attempts"][0][name].as_str().unwrap_or_default().to_owned();
    (text("outcome"), text("error"))
}

#[tokio::test]
async fn a_command_that_takes_too_long_gets_sigterm_and_its_output_is_kept() {
    let served = serve(
        r#"
[tasks.polite]
timeout = "300ms"
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "trap 'echo cleaned-up >> end; exit 0' TERM; echo at-work; sleep 60 & wait"], cwd = "." }
[tasks.stubborn]
timeout = "300ms"
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "trap '' TERM; echo hold-on >&2; while :; do sleep 1; done"] }
"#,
    )
    .await;
    for (task, output) in [("polite", "stdout: at-work"), ("stubborn", "stderr: hold-on")] {
        let job = served.trigger(task, "1").await["job"].clone();
        let (outcome, error) = first_attempt(&served.ended(&job, JobState::Dead).await);
        assert_eq!(outcome, "timed_out", "{task}: {error}");
        assert!(error.contains("timeout of 300ms") && error.contains(output), "{task}: {error}");
    }
    let end = std::fs::read_to_string(served.folder.path().join("end")).unwrap();
    assert_eq!(end, "cleaned-up\n");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn what_a_command_leaves_running_does_not_hold_its_attempt() {
    let served = serve(
        r#"
[tasks.leaves]
exec = { command = ["sh", "-c", "sleep 77778 & exit 0"] }
"#,
    )
    .await;
    let began = Instant::now();
    let job = served.trigger("leaves", "1").await["job"].clone();
    served.ended(&job, JobState::Succeeded).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn long_outputs_are_kept_by_their_ends() {
    let served = serve(
        r#"
[tasks.loud]
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo the-end; exit 1"] }
"#,
    )
    .await;
    let job = served.trigger("loud", "1").await["job"].clone();
    let (_, error) = first_attempt(&served.ended(&job, JobState::Dead).await);
    assert!(error.ends_with("the-end"), "{}", &error[error.len() - 40..]);
    assert!(error.len() < 9 << 10, "{} bytes", error.len());
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r29_a_shutdown_ends_commands_in_order_and_spends_no_attempt() {
    let served = serve(
        r#"
[tasks.long]
exec = { command = ["sh", "-c", "trap 'echo stopped >> end; exit 1' TERM; echo $QUELL_ATTEMPT >> start; sleep 60 & wait"], cwd = "." }
"#,
    )
    .await;
    let folder = served.folder.path().to_owned();
    let job = served.trigger("long", "1").await["job"].clone();
    file_says(&folder.join("start"), |text| text == "1\n").await;
    let quell = served.server.quell().clone();
    let began = Instant::now();
    served.server.stop().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10));
    file_says(&folder.join("end"), |text| text == "stopped\n").await;
    let id = job.as_str().unwrap().parse().unwrap();
    let job = quell.store().job(id).await.unwrap().unwrap();
    assert_eq!((job.state, job.attempt, job.failures), (JobState::Scheduled, 0, 0), "{job:?}");
}

/// Whether a process is there, and no zombie that waits for its parent.
fn lives(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z"))
}

async fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The ids in a file with as many lines as that.
async fn ids(file: &std::path::Path, count: usize) -> Vec<String> {
    let read = || std::fs::read_to_string(file).unwrap_or_default();
    wait_until("the commands never start", || read().lines().count() >= count).await;
    read().lines().map(str::to_owned).collect()
}

/// The guard of a server's commands: a child of it with this argument.
fn guard_of(server: u32) -> Option<String> {
    let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
    let tasks = std::fs::read_dir(format!("/proc/{server}/task")).ok()?;
    let of_threads =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    let all: String = children.into_iter().chain(of_threads).collect::<Vec<_>>().join(" ");
    let guard = all.split_whitespace().find(|child| {
        let line = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.contains("__guard") && lives(child)
    });
    guard.map(str::to_owned)
}

/// A killed server leaves nothing that would run beside the next attempt of its jobs: neither its commands nor what
/// they started, and not where the guard was killed before.
#[tokio::test]
async fn r21_commands_die_with_a_server_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quell.toml");
    let started = folder.path().join("started");
    std::fs::write(
        &config,
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite://{}\"\n\
             [tasks.long]\nexec = {{ cwd = \".\", command = [\"sh\", \"-c\", \
             \"cat > input; sleep 77779 & echo $! >> started; echo $$ >> started; wait\"] }}\n\
             [tasks.lost]\nretry = {{ max_attempts = 1 }}\n\
             exec = {{ command = [\"nosuch-program\"] }}\n",
            folder.path().join("q.db").display()
        ),
    )
    .unwrap();
    let mut process = Process::serve(&config, &[]);
    assert!(process.ask(&["trigger", "long", r#"{"a": [1]}"#]).status.success());
    let first = ids(&started, 2).await;
    let input = std::fs::read_to_string(folder.path().join("input")).unwrap();
    assert_eq!(input, r#"{"a": [1]}"#, "the payload and nothing before it");
    let guard = guard_of(process.child.id()).expect("no guard");
    std::process::Command::new("kill").args(["-KILL", &guard]).status().unwrap();
    wait_until("the guard lives on", || !lives(&guard)).await;
    assert!(process.ask(&["trigger", "long", "2"]).status.success());
    let all = ids(&started, 4).await;
    assert!(first.iter().chain(&all).all(|id| lives(id)), "{all:?}");

    assert!(process.ask(&["trigger", "lost", "3"]).status.success());
    wait_until("the lost command never ends", || {
        let shown = process.ask(&["job", "3"]);
        String::from_utf8_lossy(&shown.stdout)
            .contains("\"nosuch-program\" cannot be run: No such file")
    })
    .await;

    process.child.kill().unwrap();
    process.child.wait().unwrap();
    for id in all {
        wait_until(&format!("process {id} outlives its server"), || !lives(&id)).await;
    }
}
