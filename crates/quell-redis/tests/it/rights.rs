//! The rights that `docs/redis.md` lists are enough for every kind of call, on one node and on a
//! Cluster, and each of them is needed (R40).

use quell_conformance::Rig;
use quell_conformance::rig::{fails, key, keyed, lease, plain, queue, secs, task, until};
use quell_core::alert::AlertState;
use quell_core::dedup::Dedup;
use quell_core::idempotency::Idempotency;
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{
    AlertName, Batch, DeadFilter, EffectName, ErrorKind, ExplainTarget, JobFilter, NewTrigger,
    Outcome, Payload, QueueSettings, Result, Retention, ScheduleName, Settlement, Store, Timestamp,
};
use quell_services::Redis;

use crate::place::{Place, server};
use crate::refused::full_text;
use crate::wake::received;

/// Without these a store opens and works: it logs less, waits for no replica, or meets no contention.
const SPARED: [&str; 4] = ["+info", "+config|get", "+wait", "+incrby"];
/// What a Cluster needs besides, as the page says.
const OF_A_CLUSTER: [&str; 2] = ["+cluster|slots", "+asking"];

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
    store.set_queue(Some(Rig::START), &queue(), &QueueSettings::default()).await?;
    store.set_schedule(now, &schedule()).await?;
    let triggers = vec![plain("1"), keyed("k"), plain("2"), plain("3")];
    let batch = Batch { triggers, dedup: None };
    store.enqueue(now, vec![batch]).await?.remove(0)?;
    store.flush(now, &task("t"), &key("k")).await?;
    let jobs = store.claim(now, &Rig::claim_of(9)).await?.jobs;
    let [one, two, three, four] = &jobs[..] else { panic!("{jobs:?}") };
    store.renew(now, &[lease(one)], Rig::LEASE).await?;
    let (name, charge) = (AlertName::new("late").unwrap(), EffectName::new("charge").unwrap());
    store.begin_effect(now, &lease(one), &charge, &key("e")).await?;
    store.end_effect(now, &lease(one), &charge, &Payload::from_stored("1")).await?;
    store.set_alert(&name, 0, Some(&AlertState::default())).await?;
    store.overview(now).await?;
    let (dies, fails) = (fails(secs(1), true), fails(secs(1), false));
    let ends = [(one, Outcome::succeeded()), (two, dies.clone()), (three, fails), (four, dies)];
    let ends = ends.map(|(job, outcome)| Settlement { lease: lease(job), outcome });
    store.settle(now, ends.to_vec()).await?;
    store.explain(None, &ExplainTarget::Job(one.id)).await?;
    store.explain(None, &ExplainTarget::Key { task: Some(task("t")), key: key("k") }).await?;
    store.jobs(&JobFilter::default()).await?;
    store.counts().await?;
    store.queues().await?;
    store.dead(&DeadFilter::default()).await?;
    // It goes on after the first portion.
    let of_none = DeadFilter { task: Some(task("none")), limit: 1, ..DeadFilter::default() };
    store.dead(&of_none).await?;
    store.redrive(now, &two.id.into()).await?;
    store.reap(later, 9).await?;
    store.tick(later, 9).await?;
    store.delete_schedule(later, &schedule().name).await?;
    store.cancel(now, two.id, "enough").await?;
    let keep = Retention { succeeded: Some(secs(1)), dead: Some(secs(1)) };
    store.prune(later, &keep, 99).await?;
    Ok(())
}

fn schedule() -> Schedule {
    let spec = Spec::every(secs(10), Timestamp::from_secs(0)).unwrap();
    let name = ScheduleName::new("beat").unwrap();
    Schedule { name, spec, catch_up: CatchUp::All, trigger: keyed("tick"), declared: None }
}

/// What is kept beside jobs, too.
async fn do_more(store: &dyn Store) -> Result<()> {
    let now = Some(Rig::START);
    let (dedup, idempotency) = (Some(Dedup::new(key("d"))), Some(Idempotency::new(key("i"))));
    let named = NewTrigger { dedup, idempotency, ..plain("1") };
    store.enqueue(now, vec![Batch::one(named)]).await?.remove(0)?;
    // As workers do, by the server's clock.
    store.enqueue(None, vec![Batch::one(plain("2"))]).await?.remove(0)?;
    // The idempotency key has expired, and its job waits.
    store.prune(None, &Retention::default(), 9).await.map(drop)
}

/// A user with these rights, but for what is taken away.
fn user(server: &Redis, name: &str, more: &[&str]) -> String {
    let rules = rules();
    let rules = rules.iter().map(String::as_str);
    let words: Vec<&str> =
        ["ACL", "SETUSER", name, "reset", "on", ">secret"].into_iter().chain(rules).collect();
    server.command(&[&words[..], more].concat()).unwrap();
    format!("{name}:secret@{}", server.address())
}

async fn works(place: &Place) {
    let (store, other) = (place.open().await, place.open().await);
    let mut wakeups = other.wakeups();
    do_all(&store).await.unwrap();
    received(&mut wakeups, false).await;
    do_more(&store).await.unwrap();
}

#[tokio::test]
async fn r40_the_rights_on_the_page_are_enough_on_one_node() {
    let server = server(&[]);
    let url = format!("redis://{}/", user(&server, "quell", &[]));
    works(&Place { url, prefix: "quell".to_owned() }).await;
}

#[tokio::test]
async fn r40_the_rights_on_the_page_are_enough_on_a_cluster() {
    let server = server(&["cluster-enabled yes"]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).unwrap();
    until("the Cluster is up", async || {
        server.command(&["CLUSTER", "INFO"]).unwrap().contains("cluster_state:ok")
    })
    .await;
    let page = include_str!("../../../../docs/redis.md");
    assert!(page.contains(&OF_A_CLUSTER.join(" ")), "the page says so");
    let url = format!("redis-cluster://{}", user(&server, "quell", &OF_A_CLUSTER));
    works(&Place { url, prefix: "quell".to_owned() }).await;
}

#[tokio::test]
async fn r40_each_right_on_the_page_is_needed() {
    let server = server(&[]);
    let rights = rules().into_iter().filter(|rule| rule.starts_with('+'));
    let commands = rights.filter(|right| !SPARED.contains(&right.as_str()));
    let without = commands.map(|right| right.replacen('+', "-", 1));
    let others = ["resetkeys", "resetchannels"].map(str::to_owned);
    let mut spare = Vec::new();
    for less in without.chain(others) {
        server.command(&["FLUSHALL"]).unwrap();
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let url = format!("redis://{}/", user(&server, "less", &[&less]));
        let place = Place { url, prefix: "quell".to_owned() };
        let answer = match place.options().open().await {
            Ok(store) => match do_all(&store).await {
                Ok(()) => do_more(&store).await,
                refused => refused,
            },
            Err(error) => Err(error),
        };
        let Err(error) = answer else {
            spare.push(less);
            continue;
        };
        let said = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{less}: {}", full_text(&error));
        assert!(said.contains("right") && said.contains("docs/redis.md"), "{}", full_text(&error));
    }
    assert_eq!(spare, Vec::<String>::new(), "not needed");
    // Another prefix's keys are not this user's.
    let url = format!("redis://{}/", user(&server, "less", &[]));
    let error = Place { url, prefix: "other".to_owned() }.options().open().await.unwrap_err();
    assert!(error.to_string().contains("right"), "{}", full_text(&error));
}
