//! Timers that duplicate, reorder, delay and hasten messages and lose locks and answers, under processes
//! that die: every trigger is covered by a run that starts after it, and no worker polls.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use futures_util::StreamExt;
use quell_conformance::Rig;
use quell_conformance::effort::cases;
use quell_conformance::rig::{fails, key, keyed, lease, plain, queue};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::{
    Batch, Claim, ClaimedJob, Error, ErrorKind, JobFilter, NewTrigger, Outcome, Payload, Result,
    Settlement, Store,
};
use quell_engine::Engine;
use quell_portable::{
    Delivery, MemoryTable, MemoryTimer, Message, Partition, Partitions, Received, Scheduled,
    Spread, Timed, Timer,
};
use quell_testkit::{Around, Bent, Sending};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Seeds in a usual run and in a long one.
const SEEDS: [u64; 2] = [20, 500];
const TRIGGERS: usize = 30;
/// For how long the timer keeps dedup keys.
const WINDOW: Duration = Duration::from_secs(600);
const LOCK: Duration = Duration::from_secs(30);
/// Within this time all is done, without a poll.
const LIMIT: Duration = Duration::from_secs(7_200);

/// A timer that does all that a service may do.
pub(crate) struct Unruly {
    timer: MemoryTimer,
    random: Mutex<Rng>,
    /// Of a hundred messages, how many are lost at this moment.
    loses: Box<dyn Fn() -> u8 + Send + Sync>,
}

impl fmt::Debug for Unruly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unruly").field("timer", &self.timer).finish_non_exhaustive()
    }
}

impl Unruly {
    pub(crate) fn new(timer: MemoryTimer, random: Rng) -> Self {
        Unruly { timer, random: Mutex::new(random), loses: Box::new(|| 0) }
    }

    /// The same timer, which also loses messages: then polls alone find what these were to wake for.
    pub(crate) fn that_loses(self, percent: impl Fn() -> u8 + Send + Sync + 'static) -> Self {
        Unruly { loses: Box::new(percent), ..self }
    }

    fn is(&self, percent: u8) -> bool {
        self.random.lock().unwrap().u8(0..100) < percent
    }

    /// Fails now and then, before or after it is done.
    async fn perhaps<R>(&self, call: impl Future<Output = Result<R>> + Send) -> Result<R> {
        if self.is(4) {
            return Err(Error::new(ErrorKind::Unavailable, "the timer is away"));
        }
        let done = call.await;
        if self.is(4) {
            return Err(Error::new(ErrorKind::UnknownOutcome, "the answer was lost"));
        }
        done
    }
}

#[async_trait]
impl Around for Unruly {
    fn timer(&self) -> &MemoryTimer {
        &self.timer
    }

    async fn send(&self, sending: Sending<'_>) -> Result<Option<Scheduled>> {
        if self.is((self.loses)()) {
            return Ok(None);
        }
        let Sending { message, now, at } = sending;
        let (early, late) = (self.is(10), self.is(10));
        let at = if early { at.before(Duration::from_secs(3)) } else { at };
        let at = if late { at + Duration::from_secs(20) } else { at };
        if self.is(10) {
            // Another delivery of the same message, whatever its name.
            let again = Message { name: None, ..message.clone() };
            self.timer.schedule(&again, now, at).await?;
        }
        self.perhaps(self.timer.schedule(message, now, at)).await
    }

    async fn cancel(&self, scheduled: &Scheduled) -> Result<()> {
        self.perhaps(self.timer.cancel(scheduled)).await
    }

    async fn receive(&self, most: usize, wait: Duration) -> Result<Vec<Received>> {
        let most = if self.is(50) { most.min(1) } else { most };
        let mut received = self.timer.receive(most, wait).await?;
        self.random.lock().unwrap().shuffle(&mut received);
        // An error would wake workers, as a poll does, and so hide that a message is missing.
        if self.is(5) {
            received.clear();
        }
        Ok(received)
    }

    async fn renew(&self, delivery: &Delivery) -> Result<Delivery> {
        self.perhaps(self.timer.renew(delivery)).await
    }

    async fn complete(&self, delivery: &Delivery) -> Result<()> {
        self.perhaps(self.timer.complete(delivery)).await
    }

    async fn abandon(&self, delivery: &Delivery) -> Result<()> {
        self.perhaps(self.timer.abandon(delivery)).await
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<()> {
        self.perhaps(self.timer.dead_letter(delivery, reason)).await
    }
}

/// A table and a timer, whose clocks go together.
struct World {
    /// Over how many partitions its queue is spread; where it says so, the table keeps dedup keys.
    spread: Option<Spread>,
    table: MemoryTable,
    timer: MemoryTimer,
}

impl World {
    async fn store(&self, random: Rng) -> Arc<dyn Store> {
        let timer = Arc::new(Bent(Unruly::new(self.timer.clone(), random)));
        let table = self.table.clone();
        let Some(spread) = self.spread.clone() else {
            let partition = Partition::new(table, "p").with_timer(timer);
            let store = Timed::new(Engine::new(partition)).unwrap();
            return Arc::new(store.native_dedup().await.unwrap());
        };
        let all = Partitions::open_with(table, "p", spread, None, Some(timer)).await.unwrap();
        Arc::new(Timed::several(all).unwrap())
    }

