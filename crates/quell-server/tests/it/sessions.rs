//! Requirement 5: sessions of browsers.

use std::time::{Duration, Instant};

use quell_server::access::{Limits, NewToken, Tokens};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::served::{Served, TASKS, answer, serve_with};

/// A server with a file of tokens, and a client that follows nothing.
struct Scene {
    served: Served,
    tokens: Tokens,
    client: Client,
    folder: tempfile::TempDir,
}

const FORM: &str = "application/x-www-form-urlencoded";

async fn scene(more: &str) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.json");
    Tokens::make(&file).unwrap();
    let audit = folder.path().join("audit");
    let more = format!("tokens = {file:?}\naudit_file = {audit:?}\n{more}");
    let tasks = format!("{TASKS}\n[queues.default]\nconcurrency = 4\n");
    let served = serve_with(&more, &tasks).await;
    let tokens = Tokens::open(&file).unwrap();
    let client = Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    Scene { served, tokens, client, folder }
}

impl Scene {
    async fn token(&self, name: &str, scope: &str, tasks: &[&str]) -> String {
        let new = NewToken {
            name: name.to_owned(),
            scopes: vec![scope.parse().unwrap()],
            limits: Limits {
                tasks: tasks.iter().map(|task| task.parse().unwrap()).collect(),
                queues: vec![],
            },
            expires_at: None,
        };
        let token = self.tokens.add(new).unwrap().token;
        let deadline = Instant::now() + Duration::from_secs(20);
        while self
            .request(Method::GET, "/v1/session")
            .bearer_auth(&token)
            .send()
            .await
            .unwrap()
            .status()
            != 200
        {
            assert!(Instant::now() < deadline, "the token is never known");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        token
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.served.server.address()))
    }

    async fn login(&self, token: &str) -> Response {
        let body = json!({ "token": token }).to_string();
        let request =
            self.request(Method::POST, "/v1/session").header("content-type", "application/json");
        request.body(body).send().await.unwrap()
    }

    async fn cookie(&self, token: &str) -> String {
        cookie(&self.login(token).await)
    }

    async fn with(&self, cookie: &str, method: Method, path: &str) -> (u16, Value) {
        let request = self.request(method, path).header("cookie", cookie);
        answer(request.header("sec-fetch-site", "same-origin").send().await.unwrap()).await
    }

    /// Waits until a cookie no longer counts.
    async fn ends(&self, cookie: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.with(cookie, Method::GET, "/v1/jobs").await.0 != 401 {
            assert!(Instant::now() < deadline, "the session goes on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn set(response: &Response) -> String {
    response.headers()["set-cookie"].to_str().unwrap().to_owned()
}

fn cookie(response: &Response) -> String {
    assert!(response.status().is_success() || response.status() == 303, "{response:?}");
    set(response).split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_session_counts_in_place_of_its_token_until_the_logout() {
    let scene = scene("").await;
    let token = scene.token("ann", "operate", &[]).await;
    let response = scene.login(&token).await;
    let flags = set(&response);
    assert!(flags.ends_with("; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=43200"), "{flags}");
    let first = cookie(&response);
    assert_eq!(first.strip_prefix("__Host-quell=").unwrap().len(), 43);
    let (_, shown) = answer(response).await;
    assert_eq!((&shown["name"], &shown["scopes"]), (&json!("ann"), &json!(["operate"])));
    assert!(shown["expires_at"].is_string() && shown["idle_until"].is_string(), "{shown}");
    let (status, shown) = scene.with(&first, Method::GET, "/v1/session").await;
    assert_eq!((status, &shown["name"]), (200, &json!("ann")));
    assert_eq!(scene.with(&first, Method::POST, "/v1/queues/default/pause").await.0, 200);
    assert_eq!(scene.with(&first, Method::DELETE, "/v1/tokens/x").await.0, 403, "not its scope");
    // A login with a session makes another one in its place.
    let body = json!({ "token": token }).to_string();
    let again =
        scene.request(Method::POST, "/v1/session").header("content-type", "application/json");
    let again = again.header("cookie", &first).header("sec-fetch-site", "same-origin").body(body);
    let second = cookie(&again.send().await.unwrap());
    assert_ne!(first, second);
    assert_eq!(scene.with(&first, Method::GET, "/v1/jobs").await.0, 401, "rotated");
    assert_eq!(scene.with(&second, Method::GET, "/v1/jobs").await.0, 200);
    let twice = format!("{second}; {second}");
    assert_eq!(scene.with(&twice, Method::GET, "/v1/jobs").await.0, 401, "it is there twice");
    assert_eq!(scene.with(&second, Method::DELETE, "/v1/session").await.0, 200);
    assert_eq!(scene.with(&second, Method::GET, "/v1/jobs").await.0, 401);
    let third = scene.cookie(&token).await;
    let out = scene.request(Method::POST, "/logout").header("cookie", &third);
    let out = out.header("sec-fetch-site", "same-origin").send().await.unwrap();
    assert_eq!(
        (out.status().as_u16(), &out.headers()["location"]),
        (303, &"/login".parse().unwrap())
    );
    assert!(set(&out).starts_with("__Host-quell=; ") && set(&out).contains("Max-Age=0"));
    assert_eq!(scene.with(&third, Method::GET, "/v1/jobs").await.0, 401);
    let audit = std::fs::read_to_string(scene.folder.path().join("audit")).unwrap();
    assert!(audit.contains("session_begin") && audit.contains("session_end"), "{audit}");
    for secret in [&token, first.split_once('=').unwrap().1] {
        assert!(!audit.contains(secret), "{audit}");
    }
    scene.served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_cookie_counts_for_pages_of_this_server_only() {
    let scene = scene("").await;
    let token = scene.token("ann", "operate", &[]).await;
    let cookie = scene.cookie(&token).await;
    let own = format!("http://{}", scene.served.server.address());
    let other = own.replace("http://127.0.0.1", "http://localhost");
    let pause = |headers: &[(&'static str, &str)]| {
        let request =
            scene.request(Method::POST, "/v1/queues/default/pause").header("cookie", &cookie);
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send()
    };
    for (headers, status) in [
        (vec![("sec-fetch-site", "cross-site")], 403),
        (vec![("sec-fetch-site", "same-site")], 403),
        (vec![("sec-fetch-site", "none")], 403),
        (vec![("sec-fetch-site", "cross-site"), ("origin", &own)], 403),
        (vec![("origin", "http://evil.test")], 403),
        (vec![("origin", "null")], 403),
        (vec![("origin", &other)], 403),
        (vec![("origin", "http://127.0.0.1")], 403),
        (vec![], 403),
        (vec![("origin", &own)], 200),
        (vec![("sec-fetch-site", "same-origin")], 200),
    ] {
        let response = pause(&headers).await.unwrap();
        assert_eq!(response.status(), status, "{headers:?}");
    }
    // A token is no cookie, and counts from anywhere.
    let request = scene.request(Method::POST, "/v1/queues/default/pause").bearer_auth(&token);
    assert_eq!(request.header("sec-fetch-site", "cross-site").send().await.unwrap().status(), 200);
    // Nor does another site log a browser in, or out.
    for (path, body) in [("/v1/session", format!("token={token}")), ("/logout", String::new())] {
        let request = scene.request(Method::POST, path).header("content-type", FORM);
        let request = request.header("cookie", &cookie).header("sec-fetch-site", "cross-site");
        assert_eq!(request.body(body).send().await.unwrap().status(), 403, "{path}");
    }
    assert_eq!(scene.with(&cookie, Method::GET, "/v1/jobs").await.0, 200);
    // A wrong token is not made good by a cookie.
    let request = scene.request(Method::GET, "/v1/jobs").header("cookie", &cookie);
    assert_eq!(request.bearer_auth("wrong").send().await.unwrap().status(), 401);
    scene.served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_session_ends_with_its_token_and_when_that_permits_something_else() {
    let scene = scene("").await;
    let token = scene.token("ann", "read", &[]).await;
    let other = scene.token("bob", "read", &["build"]).await;
    let (ann, bob) = (scene.cookie(&token).await, scene.cookie(&other).await);
    let (_, jobs) = scene.with(&bob, Method::GET, "/v1/tasks").await;
    assert!(!jobs.to_string().contains("now"), "it sees what its token sees: {jobs}");
    assert_eq!(scene.with(&bob, Method::GET, "/v1/workers").await.0, 403);
    scene.tokens.revoke("ann").unwrap();
    scene.ends(&ann).await;
    // The scopes of a token are changed in its file.
    let file = scene.folder.path().join("tokens.json");
    let text = std::fs::read_to_string(&file).unwrap().replace("\"read\"", "\"operate\"");
    crate::served::write_secret(&file, text);
    scene.ends(&bob).await;
    let bob = scene.cookie(&other).await;
    assert_eq!(scene.with(&bob, Method::GET, "/v1/jobs?task=build").await.0, 200);
    scene.tokens.rotate("bob", Duration::ZERO).unwrap();
    scene.ends(&bob).await;
    scene.served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_session_expires_when_it_is_not_used_and_at_its_longest() {
    let scene = scene("session_idle = \"1s\"\nsession_max = \"3s\"").await;
    let token = scene.token("ann", "read", &[]).await;
    let (idle, used) = (scene.cookie(&token).await, scene.cookie(&token).await);
    let begun = Instant::now();
    // Only its longest time ends the one that is used.
    while scene.with(&used, Method::GET, "/v1/session").await.0 == 200 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the session goes on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(scene.with(&idle, Method::GET, "/v1/session").await.0, 401);
    scene.served.server.stop().await.unwrap();
}

#[tokio::test]
async fn the_login_page_works_without_scripts_and_goes_to_its_own_paths_only() {
    let scene = scene("").await;
    let token = scene.token("ann", "read", &[]).await;
    let page = scene.request(Method::GET, "/login?next=/v1/reference").send().await.unwrap();
    let header = |name: &str| page.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(
        header("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'"
    );
    assert_eq!(header("cache-control"), "no-store");
    assert_eq!(
        (header("x-content-type-options"), header("referrer-policy")),
        ("nosniff".into(), "no-referrer".into())
    );
    let text = page.text().await.unwrap().replace("&#x2f;", "/");
    assert!(text.contains("value=\"/v1/reference\"") && !text.contains("<script"), "{text}");
    for file in ["/login.css", "/favicon.ico"] {
        assert_eq!(scene.request(Method::GET, file).send().await.unwrap().status(), 200);
    }
    let send = |body: String| {
        let request = scene.request(Method::POST, "/v1/session").header("content-type", FORM);
        request.header("sec-fetch-site", "same-origin").body(body).send()
    };
    let done = send(format!("token={token}&next=/v1/reference%3Fa%3D1")).await.unwrap();
    assert_eq!(
        (done.status().as_u16(), &done.headers()["location"]),
        (303, &"/v1/reference?a=1".parse().unwrap())
    );
    let session = cookie(&done);
    assert_eq!(scene.with(&session, Method::GET, "/v1/jobs").await.0, 200);
    let again =
        scene.request(Method::GET, "/login").header("cookie", &session).send().await.unwrap();
    assert!(again.text().await.unwrap().contains("logged in as <strong>ann"));
    for evil in [
        "//evil.test",
        "/\\evil.test",
        "%2f%2fevil.test",
        "https://evil.test",
        "/%2e%2e//x",
        "javascript:x",
    ] {
        let encoded: String = form_urlencoded::byte_serialize(evil.as_bytes()).collect();
        for encoded in [evil.to_owned(), encoded] {
            let page =
                scene.request(Method::GET, &format!("/login?next={encoded}")).send().await.unwrap();
            assert_eq!(page.status(), 422, "{evil}");
            let refused = send(format!("token={token}&next={encoded}")).await.unwrap();
            assert_eq!(refused.status(), 422, "{evil}");
            assert!(
                refused.headers().get("location").is_none()
                    && refused.headers().get("set-cookie").is_none()
            );
        }
    }
    let wrong = send("token=%22%3E%3Cscript%3E&next=/".to_owned()).await.unwrap();
    assert_eq!(wrong.status(), 401);
    let text = wrong.text().await.unwrap();
    assert!(text.contains("the token is wrong") && !text.contains("<script"), "{text}");
    let large = send(format!("token={}", "x".repeat(8_200))).await.unwrap();
    assert_eq!(large.status(), 413);
    scene.served.server.stop().await.unwrap();
}

#[tokio::test]
async fn failed_logins_are_bounded_and_recorded() {
    let scene = scene("").await;
    let admin = scene.token("admin", "admin", &[]).await;
    for n in 0..10 {
        assert_eq!(scene.login("wrong").await.status(), 401, "{n}");
    }
    let response = scene.login("wrong").await;
    assert_eq!(response.status(), 429);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    // A token that is right is not kept out by others.
    assert_eq!(scene.login(&admin).await.status(), 200);
    let request = scene.request(Method::GET, "/v1/audit?limit=200").bearer_auth(&admin);
    let (_, shown) = answer(request.send().await.unwrap()).await;
    let failed = |entry: &&Value| entry["operation"] == "session_begin" && entry["status"] == 401;
    assert_eq!(shown["entries"].as_array().unwrap().iter().filter(failed).count(), 10, "{shown}");
    scene.served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_without_tokens_has_no_sessions() {
    let served = crate::served::serve(TASKS).await;
    for (method, path) in
        [(Method::GET, "/login"), (Method::GET, "/v1/session"), (Method::DELETE, "/v1/session")]
    {
        let (status, reply) = answer(served.request(method, path).send().await.unwrap()).await;
        assert_eq!(status, 404, "{reply}");
    }
    let (status, reply) = served.post("/v1/session", r#"{"token":"x"}"#).await;
    assert!(status == 404 && reply.to_string().contains("server.tokens"), "{reply}");
    served.server.stop().await.unwrap();
}

/// A claim that waits ends when its token is revoked, and the job goes to another worker.
#[tokio::test]
async fn a_request_that_waits_ends_when_its_token_is_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.json");
    Tokens::make(&file).unwrap();
    let tokens = Tokens::open(&file).unwrap();
    let mut shown = Vec::new();
    for (name, scopes) in [("work", vec!["work"]), ("all", vec!["admin"])] {
        let scopes = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
        let new =
            NewToken { name: name.to_owned(), scopes, limits: Limits::default(), expires_at: None };
        shown.push(tokens.add(new).unwrap().token);
    }
    let served = serve_with(&format!("tokens = {file:?}"), "[tasks.p]\npull = true\n").await;
    let claim = |token: &str, wait: &str| {
        let body =
            json!({ "tasks": ["p"], "wait": wait, "process": { "incarnation": 1 } }).to_string();
        let request = served.request(Method::POST, "/v1/workers/w/claim").bearer_auth(token);
        request.header("content-type", "application/json").body(body).send()
    };
    let (mut waits, mut results) = (JoinSet::new(), JoinSet::new());
    waits.spawn(claim(&shown[0], "25s"));
    let body = r#"{"payload":1,"delay":"1h"}"#;
    let request = served.request(Method::POST, "/v1/tasks/p/triggers").bearer_auth(&shown[1]);
    let request = request.header("content-type", "application/json").body(body);
    let (_, made) = answer(request.send().await.unwrap()).await;
    let result = format!("/v1/jobs/{}/result?wait=20s", made["job"].as_str().unwrap());
    results.spawn(served.request(Method::GET, &result).bearer_auth(&shown[1]).send());
    tokens.revoke("work").unwrap();
    let began = Instant::now();
    let (status, reply) = answer(waits.join_next().await.unwrap().unwrap().unwrap()).await;
    assert_eq!(status, 401, "{reply}");
    assert!(
        reply.to_string().contains("revoked") || reply.to_string().contains("missing or wrong")
    );
    tokens.revoke("all").unwrap();
    assert_eq!(answer(results.join_next().await.unwrap().unwrap().unwrap()).await.0, 401);
    assert!(began.elapsed() < Duration::from_secs(20), "they waited to their own end");
    served.server.stop().await.unwrap();
}
