//! How attempts end when they must: timeouts, leftovers of commands, shutdown.

use std::time::{Duration, Instant};

use quell::JobState;

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
