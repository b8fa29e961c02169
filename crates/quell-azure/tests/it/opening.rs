//! Which tables open, and what is said of the others.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quell_azure::{AzureOptions, Connection, Credentials, Secret, TokenSource};
use quell_core::{Error, ErrorKind};
use quell_portable::{Condition, Table};
use reqwest::Client;
use sha2::Sha256;
use tokio::sync::Semaphore;

use crate::proxy::{Act, Proxy, failure};
use crate::server::{P, Place, put, text, until, wrote};

/// A shared access signature for the account's tables and queues.
pub(crate) fn sas(place: &Place, expiry: &str) -> String {
    let key = place.connection.split(';').find_map(|part| part.strip_prefix("AccountKey="));
    let signed =
        format!("devstoreaccount1\nraudlcp\ntq\nsco\n\n{expiry}\n\nhttps,http\n2019-02-02\n");
    let mut mac = Hmac::<Sha256>::new_from_slice(&STANDARD.decode(key.unwrap()).unwrap()).unwrap();
    mac.update(signed.as_bytes());
    let signature = STANDARD.encode(mac.finalize().into_bytes());
    let signature = utf8_percent_encode(&signature, NON_ALPHANUMERIC);
    let expiry = utf8_percent_encode(expiry, NON_ALPHANUMERIC);
    format!("sv=2019-02-02&ss=tq&srt=sco&sp=raudlcp&spr=https,http&se={expiry}&sig={signature}")
}

pub(crate) fn with_sas(place: &Place, expiry: &str) -> (AzureOptions, String) {
    let sas = sas(place, expiry);
    let port = place.port();
    let text = format!(
        "TableEndpoint=http://127.0.0.1:{port}/devstoreaccount1;SharedAccessSignature={sas}"
    );
    let connection = Connection::from_string(&text).unwrap();
    let (_, signature) = sas.split_once("sig=").unwrap();
    let options = AzureOptions::new(connection, place.name.clone()).unwrap().create(true);
    (options, signature.to_owned())
}

/// Everything that an error prints.
pub(crate) fn printed(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        text.push_str(&format!(" {source} {source:?}"));
        next = source.source();
    }
    text
}

