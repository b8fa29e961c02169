//! Webhook sources: each provider's signature, what a delivery becomes, what is refused, and what it may cost.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use quell::JobState;
use quell_server::config::Config;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use sha2::Sha256;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::served::{Served, answer, serve, serve_with};

pub(crate) const TASK: &str = r#"
[tasks.build]
key = "{{ repository.full_name }}"
debounce = { min = "10s", max = "60s" }
exec = { command = ["true"] }

[tasks.any]
debounce = { min = "10s", max = "60s" }
key = "all"
payload = "collect"
exec = { command = ["true"] }

[tasks.plain]
exec = { command = ["true"] }
"#;

/// Writes secrets to a file of their own and serves these sources with [`TASK`].
pub(crate) async fn served(secret: &str, sources: &str) -> Served {
    let folder = tempfile::tempdir().unwrap().keep();
    let file = folder.join("secret");
    crate::served::write_secret(&file, secret);
    let sources = sources.replace("SECRET", &format!("secret_file = {:?}", file.to_str().unwrap()));
    let served = serve(&format!("{TASK}\n{sources}")).await;
    std::fs::remove_dir_all(folder).unwrap();
    served
}

pub(crate) fn post(
    served: &Served,
    source: &str,
    body: impl Into<reqwest::Body>,
) -> RequestBuilder {
    served.request(Method::POST, &format!("/in/{source}")).body(body)
}

pub(crate) async fn send(request: RequestBuilder) -> (u16, Value) {
    answer(request.send().await.unwrap()).await
}

fn code(secret: &str, text: &[u8]) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// A signed push of GitHub.
pub(crate) fn push(
    served: &Served,
    secret: &str,
    delivery: &str,
    repository: &str,
) -> RequestBuilder {
    let body = json!({ "ref": "refs/heads/main", "repository": { "full_name": repository } });
    let body = body.to_string();
    post(served, "github", body.clone())
        .header("content-type", "application/json")
        .header("x-github-event", "push")
        .header("x-github-delivery", delivery)
        .header("x-hub-signature-256", format!("sha256={}", hex(&code(secret, body.as_bytes()))))
}

async fn jobs(served: &Served) -> Vec<Value> {
    let (_, listed) = served.get("/v1/jobs?payload=true").await;
    listed["jobs"].as_array().unwrap().clone()
}

#[tokio::test]
async fn r06_r16_pushes_of_one_repository_are_one_job_and_a_redelivery_is_a_duplicate() {
    let served =
        served("s", "[sources.github]\nverify = \"github\"\nSECRET\ntask = \"build\"").await;
    let (status, first) = send(push(&served, "s", "1", "a/b")).await;
    assert_eq!(
        (status, &first["receipt"], &first["task"]),
        (202, &json!("accepted"), &json!("build"))
    );
    let (_, second) = send(push(&served, "s", "2", "a/b")).await;
    assert_eq!((&second["receipt"], &second["job"]), (&json!("debounced"), &first["job"]));
    let (status, again) = send(push(&served, "s", "2", "a/b")).await;
    assert_eq!(
        (status, &again["receipt"], &again["job"]),
        (202, &json!("duplicate"), &first["job"])
    );
    let jobs = jobs(&served).await;
    assert_eq!((jobs.len(), &jobs[0]["triggers"], &jobs[0]["key"]), (1, &json!(2), &json!("a/b")));
    assert_eq!(jobs[0]["payload"]["ref"], "refs/heads/main");
    served.server.stop().await.unwrap();
}

