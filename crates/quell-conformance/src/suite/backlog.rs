//! What waits and runs in the partitions of a queue, for people (R31).

use quell_core::backlog::{Backlog, BacklogOf, PartitionBacklog, Waiting};
use quell_core::{NewTrigger, QueueName, Timestamp, When};

use crate::rig::{Rig, key, keyed, plain, queue, secs, task};

fn of_partition(name: &str) -> NewTrigger {
    NewTrigger { partition: Some(key(name)), ..plain("1") }
}

fn shown(partition: &str, due: u64, later: u64, running: u64) -> PartitionBacklog {
    let partition = (!partition.is_empty()).then(|| key(partition));
    let waiting = Waiting { due, later, first_due: None };
    PartitionBacklog { partition, waiting, running }
}

/// The partitions without their times.
fn counts(backlog: &Backlog) -> Vec<PartitionBacklog> {
    let without = |one: &PartitionBacklog| {
        let waiting = Waiting { first_due: None, ..one.waiting };
        PartitionBacklog { waiting, ..one.clone() }
    };
    backlog.partitions.iter().map(without).collect()
}

impl Rig {
    async fn backlog(&self, of: &BacklogOf) -> Backlog {
        self.store.backlog(Some(self.now()), of).await.expect("the store looks")
    }

    async fn triggers(&self, count: usize, trigger: &NewTrigger) {
        for _ in 0..count {
            self.trigger(trigger.clone()).await;
        }
    }
}

/// Those with the most waiting jobs come first, with what runs, what is due and since when.
pub async fn r31_partitions_are_listed_by_what_waits_in_them(mut rig: Rig) {
    let of = BacklogOf::new(queue());
    assert_eq!(counts(&rig.backlog(&of).await), []);
    rig.triggers(3, &of_partition("small")).await;
    rig.triggers(1, &plain("1")).await;
    let jobs = rig.claim().await;
    assert_eq!(jobs.len(), 4);
    rig.at(10);
    rig.triggers(3, &of_partition("large")).await;
    let later = NewTrigger { when: When::After(secs(15)), ..of_partition("large") };
    rig.triggers(2, &later).await;
    let urgent = NewTrigger { priority: 5, task: task("u"), ..of_partition("small") };
    rig.triggers(1, &urgent).await;
    let elsewhere = NewTrigger { queue: QueueName::new("other").expect("a name"), ..plain("1") };
    rig.triggers(1, &elsewhere).await;

    let backlog = rig.backlog(&of).await;
    let expected = [shown("large", 3, 2, 0), shown("small", 1, 0, 3), shown("", 0, 0, 1)];
    assert_eq!(counts(&backlog), expected);
    assert!(backlog.is_whole);
    assert_eq!(backlog.now, rig.now());
    let first: Vec<Option<Timestamp>> =
        backlog.partitions.iter().map(|one| one.waiting.first_due).collect();
    assert_eq!(first, [Some(rig.now()), Some(rig.now()), None]);
    let one = rig.backlog(&of.clone().partitions(1)).await;
    assert_eq!(counts(&one), expected[..1]);
    assert!(!one.is_whole, "there are more partitions");

    rig.at(26);
    let expected = [shown("large", 5, 0, 0), shown("small", 1, 0, 3), shown("", 0, 0, 1)];
    assert_eq!(counts(&rig.backlog(&of).await), expected);
    for job in &jobs {
        rig.succeed(job).await;
    }
    let expected = [shown("large", 5, 0, 0), shown("small", 1, 0, 0)];
    assert_eq!(counts(&rig.backlog(&of).await), expected);
}

/// A window that waits for its key's attempt waits, too, or the look says that there may be more.
pub async fn r11_r31_a_job_that_waits_for_its_key_is_in_the_backlog(mut rig: Rig) {
    let of = BacklogOf::new(queue());
    let trigger = || NewTrigger { partition: Some(key("p")), ..keyed("a") };
    rig.trigger(trigger()).await;
    rig.at(100).claim_one().await;
    rig.trigger(trigger()).await;
    for (second, due, later) in [(100, 0, 1), (200, 1, 0)] {
        let backlog = rig.at(second).backlog(&of).await;
        let expected = match backlog.is_whole {
            true => shown("p", due, later, 1),
            false => shown("p", 0, 0, 1),
        };
        assert_eq!(counts(&backlog), [expected]);
    }
}

/// A look reads no more jobs than it was asked to, and no line of a task and priority hides another.
pub async fn r31_a_look_at_a_backlog_is_bounded_and_hides_no_line(rig: Rig) {
    let of = BacklogOf::new(queue()).entries(40);
    rig.triggers(60, &of_partition("many")).await;
    let urgent = NewTrigger { priority: 5, ..of_partition("urgent") };
    rig.triggers(4, &urgent).await;
    let other = NewTrigger { task: task("u"), ..of_partition("other") };
    rig.triggers(3, &other).await;
    let backlog = rig.backlog(&of).await;
    let waits = |name: &str| {
        let found = backlog.partitions.iter().find(|one| one.partition == Some(key(name)));
        found.map_or(0, |one| one.waiting.jobs())
    };
    assert_eq!((waits("urgent"), waits("other")), (4, 3), "{backlog:?}");
    let all: u64 = backlog.partitions.iter().map(|one| one.waiting.jobs()).sum();
    assert!(!backlog.is_whole && all <= 40 && waits("many") >= 10, "{backlog:?}");
    assert_eq!(backlog.partitions[0].partition, Some(key("many")), "{backlog:?}");
    let whole = rig.backlog(&of.entries(100)).await;
    let expected = [shown("many", 60, 0, 0), shown("urgent", 4, 0, 0), shown("other", 3, 0, 0)];
    assert_eq!(counts(&whole), expected);
}
