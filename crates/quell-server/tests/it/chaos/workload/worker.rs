//! A worker of a chaos run: its handlers record where their bodies begin and end, and read the
//! stamp witness.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use quell::history::{Event, Sink};
use quell::worker::WorkerId;
use quell::{Ctx, Payload, Quell, TaskError, TaskName, Timestamp};

use super::books::{Books, Fate};
use super::read_stamp;
use super::record::{Entry, Record, now};
use super::tasks::{self, Booked, LONG, NARROW, ORDER, RARE, RATED, STAMPED};
use quell_server::signal;

/// What the handlers share.
pub(super) struct Witness {
    pub(super) sink: Sink,
    pub(super) record: Record,
    pub(super) stamps: PathBuf,
    pub(super) books: Option<Books>,
    pub(super) runs: AtomicU64,
}

/// What a worker registers.
pub(super) struct Registered {
    /// Whose policies.
    pub(super) deploy: u32,
    /// Whether it registers the task that the other workers do not.
    pub(super) rare: bool,
}

/// Works until the process is asked to end.
pub(super) async fn work(
    quell: &Quell,
    witness: Witness,
    registered: Registered,
) -> anyhow::Result<()> {
    let Registered { deploy, rare } = registered;
    let has_books = witness.books.is_some();
    let policy = |task| tasks::policy(task, deploy);
    let mut worker = quell
        .worker(Arc::new(witness))
        .register_raw(TaskName::new(STAMPED)?, &policy(STAMPED), run_stamped)
        .register_raw(TaskName::new(ORDER)?, &policy(ORDER), run_order)
        .register_raw(TaskName::new(NARROW)?, &policy(NARROW), run_narrow)
        .register_raw(TaskName::new(RATED)?, &policy(RATED), run_plain)
        .register_raw(TaskName::new(LONG)?, &policy(LONG), run_long)
        .lease(tasks::LEASE)
        .grace(Duration::from_secs(1))
        .concurrency(4)
        .name(WorkerId::new(format!("workload-{}-{:04x}", std::process::id(), fastrand::u16(..)))?);
    if rare {
        worker = worker.register_raw(TaskName::new(RARE)?, &policy(RARE), run_plain);
    }
    if has_books {
        worker = worker.register(run_booked);
    }
    worker.run_until(signal::shutdown()?).await.context("the worker")
}

/// A handler's body: its end is on record also where it is cancelled.
struct Body<'a> {
    record: &'a Record,
    job: u64,
    started: Timestamp,
}

impl<'a> Body<'a> {
    fn begin(ctx: &'a Ctx<Arc<Witness>>) -> Self {
        let (record, job, started) = (&ctx.state().record, ctx.job().get(), ctx.started_at());
        let (task, key) = (ctx.task().clone(), ctx.key().cloned());
        record.write(&Entry::Begin { at: now(), job, started, task, key });
        Body { record, job, started }
    }
}

impl Drop for Body<'_> {
    fn drop(&mut self) {
        self.record.write(&Entry::End { at: now(), job: self.job, started: self.started });
    }
}

async fn run_stamped(_: Payload, ctx: Ctx<Arc<Witness>>) -> Result<(), TaskError> {
    let _body = Body::begin(&ctx);
    let witness = ctx.state();
    let run = witness.runs.fetch_add(1, Ordering::Relaxed);
    let key = ctx.key().map(ToString::to_string).unwrap_or_default();
    let value = read_stamp(&witness.stamps.join(&key));
    witness.sink.record(&Event::Read { run, key, value });
    pause(15).await;
    fail_sometimes()?;
    witness.sink.record(&Event::ReadOk { run });
    Ok(())
}

async fn run_plain(_: Payload, ctx: Ctx<Arc<Witness>>) -> Result<(), TaskError> {
    let _body = Body::begin(&ctx);
    pause(25).await;
    fail_sometimes()
}

/// Returns what depends on the order alone, so that every answer can be compared.
async fn run_order(order: Payload, ctx: Ctx<Arc<Witness>>) -> Result<Option<Payload>, TaskError> {
    let _body = Body::begin(&ctx);
    pause(10).await;
    fail_sometimes()?;
    Ok(Some(order))
}

/// Takes long enough for others to wait for its slot.
async fn run_narrow(_: Payload, ctx: Ctx<Arc<Witness>>) -> Result<Option<Payload>, TaskError> {
    let _body = Body::begin(&ctx);
    pause(120).await;
    fail_sometimes()?;
    Ok(None)
}

/// Needs its lease renewed several times.
async fn run_long(_: Payload, ctx: Ctx<Arc<Witness>>) -> Result<(), TaskError> {
    let _body = Body::begin(&ctx);
    tokio::time::sleep(tasks::LEASE * 5 / 2).await;
    Ok(())
}

async fn run_booked(booked: Booked, ctx: Ctx<Arc<Witness>>) -> Result<(), TaskError> {
    let _body = Body::begin(&ctx);
    let Some(books) = &ctx.state().books else {
        return Err(TaskError::permanent("the store's database has no books"));
    };
    let fate = match fastrand::u8(..10) {
        0..2 => Fate::RollsBack,
        2 => Fate::FailsAfterwards,
        _ => Fate::Commits,
    };
    books.settle(&ctx, booked.order, fate).await
}

async fn pause(most: u64) {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..most))).await;
}

fn fail_sometimes() -> Result<(), TaskError> {
    if fastrand::u8(..10) == 0 {
        return Err(TaskError::retry("it fails now and then"));
    }
    Ok(())
}
