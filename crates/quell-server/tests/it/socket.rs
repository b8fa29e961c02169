//! Requirement 1: servers on Unix sockets.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::binary::{Process, quell, text};

struct Place {
    folder: TempDir,
    config: PathBuf,
    socket: PathBuf,
}

fn place(listen: &str, more: &str) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket) = (folder.path().join("quell.toml"), folder.path().join("a b.sock"));
    let text = format!(
        "[server]\nlisten = {listen}\n{more}\n[store]\nurl = \"memory:\"\n\
         [queues.default]\nconcurrency = 4\n[tasks.t]\nexec = {{ command = [\"true\"] }}\n"
    );
    std::fs::write(&config, text).unwrap();
    Place { folder, config, socket }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn ask(server: &str, args: &[&str]) -> (bool, String) {
    text(&quell(args).env("QUELL_SERVER", server).output().unwrap())
}

#[test]
fn commands_reach_a_unix_socket_and_its_file_goes_with_the_server() {
    let place = place("\"unix:a b.sock\"", "audit_file = \"audit\"");
    let mut process = Process::serve(&place.config, &[]);
    let url = format!("unix:{}", place.socket.display());
    assert_eq!(process.url, url);
    assert_eq!(mode(&place.socket), 0o600);
    assert_eq!(ask(&url, &["health"]), (true, "ok\n".to_owned()));
    let (succeeded, shown) = ask(&url, &["trigger", "t", "1"]);
    assert!(succeeded && shown.contains("accepted"), "{shown}");
    let (succeeded, shown) = ask(&url, &["queue", "pause", "default"]);
    assert!(succeeded, "{shown}");
    let audit = std::fs::read_to_string(place.folder.path().join("audit")).unwrap();
    let entry: Value = serde_json::from_str(audit.lines().next().unwrap()).unwrap();
    let user = rustix::process::getuid().as_raw();
    assert_eq!(entry["by"]["peer"], format!("unix:{user}"), "{entry}");
    let (succeeded, shown) = ask("unix:a.sock", &["health"]);
    assert!(!succeeded && shown.contains("absolute path"), "{shown}");
    process.signal("-TERM");
    assert!(process.child.wait().unwrap().success());
    assert!(!place.socket.exists(), "the file stays");
    let (succeeded, shown) = ask(&url, &["health"]);
    assert!(!succeeded && shown.contains("no server answers there"), "{shown}");
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
    let place = place("\"unix:a b.sock\"", "socket_mode = \"0660\"");
    drop(UnixListener::bind(&place.socket).unwrap());
    assert!(std::fs::metadata(&place.socket).unwrap().file_type().is_socket());
    let mut first = Process::serve(&place.config, &[]);
    assert_eq!(mode(&place.socket), 0o660);
    let second = || {
        let config = place.config.to_str().unwrap();
        text(&quell(&["serve", "--config", config]).output().unwrap())
    };
    let (succeeded, shown) = second();
    assert!(!succeeded && shown.contains("another server answers there"), "{shown}");
    assert_eq!(ask(&first.url, &["health"]), (true, "ok\n".to_owned()), "the first goes on");
    // A server that is killed leaves its file, and the next one goes on.
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(place.socket.exists());
    let third = Process::serve(&place.config, &[]);
    assert_eq!(ask(&third.url, &["health"]).1, "ok\n");
    drop(third);
    std::fs::remove_file(&place.socket).unwrap();
    std::fs::write(&place.socket, "precious").unwrap();
    let (succeeded, shown) = second();
    assert!(!succeeded && shown.contains("not a socket"), "{shown}");
    assert_eq!(std::fs::read_to_string(&place.socket).unwrap(), "precious");
}

