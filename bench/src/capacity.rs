//! What Quell alone needs at fixed rates, on each store: processor time, waits, calls and bytes, and
//! how much a job holds. `docs/capacity.md` is made of it.
//!
//! Each case has a fresh store. The client and the worker are this process, so that its processor
//! time is what an application spends on Quell; a server's is read beside it.

mod load;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::output::Output;
use crate::report::shown;
use crate::server::{Server, Store};
use load::{Found, Held, Load, Shape};

/// The share of a rate that must be accepted for it to count as kept.
const KEPT: f64 = 0.98;
/// Where half of the jobs wait for longer, the worker falls behind.
const BEHIND_MS: f64 = 1_000.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Two rates, 2 s each, and 1,000 jobs held.
    #[arg(long)]
    quick: bool,
    /// Only these stores.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sqlite,postgres,redis")]
    stores: Vec<Store>,
    /// Triggers a second. [default: 100,1000,5000; with --quick 100,1000]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rates: Vec<u64>,
    /// Seconds of each rate, after the warm-up. [default: 20; with --quick 2]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// Jobs that wait and have ended, to see what each holds. [default: 10000; with --quick 1000]
    #[arg(long)]
    held: Option<usize>,
    #[command(flatten)]
    output: Output,
}

/// The sizes that the arguments come to.
#[derive(Clone, Debug)]
struct Sizes {
    rates: Vec<u64>,
    warm_up: Duration,
    length: Duration,
    held: usize,
}

impl Args {
    fn sizes(&self) -> Sizes {
        let (rates, seconds, held) = if self.quick {
            (&[100, 1_000][..], 2, 1_000)
        } else {
            (&[100, 1_000, 5_000][..], 20, 10_000)
        };
        Sizes {
            rates: if self.rates.is_empty() { rates.to_vec() } else { self.rates.clone() },
            warm_up: Duration::from_secs(3),
            length: Duration::from_secs(self.seconds.unwrap_or(seconds)),
            held: self.held.unwrap_or(held).max(1),
        }
    }
}

/// A case, and what it found or why it failed.
#[derive(Debug)]
struct Case {
    store: Store,
    load: Load,
    found: Result<Found, String>,
}

/// All that was found.
#[derive(Debug, Default)]
struct Report {
    versions: Vec<String>,
    cases: Vec<Case>,
    held: Vec<(Store, Result<Held, String>)>,
}

/// Measures, shows and records.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = Path::new("target");
    std::fs::create_dir_all(target)?;
    let folder = tempfile::tempdir_in(target)?;
    let sizes = args.sizes();
    let report = measure(&args.stores, &sizes, folder.path())?;
    args.output.write_json(&report.lines())?;
    let tables = report.tables(&sizes);
    let versions = report.versions.join("; ");
    writeln!(std::io::stdout(), "\n{versions}")?;
    let about = format!("Quell alone at fixed rates, client and worker in one process; {versions}");
    args.output.recording.finish(&about, &tables)
}

fn measure(stores: &[Store], sizes: &Sizes, folder: &Path) -> anyhow::Result<Report> {
    let mut report = Report::default();
    for store in stores {
        for shape in Shape::ALL {
            for rate in &sizes.rates {
                let Sizes { warm_up, length, .. } = *sizes;
                let load = Load { shape, rate: *rate, warm_up, length };
                writeln!(std::io::stderr(), "{}: {}, {rate} a second", store.name(), shape.name())?;
                let found = on(*store, folder, async |server| load::measure(server, load).await)?;
                report.cases.push(Case { store: *store, load, found });
            }
        }
        writeln!(std::io::stderr(), "{}: {} jobs held", store.name(), sizes.held)?;
        let held = on(*store, folder, async |server| {
            let held = load::held(server, sizes.held).await?;
            report.versions.push(server.version().await?);
            Ok(held)
        })?;
        report.held.push((*store, held));
    }
    Ok(report)
}

/// Runs a case on a store and a runtime of its own; the inner error is the case's.
fn on<T>(
    store: Store,
    folder: &Path,
    case: impl AsyncFnOnce(&Arc<Server>) -> anyhow::Result<T>,
) -> anyhow::Result<Result<T, String>> {
    // In this order: tasks end with the runtime, before their server.
    let server = Arc::new(Server::start(store, folder)?);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    Ok(runtime.block_on(case(&server)).map_err(|error| format!("{error:#}").replace('|', "/")))
}

/// Whether the store accepted the rate and the worker kept up with it.
fn is_kept(load: Load, found: &Found) -> bool {
    let keeps_up = found.waits.is_some_and(|waits| waits.p50 <= BEHIND_MS);
    found.accepted >= KEPT * load.rate as f64 && keeps_up
}

impl Report {
    fn tables(&self, sizes: &Sizes) -> String {
        let mut text = format!(
            "\n**at fixed rates** ({} s each after {} s of warm-up)\n\n\
             | store | triggers | asked a second | accepted | kept | jobs started | client CPU, % of a \
             core | server CPU | CPU µs a trigger | due to start p50, ms | p99 | calls a trigger | \
             bytes written a trigger |\n|{}\n",
            sizes.length.as_secs_f64(),
            sizes.warm_up.as_secs_f64(),
            " --- |".repeat(13),
        );
        for case in &self.cases {
            let cells = case.cells().join(" | ");
            let (store, shape, rate) = (case.store.name(), case.load.shape.name(), case.load.rate);
            text.push_str(&format!("| {store} | {shape} | {rate} | {cells} |\n"));
        }
        text.push_str(&format!(
            "\n**held** ({} jobs with payloads of 100 bytes)\n\n| store | bytes a waiting job | bytes \
             an ended job |\n| --- | --- | --- |\n",
            sizes.held
        ));
        for (store, held) in &self.held {
            let cells = match held {
                Ok(held) => format!("{:.0} | {:.0}", held.waiting, held.ended),
                Err(reason) => format!("failed: {reason} | -"),
            };
            text.push_str(&format!("| {} | {cells} |\n", store.name()));
        }
        text
    }