/// The example of GitHub's page on validating deliveries.
#[tokio::test]
async fn githubs_published_example_is_verified() {
    let secret = "It's a Secret to Everybody";
    let served =
        served(secret, "[sources.hub]\nverify = \"github\"\nSECRET\ntask = \"plain\"").await;
    let digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let signed = |body: &'static str| {
        post(&served, "hub", body).header("x-hub-signature-256", format!("sha256={digest}"))
    };
    // It is signed well, and then no JSON; another text is not signed well.
    assert_eq!(send(signed("Hello, World!")).await.0, 400);
    assert_eq!(send(signed("Hello, World?")).await.0, 401);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn githubs_ping_asks_for_nothing_and_a_form_is_its_payload() {
    let served =
        served("s", "[sources.github]\nverify = \"github\"\nSECRET\ntask = \"plain\"").await;
    let sign = |request: RequestBuilder, body: &str| {
        request
            .header("x-hub-signature-256", format!("sha256={}", hex(&code("s", body.as_bytes()))))
    };
    let ping = sign(post(&served, "github", "{}"), "{}").header("x-github-event", "ping");
    let (status, reply) = send(ping).await;
    assert_eq!((status, &reply["receipt"]), (200, &json!("ignored")));
    let form = "payload=%7B%22n%22%3A1.10%7D";
    let form = sign(post(&served, "github", form), form)
        .header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(send(form).await.0, 202);
    let jobs = jobs(&served).await;
    assert_eq!((jobs.len(), &jobs[0]["payload"]), (1, &json!({"n": 1.1})));
    served.server.stop().await.unwrap();
}

