//! A panic in a store call ends the call, not the task that polls it; a call without an answer is
//! recorded.
//!
//! Calls of a store are polled in tasks that many share: the client's batcher, a worker's loop, a
//! server's alerts. Every client wraps its store once, so each call is covered wherever it is made.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, stream};
use quell_core::history::{Event, Sink};
use quell_core::{
    Answer, Capabilities, EndNotification, Error, ErrorKind, JobId, Location, Now, Operation,
    OperationKind, Result, Store, Timestamp, Trouble, Wakeups,
};
use tracing::error;

use super::observer::Observer;
use crate::clock::{Clock, SystemClock};
use crate::history::within_call;
use crate::worker::panic_message;

/// A store whose panics are errors.
#[derive(Debug)]
pub(crate) struct Guarded {
    inner: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    history: Option<Sink>,
    observer: Option<Arc<dyn Observer>>,
}

impl Guarded {
    pub(crate) fn new(inner: Arc<dyn Store>, clock: Arc<dyn Clock>, history: Option<Sink>) -> Self {
        Guarded { inner, clock, history, observer: None }
    }

    /// The same with an observer of its calls.
    pub(crate) fn observed(self, observer: Option<Arc<dyn Observer>>) -> Self {
        Guarded { observer, ..self }
    }

    /// A call that writes. Records it if the store could not complete it, and if it gets no answer: it was
    /// dropped, or its outcome is unknown.
    async fn write<R>(&self, call: &str, answer: impl Future<Output = Result<R>>) -> Result<R> {
        let history = self.history.as_ref();
        let mut wait = Wait { history, clock: self.clock.as_ref(), call, since: self.clock.now() };
        let answer = write(call, answer).await;
        wait.ended(&answer);
        answer
    }

    /// A call whose events can say when it was made.
    async fn timed<R>(&self, answer: impl Future<Output = R>) -> R {
        if self.history.is_none() {
            return answer.await;
        }
        let (since, mut answer) = (SystemClock::new().now(), pin!(answer));
        poll_fn(|context| within_call(since, || answer.as_mut().poll(context))).await
    }
}

/// A call in flight. Dropped while it has a history, it records that no answer came.
struct Wait<'c> {
    history: Option<&'c Sink>,
    clock: &'c dyn Clock,
    call: &'c str,
    since: Timestamp,
}

