//! What the log and the errors of webhook sources say to operators.

use quell_server::config::Config;
use serde_json::json;

use crate::logged::Logged;
use crate::sources::{TASK, post, push, send, served};

#[tokio::test]
async fn deliveries_without_a_valid_proof_are_logged_once_a_minute_and_show_no_secret() {
    let (logged, _guard) = Logged::start(tracing::Level::INFO);
    let source = |name: &str, verify: &str| {
        format!("[sources.{name}]\nverify = \"{verify}\"\nSECRET\ntask = \"plain\"\n")
    };
    let both = source("github", "github") + &source("shared", "token");
    let served = served("canary-of-the-server", &both).await;
    for _ in 0..3 {
        let wrong = push(&served, "canary-of-the-sender", "1", "canary/body");
        assert_eq!(send(wrong).await.0, 401);
    }
    let wrong = post(&served, "shared", "1").bearer_auth("canary-of-the-sender");
    assert_eq!(send(wrong).await.0, 401);
    let lines = logged.with("delivery without a valid proof refused");
    assert_eq!(lines.len(), 2, "{lines:#?}");
    for (line, needles) in lines.iter().zip([
        ["WARN", "source=\"github\"", "x-hub-signature-256", "held_back=0"],
        ["WARN", "source=\"shared\"", "authorization", "held_back=0"],
    ]) {
        assert!(needles.iter().all(|needle| line.contains(needle)), "{needles:?}: {line}");
    }
    assert_eq!(logged.with("canary"), [""; 0]);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_what_an_operator_has_to_change_is_named_with_its_text() {
    let (logged, _guard) = Logged::start(tracing::Level::WARN);
    let filter = "body.nosuch == 1";
    let sources = format!(
        "[sources.strict]\nverify = \"token\"\nSECRET\ntask = \"plain\"\nfilter = \"{filter}\"\n\
         [sources.large]\nverify = \"token\"\nSECRET\ntask = \"plain\"\nmax_body = \"25MiB\"\n"
    );
    let served = served("s", &sources).await;
    let ask = |source: &str, body: String| send(post(&served, source, body).bearer_auth("s"));
    let (status, reply) = ask("strict", "{}".to_owned()).await;
    let message = reply["error"]["message"].as_str().unwrap();
    assert_eq!((status, &reply["error"]["field"]), (422, &json!("filter")), "{reply}");
    assert!(message.starts_with("sources.strict.filter: a part is undefined"), "{message}");
    assert!(message.ends_with(&format!("in `{filter}`")), "{message}");
    let (status, reply) = ask("large", format!("\"{}\"", "x".repeat(2 << 20))).await;
    let message = reply["error"]["message"].as_str().unwrap();
    assert_eq!((status, &reply["error"]["field"]), (413, &json!("payload")), "{reply}");
    assert!(message.contains("the limit is 1048576"), "{message}");
    assert!(message.ends_with("select less of the body with sources.large.payload"), "{message}");
    let lines = logged.with("delivery refused");
    assert_eq!((lines.len(), logged.with(filter).len()), (2, 1), "{lines:#?}");
    served.server.stop().await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    crate::served::write_secret(folder.path().join("secret"), "s");
    for (field, text) in [("filter", "body.a =="), ("payload", "body.["), ("key", "{{ body.a")] {
        let text_of = format!(
            "[sources.x]\nverify = \"github\"\nsecret_file = \"secret\"\ntask = \"plain\"\n\
             {field} = \"{text}\"\n{TASK}"
        );
        let error = Config::parse(&text_of, &folder.path().join("quell.toml")).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(&format!("quell.toml:5: sources.x.{field}: ")), "{error}");
        assert!(error.ends_with(&format!("in `{text}`")), "{error}");
    }
}
