//! A panic in a store call ends the call, not the task that polls it; a call without an answer is
//! recorded.
//!
//! Calls of a store are polled in tasks that many share: the client's batcher, a worker's loop, a
//! server's alerts. Every client wraps its store once, so each call is covered wherever it is made.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, stream};
use quell_core::checkup::Checkup;
use quell_core::effect::Begun;
use quell_core::heartbeat::{Heartbeat, Workers};
use quell_core::history::{Event, Sink};
use quell_core::schedule::{Schedule, ScheduleInfo, ScheduleState, Ticked};
use quell_core::{
    AlertName, AlertRow, AlertState, Attempt, Batch, Capabilities, Claim, Claimed, Counts,
    DeadFilter, DeadLetter, DeadLetters, Effect, EffectName, Ended, Error, ErrorKind,
    ExplainTarget, Explanation, Imported, Job, JobFilter, JobId, JobResult, Key, Lapsed, Lease,
    Location, NextDue, Overview, Payload, Pruned, QueueInfo, QueueName, QueueSettings, Receipt,
    Redrive, Renewal, Result, Retention, ScheduleName, Settled, SettledAs, Settlement, Store,
    TaskInfo, TaskName, TaskSettings, Timestamp, UnreadableJob, UnreadableJobs, UnreadablePage,
    Wakeups, WorkerId,
};
use tracing::error;

use crate::clock::Clock;
use crate::worker::panic_message;

/// A store whose panics are errors.
#[derive(Debug)]
pub(crate) struct Guarded {
    inner: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    history: Option<Sink>,
}

impl Guarded {
    pub(crate) fn new(inner: Arc<dyn Store>, clock: Arc<dyn Clock>, history: Option<Sink>) -> Self {
        Guarded { inner, clock, history }
    }

    /// A call that writes. Records it if it gets no answer: it was dropped, or its outcome is unknown.
    async fn write<R>(&self, call: &str, answer: impl Future<Output = Result<R>>) -> Result<R> {
        let (clock, history) = (self.clock.as_ref(), self.history.as_ref());
        let mut wait = Wait { history, clock, call, since: clock.now() };
        let answer = write(call, answer).await;
        if !matches!(&answer, Err(error) if error.is_unknown_outcome()) {
            wait.history = None;
        }
        answer
    }
}

/// A call in flight. Dropped while it has a history, it records that no answer came.
struct Wait<'c> {
    history: Option<&'c Sink>,
    clock: &'c dyn Clock,
    call: &'c str,
    since: Timestamp,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Some(history) = self.history else { return };
        let (t, since, call) = (self.clock.now(), self.since, self.call.to_owned());
        history.record(&Event::Unanswered { t, since, call });
    }
}

/// A call that changes nothing.
async fn read<R>(call: &str, answer: impl Future<Output = Result<R>>) -> Result<R> {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(answer) => answer,
        Err(panic) => Err(panicked(call, ErrorKind::Internal, panic)),
    }
}

/// A call that may have written before it panicked: only the store knows.
async fn write<R>(call: &str, answer: impl Future<Output = Result<R>>) -> Result<R> {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(answer) => answer,
        Err(panic) => Err(panicked(call, ErrorKind::UnknownOutcome, panic)),
    }
}

fn panicked(call: &str, kind: ErrorKind, panic: Box<dyn Any + Send>) -> Error {
    let message = panic_message(panic);
    error!(call, message, "store call panicked");
    let after = match kind {
        ErrorKind::UnknownOutcome => ": what it wrote may have been committed",
        _ => "",
    };
    Error::new(kind, format!("the store's call `{call}` panicked: {message}{after}"))
}

fn guarded_wakeups(wakeups: Wakeups) -> Wakeups {
    let wakeups = AssertUnwindSafe(wakeups).catch_unwind();
    Box::pin(wakeups.filter_map(|wakeup| {
        std::future::ready(wakeup.map_err(|panic| no_more("wakeups", panic)).ok())
    }))
}

fn guarded_ended(ended: Ended) -> Ended {
    Box::pin(async move {
        if let Err(panic) = AssertUnwindSafe(ended).catch_unwind().await {
            no_more("ended", panic);
            std::future::pending().await
        }
    })
}

fn no_more(call: &str, panic: Box<dyn Any + Send>) {
    error!(call, message = panic_message(panic), "store's notifications panicked, polling instead");
}