#[test]
fn a_server_listens_on_an_address_and_a_socket_at_once() {
    let place = place("[\"127.0.0.1:0\", \"unix:a b.sock\"]", "token_file = \"token\"");
    crate::served::write_secret(place.folder.path().join("token"), "secret-of-this-test");
    let process = Process::serve(&place.config, &[]);
    assert!(process.url.starts_with("http://127.0.0.1:"), "{}", process.url);
    let socket = format!("unix:{}", place.socket.display());
    // With tokens, the socket asks for one, too.
    for server in [&process.url, &socket] {
        assert_eq!(ask(server, &["health"]).1, "ok\n");
        let (succeeded, shown) = ask(server, &["queue", "list"]);
        assert!(!succeeded && shown.contains("token"), "{shown}");
        let mut command = quell(&["queue", "list", "--server", server]);
        let (succeeded, shown) =
            text(&command.env("QUELL_TOKEN", "secret-of-this-test").output().unwrap());
        assert!(succeeded, "{shown}");
    }
}

#[tokio::test]
async fn a_proxy_on_a_unix_socket_is_trusted_by_name_and_hosts_are_checked() {
    let (listen, audit) = ("\"unix:a b.sock\"", "audit_file = \"audit\"");
    for (trusted, peer) in [("[\"unix\"]", "203.0.113.9"), ("[\"127.0.0.1\"]", "unix:")] {
        let place = place(listen, &format!("{audit}\ntrusted_proxies = {trusted}"));
        let _process = Process::serve(&place.config, &[]);
        let client = reqwest::Client::builder().unix_socket(place.socket.clone()).build().unwrap();
        let pause = |host: &str| {
            let request = client.post(format!("http://{host}/v1/queues/default/pause"));
            request.header("x-forwarded-for", "203.0.113.9").send()
        };
        assert_eq!(pause("localhost").await.unwrap().status(), 200);
        assert_eq!(pause("evil.test").await.unwrap().status(), 421);
        let audit = std::fs::read_to_string(place.folder.path().join("audit")).unwrap();
        let entry: Value = serde_json::from_str(audit.lines().next().unwrap()).unwrap();
        assert!(entry["by"]["peer"].as_str().unwrap().starts_with(peer), "{entry}");
    }
}

#[test]
fn r40_places_that_cannot_be_meant_are_refused() {
    for (listen, why) in [
        ("\"unix:\"", "has no path"),
        ("[]", "give 1 to 8"),
        ("[\"127.0.0.1:1\", \"127.0.0.1:1\"]", "is there twice"),
        ("\"/run/quell.sock\"", "is not an address and port"),
        ("7777", "an address and port, or a list"),
    ] {
        let place = place(listen, "");
        let config = place.config.to_str().unwrap();
        let (succeeded, shown) =
            text(&quell(&["serve", "--check", "--config", config]).output().unwrap());
        assert!(
            !succeeded && shown.contains("server.listen") && shown.contains(why),
            "{listen}: {shown}"
        );
    }
    for (more, field, why) in [
        ("socket_mode = \"0999\"", "socket_mode", "is not a file mode"),
        ("socket_mode = \"1777\"", "socket_mode", "is not a file mode"),
        ("trusted_proxies = [\"proxy.test\"]", "trusted_proxies", "is not a subnet"),
        ("trusted_proxies = [\"10.0.0.0/33\"]", "trusted_proxies", "is not a subnet"),
        ("session_idle = \"10ms\"", "session_idle", "give 1s to 720h"),
        ("session_max = \"721h\"", "session_max", "give 1s to 720h"),
        ("trace_url = \"https://traces.test/\"", "trace_url", "is not where a trace is shown"),
        ("trace_url = \"javascript:{trace_id}\"", "trace_url", "is not where a trace is shown"),
    ] {
        let place = place("\"127.0.0.1:1\"", more);
        let config = place.config.to_str().unwrap();
        let output = quell(&["serve", "--check", "--config", config]).output().unwrap();
        let (succeeded, shown) = text(&output);
        assert!(!succeeded && shown.contains(field) && shown.contains(why), "{more}: {shown}");
    }
    let long = format!("\"unix:/{}\"", "x".repeat(107));
    let place = place(&long, "");
    let config = place.config.to_str().unwrap();
    let (_, shown) = text(&quell(&["serve", "--check", "--config", config]).output().unwrap());
    assert!(shown.contains("108 bytes: give 107"), "{shown}");
}