/// The example of Slack's page on verifying requests, which is of 2018: the tolerance refuses it, whatever
/// its signature. So the same request is signed again, now.
#[tokio::test]
async fn slacks_requests_are_verified_and_its_challenge_is_answered() {
    let secret = "8f742231b10e8888abcd99yyyzzz85a5";
    let served =
        served(secret, "[sources.slack]\nverify = \"slack\"\nSECRET\ntask = \"any\"").await;
    let command = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V\
                   &channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=\
                   &response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F\
                   96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let request = |time: i64, signature: String, body: &str, kind: &str| {
        post(&served, "slack", body.to_owned())
            .header("content-type", kind)
            .header("x-slack-request-timestamp", time)
            .header("x-slack-signature", signature)
    };
    let form = "application/x-www-form-urlencoded";
    let known = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    let base = format!("v0:1531420618:{command}");
    assert_eq!(format!("v0={}", hex(&code(secret, base.as_bytes()))), known);
    let (status, reply) = send(request(1_531_420_618, known.to_owned(), command, form)).await;
    assert_eq!((status, &reply["error"]["field"]), (401, &json!("x-slack-request-timestamp")));

    let time = now();
    let sign =
        |body: &str| format!("v0={}", hex(&code(secret, format!("v0:{time}:{body}").as_bytes())));
    let (status, reply) = send(request(time, sign(command), command, form)).await;
    assert_eq!((status, reply), (200, json!("")), "Slack would show a body to its user");
    assert_eq!(send(request(time, sign(command), command, form)).await.0, 200);
    let jobs = jobs(&served).await;
    assert_eq!(jobs[0]["triggers"], 1, "sent twice with one trigger_id");
    assert_eq!(jobs[0]["payload"][0]["command"], "/webhook-collect");

    let hello = r#"{"type":"url_verification","challenge":"3eZbrw1aB10FEMAGAZd4FyFQ"}"#;
    let (status, reply) = send(request(time, sign(hello), hello, "application/json")).await;
    assert_eq!((status, reply), (200, json!("3eZbrw1aB10FEMAGAZd4FyFQ")));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn stripes_events_are_verified_in_time_and_deduplicated_by_their_id() {
    let secret = "whsec_test_secret";
    let served =
        served(secret, "[sources.stripe]\nverify = \"stripe\"\nSECRET\ntask = \"any\"").await;
    let body = r#"{"id":"evt_1","object":"event","type":"invoice.paid"}"#;
    let request = |header: String| post(&served, "stripe", body).header("stripe-signature", header);
    // By OpenSSL: the old time alone refuses it.
    let known = "4d38cd5139c7f60e624bf8299775d217793a8e4af46b24f70e9099b0eafff76c";
    assert_eq!(hex(&code(secret, format!("1492774577.{body}").as_bytes())), known);
    let (status, reply) = send(request(format!("t=1492774577,v1={known}"))).await;
    assert_eq!(status, 401);
    assert!(
        reply["error"]["message"].as_str().unwrap().contains("s old, the limit is 300 s"),
        "{reply}"
    );

    let sign = |time: i64, secret: &str| hex(&code(secret, format!("{time}.{body}").as_bytes()));
    let time = now();
    let table = [
        (format!("t={time},v1={}", sign(time, "other")), 401),
        (format!("t={time},v0={}", sign(time, secret)), 401),
        (format!("v1={}", sign(time, secret)), 401),
        (format!("t={},v1={}", time + 1, sign(time, secret)), 401),
        (format!("t={},v1={}", time + 400, sign(time + 400, secret)), 401),
        // While Stripe rotates the secret it signs with both.
        (format!("t={time},v1={},v1={}", sign(time, "other"), sign(time, secret)), 202),
        (format!("t={time},v1={},v0=x", sign(time, secret)), 202),
    ];
    for (header, expected) in table {
        let (status, reply) = send(request(header.clone())).await;
        assert_eq!(status, expected, "{header}: {reply}");
    }
    assert_eq!(jobs(&served).await[0]["triggers"], 1, "evt_1 counts once");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn gitlab_shopify_and_standard_webhooks_are_verified() {
    let standard = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    // Of SQLPage's page on verifying Shopify's webhooks.
    let shopify = r#"{"id":1234567890,"email":"customer@example.com","total_price":"123.45"}"#;
    let served = served(
        &format!("{standard}\ntest-webhook-secret\n"),
        "[sources.gitlab]\nverify = \"gitlab\"\nSECRET\ntask = \"any\"\n\
         [sources.shopify]\nverify = \"shopify\"\nSECRET\ntask = \"any\"\n\
         [sources.standard]\nverify = \"standard\"\nSECRET\ntask = \"any\"",
    )
    .await;
    let gitlab = |token: &str| {
        post(&served, "gitlab", "{}")
            .header("x-gitlab-token", token)
            .header("idempotency-key", "f5e5f430-f57b-4e6e-9fac-d9128cd7232f")
    };
    for (token, status) in [("test-webhook-secret", 202), ("test-webhook", 401), ("", 401)] {
        assert_eq!(send(gitlab(token)).await.0, status, "{token:?}");
    }
    assert_eq!(send(gitlab("test-webhook-secret")).await.1["receipt"], "duplicate");

    let request = |code: &str| {
        post(&served, "shopify", shopify)
            .header("x-shopify-hmac-sha256", code.to_owned())
            .header("x-shopify-webhook-id", "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043")
    };
    assert_eq!(send(request("QNyObTlKbMx2qDlPF/ZOZcBqg5OgPg+2oky3zldc0Gw=")).await.0, 202);
    assert_eq!(send(request("QNyObTlKbMx2qDlPF/ZOZcBqg5OgPg+2oky3zldc0Gx=")).await.0, 401);

    let (time, body) = (now(), r#"{"test": 2432232314}"#);
    let key = BASE64_STANDARD.decode(&standard[6..]).unwrap();
    let mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    let text = format!("msg_1.{time}.{body}");
    let good = BASE64_STANDARD.encode(mac.chain_update(text).finalize().into_bytes());
    let request = |id: &str, signature: String| {
        post(&served, "standard", body)
            .header("webhook-id", id.to_owned())
            .header("webhook-timestamp", time)
            .header("webhook-signature", signature)
    };
    let table = [
        ("msg_1", format!("v1,{good}"), 202, "debounced"),
        ("msg_1", format!("v1,AAAA v2,x v1,{good}"), 202, "duplicate"),
        ("msg_2", format!("v1,{good}"), 401, ""),
        ("msg_1", format!("v2,{good}"), 401, ""),
        ("msg_1", good.clone(), 401, ""),
    ];
    for (id, signature, expected, receipt) in table {
        let (status, reply) = send(request(id, signature.clone())).await;
        assert_eq!(status, expected, "{id} {signature}: {reply}");
        assert_eq!(reply["receipt"].as_str().unwrap_or_default(), receipt);
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn plain_codes_and_tokens_are_verified_where_they_are_declared() {
    let served = served(
        "s3",
        "[sources.gitea]\nverify = \"hmac\"\nhmac = { header = \"x-gitea-signature\" }\nSECRET\ntask = \"plain\"\n\
         [sources.timed]\nverify = \"hmac\"\nSECRET\ntask = \"any\"\n\
         hmac = { header = \"x-sig\", algorithm = \"sha512\", encoding = \"base64\", prefix = \"v=\", \
         timestamp_header = \"x-time\" }\n\
         [sources.bearer]\nverify = \"token\"\nSECRET\ntask = \"plain\"\n\
         [sources.header]\nverify = \"token\"\ntoken = { header = \"x-token\" }\nSECRET\ntask = \"plain\"\n\
         [sources.query]\nverify = \"token\"\ntoken = { query = \"token\" }\nSECRET\ntask = \"plain\"",
    )
    .await;
    let sign = hex(&code("s3", b"{}"));
    assert_eq!(send(post(&served, "gitea", "{}").header("x-gitea-signature", &sign)).await.0, 202);
    for wrong in ["", "zz", &sign[..62], &format!("+{}", &sign[1..]), &"é".repeat(32)] {
        let request = post(&served, "gitea", "{}").header("x-gitea-signature", wrong.as_bytes());
        assert_eq!(send(request).await.0, 401, "{wrong}");
    }
    let time = now();
    let mac = Hmac::<sha2::Sha512>::new_from_slice(b"s3").unwrap();
    let code = mac.chain_update(format!("{time}.[]")).finalize().into_bytes();
    let code = format!("v={}", BASE64_STANDARD.encode(code));
    for (time, status, receipt) in
        [(time, 202, "accepted"), (time, 202, "duplicate"), (time + 1, 401, "")]
    {
        let request = post(&served, "timed", "[]").header("x-sig", &code).header("x-time", time);
        let (got, reply) = send(request).await;
        assert_eq!((got, reply["receipt"].as_str().unwrap_or_default()), (status, receipt));
    }
    for (request, status) in [
        (post(&served, "bearer", "").bearer_auth("s3"), 202),
        (post(&served, "bearer", "").header("authorization", "bearer s3"), 202),
        (post(&served, "bearer", "").basic_auth("any", Some("s3")), 202),
        (post(&served, "bearer", "").basic_auth("s3", None::<&str>), 401),
        (post(&served, "bearer", "").bearer_auth("s"), 401),
        (post(&served, "bearer", ""), 401),
        (post(&served, "header", "").header("x-token", "s3"), 202),
        (post(&served, "header", "").header("x-token", "s3").header("x-token", "s3"), 401),
        (post(&served, "query?token=s3", ""), 202),
        (post(&served, "query?token=s3&token=x", ""), 401),
        (post(&served, "query", ""), 401),
    ] {
        let shown = format!("{request:?}");
        assert_eq!(send(request).await.0, status, "{shown}");
    }
    served.server.stop().await.unwrap();
}

/// A source's secret is its proof: neither the API's token nor a known host is asked for.
#[tokio::test]
async fn a_source_needs_no_token_and_stands_behind_a_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    crate::served::write_secret(&file, "s");
    let sources = format!(
        "{TASK}[sources.github]\nverify = \"github\"\nsecret_file = {:?}\ntask = \"build\"",
        file.to_str().unwrap()
    );
    let served = serve_with(&format!("token_file = {:?}", file.to_str().unwrap()), &sources).await;
    let request = push(&served, "s", "1", "a")
        .header("host", "hooks.example.com")
        .header("x-forwarded-for", "203.0.113.7");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 202);
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    // The API itself stays closed, under each name.
    assert_eq!(served.get("/v1/jobs?payload=true").await.0, 401);
    assert_eq!(send(served.request(Method::POST, "/in/nosuch")).await.0, 404);
    let (status, reply) = send(served.request(Method::GET, "/in/github")).await;
    assert_eq!((status, &reply["error"]["field"]), (405, &json!("method")));
    // Without the secret, and with a token of the API in its place.
    assert_eq!(send(post(&served, "github", "{}").bearer_auth("s")).await.0, 401);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_secret_is_rotated_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    crate::served::write_secret(&file, "old");
    let served = serve(&format!(
        "{TASK}[sources.github]\nverify = \"github\"\nsecret_file = {:?}\ntask = \"build\"",
        file.to_str().unwrap()
    ))
    .await;
    assert_eq!(send(push(&served, "old", "1", "a")).await.0, 202);
    assert_eq!(send(push(&served, "new", "2", "a")).await.0, 401);
    crate::served::write_secret(&file, "new\nold\n");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while send(push(&served, "new", "3", "a")).await.0 != 202 {
        assert!(std::time::Instant::now() < deadline, "the new secret never counts");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(send(push(&served, "old", "4", "a")).await.0, 202);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn templates_make_the_task_the_payload_the_key_and_the_partition() {
    let served = served(
        "s",
        r#"[sources.github]
verify = "github"
SECRET
filter = "headers['x-github-event'] == 'push' and body.ref == 'refs/heads/main'"
task = "{{ 'build' if body.repository.full_name == 'a/b' else 'nosuch' }}"
payload = "{'repository': body.repository, 'event': headers['x-github-event']}"
key = "{{ source }}:{{ body.repository.full_name }}"
partition = "{{ body.repository.full_name | split('/') | first }}"
dedup = "{{ digest }}""#,
    )
    .await;
    let (status, reply) = send(push(&served, "s", "1", "a/b")).await;
    assert_eq!((status, &reply["receipt"]), (202, &json!("accepted")), "{reply}");
    let again = send(push(&served, "s", "another delivery", "a/b")).await.1;
    assert_eq!(again["receipt"], "duplicate", "the same body");
    let job = &jobs(&served).await[0];
    assert_eq!((&job["key"], &job["partition"]), (&json!("github:a/b"), &json!("a")));
    let payload = json!({"repository": {"full_name": "a/b"}, "event": "push"});
    assert_eq!(job["payload"], payload);

    let (status, reply) = send(push(&served, "s", "2", "c/d")).await;
    assert_eq!((status, &reply["error"]["field"]), (422, &json!("task")), "{reply}");
    let body = r#"{"ref":"refs/heads/other"}"#;
    let other = post(&served, "github", body)
        .header("x-github-event", "push")
        .header("x-hub-signature-256", format!("sha256={}", hex(&code("s", body.as_bytes()))));
    let (status, reply) = send(other).await;
    assert_eq!((status, &reply["receipt"]), (200, &json!("ignored")), "{reply}");
    assert_eq!(jobs(&served).await.len(), 1);
    served.server.stop().await.unwrap();
}

/// A payload is kept byte for byte, or refused with the setting at fault; it is never altered.
#[tokio::test]
async fn r40_odd_json_is_kept_or_refused_and_never_altered() {
    let served = served(
        "s",
        "[sources.raw]\nverify = \"token\"\nSECRET\ntask = \"plain\"\n\
         [sources.made]\nverify = \"token\"\nSECRET\ntask = \"plain\"\npayload = \"body.a\"\n\
         [sources.task]\nverify = \"token\"\nSECRET\ntask = \"build\"\n\
         [sources.keyed]\nverify = \"token\"\nSECRET\ntask = \"any\"\nkey = \"{{ body.id }}\"",
    )
    .await;
    let ask = |source: &str, body: &'static str| send(post(&served, source, body).bearer_auth("s"));
    let odd = [
        r#"{"id":123456789012345678901234567890,"p":1.10}"#,
        r#"{"b":1,"a":2,"b":3,"z":1e400}"#,
        r#"{"s":"\ud800"}"#,
    ];
    for body in odd {
        let (status, reply) = ask("raw", body).await;
        assert_eq!(status, 202, "{body}: {reply}");
        let job = reply["job"].as_str().unwrap().parse::<quell::JobId>().unwrap();
        let job = served.server.quell().job(job).await.unwrap().unwrap();
        assert_eq!(job.payload.as_str(), body);
        let (status, reply) = ask("made", body).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!("payload")), "{reply}");
    }
    let repeated = ask("made", r#"{"a":{"x":1,"x":2}}"#).await;
    assert_eq!((repeated.0, &repeated.1["error"]["field"]), (422, &json!("payload")));
    // Two numbers that are one float are two keys, by the source's template and by the task's.
    for id in ["123456789012345678901234567890", "123456789012345678901234567891"] {
        let body = format!("{{\"id\":{id}}}");
        let reply = send(post(&served, "keyed", body).bearer_auth("s")).await.1;
        assert_eq!(reply["receipt"], "accepted");
        let job =
            &served.get(&format!("/v1/jobs/{}", reply["job"].as_str().unwrap())).await.1["job"];
        assert_eq!(job["key"], id);
        let body = format!("{{\"repository\":{{\"full_name\":{id}}}}}");
        let reply = send(post(&served, "task", body).bearer_auth("s")).await.1;
        assert_eq!(reply["receipt"], "accepted", "a job of its own");
    }
    for (body, status) in [("{", 400), (&*"[".repeat(65), 400), ("{}{}", 400), ("\u{0}", 400)] {
        let request = post(&served, "raw", body.to_owned()).bearer_auth("s");
        assert_eq!(send(request).await.0, status, "{body:?}");
    }
    let text = post(&served, "raw", "x").bearer_auth("s").header("content-type", "text/plain");
    assert_eq!(send(text).await.0, 415);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_a_body_holds_its_sources_limit() {
    let served = served(
        "s",
        "[sources.small]\nverify = \"token\"\nSECRET\ntask = \"plain\"\nmax_body = \"4KiB\"\n\
         [sources.large]\nverify = \"token\"\nSECRET\ntask = \"plain\"\nmax_body = \"25MiB\"\n\
         payload = \"body.repository\"",
    )
    .await;
    let body = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let ask = |source: &str, body: String| send(post(&served, source, body).bearer_auth("s"));
    assert_eq!(ask("small", body(4_096)).await.0, 202);
    let (status, reply) = ask("small", body(4_097)).await;
    assert_eq!((status, &reply["error"]["field"]), (413, &json!("body")));
    assert!(
        reply["error"]["message"].as_str().unwrap().contains("sources.small.max_body"),
        "{reply}"
    );
    // Without a length, too: the body comes in chunks.
    let chunks =
        futures_util::stream::iter((0..5).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1_000])));
    let request = post(&served, "small", reqwest::Body::wrap_stream(chunks)).bearer_auth("s");
    assert_eq!(send(request).await.0, 413);

    let large = |filler: usize| {
        let frame = r#"{"commits":"","repository":{"full_name":"a/b"}}"#;
        frame.replacen("\"\"", &format!("\"{}\"", "x".repeat(filler - frame.len())), 1)
    };
    let (status, reply) = ask("large", large(25 << 20)).await;
    assert_eq!(status, 202, "{reply}");
    assert_eq!(ask("large", large((25 << 20) + 1)).await.0, 413);
    let whole = json!({ "repository": "x".repeat(2 << 20) }).to_string();
    let (status, reply) = ask("large", whole).await;
    assert_eq!((status, &reply["error"]["field"]), (413, &json!("payload")), "{reply}");
    served.server.stop().await.unwrap();
}

/// A caller that speaks HTTP by itself: what it has sent of a body stays sent, and no more comes.
async fn stalls(served: &Served, head: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(served.server.address()).await.unwrap();
    let head = format!("POST /in/{head} HTTP/1.1\r\nhost: x\r\n{SIGNED}: sha256=00\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream
}

const SIGNED: &str = "x-hub-signature-256";
const HUB: &str =
    "[sources.github]\nverify = \"github\"\nSECRET\ntask = \"build\"\nmax_body = \"25MiB\"";

/// The room for bodies counts their bytes, not their pieces: a caller without the secret could fill it with a
/// few hundred kilobytes.
#[tokio::test]
async fn a_body_in_tiny_pieces_takes_no_room_from_others() {
    let served = served("s", HUB).await;
    let mut pieces = b"transfer-encoding: chunked\r\n\r\n".to_vec();
    pieces.extend(b"1\r\n \r\n".repeat(70_000));
    let _stalled = stalls(&served, "github", &pieces).await;
    for delivery in 0..20 {
        let (status, reply) = send(push(&served, "s", &delivery.to_string(), "a")).await;
        assert_eq!(status, 202, "{reply}");
    }
    served.server.stop().await.unwrap();
}

/// Callers that are slow, flood the room or vanish: each gets its own answer, and the room is free again.
#[tokio::test]
async fn slow_and_vanishing_callers_hold_room_for_seconds_only() {
    let served = served(
        "s",
        &format!("{HUB}\n[sources.other]\nverify = \"token\"\nSECRET\ntask = \"plain\""),
    )
    .await;
    let megabytes = 20 << 20;
    let large = |length: usize| {
        let mut bytes = format!("content-length: {length}\r\n\r\n").into_bytes();
        bytes.extend(std::iter::repeat_n(b' ', megabytes));
        bytes
    };
    // While it stands still, its source has no room for another such body, and other sources have.
    let body = format!("{}{}", " ".repeat(megabytes), r#"{"repository":{"full_name":"a"}}"#);
    let sign = |body: &str| format!("sha256={}", hex(&code("s", body.as_bytes())));
    let whole = || post(&served, "github", body.clone()).header(SIGNED, sign(&body));
    let deadline = Instant::now() + Duration::from_secs(30);
    // The later of two that wait for room may get it, where the other has not been read yet.
    let (flood, full) = loop {
        let flood = stalls(&served, "github", &large(megabytes + 1)).await;
        let full = whole().send().await.unwrap();
        if full.status() == 503 {
            break (flood, full);
        }
        assert!(Instant::now() < deadline, "the room is never full");
    };
    assert_eq!(full.headers()["retry-after"], "1");
    assert_eq!(send(post(&served, "other", "1").bearer_auth("s")).await.0, 202);
    assert_eq!(send(push(&served, "s", "small", "a")).await.0, 202);
    drop(flood);
    let deadline = Instant::now() + Duration::from_secs(20);
    while whole().send().await.unwrap().status() != 202 {
        assert!(Instant::now() < deadline, "what a vanished caller held is never free");
    }
    // One that stays and sends nothing more is answered so.
    let mut slow = stalls(&served, "github", b"content-length: 9\r\n\r\n{").await;
    let mut answer = String::new();
    let read =
        tokio::time::timeout(Duration::from_secs(20), slow.read_to_string(&mut answer)).await;
    read.expect("a slow caller is answered").unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    served.server.stop().await.unwrap();
}

/// What a handler put out is not for the sender of a webhook, who may be anyone that recorded one.
#[tokio::test]
async fn a_repeated_delivery_is_not_answered_with_the_jobs_output() {
    let served = served(
        "s",
        "[tasks.secretive]\nidempotency = { key = \"payload\" }\n\
         exec = { command = [\"echo\", \"\\\"canary\\\"\"] }\n\
         [sources.hook]\nverify = \"token\"\nSECRET\ntask = \"secretive\"",
    )
    .await;
    let ask = || send(post(&served, "hook", "1").bearer_auth("s"));
    let first = ask().await.1;
    served.ended(&first["job"], JobState::Succeeded).await;
    let (status, again) = ask().await;
    assert_eq!((status, &again["receipt"]), (202, &json!("existing")), "{again}");
    assert!(!again.to_string().contains("canary"), "{again}");
    served.server.stop().await.unwrap();
}

/// A form and a GitHub webhook cost a trigger each, and the metrics say what became of them.
#[tokio::test]
async fn deliveries_are_counted_by_their_outcome() {
    let served =
        served("s", "[sources.counted]\nverify = \"token\"\nSECRET\ntask = \"plain\"").await;
    assert_eq!(send(post(&served, "counted", "1").bearer_auth("s")).await.0, 202);
    assert_eq!(send(post(&served, "counted", "1").bearer_auth("x")).await.0, 401);
    let (_, page) = served.get("/metrics").await;
    for outcome in ["accepted", "refused"] {
        let line =
            format!("quell_source_deliveries_total{{source=\"counted\",outcome=\"{outcome}\"}} 1");
        assert!(page.as_str().unwrap().contains(&line), "{page}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn sources_are_listed_with_the_numbers_and_times_of_their_deliveries() {
    let sources = "[sources.github]\nverify = \"github\"\nSECRET\ntask = \"build\"\n\
                   [sources.any]\nverify = \"token\"\nSECRET\ntask = \"{{ source }}\"\n";
    let served = served("canary-of-the-secret", sources).await;
    let named = |listed: &Value, name: &str| {
        let all = listed["sources"].as_array().unwrap();
        all.iter().find(|source| source["name"] == name).unwrap().clone()
    };
    let (status, before) = served.get("/v1/sources").await;
    assert_eq!(status, 200, "{before}");
    let quiet = named(&before, "github");
    assert_eq!(
        (&quiet["accepted"], &quiet["refused"], &quiet["last_accepted_at"]),
        (&json!({}), &json!({}), &Value::Null)
    );
    for (secret, delivery, status) in [
        ("canary-of-the-secret", "one", 202),
        ("canary-of-the-secret", "one", 202),
        ("wrong", "two", 401),
    ] {
        assert_eq!(send(push(&served, secret, delivery, "acme/shop")).await.0, status);
    }
    let (_, listed) = served.get("/v1/sources").await;
    assert!(!listed.to_string().contains("canary"), "{listed}");
    let github = named(&listed, "github");
    assert_eq!(github["accepted"], json!({ "accepted": 1, "duplicate": 1 }), "{github}");
    assert_eq!(github["refused"], json!({ "unsigned": 1 }), "{github}");
    assert_eq!(
        (&github["provider"], &github["task"], &github["path"]),
        (&json!("github"), &json!("build"), &json!("/in/github"))
    );
    assert!(github["last_accepted_at"].as_str() >= github["since"].as_str(), "{github}");
    assert!(github["last_refused_at"].as_str() >= github["last_accepted_at"].as_str());

    let url = format!("http://{}", served.server.address());
    let mut command = crate::binary::quell(&["sources", "--server", &url]);
    let printed = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (succeeded, shown) = crate::binary::text(&printed);
    assert!(succeeded && shown.contains("1 accepted, 1 duplicate"), "{shown}");
    assert!(shown.contains("1 unsigned") && shown.contains("{{ source }}"), "{shown}");
    served.server.stop().await.unwrap();
}

#[test]
fn r40_a_source_that_cannot_work_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    crate::served::write_secret(folder.path().join("secret"), "whsec_not base64");
    let table = [
        ("verify = \"github\"\ntask = \"plain\"", "secret_env: a source needs a secret"),
        (
            "verify = \"githup\"\nsecret_file = \"secret\"\ntask = \"plain\"",
            "did you mean `github`",
        ),
        ("verify = \"github\"\nsecret_file = \"nosuch\"\ntask = \"plain\"", "cannot be read"),
        ("verify = \"github\"\nsecret_file = \"secret\"\ntask = \"nosuch\"", "no task \"nosuch\""),
        ("verify = \"standard\"\nsecret_file = \"secret\"\ntask = \"plain\"", "not base64"),
        (
            "verify = \"slack\"\nsecret_file = \"secret\"\ntask = \"plain\"\ndedup_ttl = \"9m\"",
            "less than twice the tolerance",
        ),
        ("verify = \"hmac\"\nsecret_file = \"secret\"\ntask = \"plain\"", "say where the code is"),
        (
            "verify = \"github\"\nsecret_file = \"secret\"\ntask = \"plain\"\ntoken = { header = \"x\" }",
            "this is for verify = \"token\" only",
        ),
        (
            "verify = \"github\"\nsecret_file = \"secret\"\ntask = \"plain\"\nmax_body = \"26MiB\"",
            "give 25MiB or less",
        ),
        (
            "verify = \"slack\"\nsecret_file = \"secret\"\ntask = \"plain\"\ntolerance = \"2h\"",
            "tolerance of",
        ),
        (
            "verify = \"github\"\nsecret_file = \"secret\"\ntask = \"plain\"\nfilter = \"event == 1\"",
            "`event` is not known",
        ),
        (
            "verify = \"github\"\nsecret_file = \"secret\"\ntask = \"plain\"\nkey = \"{{ body | nosuch }}\"",
            "unknown filter",
        ),
    ];
    for (source, why) in table {
        let text = format!("[sources.x]\n{source}\n{TASK}");
        let error =
            Config::parse(&text, &folder.path().join("quell.toml")).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("sources.x"), "{source}: {error}");
    }
}
