//! What is refused, and what is said of it (R40): URLs, passwords, what is not Quell's, and what a
//! newer Quell wrote.

use quell_conformance::Rig;
use quell_conformance::rig::plain;
use quell_core::{Batch, Error, ErrorKind, Store};
use quell_redis::RedisOptions;

use crate::place::{Place, server};

async fn refused(place: &Place) -> Error {
    place.options().open().await.unwrap_err()
}

/// What it says, with its sources.
pub(crate) fn full_text(error: &Error) -> String {
    let mut full_text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        full_text = format!("{full_text}: {source}");
        next = source.source();
    }
    full_text
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
        assert!(!full_text(&error).contains("secret"), "{url}: {}", full_text(&error));
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
    for secret in ["", ":wrong@", "stranger:s3cret@"] {
        let error = refused(&with(secret)).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("password"), "{}", full_text(&error));
    }
    let place = with(":s3cret@");
    place.open().await.counts().await.unwrap();
    server.stop().unwrap();
    let error = refused(&place).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!full_text(&error).contains("s3cret"), "{}", full_text(&error));
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
                    Ok(()) => store.claim(None, &Rig::claim_of(1)).await.map(drop),
                    refused => refused,
                }
            }
            Err(error) => Err(error),
        };
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{name}: {}", full_text(&error));
        assert!(error.to_string().contains("choose another prefix"), "{}", full_text(&error));
        assert!(!before.is_empty());
    }
}

#[tokio::test]
async fn r40_what_a_quell_of_another_layout_wrote_is_refused() {
    let place = Place::shared();
    place.open().await;
    let mut redis = place.connect().await;
    let meta = format!("{}:{{all}}:meta", place.prefix);
    let mut set = async |layout: &str| {
        let mut hset = redis::cmd("HSET");
        hset.arg(&meta).arg("layout").arg(layout).exec_async(&mut redis).await.unwrap();
    };
    place.open().await.counts().await.unwrap();
    set("5").await;
    let error = refused(&place).await;
    assert_eq!(error.kind(), ErrorKind::Newer, "{error}");
    assert!(
        error.to_string().contains("version 5, this Quell knows up to 4: update it"),
        "{error}"
    );
    set("two").await;
    assert_eq!(refused(&place).await.kind(), ErrorKind::Corrupt);
    for older in ["1", "2", "3"] {
        set(older).await;
        let error = refused(&place).await;
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert!(error.to_string().contains("knows only 4"), "{error}");
        // It is not marked either.
        assert!(refused(&place).await.to_string().contains(&format!("version {older}")));
    }
    set("4").await;
    place.open().await.counts().await.unwrap();
}
