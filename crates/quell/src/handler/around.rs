//! Hooks around handlers: a user's own code before and after every attempt of a worker.
//!
//! A hook is a future around the handler's. `worker/attempt` bounds both and ends their panics.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use quell_core::Payload;

use crate::{Ctx, TaskError};

/// What a hook sees and returns: the handler's output as JSON, or why it did not succeed.
pub(crate) type Answered = Result<Option<Payload>, TaskError>;

/// A hook around the attempts of a worker: it runs before and after each handler
/// ([`WorkerBuilder::around`](crate::WorkerBuilder::around)).
///
/// [`Next::run`] runs the handler and returns how it ended; [`TaskError::outcome`] names the kind of
/// end, and [`TaskError::describe`] has the text. What the hook returns is what counts: it may return
/// another error or output, or leave `next` out and run nothing.
///
/// | the attempt | what [`Next::run`] returns |
/// | --- | --- |
/// | succeeds | `Ok`, with the output where there is one |
/// | returns an error | `Err` with that error, before [`Policy::classify`](crate::Policy::classify) judges it |
/// | snoozes, cancels its job | `Err`: `Snoozed`, `Cancelled` |
/// | panics | `Err`: `Panicked`, with the text that is kept |
/// | exceeds its timeout | `Err`: `TimedOut`. The handler is dropped, and the hook has 5 s to return |
/// | loses its lease, or the worker stops | [`Ctx::cancelled`] fires, and the handler decides |
/// | is given up at the end of the grace time | nothing: the hook's future is dropped |
///
/// The time of hooks counts towards the timeout. A panic in a hook ends its attempt as panicked, and
/// no other. A job whose attempts crashed too often ends without an attempt, and so without hooks.
///
/// ```
/// use std::time::Instant;
/// use quell::{Around, Ctx, Next, Payload, TaskError};
///
/// /// Measures each attempt and reports errors.
/// struct Report;
///
/// impl<S: Send + Sync + 'static> Around<S> for Report {
///     async fn around(&self, ctx: &Ctx<S>, next: Next<'_>) -> Result<Option<Payload>, TaskError> {
///         let started = Instant::now();
///         let answer = next.run().await;
///         println!("{} of job {} took {:?}", ctx.task(), ctx.job(), started.elapsed());
///         if let Err(error) = &answer {
///             println!("{}: {}", error.outcome().name(), error.describe());
///         }
///         answer
///     }
/// }
///
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Hello;
/// # impl quell::Task for Hello { const NAME: &'static str = "hello"; type Output = (); }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> quell::Result<()> {
/// let kit = quell::testing::TestKit::start(|quell| {
///     let hello = |_: Hello, _: Ctx<()>| async { Ok(()) };
///     quell.worker(()).register(hello).around(Report)
/// })?;
/// kit.quell().trigger(Hello).await?;
/// kit.advance(std::time::Duration::ZERO).await;
/// assert_eq!(kit.succeeded("hello").await?.len(), 1);
/// # Ok(())
/// # }
/// ```
pub trait Around<S>: Send + Sync + 'static {
    /// Runs before, and with [`Next::run`] around, one attempt.
    fn around(
        &self,
        ctx: &Ctx<S>,
        next: Next<'_>,
    ) -> impl Future<Output = Result<Option<Payload>, TaskError>> + Send;
}

/// What a hook is around: the next hook, or the handler.
#[must_use = "the handler runs while `run` is awaited"]
pub struct Next<'a>(BoxFuture<'a, Answered>);

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

impl Next<'_> {
    /// Runs the handler, with the hooks that were added later around it. Dropping the future drops
    /// the handler.
    ///
    /// # Errors
    /// Why the handler did not succeed.
    pub async fn run(self) -> Result<Option<Payload>, TaskError> {
        self.0.await
    }
}

/// A hook without its type.
trait AnyAround<S>: Send + Sync {
    fn around<'a>(&'a self, ctx: &'a Ctx<S>, next: Next<'a>) -> BoxFuture<'a, Answered>;
}

impl<S: Send + Sync + 'static, A: Around<S>> AnyAround<S> for A {
    fn around<'a>(&'a self, ctx: &'a Ctx<S>, next: Next<'a>) -> BoxFuture<'a, Answered> {
        Box::pin(Around::around(self, ctx, next))
    }
}

/// The hooks of a worker, the outermost first.
pub(crate) struct Hooks<S>(Vec<Arc<dyn AnyAround<S>>>);

impl<S> Clone for Hooks<S> {
    fn clone(&self) -> Self {
        Hooks(self.0.clone())
    }
}

impl<S> Default for Hooks<S> {
    fn default() -> Self {
        Hooks(Vec::new())
    }
}

impl<S> fmt::Debug for Hooks<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hooks").field(&self.0.len()).finish()
    }
}

impl<S: Send + Sync + 'static> Hooks<S> {
    pub(crate) fn push(&mut self, hook: impl Around<S>) {
        self.0.push(Arc::new(hook));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs `handler` within all hooks. The first poll of the future calls the first hook, so that a
    /// panic of one that is no `async fn` is a panic of the future, too.
    pub(crate) async fn around<'a>(
        &'a self,
        ctx: &'a Ctx<S>,
        handler: BoxFuture<'a, Answered>,
    ) -> Answered {
        let within = |next, hook: &'a Arc<dyn AnyAround<S>>| hook.around(ctx, Next(next));
        self.0.iter().rev().fold(handler, within).await
    }
}
