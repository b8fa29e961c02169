//! Thresholds that an operator sets for a task count for the triggers of each process (R14).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use quell::queue::TaskSettings;
use quell::store::{MemoryStore, Store};
use quell::testing::TestClock;
use quell::trigger::Thresholds;
use quell::{ErrorKind, Policy, Quell, Receipt, Result, Task, TaskName, Timestamp};
use quell_core::{Answer, Capabilities, EndNotification, JobId, Now, Operation, Wakeups};
use serde::{Deserialize, Serialize};

use crate::seen::Seen;
use crate::tasks::{Reindex, secs};

/// A store that counts reads of tasks' settings, and fails them on demand.
#[derive(Debug)]
struct Watched {
    store: MemoryStore,
    reads: AtomicUsize,
    fails: AtomicBool,
}

#[async_trait]
impl Store for Watched {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        if matches!(operation, Operation::TaskSettingsOf { .. }) {
            self.reads.fetch_add(1, Ordering::Relaxed);
            // Concurrent callers meet here.
            tokio::task::yield_now().await;
            if self.fails.load(Ordering::Relaxed) {
                return Err(quell::Error::new(ErrorKind::Unavailable, "made up"));
            }
        }
        self.store.call(now, operation).await
    }

    fn wakeups(&self) -> Wakeups {
        self.store.wakeups()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.store.ended(job)
    }
}

/// Two processes of one store.
struct Two {
    store: Arc<Watched>,
    clock: Arc<TestClock>,
    ours: Quell,
    /// The process of the operator.
    theirs: Quell,
    keys: AtomicUsize,
}

impl Two {
    fn new() -> Result<Two> {
        let now = Timestamp::from_secs(50);
        let store = MemoryStore::new(now);
        let (reads, fails) = (AtomicUsize::new(0), AtomicBool::new(false));
        let store = Arc::new(Watched { store, reads, fails });
        let clock = Arc::new(TestClock::new(now));
        let process = || {
            let store: Arc<dyn Store> = Arc::<Watched>::clone(&store);
            Quell::with_store(store).clock(Arc::<TestClock>::clone(&clock)).build()
        };
        let (ours, theirs, keys) = (process()?, process()?, AtomicUsize::new(0));
        Ok(Two { store, clock, ours, theirs, keys })
    }

    fn advance(&self, by: Duration) {
        self.clock.set(quell::clock::Clock::now(&*self.clock) + by);
    }

    async fn set(&self, debounce: Option<(u64, u64)>) -> Result<()> {
        let debounce = debounce.map(|(min, max)| Thresholds::new(secs(min), secs(max)));
        let debounce = debounce.transpose()?;
        let change = |known: TaskSettings| Ok::<_, quell::Error>(known.debounce(debounce));
        self.theirs.change_task(&TaskName::new(Reindex::NAME)?, change).await.map(drop)
    }

    /// After how many seconds a trigger with a key of its own is due.
    async fn due(&self) -> Result<u64> {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        let receipt = self.ours.trigger(Reindex::page(&format!("page {number}"))).await?;
        Ok(self.after(receipt))
    }

    fn after(&self, receipt: Receipt) -> u64 {
        let Receipt::Accepted { due, .. } = receipt else { panic!("{receipt:?}") };
        due.since(quell::clock::Clock::now(&*self.clock)).as_secs()
    }

    /// The reads since the last call.
    fn reads(&self) -> usize {
        self.store.reads.swap(0, Ordering::Relaxed)
    }
}

#[tokio::test]
async fn r14_thresholds_of_an_operator_count_within_5_s_until_they_are_cleared() -> Result<()> {
    let two = Two::new()?;
    assert_eq!(two.due().await?, 10, "as the task declares");
    two.set(Some((2, 30))).await?;
    two.advance(secs(4));
    assert_eq!(two.due().await?, 10, "what was read counts yet");
    two.advance(secs(1));
    assert_eq!(two.due().await?, 2);
    let many = two.ours.trigger_many([Reindex::page("many")]).await?.remove(0);
    assert_eq!(two.after(many), 2);
    let own = two.ours.trigger(Reindex::page("own")).debounce(secs(3)..=secs(9)).await?;
    assert_eq!(two.after(own), 3, "a trigger's own thresholds are its own");
    let beyond = two.ours.trigger(Reindex::page("late")).delay(secs(31)).await.unwrap_err();
    assert_eq!(beyond.field(), Some("delay"), "the max is the operator's: {beyond}");

    two.theirs.pause_by::<Reindex>("ann").await?;
    let settings = two.theirs.task_settings(&TaskName::new(Reindex::NAME)?).await?;
    assert!(settings.paused && settings.debounce.is_some(), "{settings:?}");
    two.advance(secs(5));
    assert_eq!(two.due().await?, 2, "also while it is paused");
    two.set(Some((4, 30))).await?;
    let settings = two.theirs.task_settings(&TaskName::new(Reindex::NAME)?).await?;
    assert!(settings.paused && settings.paused_by.as_deref() == Some("ann"), "{settings:?}");
    two.theirs.resume::<Reindex>().await?;
    two.advance(secs(5));
    assert_eq!(two.due().await?, 4);
    two.set(None).await?;
    two.advance(secs(5));
    assert_eq!(two.due().await?, 10, "as the task declares");
    Ok(())
}

