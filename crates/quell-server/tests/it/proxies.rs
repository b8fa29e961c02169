//! Servers behind proxies: whom they take a caller for, and the configuration of `docs/proxy.md`.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use quell_services::Nginx;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::certificates::{Authority, put};
use crate::served::{Served, answer, serve_with, write_secret};

/// Whom the audit names for a request with these headers.
async fn taken_for(served: &Served, headers: &[Header<'_>]) -> String {
    let request = served.request(Method::POST, "/v1/queues/default/pause");
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let (status, reply) = answer(request.send().await.unwrap()).await;
    assert_eq!(status, 200, "{headers:?}: {reply}");
    let (_, shown) = served.get("/v1/audit?limit=1").await;
    shown["entries"][0]["by"]["peer"].as_str().unwrap().to_owned()
}

const TASKS: &str = "[queues.default]\nconcurrency = 4\n";

/// A header's name and value.
type Header<'h> = (&'h str, &'h [u8]);

const LIST: &str = "x-forwarded-for";

#[tokio::test]
async fn a_caller_is_who_trusted_proxies_say_and_no_one_else() {
    let none = serve_with("", TASKS).await;
    let spoofed: [Header<'_>; 2] = [(LIST, b"203.0.113.9"), ("forwarded", b"for=203.0.113.9")];
    assert_eq!(taken_for(&none, &spoofed).await, "127.0.0.1", "no proxy is trusted");
    none.server.stop().await.unwrap();
    let more = "trusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\", \"2001:db8::/32\"]\nallowed_hosts = [\"quell.test\"]";
    let served = serve_with(more, TASKS).await;
    let long = "203.0.113.7, ".repeat(1_000);
    let table: [(&[Header<'_>], &str); 22] = [
        (&[], "127.0.0.1"),
        (&[(LIST, b"203.0.113.9")], "203.0.113.9"),
        (&[(LIST, b"198.51.100.1, 203.0.113.9")], "203.0.113.9"),
        (&[(LIST, b"198.51.100.1, 203.0.113.9, 10.1.2.3")], "203.0.113.9"),
        (&[(LIST, b"198.51.100.1"), (LIST, b"203.0.113.9, 10.1.2.3")], "203.0.113.9"),
        (&[(LIST, b"10.9.9.9, 10.1.2.3")], "10.9.9.9"),
        (&[(LIST, b"203.0.113.9, junk, 10.1.2.3")], "10.1.2.3"),
        (&[(LIST, b"junk")], "127.0.0.1"),
        (&[(LIST, b"")], "127.0.0.1"),
        (&[(LIST, b",,,,")], "127.0.0.1"),
        (&[(LIST, b"203.0.113.9:1234")], "203.0.113.9"),
        (&[(LIST, b"[2001:db9::1]:80")], "2001:db9::1"),
        (&[(LIST, b"::ffff:203.0.113.9")], "203.0.113.9"),
        (&[(LIST, b"203.0.113.9, \xff\xfe")], "127.0.0.1"),
        (&[(LIST, long.as_bytes())], "127.0.0.1"),
        (&[("forwarded", b"for=203.0.113.9;proto=https")], "203.0.113.9"),
        (&[("forwarded", b"for=1.1.1.1, For=\"[2001:db9::1]:80\";by=x")], "2001:db9::1"),
        (&[("forwarded", b"by=x")], "127.0.0.1"),
        (&[("forwarded", b"for=_hidden")], "127.0.0.1"),
        (&[("forwarded", b"for=;;=;for")], "127.0.0.1"),
        (&[(LIST, b"203.0.113.9"), ("forwarded", b"for=203.0.113.9")], "203.0.113.9"),
        // Which of the two the proxy wrote is unknown.
        (&[(LIST, b"203.0.113.9"), ("forwarded", b"for=203.0.113.8")], "127.0.0.1"),
    ];
    for (headers, expected) in table {
        assert_eq!(taken_for(&served, headers).await, expected, "{headers:?}");
    }
    let host = async |header: &str, value: &str| {
        let request = served.request(Method::GET, "/v1/jobs").header(header, value);
        answer(request.send().await.unwrap()).await.0
    };
    assert_eq!(host("x-forwarded-host", "quell.test:8443").await, 200);
    assert_eq!(host("x-forwarded-host", "evil.test").await, 421);
    assert_eq!(host("x-forwarded-host", "quell.test, evil.test").await, 421);
    served.server.stop().await.unwrap();
}

/// Sends a head as it is; the first line of the response.
async fn raw(served: &Served, headers: &[u8]) -> String {
    let mut stream = tokio::net::TcpStream::connect(served.server.address()).await.unwrap();
    let head =
        [b"POST /v1/queues/default/pause HTTP/1.1\r\nconnection: close\r\n", headers, b"\r\n\r\n"];
    // A server that has refused already may reset the connection.
    let _sent = stream.write_all(&head.concat()).await;
    let mut shown = Vec::new();
    let read = stream.read_to_end(&mut shown);
    let _read = tokio::time::timeout(Duration::from_secs(20), read).await.unwrap();
    String::from_utf8_lossy(&shown).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn hostile_headers_are_refused_or_ignored_and_break_nothing() {
    let served = serve_with("trusted_proxies = [\"127.0.0.1\"]", TASKS).await;
    let long = "x".repeat(10_240);
    let many = "x-forwarded-for: 203.0.113.9\r\n".repeat(50);
    let table: [(&str, String, &[u16]); 20] = [
        ("fine", "host: localhost".into(), &[200]),
        ("no host", "a: b".into(), &[421]),
        ("empty host", "host:".into(), &[421]),
        ("long host", format!("host: {long}"), &[421]),
        ("host with a newline", "host: localhost\n evil.test".into(), &[400, 421]),
        ("host and user", "host: localhost@evil.test".into(), &[421]),
        ("host and path", "host: localhost/evil".into(), &[421]),
        ("two hosts", "host: evil.test\r\nhost: localhost".into(), &[400, 421]),
        ("host of another", "host: evil.test".into(), &[421]),
        ("port that is no number", "host: localhost:x".into(), &[421]),
        ("long origin", format!("host: localhost\r\norigin: {long}"), &[403]),
        ("origin of another", "host: localhost\r\norigin: http://evil.test".into(), &[403]),
        ("null origin", "host: localhost\r\norigin: null".into(), &[403]),
        ("junk site", "host: localhost\r\nsec-fetch-site: \u{1}".into(), &[400, 403]),
        ("long list", format!("host: localhost\r\nx-forwarded-for: {long}"), &[200]),
        ("many lists", format!("{many}host: localhost"), &[200]),
        (
            "list with a return",
            "host: localhost\r\nx-forwarded-for: 1.1.1.1\r2.2.2.2".into(),
            &[400],
        ),
        ("long scheme", format!("host: localhost\r\nx-forwarded-proto: {long}"), &[200]),
        (
            "long forwarded host",
            format!("host: localhost\r\nx-forwarded-host: {long}"),
            &[200, 421],
        ),
        ("junk forwarded host", "host: localhost\r\nx-forwarded-host: \"<>;".into(), &[421]),
    ];
    for (what, headers, expected) in table {
        let line = raw(&served, headers.as_bytes()).await;
        let status: u16 = line.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
        assert!(expected.contains(&status), "{what}: {line:?}");
    }
    assert_eq!(served.get("/v1/healthz").await.0, 200);
    served.server.stop().await.unwrap();
}

/// The configuration of nginx on the page, at this port before a server.
fn configuration(port: u16, server: std::net::SocketAddr, folder: &std::path::Path) -> String {
    let page = include_str!("../../../../docs/proxy.md");
    let (_, rest) = page.split_once("```nginx\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let replaced = [
        ("127.0.0.1:7777", server.to_string()),
        ("listen 443 ssl", format!("listen 127.0.0.1:{port} ssl")),
        ("/etc/nginx/quell", folder.display().to_string()),
    ];
    replaced.iter().fold(text.to_owned(), |text, (shown, real)| {
        assert!(text.contains(shown), "{shown}");
        text.replace(shown, real)
    })
}

struct Behind {
    served: Served,
    client: Client,
    url: String,
    token: String,
    _nginx: Nginx,
    _folder: tempfile::TempDir,
}

impl Behind {
    /// A server behind nginx, and a client at another address of this machine.
    async fn start() -> Behind {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let token = "secret-of-this-test".to_owned();
        write_secret(folder.path().join("token"), &token);
        put(folder.path(), &authority.certify("quell.example.com"));
        let file = folder.path().join("token");
        let more = format!(
            "token_file = {file:?}\nallowed_hosts = [\"quell.example.com\"]\ntrusted_proxies = [\"127.0.0.1\"]"
        );
        let tasks = "[tasks.pulled]\npull = true\n[queues.default]\nconcurrency = 4\n[tasks.\"build/docs\"]\nexec = { command = [\"true\"] }\n";
        let served = serve_with(&more, tasks).await;
        let address = served.server.address();
        let nginx = {
            let folder = folder.path().to_owned();
            let start = move || Nginx::start(|port| configuration(port, address, &folder));
            tokio::task::spawn_blocking(start).await.unwrap().unwrap()
        };
        let ca = reqwest::Certificate::from_pem(authority.pem.as_bytes()).unwrap();
        let own: IpAddr = "127.0.0.2".parse().unwrap();
        let at = (std::net::Ipv4Addr::LOCALHOST, nginx.port()).into();
        let client = Client::builder().tls_certs_only([ca]).local_address(own).no_proxy();
        let client =
            client.resolve("quell.example.com", at).redirect(reqwest::redirect::Policy::none());
        let url = format!("https://quell.example.com:{}", nginx.port());
        Behind {
            served,
            client: client.build().unwrap(),
            url,
            token,
            _nginx: nginx,
            _folder: folder,
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    async fn send(&self, path: &str, body: String) -> (u16, Value) {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        answer(request.body(body).send().await.unwrap()).await
    }
}

#[tokio::test]
async fn the_page_of_proxies_has_a_configuration_of_nginx_that_works() {
    let behind = Behind::start().await;
    // The caller's own address is recorded, whatever it writes itself.
    for (header, value) in
        [("accept", "*/*"), (LIST, "203.0.113.9"), ("forwarded", "for=203.0.113.9")]
    {
        let request =
            behind.request(Method::POST, "/v1/queues/default/resume").header(header, value);
        assert_eq!(request.send().await.unwrap().status(), 200);
        let request = behind.request(Method::GET, "/v1/audit?limit=1");
        let (_, shown) = answer(request.send().await.unwrap()).await;
        assert_eq!(shown["entries"][0]["by"]["peer"], "127.0.0.2", "{header}: {shown}");
    }
    // Paths arrive as they were sent.
    let (status, reply) =
        behind.send("/v1/tasks/build%2Fdocs/triggers", r#"{"payload":1}"#.into()).await;
    assert_eq!(status, 202, "{reply}");
    // A long poll is answered as soon as there is a job.
    let claim = json!({ "tasks": ["pulled"], "wait": "20s", "process": { "incarnation": 1 } });
    let request = behind.request(Method::POST, "/v1/workers/w/claim").json(&claim).send();
    let mut waits = JoinSet::new();
    waits.spawn(request);
    let began = Instant::now();
    assert_eq!(behind.send("/v1/tasks/pulled/triggers", r#"{"payload":1}"#.into()).await.0, 202);
    let (status, reply) = answer(waits.join_next().await.unwrap().unwrap().unwrap()).await;
    assert_eq!((status, reply["jobs"].as_array().map(Vec::len)), (200, Some(1)), "{reply}");
    assert!(began.elapsed() < Duration::from_secs(15));
    // A host that is not allowed is refused by Quell.
    let request = behind.request(Method::GET, "/v1/jobs").header("host", "evil.test");
    assert_eq!(request.send().await.unwrap().status(), 421);
    behind.served.server.stop().await.unwrap();
}

#[tokio::test]
async fn bodies_and_sessions_pass_the_nginx_of_the_page() {
    let behind = Behind::start().await;
    // Quell's own bounds count: its answers are problem details.
    let export = |size: usize| json!({ "exports": [{ "x": "x".repeat(size) }] }).to_string();
    let (status, reply) = behind.send("/v1/dead/import", export((8 << 20) - 1_000)).await;
    assert!(status == 422 && reply["error"].is_object(), "{status} {reply}");
    let (status, reply) = behind.send("/v1/dead/import", export(8 << 20)).await;
    assert!(status == 413 && reply["error"].is_object(), "{status} {reply}");
    let trigger = json!({ "payload": "x".repeat(1 << 20) }).to_string();
    let (status, reply) = behind.send("/v1/tasks/pulled/triggers", trigger).await;
    assert!(status == 413 && reply["error"].is_object(), "{status} {reply}");
    // A browser that names its origin only, which has the port.
    let login = |origin: &str| {
        let request = behind.client.post(format!("{}/v1/session", behind.url));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        request
            .header("origin", origin)
            .body(format!("token={}&next=/v1/jobs", behind.token))
            .send()
    };
    for foreign in [behind.url.replace("https", "http"), "https://evil.test".to_owned()] {
        assert_eq!(login(&foreign).await.unwrap().status(), 403, "{foreign}");
    }
    let done = login(&behind.url).await.unwrap();
    assert_eq!(
        (done.status().as_u16(), &done.headers()["location"]),
        (303, &"/v1/jobs".parse().unwrap())
    );
    let cookie =
        done.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let request = behind.client.get(format!("{}/v1/jobs", behind.url)).header("cookie", cookie);
    assert_eq!(request.send().await.unwrap().status(), 200);
    // Failed logins are counted by the caller's address, not by that of nginx.
    for _ in 0..11 {
        let request = behind.client.post(format!("{}/v1/session", behind.url));
        let _failed = request.json(&json!({ "token": "wrong" })).send().await.unwrap();
    }
    let direct = behind.served.post("/v1/session", r#"{"token":"wrong"}"#).await;
    assert_eq!(direct.0, 401, "{}", direct.1);
    behind.served.server.stop().await.unwrap();
}
