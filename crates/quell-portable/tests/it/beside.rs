//! The row of an open window beside that of its key: a trigger reads both at once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_conformance::rig::{debounce, key, keyed_with, queue, task};
use quell_core::window::{Debounce, Thresholds};
use quell_core::{Fold, NewTrigger, QueueSettings, Steps};
use quell_portable::{Change, Condition, Table};

use crate::between::{Call, at, damage, enqueue, names, start, two};

fn window(payload: &str) -> NewTrigger {
    keyed_with("k", debounce(), Fold::Collect { cap: 100 }, payload)
}

#[tokio::test]
async fn r01_a_trigger_reads_one_row_and_makes_one_batch() {
    let two = two();
    let opened = enqueue(&two.first, 0, window("1")).await.job();
    let calls: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&calls);
    let record = move |call: &Call<'_>| {
        let call = match call {
            Call::Get(rows) => format!("get {}", rows.join(" ")),
            Call::Range(range) => format!("range {}", range.from),
            Call::Commit(_) => "commit".to_owned(),
        };
        seen.lock().unwrap().push(call);
        false
    };
    two.between.before(record, async {});
    assert_eq!(enqueue(&two.first, 1, window("2")).await.job(), opened);
    assert_eq!(*calls.lock().unwrap(), ["get k:t:k", "commit"], "a trigger that joins");
    calls.lock().unwrap().clear();
    enqueue(&two.first, 1, keyed_with("l", debounce(), Fold::Last, "1")).await;
    assert_eq!(*calls.lock().unwrap(), ["get k:t:l", "commit"], "a trigger that opens a window");
    let job = two.second.job(opened.unwrap()).await.unwrap().unwrap();
    assert_eq!(job.payload.as_str(), "[1,2]");
}

/// A join sees the open window beside its key, and commits after another process has started it.
#[tokio::test]
async fn r01_r10_a_trigger_never_joins_a_window_that_has_started() {
    let two = two();
    let opened = enqueue(&two.first, 0, window("1")).await.job().unwrap();
    let second = Arc::clone(&two.second);
    two.between.before(|call| call.commits(), async move {
        assert_eq!(start(&*second, 100, 1).await.len(), 1);
    });
    let joined = enqueue(&two.first, 100, window("2")).await.job().unwrap();
    assert!(two.between.has_come());
    assert_ne!(joined, opened, "it has started without this trigger");
    let started = two.second.job(opened).await.unwrap().unwrap();
    assert_eq!(started.payload.as_str(), "[1]");
}

/// Both see the same window beside its key, and one commits first.
#[tokio::test]
async fn r01_two_processes_that_join_a_window_at_once_lose_no_trigger() {
    let two = two();
    let opened = enqueue(&two.first, 0, window("1")).await.job().unwrap();
    let second = Arc::clone(&two.second);
    two.between.before(|call| call.commits(), async move {
        enqueue(&*second, 1, window("2")).await;
    });
    enqueue(&two.first, 1, window("3")).await;
    assert!(two.between.has_come());
    let job = two.second.job(opened).await.unwrap().unwrap();
    assert_eq!(job.payload.as_str(), "[1,2,3]");
}

#[tokio::test]
async fn r10_a_window_grows_beyond_what_stands_beside_its_key_and_is_joined_on() {
    let two = two();
    let long = |letter: &str| window(&format!("\"{}\"", letter.repeat(3_000)));
    let mut opened = None;
    for (second, letter) in (0..).zip(["a", "b", "c", "d", "e"]) {
        let job = enqueue(&two.first, second, long(letter)).await.job();
        assert_eq!(*opened.get_or_insert(job), job, "each joins the first");
    }
    let job = two.second.job(opened.flatten().unwrap()).await.unwrap().unwrap();
    let elements: Vec<String> = serde_json::from_str(job.payload.as_str()).unwrap();
    assert_eq!(elements.len(), 5);
}

