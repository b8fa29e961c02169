//! Timers in a queue of Azure Storage, on Azurite.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quell_azure::{Connection, Credentials, StorageQueue, StorageQueueOptions};
use quell_core::ErrorKind;
use quell_portable::Timer;
use reqwest::{Client, Method, Response};

use crate::opening::{Tokens, printed, sas};
use crate::proxy::{Act, Proxy, failure};
use crate::server::Place;
use crate::timers::{
    PATIENCE, Queue, message, none, now, one, send, send_now, text, timer_contract,
};

/// On a busy machine, Azurite is slow.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A queue of Azurite that no other test has.
pub(crate) struct StoredQueue {
    pub(crate) place: Place,
    lock: Duration,
}

impl Queue for StoredQueue {
    async fn new(lock: Duration) -> Self {
        let queue = StoredQueue { place: Place::new(), lock };
        queue.open().await;
        queue
    }

    fn lock(&self) -> Duration {
        self.lock
    }

    async fn timer(&self) -> Arc<dyn Timer> {
        Arc::new(self.options().open().await.unwrap())
    }

    async fn count(&self) -> Option<usize> {
        Some(self.messages().await)
    }

    async fn dead(&self) -> Option<Vec<String>> {
        let dead = self.dead_letters().await.into_iter();
        Some(dead.map(|text| text.split_once('\n').unwrap().0.to_owned()).collect())
    }
}

timer_contract!(StoredQueue);

impl StoredQueue {
    pub(crate) fn options(&self) -> StorageQueueOptions {
        let connection = Connection::from_string(&self.place.connection).unwrap();
        let options = StorageQueueOptions::new(connection, self.place.name.clone()).unwrap();
        options.timeout(TIMEOUT).lock(self.lock)
    }

    pub(crate) async fn open(&self) -> StorageQueue {
        self.options().create(true).open().await.unwrap()
    }

    /// The port of the server's queues.
    pub(crate) fn port(&self) -> u16 {
        let connection = &self.place.connection;
        let (_, rest) = connection.split_once("QueueEndpoint=http://127.0.0.1:").unwrap();
        rest.split('/').next().unwrap().parse().unwrap()
    }

    /// The queue as seen through the server on this port of the loopback address.
    pub(crate) fn through(&self, port: u16) -> StorageQueueOptions {
        self.options().endpoint(&format!("http://127.0.0.1:{port}/devstoreaccount1")).unwrap()
    }

    /// Sends a request that Quell would not, to this queue or one whose name has this suffix.
    pub(crate) async fn raw(&self, method: Method, suffix: &str, body: String) -> Response {
        let (sas, port) = (sas(&self.place, "2099-01-01T00:00:00Z"), self.port());
        let and = if suffix.contains('?') { '&' } else { '?' };
        let name = &self.place.name;
        let url = format!("http://127.0.0.1:{port}/devstoreaccount1/{name}{suffix}{and}{sas}");
        let client = Client::builder().no_proxy().build().unwrap();
        let request = client.request(method, url).header("content-type", "application/xml");
        let answer = request.body(body).send().await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
        answer
    }

    /// How many messages it has, whether they are locked or not.
    pub(crate) async fn messages(&self) -> usize {
        self.count_of("").await
    }

    pub(crate) async fn count_of(&self, suffix: &str) -> usize {
        let query = format!("{suffix}?comp=metadata");
        let answer = self.raw(Method::GET, &query, String::new()).await;
        let count = answer.headers().get("x-ms-approximate-messages-count").unwrap();
        count.to_str().unwrap().parse().unwrap()
    }

    pub(crate) async fn dead_letters(&self) -> Vec<String> {
        let query = "-dead/messages?peekonly=true&numofmessages=32";
        let answer = self.raw(Method::GET, query, String::new()).await.text().await.unwrap();
        let xml = roxmltree::Document::parse(answer.trim_start_matches('\u{feff}')).unwrap();
        let texts = xml.descendants().filter(|node| node.has_tag_name("MessageText"));
        let text = |text: &str| String::from_utf8(STANDARD.decode(text).unwrap()).unwrap();
        texts.map(|node| text(node.text().unwrap())).collect()
    }
}