    /// A line of JSON for each case.
    fn lines(&self) -> String {
        let cases = self.cases.iter().map(|case| {
            let Load { shape, rate, .. } = case.load;
            let (store, shape) = (case.store.name(), shape.name());
            json!({ "store": store, "triggers": shape, "rate": rate, "found": case.found })
        });
        let held =
            self.held.iter().map(|(store, held)| json!({ "store": store.name(), "held": held }));
        cases.chain(held).map(|line| format!("{line}\n")).collect()
    }
}

impl Case {
    fn cells(&self) -> [String; 10] {
        let dash = || "-".to_owned();
        let found = match &self.found {
            Ok(found) => found,
            Err(reason) => {
                let mut cells: [String; 10] = std::array::from_fn(|_| dash());
                let [first, second, ..] = &mut cells;
                *first = format!("failed: {reason}");
                "no".clone_into(second);
                return cells;
            }
        };
        let kept = match (&found.failed, is_kept(self.load, found)) {
            (Some(failed), _) => format!("no, {}", failed.replace('|', "/")),
            (None, true) => "yes".to_owned(),
            (None, false) => "no".to_owned(),
        };
        let wait =
            |of: fn(&load::Waits) -> f64| found.waits.as_ref().map_or_else(dash, |w| shown(of(w)));
        let cpu = found.client_cpu + found.server_cpu.unwrap_or_default();
        [
            format!("{:.0}", found.accepted),
            kept,
            format!("{:.0}", found.started),
            format!("{:.1}", found.client_cpu),
            found.server_cpu.map_or_else(dash, |percent| format!("{percent:.1}")),
            format!("{:.0}", cpu * 1e4 / found.accepted),
            wait(|waits| waits.p50),
            wait(|waits| waits.p99),
            format!("{:.2}", found.calls),
            format!("{:.0}", found.written),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Recording;
    use load::Waits;

    fn load(rate: u64) -> Load {
        let second = Duration::from_secs(1);
        Load { shape: Shape::Plain, rate, warm_up: second, length: second }
    }

    fn found(accepted: f64, p50: f64) -> Found {
        Found {
            accepted,
            started: accepted,
            client_cpu: 10.0,
            server_cpu: Some(20.0),
            calls: 2.0,
            written: 1_000.0,
            waits: Some(Waits { p50, p99: 2.0 * p50 }),
            failed: None,
        }
    }

    #[test]
    fn a_rate_that_was_not_accepted_or_not_worked_off_is_marked() {
        for (accepted, p50, kept) in [(100.0, 1.0, true), (97.0, 1.0, false), (100.0, 1e4, false)] {
            assert_eq!(is_kept(load(100), &found(accepted, p50)), kept, "{accepted}, {p50} ms");
        }
        let silent = Found { waits: None, ..found(100.0, 1.0) };
        assert!(!is_kept(load(100), &silent));
    }

    #[test]
    fn a_table_has_a_row_for_each_case_also_for_one_that_failed() {
        let case = |found| Case { store: Store::Postgres, load: load(100), found };
        let gone = Found { failed: Some("3 failed: gone".to_owned()), ..found(100.0, 1.5) };
        let report = Report {
            versions: Vec::new(),
            cases: vec![case(Ok(found(100.0, 1.5))), case(Ok(gone)), case(Err("no disk".into()))],
            held: vec![(Store::Redis, Ok(Held { waiting: 300.4, ended: 200.0 }))],
        };
        let text = report.tables(&args().sizes());
        for row in [
            "| PostgreSQL | plain | 100 | 100 | yes | 100 | 10.0 | 20.0 | 3000 | 1.50 | 3.00 | 2.00 | 1000 |\n",
            "| PostgreSQL | plain | 100 | 100 | no, 3 failed: gone | 100 |",
            "| PostgreSQL | plain | 100 | failed: no disk | no | - | - | - | - | - | - | - | - |\n",
            "| Redis | 300 | 200 |\n",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
        assert_eq!(report.lines().lines().count(), 4);
    }

    fn args() -> Args {
        Args {
            quick: true,
            stores: Vec::new(),
            rates: Vec::new(),
            seconds: None,
            held: None,
            output: Output { json: None, recording: Recording { record: false } },
        }
    }

    /// The whole script at sizes that take a moment, on real servers: it says nothing about times.
    #[test]
    fn the_script_measures_every_store() {
        let folder = tempfile::tempdir().unwrap();
        let moment = Duration::from_millis(700);
        let sizes = Sizes { rates: vec![50], warm_up: moment, length: moment, held: 100 };
        let stores = [Store::Sqlite, Store::Postgres, Store::Redis];
        let report = measure(&stores, &sizes, folder.path()).unwrap();
        let text = report.tables(&sizes);
        assert_eq!(report.versions.len(), stores.len(), "{text}");
        assert_eq!(report.cases.len(), 2 * stores.len(), "{text}");
        for case in &report.cases {
            let found = case.found.as_ref().unwrap_or_else(|reason| panic!("{reason}: {text}"));
            assert_eq!(found.failed, None, "{text}");
            assert_eq!(found.server_cpu.is_none(), case.store == Store::Sqlite, "{text}");
        }
        for (_, held) in &report.held {
            let held = held.as_ref().unwrap_or_else(|reason| panic!("{reason}: {text}"));
            assert!(held.waiting > 100.0 && held.ended > 0.0, "{text}");
        }
    }
}
