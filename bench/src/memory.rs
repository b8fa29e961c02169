//! What the engine costs beside direct moves, in memory: the model store, the engine over ordered maps,
//! and the engine over a table, which all take the same steps of `quell_core`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_core::trigger::Keyed;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    Batch, Claim, Draw, Key, Lease, MemoryStore, NewTrigger, Outcome, Payload, QueueName,
    Settlement, Store, TaskName, Timestamp, WorkerId,
};
use quell_engine::{Engine, Maps};
use quell_portable::{MemoryTable, Partition};

use crate::median;
use crate::output::PlainArgs;
use crate::report::shown;

/// The goal of the engine over maps, in terms of direct moves.
const GOAL: f64 = 1.3;
/// Jobs of one claim.
const CLAIM: usize = 100;
/// Keys of the windows that triggers join.
const KEYS: usize = 100;
const START: Timestamp = Timestamp::from_secs(1_000_000);

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Triggers that open a window each.
    Open,
    /// Triggers that join one of a hundred windows.
    Join,
    /// Claims of a hundred jobs, and their ends.
    Run,
}

impl Work {
    const ALL: [(Work, &'static str); 3] = [
        (Work::Open, "trigger that opens a window"),
        (Work::Join, "trigger that joins one of 100 windows"),
        (Work::Run, "start and end of a job, 100 a claim"),
    ];

    /// Microseconds for each of `count`.
    async fn measure(self, store: &dyn Store, count: usize) -> anyhow::Result<f64> {
        let took = match self {
            Work::Open => triggers(store, 0..count, |n| n).await?,
            Work::Join => {
                triggers(store, 0..KEYS, |n| n).await?;
                triggers(store, 0..count, |n| n % KEYS).await?
            }
            Work::Run => {
                triggers(store, 0..count, |n| n).await?;
                runs(store, count).await?
            }
        };
        #[expect(clippy::cast_precision_loss, reason = "a count of thousands")]
        let count = count as f64;
        Ok(took.as_secs_f64() * 1e6 / count)
    }
}

async fn triggers(
    store: &dyn Store,
    numbers: std::ops::Range<usize>,
    key_of: impl Fn(usize) -> usize,
) -> anyhow::Result<Duration> {
    let thresholds = Thresholds::new(Duration::from_secs(10), Duration::from_secs(60))?;
    let mut batches = Vec::with_capacity(numbers.len());
    for number in numbers {
        let payload = Payload::encode(&number)?;
        let trigger = NewTrigger::new(TaskName::new("t")?, QueueName::new("q")?, payload);
        let key = Key::new(format!("customer-{}", key_of(number)))?;
        let keyed = Some(Keyed { key, debounce: Debounce::new(thresholds) });
        batches.push(Batch::one(NewTrigger { keyed, ..trigger }));
    }
    let began = Instant::now();
    for batch in batches {
        for receipts in store.enqueue(Some(START), vec![batch]).await? {
            receipts?;
        }
    }
    Ok(began.elapsed())
}

async fn runs(store: &dyn Store, count: usize) -> anyhow::Result<Duration> {
    let now = Some(START + Duration::from_secs(100));
    let claim = Claim {
        queue: QueueName::new("q")?,
        tasks: Arc::from([TaskName::new("t")?]),
        worker: WorkerId::new("w")?,
        limit: CLAIM,
        lease: Duration::from_secs(30),
        draw: Draw::new(1),
    };
    let began = Instant::now();
    let mut ended = 0;
    while ended < count {
        let jobs = store.claim(now, &claim).await?.jobs;
        anyhow::ensure!(!jobs.is_empty(), "{ended} of {count} jobs were due");
        ended += jobs.len();
        let leases = jobs.iter().map(|job| Lease { job: job.id, token: job.token });
        let settlements =
            leases.map(|lease| Settlement { lease, outcome: Outcome::succeeded() }).collect();
        store.settle(now, settlements).await?;
    }
    Ok(began.elapsed())
}

fn stores() -> [(&'static str, Box<dyn Store>); 3] {
    [
        ("direct moves", Box::new(MemoryStore::new(START))),
        ("engine over maps", Box::new(Engine::new(Maps::new(START)))),
        (
            "engine over a table",
            Box::new(Engine::new(Partition::new(MemoryTable::new(START), "p"))),
        ),
    ]
}

/// Measures all of them in turn, and shows the medians.
pub(crate) fn run(args: &PlainArgs) -> anyhow::Result<()> {
    let (sizes, rounds) = if args.quick { (&[1_000][..], 1) } else { (&[1_000, 10_000][..], 5) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut table = String::from(
        "\n| µs for each | jobs | direct moves | engine over maps | ratio | goal | met | engine over a table | ratio |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (work, name) in Work::ALL {
        for size in sizes {
            let mut took = [vec![], vec![], vec![]];
            for _ in 0..rounds {
                for (place, (_, store)) in stores().into_iter().enumerate() {
                    let each = runtime.block_on(work.measure(&*store, *size))?;
                    if let Some(took) = took.get_mut(place) {
                        took.push(each);
                    }
                }
            }
            let [direct, maps, portable] = took.map(median);
            let met = if maps <= GOAL * direct { "yes" } else { "no" };
            table.push_str(&format!(
                "| {name} | {size} | {} | {} | {:.2} | {GOAL} | {met} | {} | {:.2} |\n",
                shown(direct),
                shown(maps),
                maps / direct,
                shown(portable),
                portable / direct,
            ));
        }
    }
    let about = "Medians of five rounds, the three stores in turn, one thread, nothing durable";
    args.recording.finish(about, &table)
}