/// The process that sets them knows them at once.
#[tokio::test]
async fn r14_the_process_that_sets_thresholds_uses_them_at_once() -> Result<()> {
    let two = Two::new()?;
    two.set(Some((2, 30))).await?;
    let first = two.theirs.trigger(Reindex::page("a")).await?;
    assert_eq!(two.after(first), 2);
    two.set(Some((7, 30))).await?;
    let second = two.theirs.trigger(Reindex::page("b")).await?;
    assert_eq!(two.after(second), 7);
    Ok(())
}

#[tokio::test]
async fn r14_one_read_serves_all_triggers_of_5_s_and_an_idle_process_reads_nothing() -> Result<()> {
    let two = Two::new()?;
    let burst = async || join_all((0..50).map(|_| two.due())).await;
    assert!(burst().await.into_iter().all(|due| due.is_ok_and(|due| due == 10)));
    assert_eq!(two.reads(), 1, "the first triggers wait for one read");
    two.advance(secs(4));
    burst().await;
    assert_eq!(two.reads(), 0);
    two.set(Some((2, 30))).await?;
    two.reads();
    two.advance(secs(1));
    let old = burst().await.into_iter().filter(|due| due.as_ref().is_ok_and(|due| *due == 10));
    assert_eq!(old.count(), 49, "the others go on with what was known");
    assert_eq!(two.reads(), 1);
    assert!(burst().await.into_iter().all(|due| due.is_ok_and(|due| due == 2)));
    two.advance(secs(3_600));
    assert_eq!(two.reads(), 0);
    let plain = two.ours.trigger(Reindex::page("now")).no_debounce().await?;
    assert_eq!((two.after(plain), two.reads()), (0, 0), "it has no window");
    Ok(())
}

#[tokio::test]
async fn r14_a_process_goes_on_with_what_it_knew_while_the_store_cannot_be_read() -> Result<()> {
    let (seen, _guard) = Seen::start();
    let warnings = || {
        let all = seen.all();
        let about = |one: &&crate::seen::One| one.field("message").contains("cannot be read");
        all.iter().filter(about).count()
    };
    let two = Two::new()?;
    two.set(Some((2, 30))).await?;
    assert_eq!(two.due().await?, 2);
    two.set(Some((7, 30))).await?;
    two.store.fails.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        two.advance(secs(5));
        two.reads();
        assert_eq!((two.due().await?, two.due().await?), (2, 2));
        assert_eq!(two.reads(), 1, "not with each trigger");
    }
    assert_eq!(warnings(), 1, "{:?}", seen.all());
    two.store.fails.store(false, Ordering::Relaxed);
    two.advance(secs(5));
    assert_eq!(two.due().await?, 7);

    // A process that never read it goes on with the declaration.
    let two = Two::new()?;
    two.set(Some((2, 30))).await?;
    two.store.fails.store(true, Ordering::Relaxed);
    assert_eq!(two.due().await?, 10);
    two.store.fails.store(false, Ordering::Relaxed);
    two.advance(secs(5));
    assert_eq!(two.due().await?, 2);
    assert_eq!(warnings(), 2);
    Ok(())
}

/// A throttled task has a period, which no thresholds replace.
#[tokio::test]
async fn r14_a_throttled_task_keeps_its_period() -> Result<()> {
    #[derive(Serialize, Deserialize)]
    struct Poll;
    impl Task for Poll {
        const NAME: &'static str = "poll";
        type Output = ();
        fn policy() -> Policy {
            Policy::default().throttle(secs(9))
        }
        fn debounce_key(&self) -> Option<String> {
            Some("k".to_owned())
        }
    }
    let two = Two::new()?;
    let set = Thresholds::new(secs(2), secs(30))?;
    let settings = TaskSettings::default().debounce(set);
    two.theirs.set_task(&TaskName::new(Poll::NAME)?, &settings).await?;
    two.reads();
    let first = two.ours.trigger(Poll).await?;
    assert_eq!((two.after(first), two.reads()), (0, 0), "nothing is read for it");
    Ok(())
}