/// The answer of a call that cannot fail; `instead` where it panics.
fn plain<R>(call: &str, answer: impl FnOnce() -> R, instead: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|panic| {
        error!(call, message = panic_message(panic), "store call panicked");
        instead()
    })
}

#[async_trait]
impl Store for Guarded {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn enqueues_at_once(&self) -> usize {
        plain("enqueues_at_once", || self.inner.enqueues_at_once(), || 1)
    }

    fn location(&self) -> Option<&Location> {
        self.inner.location()
    }

    async fn checkup(&self) -> Result<Checkup> {
        read("checkup", async move { self.inner.checkup().await }).await
    }

    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        // The client records each trigger of unknown outcome.
        write("enqueue", async move { self.inner.enqueue(now, batches).await }).await
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        self.write("claim", async move { self.inner.claim(now, claim).await }).await
    }

    async fn renew(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        self.write("renew", async move { self.inner.renew(now, leases, lease).await }).await
    }

    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        self.write("settle", async move { self.inner.settle(now, settlements).await }).await
    }

    async fn begin_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun> {
        self.write(
            "begin_effect",
            async move { self.inner.begin_effect(now, lease, name, key).await },
        )
        .await
    }

    async fn end_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        self.write(
            "end_effect",
            async move { self.inner.end_effect(now, lease, name, result).await },
        )
        .await
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        read("effects", async move { self.inner.effects(id).await }).await
    }

    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        self.write("reap", async move { self.inner.reap(now, limit).await }).await
    }

    async fn heartbeat(&self, now: Option<Timestamp>, beat: &Heartbeat) -> Result<()> {
        self.write("heartbeat", async move { self.inner.heartbeat(now, beat).await }).await
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        let removed = async move { self.inner.remove_worker(worker, incarnation).await };
        self.write("remove_worker", removed).await
    }

    async fn workers(&self, now: Option<Timestamp>) -> Result<Workers> {
        read("workers", async move { self.inner.workers(now).await }).await
    }

    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        read("next_due", async move { self.inner.next_due(now, queue, tasks).await }).await
    }

    async fn peek(
        &self,
        now: Option<Timestamp>,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Vec<NextDue>> {
        read("peek", async move { self.inner.peek(now, queues).await }).await
    }

    /// A stream that panics ends: polling is the safety net (R34).
    fn wakeups(&self) -> Wakeups {
        let wakeups = plain("wakeups", || self.inner.wakeups(), || stream::empty().boxed());
        guarded_wakeups(wakeups)
    }

    /// A future that panics is never ready: asking for the result is the safety net (R19).
    fn ended(&self, job: JobId) -> Ended {
        let ended = plain("ended", || self.inner.ended(job), || Box::pin(std::future::pending()));
        guarded_ended(ended)
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        read("queues", async move { self.inner.queues().await }).await
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        self.write("set_queue", async move { self.inner.set_queue(queue, settings).await }).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        self.write("delete_queue", async move { self.inner.delete_queue(queue).await }).await
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        read("tasks", async move { self.inner.tasks().await }).await
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        self.write("set_task", async move { self.inner.set_task(task, settings).await }).await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        read("job", async move { self.inner.job(id).await }).await
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        read("result", async move { self.inner.result(id).await }).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        read("jobs", async move { self.inner.jobs(filter).await }).await
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        read("counts", async move { self.inner.counts().await }).await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        read("attempts", async move { self.inner.attempts(id).await }).await
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        read("explain", async move { self.inner.explain(target).await }).await
    }

    async fn flush(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        if let Some(history) = &self.history {
            history.record(&Event::FlushInvoke { task: task.clone(), key: key.clone() });
        }
        self.write("flush", async move { self.inner.flush(now, task, key).await }).await
    }

    async fn cancel_key(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        self.write("cancel_key", async move { self.inner.cancel_key(now, task, key).await }).await
    }

    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        self.write("cancel", async move { self.inner.cancel(now, id, reason).await }).await
    }

    async fn redrive(&self, now: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs> {
        self.write("redrive", async move { self.inner.redrive(now, redrive).await }).await
    }

    async fn prune(
        &self,
        now: Option<Timestamp>,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        self.write("prune", async move { self.inner.prune(now, retention, limit).await }).await
    }

    async fn overview(&self, now: Option<Timestamp>) -> Result<Overview> {
        read("overview", async move { self.inner.overview(now).await }).await
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        read("alerts", async move { self.inner.alerts().await }).await
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        self.write("set_alert", async move { self.inner.set_alert(name, version, state).await })
            .await
    }

    async fn set_schedule(&self, now: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        self.write("set_schedule", async move { self.inner.set_schedule(now, schedule).await })
            .await
    }

    async fn set_schedule_state(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        self.write("set_schedule_state", async move {
            self.inner.set_schedule_state(now, name, state).await
        })
        .await
    }

    async fn delete_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<()> {
        self.write("delete_schedule", async move { self.inner.delete_schedule(now, name).await })
            .await
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        read("schedules", async move { self.inner.schedules().await }).await
    }

    async fn tick(&self, now: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        self.write("tick", async move { self.inner.tick(now, limit).await }).await
    }

    async fn run_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        self.write("run_schedule", async move { self.inner.run_schedule(now, name).await }).await
    }

    async fn backfill(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        self.write("backfill", async move { self.inner.backfill(now, name, from, to).await }).await
    }
}

