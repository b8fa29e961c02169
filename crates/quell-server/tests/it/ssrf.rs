//! An HTTP handler connects only to public addresses, whatever the URL looks like, unless the task
//! allows more.

use std::collections::BTreeMap;
use std::time::Duration;

use quell::trigger::Traces;
use quell::{JobId, Payload, QueueName, TaskName, Timestamp};
use quell_server::handlers::{Allowed, Http, HttpSettings, Invocation};
use tokio_util::sync::CancellationToken;

fn call() -> Invocation {
    Invocation {
        lease: String::new(),
        base_url: "http://localhost".into(),
        traces: Traces::default(),
        own_trace: None,
        task: TaskName::new("t").unwrap(),
        queue: QueueName::new("q").unwrap(),
        job: JobId::new(1),
        key: None,
        attempt: 1,
        starts: 1,
        fencing_token: quell::store::LeaseToken::new(1),
        triggers: 1,
        first_at: Timestamp::from_secs(1),
        due_at: Timestamp::from_secs(1),
        payload: Payload::from_text("1").unwrap(),
        cancelled: CancellationToken::new(),
        stopping: CancellationToken::new(),
    }
}

fn settings(url: &str, allow: &[&str]) -> HttpSettings {
    HttpSettings {
        completion: None,
        url: url.to_owned(),
        method: "POST".to_owned(),
        headers: BTreeMap::new(),
        secrets: None,
        allow: allow.iter().map(|entry| entry.parse::<Allowed>().unwrap()).collect(),
        timeout: Duration::from_secs(5),
    }
}

#[tokio::test]
async fn hosts_that_are_not_public_are_never_connected_to() {
    // All of them are this machine, where a listener would notice.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let hosts = [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "0177.0.0.1",
        "2130706433",
        "localhost",
        "LOCALHOST",
        "0.0.0.0",
        "0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "10.0.0.1",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[fc00::1]",
        "[ff02::1]",
        "100.64.0.1",
        "100.127.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "[2001::1]",
        "[2001:db8::1]",
        "[3fff::1]",
        "[100::1]",
        "[5f00::1]",
        "①②⑦.0.0.1",
    ];
    for host in hosts {
        let http = Http::new(settings(&format!("http://{host}:{port}/"), &[])).unwrap();
        let refused = format!("{:?}", http.run(&call()).await.expect_err(host));
        assert!(refused.contains("no public address"), "{host}: {refused}");
    }
    let received = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(received.is_err(), "something was connected to");
}

#[tokio::test]
async fn what_a_task_allows_is_connected_to_and_nothing_else() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let table = [
        ("127.0.0.1", "127.0.0.0/8", true),
        ("2130706433", "127.0.0.1", true),
        ("localhost", "localhost", true),
        ("localhost", "10.0.0.0/8", false),
        ("127.0.0.1", "localhost", false),
        ("10.0.0.1", "127.0.0.0/8", false),
    ];
    for (host, entry, connects) in table {
        let http = Http::new(settings(&format!("http://{host}:{port}/"), &[entry])).unwrap();
        let failed = format!("{:?}", http.run(&call()).await.expect_err("no server listens"));
        let blocked = failed.contains("no public address");
        assert_eq!(!blocked, connects, "{host} with {entry}: {failed}");
    }
}

#[test]
fn urls_that_could_mean_something_else_are_refused() {
    for url in [
        "ftp://example.com",
        "file:///etc/passwd",
        "gopher://127.0.0.1",
        "http://user@example.com",
        "http://user:pass@example.com",
        "//example.com",
        "http://",
        "http://[::1",
    ] {
        let refused = Http::new(settings(url, &[])).expect_err(url);
        assert_eq!(refused.field(), Some("url"), "{url}");
    }
}