impl Wait<'_> {
    /// An answer came.
    fn ended<R>(&mut self, answer: &Result<R>) {
        match answer {
            Err(error) if error.is_unknown_outcome() => return,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.record(|t, since, call| Event::CallFailed { t, since, call });
            }
            _ => {}
        }
        self.history = None;
    }

    fn record(&self, event: impl FnOnce(Timestamp, Timestamp, String) -> Event) {
        if let Some(history) = self.history {
            history.record(&event(self.clock.now(), self.since, self.call.to_owned()));
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.record(|t, since, call| Event::Unanswered { t, since, call });
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

fn guarded_ended(ended: EndNotification) -> EndNotification {
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

/// The answer of a call that cannot fail, or what an observer does; `instead` where it panics.
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

    fn concurrent_enqueues(&self) -> usize {
        plain("concurrent_enqueues", || self.inner.concurrent_enqueues(), || 1)
    }

    fn location(&self) -> Option<&Location> {
        self.inner.location()
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        let (name, kind) = (operation.name(), operation.kind());
        if let (Operation::Flush { task, key }, Some(history)) = (&operation, &self.history) {
            history.record(&Event::FlushInvoke { task: task.clone(), key: key.clone() });
        }
        // The client records each trigger of unknown outcome.
        let is_recorded = !matches!(operation, Operation::Enqueue { .. });
        let answer = async move {
            let observer = self.observer.as_ref();
            let look = || observer.and_then(|observer| observer.call(now, &operation));
            let seen = plain("observer", look, || None);
            let answer = self.inner.call(now, operation).await;
            if let (Some(seen), Ok(answer)) = (seen, &answer) {
                plain("observer", || seen(answer), || ());
            }
            answer
        };
        match kind {
            OperationKind::Read => read(name, answer).await,
            OperationKind::Write | OperationKind::Hot if is_recorded => {
                self.write(name, self.timed(answer)).await
            }
            OperationKind::Write | OperationKind::Hot => write(name, self.timed(answer)).await,
        }
    }

    /// A stream that panics ends: polling is the safety net (R34).
    fn wakeups(&self) -> Wakeups {
        let wakeups = plain("wakeups", || self.inner.wakeups(), || stream::empty().boxed());
        guarded_wakeups(wakeups)
    }

    fn transaction_committed(&self) {
        plain("transaction_committed", || self.inner.transaction_committed(), || ());
    }

    /// A future that panics is never ready: asking for the result is the safety net (R19).
    fn ended(&self, job: JobId) -> EndNotification {
        let ended = plain("ended", || self.inner.ended(job), || Box::pin(std::future::pending()));
        guarded_ended(ended)
    }

    fn trouble(&self) -> Option<Trouble> {
        plain("trouble", || self.inner.trouble(), || None)
    }

    async fn close(&self) -> Result<()> {
        write("close", self.inner.close()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
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
    async fn r39_a_call_that_failed_or_has_no_answer_is_on_record_and_no_other() {
        let recorder = Arc::new(Recorder::default());
        let sink: Sink = Arc::<Recorder>::clone(&recorder);
        let inner = Arc::new(MemoryStore::new(Timestamp::from_secs(0)));
        let store = Guarded::new(inner, Arc::new(SystemClock::new()), Some(sink));
        let fails = |kind| async move { Err::<(), _>(Error::new(kind, "it fails")) };
        store.write("done", async { Ok(()) }).await.unwrap();
        store.write("refused", fails(ErrorKind::Invalid)).await.unwrap_err();
        assert_eq!(*recorder.0.lock().unwrap(), []);

        store.write("fails", fails(ErrorKind::Unavailable)).await.unwrap_err();
        store.write("unknown", fails(ErrorKind::UnknownOutcome)).await.unwrap_err();
        store.write::<()>("panics", async { panic!("the call panics") }).await.unwrap_err();
        assert!(store.write::<()>("dropped", std::future::pending()).now_or_never().is_none());
        let events = recorder.0.lock().unwrap();
        let calls = events.iter().map(|event| match event {
            Event::Unanswered { t, since, call } if since <= t => (call.as_str(), true),
            Event::CallFailed { t, since, call } if since <= t => (call.as_str(), false),
            other => panic!("{other:?}"),
        });
        let expected = [("fails", false), ("unknown", true), ("panics", true), ("dropped", true)];
        assert_eq!(calls.collect::<Vec<_>>(), expected);
    }

    /// What a store records within a call says when the call was made; nothing else does.
    #[tokio::test]
    async fn r39_an_event_knows_when_its_call_was_made() {
        #[derive(Debug, Default)]
        struct Times(Mutex<Vec<(bool, Option<Timestamp>)>>);

        impl History for Times {
            fn record(&self, event: &Event) {
                let is_call = matches!(event, Event::TriggerInvoke { .. });
                self.0.lock().unwrap().push((is_call, crate::history::call_made()));
            }
        }

        #[derive(serde::Serialize, serde::Deserialize)]
        struct Hello;
        impl crate::Task for Hello {
            const NAME: &'static str = "hello";
            type Output = ();
        }

        let times = Arc::new(Times::default());
        let before = SystemClock::new().now();
        let sink: Sink = Arc::<Times>::clone(&times);
        let quell = crate::Quell::recorded("memory:", sink).await.unwrap().build().unwrap();
        quell.trigger(Hello).await.unwrap();
        let times = times.0.lock().unwrap();
        assert!(times.iter().any(|(_, made)| made.is_some_and(|made| made >= before)), "{times:?}");
        let mut asked = times.iter().filter(|(is_call, _)| *is_call);
        assert_eq!(asked.next(), Some(&(true, None)), "the caller records it, and no call");
        assert_eq!(crate::history::call_made(), None);
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
        assert_eq!(plain("concurrent_enqueues", || panic!("no answer"), || 1), 1);
    }
}