#[tokio::test]
async fn a_time_that_is_too_far_away_is_met_in_steps() {
    let queue = StoredQueue::new(Duration::from_secs(300)).await;
    let proxy = Proxy::start(queue.port(), |_| Act::Forward).await;
    let timer = queue.through(proxy.port).open().await.unwrap();
    let far = now() + Duration::from_secs(30 * 24 * 60 * 60);
    timer.schedule(&message("far"), now(), far).await.unwrap();
    let line = proxy.seen().pop().unwrap().1;
    assert!(line.contains("visibilitytimeout=604800&messagettl=%2D1 "), "{line}");
    assert_eq!(queue.messages().await, 1);
    // A message whose first step ends early, as far as the service knows.
    let at = now() + Duration::from_secs(8);
    let step = at.before(Duration::from_secs(1));
    timer.schedule(&message("later"), step, at).await.unwrap();
    let received = one(&timer).await;
    assert!(now() >= at, "it came early");
    assert_eq!((text(&received), received.deliveries), ("later", 1));
    let puts = proxy.seen().into_iter().filter(|(_, request)| request.starts_with("PUT "));
    assert_eq!(puts.count(), 1, "it was put off once");
    timer.complete(&received.delivery).await.unwrap();
}

#[tokio::test]
async fn an_idle_receiver_asks_as_often_as_it_says() {
    let queue = StoredQueue::new(Duration::from_secs(300)).await;
    let proxy = Proxy::start(queue.port(), |_| Act::Forward).await;
    let pause = Duration::from_millis(400);
    let timer = queue.through(proxy.port).longest_pause(pause).open().await.unwrap();
    let asked = || {
        let seen = proxy.seen().into_iter();
        let receives = seen.filter(|(_, request)| request.contains("visibilitytimeout="));
        receives.map(|(time, _)| time).collect::<Vec<Instant>>()
    };
    assert_eq!(timer.receive(1, pause * 5).await.unwrap(), []);
    // At 0, 100, 300, 700, 1100, 1500 and 1900 ms, or later.
    let times = asked();
    assert!((1..=7).contains(&times.len()), "{}", times.len());
    let least = [100, 200, 400, 400, 400, 400].map(Duration::from_millis);
    for (pair, least) in times.windows(2).zip(least) {
        assert!(pair[1] - pair[0] >= least, "{:?} after {least:?}", pair[1] - pair[0]);
    }
    // Idle calls go on with the longest pause.
    let before = asked().len();
    assert_eq!(timer.receive(1, pause * 5).await.unwrap(), []);
    assert!((1..=6).contains(&(asked().len() - before)), "{}", asked().len() - before);
    send(&timer, "x").await;
    let received = one(&timer).await;
    timer.complete(&received.delivery).await.unwrap();
    none(&timer).await;
}

/// Azure refuses requests without it; Azurite does not.
#[tokio::test]
async fn every_request_to_put_has_a_length() {
    let queue = StoredQueue { place: Place::new(), lock: Duration::from_secs(60) };
    let proxy = Proxy::start(queue.port(), |_| Act::Forward).await;
    let timer = queue.through(proxy.port).create(true).open().await.unwrap();
    send(&timer, "x").await;
    timer.renew(&one(&timer).await.delivery).await.unwrap();
    let seen = proxy.seen().into_iter().map(|(_, request)| request);
    let puts: Vec<String> = seen.filter(|request| request.starts_with("PUT ")).collect();
    assert_eq!(puts.len(), 3);
    assert!(puts.iter().all(|put| put.contains("\r\ncontent-length: 0\r\n")), "{puts:?}");
}

#[tokio::test]
async fn messages_of_others_are_delivered_without_a_body() {
    let queue = StoredQueue::new(Duration::from_secs(300)).await;
    let timer = queue.open().await;
    let body = "<QueueMessage><MessageText>a &lt;b&gt; ä</MessageText></QueueMessage>";
    queue.raw(Method::POST, "/messages", body.to_owned()).await;
    let received = one(&timer).await;
    assert_eq!((received.body.as_slice(), received.deliveries), ([].as_slice(), 1));
    let delivery = timer.renew(&received.delivery).await.unwrap();
    timer.dead_letter(&delivery, "two\nlines").await.unwrap();
    assert_eq!(queue.dead_letters().await, ["two lines\na <b> ä"]);
    assert_eq!(queue.messages().await, 0);
}