    /// A process that works when it is woken, for so long.
    async fn work(self: Arc<Self>, mut random: Rng, lives: Duration) {
        let store = self.store(random.fork()).await;
        let mut wakeups = store.wakeups();
        let works = async {
            let mut running = JoinSet::new();
            while wakeups.next().await.is_some() {
                while running.try_join_next().is_some() {}
                let limit = random.usize(1..=3);
                // A worker takes back expired leases when it is woken.
                let _reaped = store.reap(None, 1_000).await;
                loop {
                    let claim = Claim { limit, ..Rig::claim_of(limit) };
                    let Ok(claimed) = store.claim(None, &claim).await else { continue };
                    for job in claimed.jobs {
                        let (store, random) = (Arc::clone(&store), random.fork());
                        running.spawn(attempt(store, job, random));
                    }
                    if claimed.next.due.is_none_or(|due| due > claimed.now) {
                        break;
                    }
                    running.join_next().await;
                }
            }
        };
        // Whatever it does then, it dies.
        let _died = tokio::time::timeout(lives, works).await;
    }
}

async fn attempt(store: Arc<dyn Store>, job: ClaimedJob, mut random: Rng) {
    for _ in 0..random.u8(0..4) {
        sleep(Duration::from_secs(10)).await;
        let _renewed = store.renew(None, &[lease(&job)], Rig::LEASE).await;
    }
    let ends_well = random.u8(0..100) < 85;
    let outcome =
        if ends_well { Outcome::succeeded() } else { fails(Duration::from_secs(5), false) };
    let settlement = Settlement { lease: lease(&job), outcome };
    while store.settle(None, vec![settlement.clone()]).await.is_err() {
        sleep(Duration::from_millis(500)).await;
    }
}

/// Whether every job has ended, and each trigger with a key that was accepted has one. None has two.
async fn is_done(store: &dyn Store, unique: &[(Payload, bool)]) -> bool {
    let filter = JobFilter { limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
    let jobs = store.jobs(&filter).await.unwrap();
    let is_covered = |(payload, accepted): &(Payload, bool)| {
        let made = jobs.iter().filter(|job| job.payload == *payload).count();
        assert!(made <= 1, "{payload:?} has {made} jobs: {jobs:#?}");
        made == 1 || !accepted
    };
    unique.iter().all(is_covered) && jobs.iter().all(|job| job.state.is_ended())
}

async fn run(seed: u64, spread: Option<Spread>) {
    let mut random = Rng::with_seed(seed);
    let table = MemoryTable::new(Rig::START);
    let timer = MemoryTimer::new(Rig::START, LOCK).with_duplicate_window(WINDOW);
    let world = Arc::new(World { spread, table, timer });
    let mut tasks = JoinSet::new();
    let clocks = Arc::clone(&world);
    tasks.spawn(async move {
        let mut now = Rig::START;
        loop {
            sleep(Duration::from_millis(500)).await;
            now = now + Duration::from_millis(500);
            clocks.table.advance(now);
            clocks.timer.advance(now);
        }
    });
    for _ in 0..2 {
        let (world, mut random) = (Arc::clone(&world), random.fork());
        tasks.spawn(async move {
            loop {
                let lives = Duration::from_secs(random.u64(20..300));
                Arc::clone(&world).work(random.fork(), lives).await;
                sleep(Duration::from_secs(random.u64(0..20))).await;
            }
        });
    }
    let client = world.store(random.fork()).await;
    let (mut accepted, mut unique) = (0, Vec::new());
    for number in 0..TRIGGERS {
        let payload = number.to_string();
        let trigger = match random.u8(0..4) {
            0 => plain(&payload),
            1 => {
                let dedup = Dedup { key: key(&payload), until: HoldUntil::Elapsed(WINDOW) };
                NewTrigger { dedup: Some(dedup), ..plain(&format!("\"unique {payload}\"")) }
            }
            _ => keyed(["a", "b"][random.usize(0..2)]),
        };
        let is_unique = trigger.dedup.is_some().then(|| trigger.payload.clone());
        let answer = client.enqueue(None, vec![Batch::one(trigger)]).await;
        let answer = answer.and_then(|mut answers| answers.remove(0));
        accepted += usize::from(answer.is_ok());
        unique.extend(is_unique.map(|payload| (payload, answer.is_ok())));
        sleep(Duration::from_millis(random.u64(0..15_000))).await;
    }
    let all_done = async {
        while !is_done(&*client, &unique).await {
            sleep(Duration::from_secs(5)).await;
        }
    };
    let in_time = tokio::time::timeout(LIMIT, all_done).await;
    let jobs = client.jobs(&JobFilter::default()).await.unwrap();
    assert!(in_time.is_ok(), "seed {seed}: {:?} {jobs:#?}", world.timer.waiting());
    assert!(accepted > TRIGGERS / 2, "seed {seed}: {accepted}");
}

fn run_all(spread: Option<&Spread>) {
    let [usual, long] = SEEDS;
    for seed in 0..cases(usual, long) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run(seed, spread.cloned()));
    }
}

#[test]
fn r01_r34_unruly_timers_and_dying_processes_leave_no_job_behind() {
    run_all(None);
}

#[test]
fn r01_r34_nor_do_they_where_a_queue_has_three_partitions() {
    run_all(Some(&Spread::from([(queue(), 3)])));
}
