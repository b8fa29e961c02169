//! Two builds on one store: this commit's program and that of the commit that `compat/earlier.toml`
//! names. Either may have made the store, and they share it, or one takes over what the other left.
//! Where the earlier build is refused, it says so in the words that operators are promised.

mod beside;
mod build;
mod read;
mod server;

use quell::job::AttemptOutcome;

use build::{Build, Kind, Meets};
use server::{Server, refused};

use crate::chaos::{checked, checked_except};

/// What the checker must have judged of two servers that shared a store.
const JUDGED_BESIDE: &[&str] = &[
    "P1", "P2", "P3", "P4", "P6", "P7a", "P8", "P9", "P10", "P11", "P12", "P13", "P17", "P21",
    "P24", "P25", "P26", "P32",
];
/// The same of one that took over from another.
const JUDGED_AFTER: &[&str] = &["P1", "P2", "P3", "P4", "P8", "P10", "P11", "P12", "P32"];

/// One build makes a store and serves it, the other joins, each way; then the first is killed.
async fn share(kind: Kind, first: Build, second: Build) {
    let folder = tempfile::tempdir().unwrap();
    let url = kind.url(folder.path());
    let start = |build| Server::start(build, folder.path(), &url);
    let one = start(first);
    if is_refused(kind, second) {
        return assert_refused(&refused(second, folder.path(), &url));
    }
    let two = start(second);
    let earlier = if first == Build::Earlier { one.pid() } else { two.pid() };
    for (runs, asked) in [(&two, &one), (&one, &two)] {
        beside::runs_what_the_other_is_asked(runs, asked).await;
        beside::respects_the_lease_of_the_other(runs, asked).await;
    }
    beside::share_limits_and_schedules(&one, &two).await;
    read::agree(&url, &one, &two, |build| !is_refused(kind, build)).await;
    let slot = two.take_slot().await;
    let left = beside::leave_work(&one).await;
    one.kill();
    slot.free().await;
    assert_eq!(beside::does_what_was_left(&two, &left).await, AttemptOutcome::LeaseExpired.name());
    two.stop();
    // What the earlier build is known to break is excused where its own events show it.
    let (defects, by) = (kind.known_defects(), format!("{{\"p\":\"{earlier}-"));
    checked_except(folder.path(), &url, JUDGED_BESIDE, |property, event| {
        defects.iter().any(|known| known == property) && event.starts_with(&by)
    });
}

/// One build makes a store, works and ends in order; the other takes over.
async fn hand_over(kind: Kind, first: Build, second: Build) {
    let folder = tempfile::tempdir().unwrap();
    let url = kind.url(folder.path());
    let one = Server::start(first, folder.path(), &url);
    let left = beside::leave_work(&one).await;
    one.command(first, &["schedule", "pause", "beat"]);
    one.stop();
    if is_refused(kind, second) {
        return assert_refused(&refused(second, folder.path(), &url));
    }
    let two = Server::start(second, folder.path(), &url);
    assert_eq!(two.get("/v1/schedules/beat").await["state"], "paused");
    assert_eq!(beside::does_what_was_left(&two, &left).await, "released");
    two.stop();
    checked(folder.path(), &url, JUDGED_AFTER);
}

/// Whether a build may not start on a store that the other has opened.
fn is_refused(kind: Kind, build: Build) -> bool {
    build == Build::Earlier && kind.meets() == Meets::RunsOn
}

/// An older build that meets a newer store names both versions and the remedy.
fn assert_refused(said: &str) {
    let words = ["version ", "this Quell knows up to ", "update"];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

#[tokio::test]
async fn a_new_build_joins_an_earlier_one_on_sqlite() {
    share(Kind::Sqlite, Build::Earlier, Build::New).await;
}

#[tokio::test]
async fn an_earlier_build_joins_a_new_one_on_sqlite() {
    share(Kind::Sqlite, Build::New, Build::Earlier).await;
}

#[tokio::test]
async fn a_new_build_takes_over_from_an_earlier_one_on_sqlite() {
    hand_over(Kind::Sqlite, Build::Earlier, Build::New).await;
}

#[tokio::test]
async fn an_earlier_build_takes_over_from_a_new_one_on_sqlite() {
    hand_over(Kind::Sqlite, Build::New, Build::Earlier).await;
}

#[tokio::test]
async fn a_new_build_joins_an_earlier_one_on_postgres() {
    share(Kind::Postgres, Build::Earlier, Build::New).await;
}

#[tokio::test]
async fn an_earlier_build_joins_a_new_one_on_postgres() {
    share(Kind::Postgres, Build::New, Build::Earlier).await;
}

#[tokio::test]
async fn a_new_build_takes_over_from_an_earlier_one_on_postgres() {
    hand_over(Kind::Postgres, Build::Earlier, Build::New).await;
}

#[tokio::test]
async fn an_earlier_build_takes_over_from_a_new_one_on_postgres() {
    hand_over(Kind::Postgres, Build::New, Build::Earlier).await;
}

#[tokio::test]
async fn a_new_build_joins_an_earlier_one_on_redis() {
    share(Kind::Redis, Build::Earlier, Build::New).await;
}

#[tokio::test]
async fn an_earlier_build_joins_a_new_one_on_redis() {
    share(Kind::Redis, Build::New, Build::Earlier).await;
}

#[tokio::test]
async fn a_new_build_takes_over_from_an_earlier_one_on_redis() {
    hand_over(Kind::Redis, Build::Earlier, Build::New).await;
}

#[tokio::test]
async fn an_earlier_build_takes_over_from_a_new_one_on_redis() {
    hand_over(Kind::Redis, Build::New, Build::Earlier).await;
}

#[tokio::test]
async fn a_new_build_joins_an_earlier_one_on_azure() {
    share(Kind::Azure, Build::Earlier, Build::New).await;
}

#[tokio::test]
async fn an_earlier_build_joins_a_new_one_on_azure() {
    share(Kind::Azure, Build::New, Build::Earlier).await;
}

#[tokio::test]
async fn a_new_build_takes_over_from_an_earlier_one_on_azure() {
    hand_over(Kind::Azure, Build::Earlier, Build::New).await;
}

#[tokio::test]
async fn an_earlier_build_takes_over_from_a_new_one_on_azure() {
    hand_over(Kind::Azure, Build::New, Build::Earlier).await;
}