#[tokio::test]
async fn a_queue_that_is_missing_is_created_only_if_asked() {
    let queue = StoredQueue { place: Place::new(), lock: Duration::from_secs(60) };
    let error = queue.options().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let expected = format!("queue {:?} does not exist: create it", queue.place.name);
    assert!(error.to_string().contains(&expected), "{error}");
    let (first, second) = tokio::join!(queue.open(), queue.open());
    send(&first, "x").await;
    let received = one(&second).await;
    let again = queue.options().open().await.unwrap();
    // Both queues are needed; one that goes later is no lock that was lost.
    queue.raw(Method::DELETE, "-dead", String::new()).await;
    let error = queue.options().open().await.unwrap_err();
    assert!(error.to_string().contains("-dead\" does not exist"), "{error}");
    let error = again.dead_letter(&received.delivery, "r").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    again.complete(&received.delivery).await.unwrap();
    queue.raw(Method::DELETE, "", String::new()).await;
    for error in [
        again.receive(1, PATIENCE).await.unwrap_err(),
        again.complete(&received.delivery).await.unwrap_err(),
        send_now(&again, &message("x")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("does not exist"), "{error}");
    }
}

#[tokio::test]
async fn options_that_no_queue_has_are_refused() {
    let connection = || Connection::from_string("UseDevelopmentStorage=true").unwrap();
    let long = "a".repeat(59);
    for name in ["", "ab", "Timers", "a_b", "-ab", "ab-", "a--b", "a/b", &long] {
        let error = StorageQueueOptions::new(connection(), name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
    }
    for lock in [Duration::ZERO, Duration::from_secs(604_801)] {
        let options = StorageQueueOptions::new(connection(), "timers-1").unwrap().lock(lock);
        let error = options.open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("one second to seven days"), "{error}");
    }
    let tables = "TableEndpoint=https://x.test;SharedAccessSignature=sig=CANARY";
    let options = StorageQueueOptions::new(Connection::from_string(tables).unwrap(), "timers");
    let error = options.unwrap().open().await.unwrap_err();
    assert!(error.to_string().contains("no QueueEndpoint"), "{error}");
    assert!(!printed(&error).contains("CANARY"), "{error:?}");
}

#[tokio::test]
async fn credentials_of_each_kind_open_a_queue_and_are_never_printed() {
    let queue = StoredQueue::new(Duration::from_secs(300)).await;
    let at = format!("http://127.0.0.1:{}/devstoreaccount1", queue.port());
    let with_sas = |expiry: &str| {
        let text =
            format!("QueueEndpoint={at};SharedAccessSignature={}", sas(&queue.place, expiry));
        let connection = Connection::from_string(&text).unwrap();
        let options = StorageQueueOptions::new(connection, queue.place.name.clone()).unwrap();
        options.timeout(TIMEOUT)
    };
    let timer = with_sas("2099-01-01T00:00:00Z").open().await.unwrap();
    send(&timer, "x").await;
    let received = one(&timer).await;
    let delivery = timer.renew(&received.delivery).await.unwrap();
    timer.dead_letter(&delivery, "r").await.unwrap();
    assert!(!format!("{timer:?}").contains("sig="));
    let error = with_sas("2020-01-01T00:00:00Z").open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("expires at 2020-01-01T00:00:00Z"), "{error}");
    assert!(!printed(&error).contains("sig="), "{error:?}");

    let wrong = format!(
        "AccountName=devstoreaccount1;AccountKey={};QueueEndpoint={at}",
        STANDARD.encode("CANARY")
    );
    let connection = Connection::from_string(&wrong).unwrap();
    let error = StorageQueueOptions::new(connection, "timers").unwrap().open().await.unwrap_err();
    assert!(error.to_string().contains("AccountKey of account \"devstoreaccount1\""), "{error}");
    assert!(!printed(&error).contains(&STANDARD.encode("CANARY")), "{error:?}");

    let proxy = Proxy::start(queue.port(), |request| {
        assert!(request.contains("authorization: Bearer CANARY\r\n"), "{request}");
        Act::Answer(failure("403 Forbidden", "AuthorizationPermissionMismatch", ""))
    })
    .await;
    let source = Credentials::Token(Arc::new(Tokens(Some("CANARY"))));
    let connection = Connection::new("myaccount", source).unwrap();
    let options = StorageQueueOptions::new(connection, "timers").unwrap();
    let options = options.endpoint(&format!("http://127.0.0.1:{}/myaccount", proxy.port)).unwrap();
    assert!(!format!("{options:?}").contains("CANARY"));
    let error = options.open().await.unwrap_err();
    assert!(error.to_string().contains("role Storage Queue Data Contributor"), "{error}");
    assert!(!printed(&error).contains("CANARY"), "{error:?}");
}
