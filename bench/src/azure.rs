//! The store on a table: in memory, and on Azurite in one partition and in four. The floor is one row that
//! is written by a transaction of its own.
//!
//! Azurite is one process that keeps all in memory: it says what Quell's requests cost beside plain ones,
//! and nothing of what the service takes.

use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use quell_portable::{Change, Committed, Condition, Table};
use quell_services::Azurite;
use tokio::task::JoinSet;

use crate::median;
use crate::output::PlainArgs;
use crate::place::{Place, azure_table};
use crate::report::shown;
use crate::workload;

/// Callers side by side.
const CALLERS: usize = 32;
/// Keys of debounced triggers.
const KEYS: usize = 16;
/// Partitions of a queue that is spread.
const PARTITIONS: u32 = 4;

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Work {
    One,
    Many,
    Debounced,
    Drain,
}

impl Work {
    const ALL: [(Work, &'static str, usize); 4] = [
        (Work::One, "triggers, one after the other", 320),
        (Work::Many, "triggers of 32 callers", 3_200),
        (Work::Debounced, "debounced triggers of 32 callers, 16 keys", 3_200),
        (Work::Drain, "jobs that start and end", 800),
    ];

    /// How many a second.
    async fn measure(self, place: &Place, count: usize) -> anyhow::Result<f64> {
        match self {
            Work::One => workload::single(place, 1, count).await,
            Work::Many => workload::single(place, CALLERS, count).await,
            Work::Debounced => workload::debounced(place, CALLERS, KEYS, count).await,
            Work::Drain => workload::drain(place, count).await,
        }
    }

    /// Callers of the floor beside it.
    fn callers(self) -> usize {
        if matches!(self, Work::One) { 1 } else { CALLERS }
    }
}

/// Rows a second that callers write, each by a transaction of its own.
async fn floor(connection: &str, callers: usize, count: usize) -> anyhow::Result<f64> {
    let table = Arc::new(azure_table(connection)?.open_table().await?);
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let table = Arc::clone(&table);
        tasks.spawn(async move {
            for number in 0..count / callers {
                let row = format!("r:{caller}-{number}");
                let value = Some(Arc::from(b"{}".as_slice()));
                let change = Change { row, condition: Condition::Absent, value };
                let made = table.commit("p", vec![change]).await?;
                ensure!(matches!(made, Committed::Done(_)), "a row is there already");
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of thousands")]
    let count = count as f64;
    Ok(count / began.elapsed().as_secs_f64())
}

/// Measures all of them in turn, and shows the medians.
pub(crate) fn run(args: &PlainArgs) -> anyhow::Result<()> {
    let server = Azurite::start()?;
    let connection = server.connection_string();
    let azurite = |partitions| Place::Azurite { connection: connection.clone(), partitions };
    let places = [Place::Table, azurite(1), azurite(PARTITIONS)];
    let (rounds, part) = if args.quick { (1, 10) } else { (3, 1) };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut table = String::from(
        "\n| a second | of | table in memory | floor on Azurite | Azurite, one partition | of the floor | \
         four partitions | of the floor |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (work, name, count) in Work::ALL {
        let count = count / part;
        let mut rates = [vec![], vec![], vec![], vec![]];
        for _ in 0..rounds {
            let [memory, one, four, below] = &mut rates;
            for (place, rates) in places.iter().zip([memory, one, four]) {
                rates.push(runtime.block_on(work.measure(place, count))?);
            }
            below.push(runtime.block_on(floor(&connection, work.callers(), count))?);
        }
        let [memory, one, four, floor] = rates.map(median);
        table.push_str(&format!(
            "| {name} | {count} | {} | {} | {} | {:.2} | {} | {:.2} |\n",
            shown(memory),
            shown(floor),
            shown(one),
            one / floor,
            shown(four),
            four / floor,
        ));
    }
    let about =
        "Medians of three rounds, all in turn; Azurite 3.35.0 in memory, on the same machine";
    args.recording.finish(about, &table)
}
