//! What is refused, and what is said of it (R40): URLs, passwords, rights, what is not Quell's, and
//! what a newer Quell wrote.

use quell_conformance::Rig;
use quell_conformance::rig::{fails, key, keyed, lease, plain, queue, secs, task};
use quell_core::{
    Batch, DeadFilter, Error, ErrorKind, ExplainTarget, JobFilter, Outcome, QueueSettings,
    Retention, Settlement, Store,
};
use quell_redis::RedisOptions;

use crate::place::{Place, server};

async fn refused(place: &Place) -> Error {
    place.options().open().await.unwrap_err()
}

/// What it says, with its sources.
fn told(error: &Error) -> String {
    let mut told = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        told = format!("{told}: {source}");
        next = source.source();
    }
    told
}

#[test]
fn r40_a_url_is_refused_with_what_is_wrong_and_without_its_password() {
    for url in [
        "",
        "redis",
        "redis://",
        "http://h/",
        "redis://h:port/",
        "redis://:secret@h/x",
        "redis://:secret@h/?prefx=a",
        "redis://:secret@h/?prefix",
        "redis://:secret@h/?prefix=",
        "redis://:secret@h/?prefix=a{b}",
    ] {
        let error = RedisOptions::from_url(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
        assert!(!told(&error).contains("secret"), "{url}: {}", told(&error));
        assert!(matches!(error.field(), Some("url" | "prefix")), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn r39_r40_a_server_that_is_away_or_wants_a_password_is_told_at_the_start() {
    let mut server = server(&["requirepass s3cret"]);
    let with = |secret: &str| Place {
        url: format!("redis://{secret}{}/", server.address()),
        prefix: "quell".to_owned(),
    };
    for secret in ["", ":wrong@", "nobody:s3cret@"] {
        let error = refused(&with(secret)).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("password"), "{}", told(&error));
    }
    let place = with(":s3cret@");
    place.open().await.counts().await.unwrap();
    server.stop().unwrap();
    let error = refused(&place).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!told(&error).contains("s3cret"), "{}", told(&error));
}

/// The rules of a user, as `docs/redis.md` gives them for the prefix `quell`.
fn rules() -> Vec<String> {
    let page = include_str!("../../../../docs/redis.md");
    let (_, after) = page.split_once("ACL SETUSER quell ").unwrap();
    let rules = after.split("```").next().unwrap().replace(['\\', '\''], " ");
    let rules = rules.split_whitespace().filter(|rule| !["on", ">PASSWORD"].contains(rule));
    rules.map(str::to_owned).collect()
}

/// Every kind of call.
async fn do_all(store: &dyn Store) -> quell_core::Result<()> {
    let now = Some(Rig::START);
    let later = Some(Rig::START + secs(100_000));
    store.set_queue(&queue(), &QueueSettings::default()).await?;
    let batch = Batch { triggers: vec![plain("1"), keyed("k"), plain("2")], dedup: None };
    store.enqueue(now, vec![batch]).await?.remove(0)?;
    store.flush(now, &task("t"), &key("k")).await?;
    let jobs = store.claim(now, &Rig::wish(9)).await?.jobs;
    let [one, two, three] = &jobs[..] else { panic!("{jobs:?}") };
    store.renew(now, &[lease(one)], Rig::LEASE).await?;
    let ends =
        [(one, Outcome::succeeded()), (two, fails(secs(1), true)), (three, fails(secs(1), false))];
    let ends = ends.map(|(job, outcome)| Settlement { lease: lease(job), outcome });
    store.settle(now, ends.to_vec()).await?;
    store.explain(&ExplainTarget::Job(one.id)).await?;
    store.jobs(&JobFilter::default()).await?;
    store.counts().await?;
    store.queues().await?;
    store.dead(&DeadFilter::default()).await?;
    store.redrive(now, &two.id.into()).await?;
    store.reap(later, 9).await?;
    store.cancel(now, two.id, "enough").await?;
    let keep = Retention { succeeded: Some(secs(1)), dead: Some(secs(1)) };
    store.prune(later, &keep, 99).await?;
    Ok(())
}

#[tokio::test]
async fn r40_the_rights_on_the_page_are_enough_and_less_is_told() {
    let server = server(&[]);
    let set = |name: &str, more: &[&str]| {
        let rules = rules();
        let rules = rules.iter().map(String::as_str);
        let words: Vec<&str> =
            ["ACL", "SETUSER", name, "on", ">secret"].into_iter().chain(rules).collect();
        server.command(&[&words[..], more].concat()).unwrap();
        let url = format!("redis://{name}:secret@{}/", server.address());
        Place { url, prefix: "quell".to_owned() }
    };
    let place = set("quell", &[]);
    let store = place.open().await;
    do_all(&store).await.unwrap();
    // Another prefix's keys are not this user's.
    let elsewhere = Place { prefix: "other".to_owned(), ..set("quell", &[]) };
    let without = [
        elsewhere,
        set("no-write", &["-hset"]),
        set("no-script", &["-eval", "-evalsha"]),
        set("no-keys", &["resetkeys"]),
        set("no-channel", &["resetchannels"]),
        set("no-time", &["-time"]),
    ];
    for place in without {
        // With a time of its own a call never asks the server's, as workers do.
        let opened = place.options().open().await;
        let answer = match &opened {
            Ok(store) => store.enqueue(None, vec![Batch::one(plain("1"))]).await.map(drop),
            Err(error) => Err(error.share()),
        };
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{}: {}", place.url, told(&error));
        let said = error.to_string();
        assert!(said.contains("right") && said.contains("docs/redis.md"), "{}", told(&error));
    }
}

#[tokio::test]
async fn r40_a_key_below_the_prefix_that_is_not_quells_is_told() {
    let server = server(&[]);
    for (name, kind) in [("jobs", "zset"), ("meta", "string"), ("seq", "hash"), ("leases", "list")]
    {
        server.command(&["FLUSHALL"]).unwrap();
        let key = format!("quell:{{all}}:{name}");
        let set: &[&str] = match kind {
            "zset" => &["ZADD", &key, "1", "a"],
            "string" => &["SET", &key, "a"],
            "hash" => &["HSET", &key, "a", "b"],
            _ => &["RPUSH", &key, "a"],
        };
        server.command(set).unwrap();
        let before = server.command(&["DBSIZE"]).unwrap();
        let answer = match Place::on(&server).options().open().await {
            Ok(store) => {
                let triggered = store.enqueue(None, vec![Batch::one(plain("1"))]).await.map(drop);
                match triggered {
                    Ok(()) => store.claim(None, &Rig::wish(1)).await.map(drop),
                    refused => refused,
                }
            }
            Err(error) => Err(error),
        };
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{name}: {}", told(&error));
        assert!(error.to_string().contains("choose another prefix"), "{}", told(&error));
        assert!(!before.is_empty());
    }
}

#[tokio::test]
async fn r40_what_a_newer_quell_wrote_is_refused() {
    let place = Place::shared();
    place.open().await;
    let mut redis = place.connect().await;
    let meta = format!("{}:{{all}}:meta", place.prefix);
    let mut set = async |layout: &str| {
        let mut hset = redis::cmd("HSET");
        hset.arg(&meta).arg("layout").arg(layout).exec_async(&mut redis).await.unwrap();
    };
    place.open().await.counts().await.unwrap();
    set("3").await;
    let error = refused(&place).await;
    assert_eq!(error.kind(), ErrorKind::Newer, "{error}");
    assert!(error.to_string().contains("version 3, this Quell knows up to 2"), "{error}");
    set("two").await;
    assert_eq!(refused(&place).await.kind(), ErrorKind::Corrupt);
    set("1").await;
    place.open().await.counts().await.unwrap();
    let mut hget = redis::cmd("HGET");
    let stamp: String = hget.arg(&meta).arg("layout").query_async(&mut redis).await.unwrap();
    assert_eq!(stamp, "2", "an older Quell must not open it any more");
}
