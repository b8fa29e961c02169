//! Requirement 15: the server's own TLS.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::binary::{Process, quell, text};
use crate::certificates::{Authority, client_of, put};
use crate::served::{serve_with, write_secret};

/// A server by TLS, with its folder.
struct Scene {
    folder: TempDir,
    authority: Authority,
    process: Process,
}

fn configuration(folder: &Path, listen: &str) -> PathBuf {
    let config = folder.join("quell.toml");
    let text = format!(
        "[server]\nlisten = \"{listen}\"\ntls = {{ cert_file = \"cert.pem\", key_file = \"key.pem\" }}\n\
         token_file = \"token\"\n[store]\nurl = \"memory:\"\n[tasks.t]\nexec = {{ command = [\"true\"] }}\n"
    );
    write_secret(folder.join("token"), "secret-of-this-test");
    std::fs::write(&config, text).unwrap();
    config
}

fn serve(pair: impl FnOnce(&Authority) -> (String, String), listen: &str) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    put(folder.path(), &pair(&authority));
    std::fs::write(folder.path().join("ca.pem"), &authority.pem).unwrap();
    let config = configuration(folder.path(), listen);
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut command = quell(&["serve", "--config", config.to_str().unwrap()]);
    let process = Process::start(command.env("QUELL_LOG", "info").stderr(log));
    Scene { folder, authority, process }
}

impl Scene {
    fn port(&self) -> u16 {
        self.process.url.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    fn health(&self) -> (bool, String) {
        let ca = self.folder.path().join("ca.pem");
        text(
            &quell(&["health", "--server", &self.process.url])
                .env("SSL_CERT_FILE", ca)
                .output()
                .unwrap(),
        )
    }

    fn logged(&self, needle: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let log = self.folder.path().join("log");
        while !std::fs::read_to_string(&log).unwrap().contains(needle) {
            assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(&log).unwrap());
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_certificate_is_shown_and_one_of_another_name_or_time_is_refused() {
    let fine = serve(|authority| authority.certify("127.0.0.1"), "127.0.0.1:0");
    assert!(fine.process.url.starts_with("https://127.0.0.1:"), "{}", fine.process.url);
    assert_eq!(fine.health(), (true, "ok\n".to_owned()));
    let refused = quell(&["health", "--server", &fine.process.url]).output().unwrap();
    let (succeeded, shown) = text(&refused);
    assert!(!succeeded && shown.contains("certificate is not trusted"), "{shown}");
    let other = serve(|authority| authority.certify("other.test"), "127.0.0.1:0");
    let (succeeded, shown) = other.health();
    assert!(!succeeded && shown.contains("certificate"), "{shown}");
    let past = serve(|authority| authority.certify_in_the_past("127.0.0.1"), "127.0.0.1:0");
    past.logged("the certificate has expired, clients refuse it: renew it");
    let (succeeded, shown) = past.health();
    assert!(!succeeded && shown.contains("expired"), "{shown}");
}

#[test]
fn tls_is_1_2_or_1_3() {
    let scene = serve(|authority| authority.certify("127.0.0.1"), "127.0.0.1:0");
    let ca = scene.folder.path().join("ca.pem");
    let place = format!("127.0.0.1:{}", scene.port());
    let shaken = |version: &str| {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &place, version, "-cipher", "ALL@SECLEVEL=0"]);
        command.arg("-CAfile").arg(&ca).stdin(Stdio::null());
        let output = command.output().unwrap();
        let shown = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success() && shown.contains("Verify return code: 0"), shown)
    };
    for version in ["-tls1_2", "-tls1_3"] {
        let (succeeded, shown) = shaken(version);
        assert!(succeeded, "{version}: {shown}");
    }
    for version in ["-tls1", "-tls1_1"] {
        let (succeeded, shown) = shaken(version);
        assert!(!succeeded && shown.contains("SSL alert number"), "{version}: {shown}");
    }
}

#[tokio::test]
async fn hsts_is_for_addresses_that_others_reach() {
    for (listen, has) in [("127.0.0.1:0", false), ("0.0.0.0:0", true)] {
        let scene = serve(|authority| authority.certify("127.0.0.1"), listen);
        let url = format!("https://127.0.0.1:{}/v1/healthz", scene.port());
        let response = scene.authority.client().get(url).send().await.unwrap();
        let shown = response.headers().get("strict-transport-security");
        assert_eq!(shown.is_some_and(|shown| shown == "max-age=31536000"), has, "{listen}");
    }
}