#[tokio::test]
async fn a_table_that_is_missing_is_created_only_if_asked() {
    let place = Place::new();
    let error = place.options().create(false).open_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains(&place.name), "{error}");
    // Both find it missing, or one finds it half made.
    let (first, second) = tokio::join!(place.options().open_table(), place.options().open_table());
    wrote(&first.unwrap(), put("r", Condition::Absent, "1")).await;
    assert_eq!(text(&second.unwrap(), "r").await.as_deref(), Some("1"));
    let again = place.options().create(false).open_table().await.unwrap();
    assert_eq!(text(&again, "r").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn rows_of_another_process_that_opens_the_table_are_not_foreign() {
    let place = Place::new();
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    // The table has no marker when it is looked for, and has one when its rows are counted.
    let proxy = Proxy::start(place.port(), move |request| match request.contains("$top=1 ") {
        true => Act::ForwardAfter(Arc::clone(&held)),
        false => Act::Forward,
    })
    .await;
    let through = place.through(proxy.port, Duration::from_secs(20)).open();
    let other = async {
        until(|| async { proxy.seen().iter().any(|(_, request)| request.contains("$top=1 ")) })
            .await;
        place.open_table().await;
        gate.add_permits(1);
    };
    let (opened, ()) = tokio::join!(through, other);
    opened.unwrap();
}

/// Sends a request that Quell would not.
async fn send(place: &Place, method: reqwest::Method, path: &str, body: String) -> u16 {
    let (sas, port) = (sas(place, "2099-01-01T00:00:00Z"), place.port());
    let client = Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{port}/devstoreaccount1/{path}?{sas}");
    let request = client.request(method, url).header("content-type", "application/json");
    let request = request.header("accept", "application/json;odata=nometadata");
    request.body(body).send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_table_of_others_is_refused_and_not_written() {
    let place = Place::new();
    let name = place.name.clone();
    let post = |path: &'static str, body| send(&place, reqwest::Method::POST, path, body);
    assert_eq!(post("Tables", format!(r#"{{"TableName":"{name}"}}"#)).await, 201);
    let foreign = r#"{"PartitionKey":"theirs","RowKey":"r"}"#.to_owned();
    assert_eq!(send(&place, reqwest::Method::POST, &name, foreign).await, 201);
    let proxy = Proxy::start(place.port(), |_| Act::Forward).await;
    let error = place.through(proxy.port, Duration::from_secs(10)).open_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign);
    assert!(error.to_string().contains(&name), "{error}");
    assert!(proxy.seen().iter().all(|(_, request)| request.starts_with("GET ")));
    // A store opens in an empty table, whichever program created that.
    let empty = Place::new();
    let table = format!(r#"{{"TableName":"{}"}}"#, empty.name);
    assert_eq!(send(&empty, reqwest::Method::POST, "Tables", table).await, 201);
    empty.options().create(false).open_table().await.unwrap();
}

#[tokio::test]
async fn a_table_of_a_newer_quell_is_refused() {
    let place = Place::new();
    place.open_table().await;
    let marker = format!("{}(PartitionKey='quell',RowKey='format')", place.name);
    let formats = [("3", ErrorKind::Newer), ("1", ErrorKind::Foreign), ("x", ErrorKind::Foreign)];
    for (value, kind) in formats {
        let value = STANDARD.encode(value);
        let body = format!(r#"{{"b":"b","v0@odata.type":"Edm.Binary","v0":"{value}"}}"#);
        assert_eq!(send(&place, reqwest::Method::PUT, &marker, body).await, 204);
        let error = place.options().open_table().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[tokio::test]
async fn a_wrong_key_is_reported_as_such() {
    let mut place = Place::new();
    place.open_table().await;
    let wrong = STANDARD.encode("CANARY");
    let parts = place.connection.split(';').map(|part| match part.starts_with("AccountKey=") {
        true => format!("AccountKey={wrong}"),
        false => part.to_owned(),
    });
    place.connection = parts.collect::<Vec<_>>().join(";");
    let error = place.options().open_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("AccountKey of account \"devstoreaccount1\""), "{error}");
    assert!(!printed(&error).contains(&wrong), "{error:?}");
}

#[tokio::test]
async fn a_sas_token_works_until_it_expires_and_is_never_printed() {
    let place = Place::new();
    let (options, signature) = with_sas(&place, "2099-01-01T00:00:00Z");
    let table = options.clone().open_table().await.unwrap();
    let changes = ["a", "b"].map(|name| put(name, Condition::Absent, "1")).to_vec();
    table.commit(P, changes).await.unwrap();
    assert_eq!(text(&table, "b").await.as_deref(), Some("1"));
    assert!(!format!("{options:?} {table:?}").contains(&signature));
    let facts = format!("{:?}", table.facts());
    assert!(facts.contains("2099-01-01T00:00:00Z") && facts.contains(&place.name), "{facts}");
    assert!(!facts.contains(&signature), "{facts}");

    let (options, signature) = with_sas(&place, "2020-01-01T00:00:00Z");
    let error = options.clone().open_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("expires at 2020-01-01T00:00:00Z"), "{error}");
    assert!(!printed(&error).contains(&signature), "{error:?}");

    // An address that nothing listens on: the URL of the request is part of the client's error.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (options, signature) = with_sas(&place, "2099-01-01T00:00:00Z");
    let away = options.endpoint(&format!("http://127.0.0.1:{free}/devstoreaccount1")).unwrap();
    let error = away.timeout(Duration::from_millis(500)).open_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!printed(&error).contains(&signature), "{error:?}");
}

#[derive(Debug)]
pub(crate) struct Tokens(pub(crate) Option<&'static str>);

#[async_trait]
impl TokenSource for Tokens {
    async fn token(&self) -> quell_core::Result<Secret> {
        let away = || Error::new(ErrorKind::Unavailable, "the identity service is away");
        self.0.map(Secret::new).ok_or_else(away)
    }
}

fn with_tokens(token: Option<&'static str>, endpoint: &str) -> AzureOptions {
    let credentials = Credentials::Token(Arc::new(Tokens(token)));
    let connection = Connection::new("myaccount", credentials).unwrap();
    let options = AzureOptions::new(connection, "quell").unwrap().endpoint(endpoint).unwrap();
    options.timeout(Duration::from_secs(3))
}

#[tokio::test]
async fn a_token_is_sent_by_https_or_on_loopback_and_never_printed() {
    let place = Place::new();
    let proxy = Proxy::start(place.port(), |request| {
        let code = match request.contains("authorization: Bearer CANARY\r\n") {
            true => "AuthorizationPermissionMismatch",
            false => "NoAuthenticationInformation",
        };
        Act::Answer(failure("403 Forbidden", code, ""))
    })
    .await;
    let endpoint = format!("http://127.0.0.1:{}/myaccount", proxy.port);
    let options = with_tokens(Some("CANARY"), &endpoint);
    assert!(!format!("{options:?}").contains("CANARY"));
    let error = options.open_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for part in ["AuthorizationPermissionMismatch", "role Storage Table Data Contributor"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(!printed(&error).contains("CANARY"), "{error:?}");

    let seen = proxy.seen().len();
    let error = with_tokens(None, &endpoint).open_table().await.unwrap_err();
    assert!(error.to_string().contains("the identity service is away"), "{error}");
    let error = with_tokens(Some("CANARY"), "http://example.test").open_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(proxy.seen().len(), seen);
}

#[tokio::test]
async fn a_local_clock_that_is_off_does_not_spoil_signatures() {
    let place = Place::new();
    place.open_table().await;
    // A service whose year is 2031, as the real one sees a caller whose clock is years behind.
    let proxy = Proxy::start(place.port(), |request| {
        match request.contains("x-ms-date: Wed, 01 Jan 2031") {
            true => Act::Forward,
            false => Act::Answer(failure(
                "403 Forbidden",
                "AuthenticationFailed",
                "date: Wed, 01 Jan 2031 12:00:00 GMT\r\n",
            )),
        }
    })
    .await;
    let table = place.through(proxy.port, Duration::from_secs(10)).open_table().await.unwrap();
    wrote(&table, put("r", Condition::Absent, "1")).await;
    let refused = proxy.seen().iter().filter(|(_, head)| !head.contains("2031")).count();
    assert_eq!(refused, 1, "the clock's error is learned once");
}

/// The service takes signatures whose date is up to 15 minutes off.
#[tokio::test]
async fn r39_a_clock_that_is_two_hours_off_does_not_spoil_signatures() {
    for is_ahead in [true, false] {
        let place = Place::new();
        place.open_table().await;
        let services = move || {
            let (now, off) = (Timestamp::now(), SignedDuration::from_hours(2));
            if is_ahead { now + off } else { now - off }
        };
        let proxy = Proxy::start(place.port(), move |request| {
            let date = request.lines().find_map(|line| line.strip_prefix("x-ms-date: ")).unwrap();
            let date = rfc2822::DateTimeParser::new().parse_timestamp(date).unwrap();
            if date.duration_since(services()).abs() < SignedDuration::from_mins(15) {
                return Act::Forward;
            }
            let date = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&services());
            let headers = format!("date: {}\r\n", date.unwrap());
            Act::Answer(failure("403 Forbidden", "AuthenticationFailed", &headers))
        })
        .await;
        let table = place.through(proxy.port, Duration::from_secs(10)).open_table().await.unwrap();
        let seen = proxy.seen().len();
        wrote(&table, put("r", Condition::Absent, "1")).await;
        assert_eq!(proxy.seen().len(), seen + 1, "the clock's error is learned once");
    }
}

#[test]
fn a_url_names_the_table_and_where_the_secrets_are() {
    for (url, expected) in [
        ("azure://devstoreaccount1/quell", "no connection string"),
        ("azure://devstoreaccount1/quell?connection=UNSET_VARIABLE", "no connection string"),
        ("azure://user:CANARY@devstoreaccount1/quell", "give azure://ACCOUNT/TABLE"),
        ("azure://devstoreaccount1", "give azure://ACCOUNT/TABLE"),
        ("azure://devstoreaccount1/quell?sig=CANARY", "\"sig\" is not known"),
        ("azure://devstoreaccount1/quell?CANARY", "a parameter has no `=`"),
        ("azure://devstoreaccount1/quell?timeout_ms=CANARY", "`timeout_ms`: give a number"),
        ("azure://devstoreaccount1/quell?timeout_ms=0", "`timeout_ms`: give a number"),
        ("azure://devstoreaccount1/quell?create=CANARY", "`create`: give true or false"),
        ("azure://devstoreaccount1/quell?set_timer=CANARY", "`set_timer`: give true or false"),
        ("azure://devstoreaccount1/quell?layout=CANARY", "`layout`: give one or queues"),
        ("azure://devstoreaccount1/quell?shards.q=CANARY", "`shards.q`: give a whole number"),
        ("azure://devstoreaccount1/quell?timer=CANARY", "`timer`: give servicebus://HOST/QUEUE"),
        ("azure://devstoreaccount1/quell?native_dedup=CANARY", "`native_dedup`: give the queue's"),
        ("azure://devstoreaccount1/quell?native_dedup=0", "`native_dedup`: give the queue's"),
        ("azure://devstoreaccount1/quell?timer_connection=", "`timer_connection`: give the name"),
        ("azure://devstoreaccount1/quell?connection=", "`connection`: give the name"),
        (
            "azure://devstoreaccount1/quell?connection=A&credential=developer",
            "`connection` and `credential` exclude each other",
        ),
        ("azure://devstoreaccount1/quell?credential=CANARY", "`credential`"),
        ("azure://devstoreaccount1/quell?endpoint=ftp://CANARY", "`endpoint`: give http"),
    ] {
        let error = AzureOptions::from_url(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(error.to_string().contains(expected), "{url}: {error}");
        assert!(!printed(&error).contains("CANARY"), "{error:?}");
    }
}

#[tokio::test]
async fn a_url_opens_a_table_with_the_connection_string_of_a_variable() {
    let place = Place::new();
    let port = place.port();
    let at = format!("{}?connection=QUELL_TEST_AZURITE", place.name);
    let endpoint = format!("endpoint=http%3A%2F%2F127.0.0.1:{port}/devstoreaccount1");
    let url = format!("azure://devstoreaccount1/{at}&{endpoint}&timeout_ms=5000");
    let missing = AzureOptions::from_url(&format!("{url}&create=false")).unwrap();
    let missing = missing.open_table().await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    let table = AzureOptions::from_url(&url).unwrap().open_table().await.unwrap();
    wrote(&table, put("r", Condition::Absent, "1")).await;
    for (more, expected) in [
        ("timer_connection=CANARY", "`timer_connection` is for timer=servicebus://HOST/QUEUE only"),
        (
            "timer=storage-queue://timers&timer_connection=CANARY",
            "`timer_connection` is for timer=servicebus://",
        ),
        ("native_dedup=600", "`native_dedup` is for timer=servicebus://HOST/QUEUE only"),
        ("timer=none&native_dedup=600", "`native_dedup` is for timer=servicebus://"),
        (
            "timer=storage-queue://timers&native_dedup=600",
            "`native_dedup` is for timer=servicebus://",
        ),
        ("timer=storage-queue://T", "queue \"T\": give 3 to 58"),
        (
            "timer=servicebus://ns.test/timers&timer_connection=CANARY",
            "set AZURE_SERVICEBUS_CONNECTION_STRING",
        ),
    ] {
        let refused = AzureOptions::from_url(&format!("{url}&{more}")).unwrap_err();
        assert!(refused.to_string().contains(expected), "{more}: {refused}");
        assert!(!printed(&refused).contains("CANARY"), "{refused:?}");
    }
    let other = AzureOptions::from_url(&format!("azure://anotheraccount/{at}")).unwrap_err();
    assert!(other.to_string().contains("\"anotheraccount\""), "{other}");
    assert!(!format!("{table:?} {other:?}").contains("Eby8vdM0"));
}
