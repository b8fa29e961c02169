//! Notifications between processes about ends that callers wait for (R19): as few as are needed.

use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::rig::plain;
use quell_core::{JobId, Store};
use sqlx::postgres::PgListener;

use crate::scene::Scene;

/// Receives notifications until one of work in the queue `last` comes, and returns the words of those
/// that begin with `wait` or `ended`, without their origins.
async fn ends_received(listener: &mut PgListener) -> Vec<Vec<String>> {
    let mut reported = Vec::new();
    loop {
        let received = tokio::time::timeout(Duration::from_secs(20), listener.recv()).await;
        let hint = received.expect("the last hint comes").unwrap();
        let mut words: Vec<String> = hint.payload().split(' ').map(str::to_owned).collect();
        if words.last().is_some_and(|queue| queue == "last") {
            return reported;
        }
        if ["wait", "ended"].contains(&words[0].as_str()) {
            words.remove(1);
            reported.push(words);
        }
    }
}

#[tokio::test]
async fn r19_ends_that_nobody_waits_for_are_not_told_and_others_once() {
    let scene = Scene::new();
    let waits = scene.store().await;
    let rig = scene.rig().await;
    let channel = scene.sql(&format!(
        "select substring(prosrc from 'quell_[0-9a-f]{{16}}') from pg_proc
          where pronamespace = '{}'::regnamespace and prosrc like '%pg_notify%' limit 1",
        scene.schema(),
    ));
    let last = || drop(scene.sql(&format!("select pg_notify('{channel}', '0 0 last')")));
    let mut listener = PgListener::connect(scene.plain_url()).await.unwrap();
    listener.listen(&channel).await.unwrap();
    let mut begun = PgListener::connect(scene.plain_url()).await.unwrap();
    begun.listen(&channel).await.unwrap();
    let mut jobs: Vec<JobId> = Vec::new();
    for _ in 0..5 {
        jobs.extend(rig.trigger(plain("1")).await.job());
    }
    let (first, second) = (jobs[1], jobs[3]);
    let mut ended = [waits.ended(first), waits.ended(second), waits.ended(first)];
    let brief = waits.ended(jobs[0]);
    drop(brief);
    // Notifications reach all processes in one order: once the last is received there, so are those before.
    let mut received = rig.store.wakeups();
    tokio::time::timeout(Duration::from_secs(20), async {
        while !begun.recv().await.unwrap().payload().starts_with("wait") {}
        last();
        while received.next().await.unwrap().queue.is_none_or(|queue| queue.as_str() != "last") {}
    })
    .await
    .expect("the other process knows of the wait");
    let reported = ends_received(&mut listener).await;
    assert_eq!(reported, [["wait", &first.to_string(), &second.to_string()]]);
    let (mut runs, last_run): (Vec<_>, Vec<_>) =
        rig.claim().await.into_iter().partition(|run| run.id != second);
    runs.extend(last_run);
    for run in &runs {
        rig.succeed(run).await;
    }
    for ended in &mut ended {
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("it is notified");
    }
    last();
    let reported = ends_received(&mut listener).await;
    assert!(reported.iter().all(|words| words[0] == "ended"), "{reported:?}");
    let jobs: Vec<&String> = reported.iter().flat_map(|words| &words[1..]).collect();
    assert_eq!(jobs, [&first.to_string(), &second.to_string()], "{reported:?}");
}