#[async_trait]
impl DeadLetters for Guarded {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        read("dead", async move { self.inner.dead(filter).await }).await
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        read("count_dead", async move { self.inner.count_dead(filter).await }).await
    }

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        read("letters", async move { self.inner.letters(ids).await }).await
    }

    async fn discard(
        &self,
        now: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        self.write("discard", async move { self.inner.discard(now, ids, reason).await }).await
    }

    async fn import_dead(
        &self,
        now: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        self.write("import_dead", async move { self.inner.import_dead(now, letters).await }).await
    }
}

#[async_trait]
impl UnreadableJobs for Guarded {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        read("unreadable", async move { self.inner.unreadable(page).await }).await
    }

    async fn restore(&self, now: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        self.write("restore", async move { self.inner.restore(now, ids).await }).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::clock::SystemClock;
    use quell_core::history::History;
    use quell_core::{MemoryStore, Wakeup};

    #[derive(Debug, Default)]
    struct Recorder(Mutex<Vec<Event>>);

    impl History for Recorder {
        fn record(&self, event: &Event) {
            self.0.lock().unwrap().push(event.clone());
        }
    }

    #[tokio::test]
    async fn r39_a_call_without_an_answer_is_on_record_and_one_with_an_answer_is_not() {
        let recorder = Arc::new(Recorder::default());
        let sink: Sink = Arc::<Recorder>::clone(&recorder);
        let inner = Arc::new(MemoryStore::new(Timestamp::from_secs(0)));
        let store = Guarded::new(inner, Arc::new(SystemClock::new()), Some(sink));
        let fails = |kind| async move { Err::<(), _>(Error::new(kind, "it fails")) };
        store.write("done", async { Ok(()) }).await.unwrap();
        store.write("refused", fails(ErrorKind::Unavailable)).await.unwrap_err();
        assert_eq!(*recorder.0.lock().unwrap(), []);

        store.write("unknown", fails(ErrorKind::UnknownOutcome)).await.unwrap_err();
        store.write::<()>("panics", async { panic!("the call panics") }).await.unwrap_err();
        assert!(store.write::<()>("dropped", std::future::pending()).now_or_never().is_none());
        let events = recorder.0.lock().unwrap();
        let calls = events.iter().map(|event| match event {
            Event::Unanswered { t, since, call } if since <= t => call.as_str(),
            other => panic!("{other:?}"),
        });
        assert_eq!(calls.collect::<Vec<_>>(), ["unknown", "panics", "dropped"]);
    }

    #[tokio::test]
    async fn r34_r39_a_stream_of_wakeups_that_panics_ends() {
        let due = Timestamp::from_secs(1);
        let one = stream::iter([Wakeup::due(None, due)]);
        let broken = one.chain(stream::once(async { panic!("the stream panics") }));
        let wakeups: Vec<Wakeup> = guarded_wakeups(broken.boxed()).collect().await;
        assert_eq!(wakeups, [Wakeup::due(None, due)]);
    }

    #[tokio::test]
    async fn r19_r39_a_notification_that_panics_never_comes() {
        let ended = guarded_ended(Box::pin(async { panic!("the notification panics") }));
        assert_eq!(ended.now_or_never(), None);
    }

    #[test]
    fn r39_an_answer_that_panics_has_a_substitute() {
        assert_eq!(plain("enqueues_at_once", || panic!("no answer"), || 1), 1);
    }
}
