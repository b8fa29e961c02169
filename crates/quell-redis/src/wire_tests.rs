//! A connection that is tried, left and set aside, with a server that does what the test wants.

use std::sync::atomic::AtomicBool;

use redis::{IntoConnectionInfo, ServerErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::*;

/// Answers until the test sets `is_silent`: `WRITE` with a refusal, `SLOW` late.
async fn answer(mut stream: TcpStream, is_silent: Arc<AtomicBool>) {
    let mut chunk = [0_u8; 4_096];
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        if is_silent.load(Ordering::Relaxed) {
            continue;
        }
        let commands = String::from_utf8_lossy(&chunk[..length]).into_owned();
        for command in commands.split('*').skip(1) {
            if command.contains("SLOW") {
                sleep(Duration::from_millis(300)).await;
            }
            let is_write = command.contains("WRITE");
            let answer = if is_write { "-READONLY a replica\r\n" } else { "+OK\r\n" };
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }
}

/// What makes each connection silent.
type Taken = Arc<Mutex<Vec<Arc<AtomicBool>>>>;

/// A server for as long as its task is kept, and what makes the connections silent that it has taken so far.
async fn server() -> (Wire, Taken, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let taken = Taken::default();
    let all = Arc::clone(&taken);
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let is_silent = Arc::<AtomicBool>::default();
            lock(&all).push(Arc::clone(&is_silent));
            connections.spawn(answer(stream, is_silent));
        }
    });
    let source = Source::Address(Box::new(url.into_connection_info().unwrap()));
    (Wire::new(source, Duration::from_secs(8)), taken, task)
}

async fn say(wire: &Wire, word: &str) -> Result<Vec<Value>, Failed> {
    wire.send(Sent::One(&redis::cmd(word)), Instant::now() + Duration::from_secs(8)).await
}

#[tokio::test]
async fn r39_who_comes_while_a_connection_is_tried_waits_for_what_comes_of_it() {
    let (wire, taken, _task) = server().await;
    say(&wire, "READ").await.unwrap();
    lock(&taken).iter().for_each(|is_silent| is_silent.store(true, Ordering::Relaxed));
    // Quiet for so long, it is tried first.
    sleep(TRUSTED).await;
    let (first, second) = tokio::join!(say(&wire, "READ"), say(&wire, "READ"));
    first.unwrap();
    second.unwrap();
}

#[tokio::test]
async fn r39_a_refusal_of_one_call_ends_no_other() {
    let (wire, _taken, _task) = server().await;
    say(&wire, "READ").await.unwrap();
    sleep(LEAST_AGE).await;
    say(&wire, "READ").await.unwrap();
    let (refused, slow) = tokio::join!(say(&wire, "WRITE"), say(&wire, "SLOW"));
    assert!(!refused.unwrap_err().may_be_done);
    slow.unwrap();
}

#[tokio::test]
async fn r39_a_callers_short_deadline_says_nothing_of_the_servers_health() {
    let (wire, taken, _task) = server().await;
    say(&wire, "READ").await.unwrap();
    lock(&taken).iter().for_each(|is_silent| is_silent.store(true, Ordering::Relaxed));
    sleep(TRUSTED).await;
    let before = wire.current().unwrap();
    let soon = Instant::now() + Duration::from_millis(20);
    let failed = wire.send(Sent::One(&redis::cmd("READ")), soon).await.unwrap_err();
    assert!(!failed.may_be_done);
    assert!(Arc::ptr_eq(&before, &wire.current().unwrap()), "the connection was replaced");
    assert!(!wire.has_failed());
}

#[test]
fn r01_what_came_of_a_call_is_judged_by_its_own_answer_and_not_by_that_to_asking() {
    let (pipeline, done) = (redis::pipe(), Value::Okay);
    let said = |line: &[u8]| redis::parse_redis_value(line).unwrap();
    let (no_right, moved) = (said(b"-NOPERM asking\r\n"), said(b"-MOVED 1 h:1\r\n"));
    let kind =
        |answers: &[Value]| refusal(Sent::Asking(&pipeline), answers).map(|error| error.kind());
    assert_eq!(kind(&[no_right.clone(), done.clone()]), None);
    let why = Some(ErrorKind::Server(ServerErrorKind::NoPerm));
    assert_eq!(kind(&[no_right, moved.clone()]), why);
    assert_eq!(kind(&[done, moved]), Some(ErrorKind::Server(ServerErrorKind::Moved)));
}

#[test]
fn r39_answers_of_a_server_that_is_no_master_are_told_from_others() {
    let said = |kind, detail: &str| {
        is_of_another_server(&(ErrorKind::Server(kind), "said", detail.to_owned()).into())
    };
    assert!(said(ServerErrorKind::ReadOnly, "You can't write against a read only replica."));
    assert!(said(ServerErrorKind::BusyLoading, ""));
    assert!(said(ServerErrorKind::MasterDown, ""));
    let wrapped = "Error running script (call to f_0): @user_script:9: -READONLY You can't";
    assert!(said(ServerErrorKind::ResponseError, wrapped));
    assert!(!said(ServerErrorKind::ResponseError, "READONLY is a word"));
    assert!(!said(ServerErrorKind::NoScript, ""));
}
