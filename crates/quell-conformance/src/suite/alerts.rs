//! What alerts are measured by, and the rows that servers change by compare and set.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use quell_core::alert::{Alert, AlertState, LaneOverview, Measure};
use quell_core::{
    AlertName, FailureKind, JobState, NewTrigger, Outcome, QueueName, QueueSettings, TaskSettings,
};

use crate::rig::{Rig, fails, key, keyed, lease, plain, secs, task};

fn name(text: &str) -> AlertName {
    AlertName::new(text).expect("a valid name")
}

fn raised(value: u64) -> AlertState {
    AlertState { raised: true, value, ..AlertState::default() }
}

/// Dead jobs are counted by queue and task, and the oldest of the waiting ones is shown, whatever
/// holds it back.
pub async fn r27_dead_jobs_and_the_oldest_due_one_are_told(mut rig: Rig) {
    let looked = async |rig: &Rig| rig.store.overview(Some(rig.now())).await.expect("looks");
    let empty = looked(&rig).await;
    assert_eq!((empty.now, empty.lanes), (rig.now(), vec![]));
    let other = |payload| NewTrigger {
        task: task("u"),
        queue: QueueName::new("p").expect("a name"),
        partition: Some(key("customer")),
        ..plain(payload)
    };
    for second in [0, 1, 2] {
        rig.at(second).trigger(plain("1")).await;
    }
    for job in rig.at(5).claim().await {
        let last = job.id.get() % 2 == 0;
        let permanent = || match fails(secs(1), true) {
            Outcome::Failed(failure) => {
                Outcome::Failed(quell_core::Failure { kind: FailureKind::Permanent, ..failure })
            }
            outcome => outcome,
        };
        rig.settle(lease(&job), if last { fails(secs(1), true) } else { permanent() }).await;
    }
    // A window that waits for the attempt of its key (R11) is as late as any.
    rig.trigger(keyed("a")).await;
    let run = rig.at(15).claim_one().await;
    rig.trigger(keyed("a")).await;
    rig.at(20).trigger(other("2")).await;
    rig.at(19).trigger(other("3")).await;
    rig.at(40).trigger(other("4")).await;
    let paused = QueueSettings { paused: true, ..QueueSettings::default() };
    rig.store.set_queue(Some(rig.now()), &other("0").queue, &paused).await.expect("sets");
    rig.store
        .set_task(Some(rig.now()), &task("u"), &TaskSettings::default().paused(true))
        .await
        .expect("sets");
    let second = |second| Some(Rig::START + secs(second));
    let lane = |trigger: NewTrigger, dead, first_due| LaneOverview {
        queue: trigger.queue,
        task: trigger.task,
        dead,
        unreadable: 0,
        first_due,
    };
    let seen = looked(&rig).await;
    let (t, u) = (plain("1"), other("2"));
    assert_eq!(seen.lanes, [lane(u.clone(), 0, second(20)), lane(t.clone(), 3, second(25))]);
    // What ends well, and what is redriven, is no one's trouble any more.
    let dead = rig.jobs().await.into_iter().find(|job| job.state == JobState::Dead);
    rig.redrive(dead.expect("a dead job").id).await.expect("redrives");
    rig.renew(lease(&run)).await;
    rig.succeed(&run).await;
    let seen = looked(&rig).await;
    assert_eq!(seen.now, rig.now());
    assert_eq!(seen.lanes, [lane(u, 0, second(20)), lane(t, 2, second(25))]);
}

/// An alert's row is written by a server that has read its version; other servers are refused.
pub async fn r27_an_alerts_row_is_changed_by_who_knows_it(rig: Rig) {
    let set = async |text: &str, version, state: Option<&AlertState>| {
        rig.store.set_alert(&name(text), version, state).await.expect("sets")
    };
    let versions = async || {
        let rows = rig.store.alerts().await.expect("reads").into_iter();
        rows.map(|row| (row.name.to_string(), row.version, row.state.value)).collect::<Vec<_>>()
    };
    assert_eq!(versions().await, vec![]);
    assert!(!set("b", 1, Some(&raised(7))).await, "there is none to change");
    assert!(!set("b", 1, None).await, "nor one to remove");
    assert!(set("b", 0, None).await, "as it was thought to be");
    assert!(set("b", 0, Some(&raised(1))).await);
    assert!(!set("b", 0, Some(&raised(2))).await, "someone was there before");
    assert!(!set("b", 0, None).await, "there is one");
    assert!(set("b", 1, Some(&raised(3))).await);
    assert!(set("a", 0, Some(&raised(4))).await);
    assert!(!set("b", 1, Some(&raised(5))).await, "it has changed since");
    assert_eq!(versions().await, [("a".to_owned(), 1, 4), ("b".to_owned(), 2, 3)]);
    assert!(!set("b", 1, None).await);
    assert!(set("b", 2, None).await);
    assert_eq!(versions().await, [("a".to_owned(), 1, 4)]);
    assert!(set("b", 0, Some(&raised(6))).await, "it begins again");
}

/// Of many servers that see a threshold crossed at once, one raises the alert and one clears it, and
/// each sink has one notice of each.
pub async fn r27_servers_that_race_raise_once_and_clear_once(rig: Rig) {
    let alert = Alert {
        name: name("x"),
        on: Measure::Dead,
        queue: None,
        task: None,
        above: 3,
        clear: 3,
        sinks: BTreeSet::from(["a".to_owned(), "b".to_owned()]),
    };
    for (value, change) in [(4, 1), (3, 2), (9, 3)] {
        let server = async || {
            let rows = rig.store.alerts().await.expect("reads");
            let row = rows.into_iter().find(|row| row.name == alert.name);
            let (version, mut state) =
                row.map_or((0, AlertState::default()), |row| (row.version, row.state));
            tokio::task::yield_now().await;
            if !state.observe(&alert, value, rig.now()) {
                return false;
            }
            rig.store.set_alert(&alert.name, version, Some(&state)).await.expect("sets")
        };
        let changed = join_all((0..8).map(|_| server())).await;
        assert_eq!(changed.iter().filter(|changed| **changed).count(), 1, "{changed:?}");
        let row = rig.store.alerts().await.expect("reads").remove(0);
        assert_eq!((row.version, row.state.changes), (change, change));
        assert_eq!(row.state.raised, value > 3);
        assert_eq!(row.state.notices.len() as u64, 2 * change, "{row:?}");
    }
}
