//! What declared tasks run: commands and HTTP calls, and what their failures leave on record.

use std::time::Duration;

use quell::JobState;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::served::{file_says, serve};

/// A target that hands each request to the test and gives the same answer to all.
pub(crate) async fn target(
    answer: &'static str,
) -> (String, tokio::sync::mpsc::Receiver<String>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, requests) = tokio::sync::mpsc::channel(16);
    let mut task = JoinSet::new();
    task.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            let mut chunk = [0; 4096];
            // The tests' payloads end in a closing brace.
            while !request.ends_with(b"}") {
                match stream.read(&mut chunk).await {
                    Ok(0) | Err(_) => break,
                    Ok(read) => request.extend_from_slice(&chunk[..read]),
                }
            }
            let _gone = sender.send(String::from_utf8_lossy(&request).into_owned()).await;
            if answer.is_empty() {
                std::future::pending::<()>().await;
            }
            let _gone = stream.write_all(answer.as_bytes()).await;
        }
    });
    (url, requests, task)
}

fn first_error(reply: &Value) -> String {
    reply["attempts"][0]["error"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_burst_runs_a_command_once_with_payload_and_variables() {
    let served = serve(
        r#"
[tasks.build]
key = "{{ repo }}"
debounce = { min = "200ms", max = "5s" }
payload = "collect"
exec = { command = ["sh", "-c", "echo $QUELL_TASK $QUELL_KEY $QUELL_TRIGGERS $QUELL_ATTEMPT $SECRET $FIXED $(cat) >> out"], cwd = ".", env = { FIXED = "yes" } }
"#,
    )
    .await;
    for n in 1..=3 {
        served.trigger("build", &format!(r#"{{"repo":"a","n":{n}}}"#)).await;
    }
    let text = file_says(&served.folder.path().join("out"), |text| text.ends_with('\n')).await;
    let expected = r#"build a 3 1 yes [{"repo":"a","n":1},{"repo":"a","n":2},{"repo":"a","n":3}]"#;
    assert_eq!(text.trim(), expected);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_payload_is_data_and_never_a_command() {
    let served = serve(
        r#"
[tasks.echo]
key = "{{ k }}"
debounce = { min = "1ms", max = "1s" }
exec = { command = ["tee", "-a", "out"], cwd = "." }
"#,
    )
    .await;
    for evil in ["$(touch hacked)", "; touch hacked", "`touch hacked`", "a\\u0000b"] {
        let payload = format!(r#"{{"k":"x","v":"{evil}"}}"#);
        let job = served.trigger("echo", &payload).await["job"].clone();
        served.ended(&job, JobState::Succeeded).await;
    }
    assert!(!served.folder.path().join("hacked").exists());
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn failures_of_commands_are_recorded_with_their_output() {
    let served = serve(
        r#"
[tasks.missing]
retry = { max_attempts = 1 }
exec = { command = ["./no-such-program"] }
[tasks.loud]
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "echo to-out; echo to-err >&2; exit 3"] }
[tasks.data]
exec = { command = ["sh", "-c", "exit 65"], permanent_exit_codes = [65] }
[tasks.slow]
timeout = "200ms"
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "sleep 77777 & echo $! > pid; wait"], cwd = "." }
"#,
    )
    .await;
    let table = [
        ("missing", "cannot be run"),
        ("loud", "stderr: to-err\nstdout: to-out"),
        ("data", "exit status: 65"),
        ("slow", "timeout of 200ms"),
    ];
    for (task, needle) in table {
        let job = served.trigger(task, "1").await["job"].clone();
        let reply = served.ended(&job, JobState::Dead).await;
        assert!(first_error(&reply).contains(needle), "{task}: {reply:#}");
    }
    // The grandchild died with its attempt.
    let pid = std::fs::read_to_string(served.folder.path().join("pid")).unwrap();
    let stat = std::path::PathBuf::from(format!("/proc/{}/stat", pid.trim()));
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    // A killed process is a zombie (Z) until its parent waits for it.
    while std::fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z")) {
        assert!(std::time::Instant::now() < deadline, "the grandchild lives on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn an_http_call_carries_payload_names_and_signature() {
    let (url, mut requests, _target) = target("HTTP/1.1 204 No Content\r\n\r\n").await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    crate::served::write_secret(secret.path(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let served = serve(&format!(
        "[tasks.hook]\nkey = \"{{{{ k }}}}\"\ndebounce = {{ min = \"1ms\", max = \"1s\" }}\n\
         http = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"], secret_file = \"{}\", \
         headers = {{ x-team = \"blue\" }} }}\n",
        secret.path().display()
    ))
    .await;
    let job = served.trigger("hook", r#"{"k":"a"}"#).await["job"].clone();
    served.ended(&job, JobState::Succeeded).await;
    let request = requests.recv().await.unwrap().to_lowercase();
    let needles = [
        "post /hook ",
        "webhook-id: quell-1-1-",
        "webhook-timestamp: ",
        "webhook-signature: v1,",
        "quell-task: hook\r\n",
        "quell-key: a\r\n",
        "quell-queue: default\r\n",
        "quell-starts: 1\r\n",
        "quell-fencing-token: 1-",
        "quell-first-at: 20",
        "quell-due-at: 20",
        "x-team: blue\r\n",
        r#"{"k":"a"}"#,
    ];
    for needle in needles {
        assert!(request.contains(needle), "{needle:?} is missing in:\n{request}");
    }
    served.server.stop().await.unwrap();
}

/// The value of a header in a request.
pub(crate) fn header(request: &str, name: &str) -> String {
    let line = request.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("{name} is missing in:\n{request}")).trim_end().to_owned()
}

#[tokio::test]
async fn a_message_id_is_the_same_for_each_attempt_and_no_other_stores() {
    let failing = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";
    let (url, mut requests, _target) = target(failing).await;
    let task = format!(
        "[tasks.hook]\nhttp = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"] }}\n\
         retry = {{ max_attempts = 2, min_backoff = \"1ms\", max_backoff = \"1ms\" }}\n"
    );
    let mut ids = Vec::new();
    for _ in 0..2 {
        let served = serve(&task).await;
        let job = served.trigger("hook", r#"{"a":1}"#).await["job"].clone();
        served.ended(&job, JobState::Dead).await;
        let [first, second] = [requests.recv().await.unwrap(), requests.recv().await.unwrap()];
        assert_eq!(header(&first, "webhook-id"), header(&second, "webhook-id"));
        assert_eq!(
            ["1", "2"],
            [&*header(&first, "quell-starts"), &*header(&second, "quell-starts")]
        );
        assert_ne!(header(&first, "quell-fencing-token"), header(&second, "quell-fencing-token"));
        ids.push(header(&first, "webhook-id"));
        // An edited payload is another message (R26).
        let path = format!("/v1/jobs/{}/redrive", job.as_str().unwrap());
        assert_eq!(served.post(&path, r#"{"payload":{"a":2}}"#).await.0, 200);
        served.ended(&job, JobState::Dead).await;
        ids.push(header(&requests.recv().await.unwrap(), "webhook-id"));
        requests.recv().await.unwrap();
        served.server.stop().await.unwrap();
    }
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), 4, "two stores, two payloads: {ids:?}");
}

#[tokio::test]
async fn a_call_has_a_signature_for_each_secret_and_a_rotation_needs_no_restart() {
    let (url, mut requests, _target) = target("HTTP/1.1 204 No Content\r\n\r\n").await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    crate::served::write_secret(secret.path(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let served = serve(&format!(
        "[tasks.hook]\nhttp = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"], secret_file = \"{}\" }}\n",
        secret.path().display()
    ))
    .await;
    served.trigger("hook", "{}").await;
    let one = header(&requests.recv().await.unwrap(), "webhook-signature");
    assert_eq!(one.split(' ').count(), 1, "{one}");
    crate::served::write_secret(
        secret.path(),
        "bmV3IHNlY3JldA==\nwhsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n",
    );

    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        served.trigger("hook", "{}").await;
        let both = header(&requests.recv().await.unwrap(), "webhook-signature");
        if both.split(' ').filter(|signature| signature.starts_with("v1,")).count() == 2 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "never signed with both: {both}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_key_is_a_header_in_ascii_whatever_it_holds() {
    let (url, mut requests, _target) = target("HTTP/1.1 204 No Content\r\n\r\n").await;
    let served = serve(&format!(
        "[tasks.hook]\nkey = \"{{{{ k }}}}\"\ndebounce = {{ min = \"1ms\", max = \"1s\" }}\n\
         http = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"] }}\n"
    ))
    .await;
    for (key, shown) in
        [("a/b:c", "a/b:c"), (" é%\\n😀", "%20%C3%A9%25%0A%F0%9F%98%80"), ("100%", "100%25")]
    {
        served.trigger("hook", &format!(r#"{{"k":"{key}"}}"#)).await;
        assert_eq!(header(&requests.recv().await.unwrap(), "quell-key"), shown);
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn targets_that_fail_leave_recorded_attempts_and_stop_no_other_task() {
    let (hangs, _requests, _one) = target("").await;
    let broken = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\nouch";
    let (breaks, _requests, _two) = target(broken).await;
    let gone = "HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n";
    let (refuses, _requests, _three) = target(gone).await;
    let away =
        "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n";
    let (redirects, _requests, _four) = target(away).await;
    let nowhere = "HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n";
    let (nowhere, _requests, _five) = target(nowhere).await;
    let task = |name: &str, url: &str, more: &str| {
        format!(
            "[tasks.{name}]\ntimeout = \"300ms\"\n{more}\n\
             http = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"] }}\n"
        )
    };
    let once = "retry = { max_attempts = 1 }";
    let tasks = [
        task("hangs", &hangs, once),
        task("breaks", &breaks, once),
        task("refuses", &refuses, ""),
        task("redirects", &redirects, ""),
        task("nowhere", &nowhere, ""),
        "[tasks.inside]\nhttp = { url = \"http://169.254.169.254/latest\" }\n".to_owned(),
        "[tasks.fine]\nexec = { command = [\"true\"] }\n".to_owned(),
    ];
    let served = serve(&tasks.concat()).await;
    let table = [
        ("hangs", "300ms"),
        ("breaks", "500 Internal Server Error: ouch"),
        ("refuses", "410 Gone"),
        ("redirects", "302 Found, a redirect to http://169.254.169.254/, and redirects are not"),
        ("nowhere", "302 Found, a redirect without a Location: fix the target or the task's url"),
        ("inside", "no public address"),
    ];
    for (name, needle) in table {
        let job = served.trigger(name, r#"{"a":1}"#).await["job"].clone();
        let fine = served.trigger("fine", "1").await["job"].clone();
        served.ended(&fine, JobState::Succeeded).await;
        let reply = served.ended(&job, JobState::Dead).await;
        let error = first_error(&reply);
        assert!(error.contains(needle) || error.contains("in time"), "{name}: {reply:#}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let busy = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n";
    let (url, mut requests, _target) = target(busy).await;
    let served =
        serve(&format!("[tasks.hook]\nhttp = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"] }}\n"))
            .await;
    let job = served.trigger("hook", r#"{"a":1}"#).await["job"].clone();
    requests.recv().await.unwrap();
    let reply = served.ended(&job, JobState::Scheduled).await;
    let read = |text: &Value| text.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let wait = read(&reply["job"]["due_at"]) - read(&reply["attempts"][0]["ended_at"]);
    assert_eq!(wait.total(jiff::Unit::Second).unwrap().round(), 3_600.0, "{reply:#}");
    served.server.stop().await.unwrap();
}