/// What stands beside the key is of a newer build; the row itself is not.
#[tokio::test]
async fn r25_a_trigger_reads_the_row_where_what_stands_beside_its_key_cannot_be_decoded() {
    let two = two();
    let opened = enqueue(&two.first, 0, window("1")).await.job();
    let name = names(&two.table, "k:").await;
    let row = two.table.get("p", &name).await.unwrap().pop().unwrap().unwrap();
    let text = std::str::from_utf8(&row.value).unwrap();
    let (of_key, copy) = text.split_once('\n').unwrap();
    let value = format!("{of_key}\n{}", copy.replace("\"priority\":0", "\"priority\":\"?\""));
    assert_ne!(value, text, "nothing was damaged");
    let value = Some(value.into_bytes().into());
    let change = Change { row: row.name, condition: Condition::Any, value };
    two.table.commit("p", vec![change]).await.unwrap();
    assert_eq!(enqueue(&two.first, 1, window("2")).await.job(), opened);
    let job = two.second.job(opened.unwrap()).await.unwrap().unwrap();
    assert_eq!(job.payload.as_str(), "[1,2]");
}

/// A claim sees the row itself: what stands beside the key hides no damage from it.
#[tokio::test]
async fn r25_a_claim_sees_that_the_row_of_an_open_window_cannot_be_decoded() {
    let two = two();
    let id = enqueue(&*two.second, 0, window("1")).await.job().unwrap();
    damage(&two.table, id, |text| text.replace("\"priority\":0", "\"priority\":\"?\"")).await;
    assert_eq!(start(&*two.second, 100, 1).await.len(), 0);
    let opened = enqueue(&*two.second, 101, window("2")).await.job().unwrap();
    assert_ne!(opened, id, "what cannot be decoded takes nothing in");
}

/// A process that knows that a queue exists still reads what its settings say.
#[tokio::test]
async fn r14_r32_new_thresholds_of_a_queue_hold_for_the_next_trigger_of_each_process() {
    let two = two();
    let default = Debounce { from_default: true, ..debounce() };
    let trigger = |of: &str| keyed_with(of, default, Fold::Last, "1");
    enqueue(&two.first, 0, trigger("a")).await;
    let hour = Duration::from_secs(3_600);
    let debounce = Some(Thresholds::new(hour, hour).unwrap());
    let settings = QueueSettings { debounce, ..QueueSettings::default() };
    two.second.set_queue(at(0), &queue(), &settings).await.unwrap();
    let id = enqueue(&two.first, 0, trigger("b")).await.job().unwrap();
    let job = two.second.job(id).await.unwrap().unwrap();
    assert_eq!(Some(job.window.due_at), at(3_600));
}

/// A trigger of a process that knows a queue and a task leaves their settings as they are.
#[tokio::test]
async fn r32_triggers_of_a_process_that_knows_a_queue_change_none_of_its_settings() {
    let two = two();
    enqueue(&two.first, 0, window("1")).await;
    let settings = QueueSettings { paused: true, ..QueueSettings::default() };
    two.second.set_queue(at(0), &queue(), &settings).await.unwrap();
    let paused = quell_core::TaskSettings::default().paused(true);
    two.second.set_task(at(0), &task("t"), &paused).await.unwrap();
    enqueue(&two.first, 1, window("2")).await;
    let queues = two.second.queues().await.unwrap();
    assert!(
        queues
            .iter()
            .any(|info| info.name == queue() && info.settings.split_remarks().0 == settings)
    );
    let tasks = two.second.tasks().await.unwrap();
    assert!(
        tasks
            .iter()
            .any(|info| info.name == task("t") && info.settings.split_remarks().0 == paused)
    );
    assert!(two.second.delete_queue(at(0), &queue()).await.unwrap());
    enqueue(&two.first, 2, window("3")).await;
    assert_eq!(two.second.queues().await.unwrap(), [], "a trigger brings no queue back");
    let opened = two.second.flush(at(3), &task("t"), &key("k")).await.unwrap();
    assert!(opened.is_some(), "triggers are accepted and wait");
    assert_eq!(start(&*two.second, 100, 1).await.len(), 0, "a deleted queue hands out nothing");
}