/// Targets report to where the server is reached.
#[tokio::test]
async fn completion_urls_are_https() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    put(folder.path(), &authority.certify("127.0.0.1"));
    write_secret(folder.path().join("secret"), "a secret of enough bytes");
    let accepted = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
    let (url, mut requests, _target) = crate::handlers::target(accepted).await;
    let place = folder.path().display();
    let tls =
        format!("tls = {{ cert_file = \"{place}/cert.pem\", key_file = \"{place}/key.pem\" }}");
    let tasks = format!(
        "[tasks.t]\nhttp = {{ url = \"{url}\", allow = [\"127.0.0.1\"], secret_file = \"{place}/secret\", \
         completion = \"1h\" }}\n"
    );
    let served = serve_with(&tls, &tasks).await;
    let (client, own) = (authority.client(), served.server.urls().next().unwrap());
    let sent = client.post(format!("{own}/v1/tasks/t/triggers"));
    let sent = sent.header("content-type", "application/json").body(r#"{"payload":{"a":1}}"#);
    assert_eq!(sent.send().await.unwrap().status(), 202);
    let request = requests.recv().await.unwrap();
    let shown = crate::handlers::header(&request, "quell-completion-url");
    assert!(shown.starts_with(&format!("{own}/v1/completions/")), "{shown}");
    let ended = client.post(shown).header("content-type", "application/json");
    let ended = ended.body(r#"{"outcome":"succeeded"}"#).send().await.unwrap();
    assert!(ended.status().is_success(), "{ended:?}");
    served.server.stop().await.unwrap();
}

/// Requests over new connections, until the stop; each has to succeed.
async fn load(client: reqwest::Client, url: String, stop: Arc<AtomicBool>, done: Arc<AtomicUsize>) {
    while !stop.load(Ordering::SeqCst) {
        let response = client.get(&url).send().await.unwrap();
        assert_eq!(response.status(), 200);
        done.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_taken_over_without_one_refused_request() {
    let scene = serve(|authority| authority.certify("127.0.0.1"), "127.0.0.1:0");
    let (url, next) = (format!("{}/v1/healthz", scene.process.url), Authority::new());
    let both = client_of(&[&scene.authority, &next]);
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        callers.spawn(load(both.clone(), url.clone(), Arc::clone(&stop), Arc::clone(&done)));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let shows = async |authority: &Authority| {
        while authority.client().get(&url).send().await.is_err() {
            assert!(Instant::now() < deadline, "never shown");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // By the files alone.
    put(scene.folder.path(), &next.certify("127.0.0.1"));
    shows(&next).await;
    // A broken pair changes nothing, however it comes.
    let (_, other_key) = next.certify("127.0.0.1");
    write_secret(scene.folder.path().join("key.pem"), &other_key);
    scene.logged("the renewed certificate cannot be used");
    scene.process.signal("-HUP");
    scene.logged("the file is broken, the configuration stays as it was");
    shows(&next).await;
    // By SIGHUP.
    put(scene.folder.path(), &scene.authority.certify("127.0.0.1"));
    scene.process.signal("-HUP");
    shows(&scene.authority).await;
    let before = done.load(Ordering::SeqCst);
    while done.load(Ordering::SeqCst) < before + 8 {
        assert!(Instant::now() < deadline, "requests stopped");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
}

/// More connections than there may be, and no handshake that ends.
#[tokio::test]
async fn handshakes_that_never_end_hold_up_no_other_caller() {
    crate::served::raise_open_files();
    let scene = serve(|authority| authority.certify("127.0.0.1"), "127.0.0.1:0");
    let url = format!("{}/v1/healthz", scene.process.url);
    let client = scene.authority.client();
    let mut open = Vec::new();
    for n in 0..1_200 {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", scene.port())).await.unwrap();
        if n % 2 == 0 {
            // The beginning of a handshake.
            stream.try_write(&[0x16, 0x03, 0x01, 0x02, 0x00]).unwrap();
        }
        open.push(stream);
        if n % 100 == 99 {
            assert_eq!(client.get(&url).send().await.unwrap().status(), 200, "{n}");
        }
    }
    // All of them are closed in time, by the bound on handshakes or for another.
    let mut last = open.pop().unwrap();
    let mut rest = [0; 64];
    let ended = tokio::io::AsyncReadExt::read(&mut last, &mut rest);
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap();
    assert!(!matches!(ended, Ok(bytes) if bytes > 0 && rest[0] != 0x15));
}

#[test]
fn r40_files_that_are_no_pair_are_refused_with_field_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (pair, other) = (authority.certify("127.0.0.1"), authority.certify("127.0.0.1"));
    let config = configuration(folder.path(), "127.0.0.1:0");
    let checked = || {
        let (succeeded, shown) = text(
            &quell(&["serve", "--check", "--config", config.to_str().unwrap()]).output().unwrap(),
        );
        assert!(!succeeded || shown.contains("fine"), "{shown}");
        shown
    };
    let none = String::new();
    for (cert, key, field, why) in [
        (&pair.0, &other.1, "key_file", "does not fit the certificate"),
        (&none, &pair.1, "cert_file", "has no certificate: give PEM"),
        (&pair.1, &pair.1, "cert_file", "has no certificate"),
        (&pair.0, &none, "key_file", "has no private key"),
        (&pair.0, &pair.0, "key_file", "has no private key"),
    ] {
        put(folder.path(), &(cert.clone(), key.clone()));
        let shown = checked();
        assert!(shown.contains(&format!("server.tls.{field}")) && shown.contains(why), "{shown}");
        assert!(!shown.contains("BEGIN PRIVATE KEY-----\nM"), "{shown}");
    }
    put(folder.path(), &pair);
    assert!(checked().contains("fine"));
    use std::os::unix::fs::PermissionsExt as _;
    let everyone = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(folder.path().join("key.pem"), everyone).unwrap();
    let shown = checked();
    assert!(shown.contains("key_file") && shown.contains("chmod 600"), "{shown}");
    std::fs::remove_file(folder.path().join("cert.pem")).unwrap();
    assert!(checked().contains("cannot be read"));
}
