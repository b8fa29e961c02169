//! Both builds return the same of one store at rest, through the other's server or directly.

use quell_server::http::EXPORTED;
use serde_json::Value;

use super::build::Build;
use super::server::{Server, printed};

/// Words for people, and what moves while nothing happens.
const NOT_COMPARED: [&str; 4] = ["text", "due_because", "seen_at", "busy"];

/// The two servers of a store at rest.
pub(super) async fn agree(url: &str, one: &Server, two: &Server, opens: impl Fn(Build) -> bool) {
    let newest = async |task: &str, state: &str| {
        let jobs = one.get(&format!("/v1/jobs?task={task}&state={state}&limit=1")).await;
        jobs["jobs"][0]["id"].as_str().unwrap_or_else(|| panic!("no {task} is {state}")).to_owned()
    };
    let plain = newest("plain", "succeeded").await;
    let gathered = newest("gather", "succeeded").await;
    let dead = newest("picky", "dead").await;
    let beat = newest("beat", "succeeded").await;
    let commands: [&[&str]; 16] = [
        &["jobs", "--limit", "200"],
        &["jobs", "--task", "stuck", "--state", "succeeded"],
        &["job", &plain],
        &["job", &gathered],
        &["job", &dead],
        &["job", &beat],
        &["explain", &gathered],
        &["explain", &format!("{gathered}.2")],
        &["result", &plain],
        &["dead", "list"],
        &["dead", "causes"],
        &["dead", "show", &dead],
        &["queue", "list"],
        &["schedule", "list"],
        &["schedule", "show", "beat"],
        &["workers"],
    ];
    for command in commands {
        let command = [command, &["--json"]].concat();
        let direct = |build| printed(build, &[&command[..], &["--store", url]].concat());
        let mut replies = vec![one.command(two.build, &command), two.command(one.build, &command)];
        replies
            .extend([one.build, two.build].into_iter().filter(|build| opens(*build)).map(direct));
        let replies = replies.iter().map(|reply| serde_json::from_str::<Value>(reply).unwrap());
        let replies: Vec<Value> = replies.collect();
        for other in &replies[1..] {
            assert_same(&replies[0], other, &command.join(" "));
        }
    }
    // A server adds the tasks that it declares.
    let tasks =
        |build| serde_json::from_str(&printed(build, &["task", "list", "--json", "--store", url]));
    if opens(Build::Earlier) {
        assert_same(&tasks(one.build).unwrap(), &tasks(two.build).unwrap(), "task list");
    }
    for build in [Build::Earlier, Build::New].into_iter().filter(|build| opens(*build)) {
        let reply = printed(build, &["explain", &gathered, "--store", url]);
        assert!(reply.contains(&format!("job {gathered}")), "{build:?}: {reply}");
    }
    let path = format!("/v1/dead/{EXPORTED}");
    let exported = async |server: &Server| server.get(&path).await[EXPORTED].take();
    assert_same(&exported(one).await, &exported(two).await, "exported dead jobs");
    for path in ["/v1/dead/unreadable", "/v1/alerts", "/v1/healthz"] {
        assert_same(&one.get(path).await, &two.get(path).await, path);
    }
}

/// The fields of both are equal; one of them may have more.
fn assert_same(one: &Value, two: &Value, place: &str) {
    match (one, two) {
        (Value::Object(one), Value::Object(two)) => {
            // The error of an attempt before the one that succeeded is shown with the attempts only, now.
            let succeeded = one.get("state") == Some(&Value::from("succeeded"));
            let both = one.iter().filter(|(name, _)| !(succeeded && *name == "error"));
            let both = both.filter_map(|(name, value)| Some((name, value, two.get(name)?)));
            for (name, one, two) in both.filter(|(name, ..)| !NOT_COMPARED.contains(&name.as_str()))
            {
                assert_same(one, two, &format!("{place}: {name}"));
            }
        }
        (Value::Array(one), Value::Array(two)) => {
            assert_eq!(one.len(), two.len(), "{place}: {one:#?} and {two:#?}");
            for (at, (one, two)) in one.iter().zip(two).enumerate() {
                assert_same(one, two, &format!("{place}[{at}]"));
            }
        }
        _ => assert_eq!(one, two, "{place}"),
    }
}
