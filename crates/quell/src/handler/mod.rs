//! Handlers: the functions that a worker calls.
//!
//! A handler is `async fn(T, Ctx<S>) -> Result<T::Output, TaskError>`. Its first argument is the
//! task, or [`Collected`] of it where the policy collects every payload. The traits here are
//! implemented for such functions; few programs name them.
//!
//! ```
//! use quell::{Ctx, Task, TaskError};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Resize { width: u32 }
//!
//! impl Task for Resize {
//!     const NAME: &'static str = "resize";
//!     type Output = u32;
//! }
//!
//! async fn resize(task: Resize, _: Ctx<()>) -> Result<u32, TaskError> {
//!     Ok(task.width / 2)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let quell = quell::Quell::open("memory:").await?;
//! let worker = quell.worker(()).register(resize);
//! # let _ = worker;
//! # Ok(())
//! # }
//! ```

pub(crate) mod around;
pub(crate) mod ctx;
pub(crate) mod effects;
pub(crate) mod policy;
pub(crate) mod task;

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use quell_core::idempotency::{checked_output, encoded_output};
use quell_core::{Error, Fold, Payload, Result};

use crate::handler::task::TaskError;
use crate::{Ctx, Task};

/// Every payload of a window, oldest first: the argument of a handler whose task collects
/// ([`Fold::Collect`]).
///
/// ```
/// use quell::{Collected, Ctx, TaskError};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Mail { to: String }
/// # impl quell::Task for Mail { const NAME: &'static str = "mail"; type Output = (); }
///
/// async fn send_digest(mails: Collected<Mail>, ctx: Ctx<()>) -> Result<(), TaskError> {
///     for mail in mails.iter() {
///         assert!(!mail.to.is_empty());
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Collected<T>(Vec<T>);

impl<T> Deref for Collected<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> IntoIterator for Collected<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// What a handler takes first: a task, or [`Collected`] tasks.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a handler's first argument",
    label = "not a task",
    note = "it must implement `quell::Task`, or be `quell::Collected<T>` where `T` does"
)]
pub trait Input: Sized + Send + 'static {
    /// The task whose jobs the handler runs.
    type Task: Task;
    /// Whether it takes every payload of a window.
    const COLLECTED: bool;

    /// Parses a job's payload.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the payload does not fit.
    fn decode(payload: &Payload) -> Result<Self>;
}

impl<T: Task> Input for T {
    type Task = T;
    const COLLECTED: bool = false;

    fn decode(payload: &Payload) -> Result<Self> {
        payload.decode()
    }
}

impl<T: Task> Input for Collected<T> {
    type Task = T;
    const COLLECTED: bool = true;

    fn decode(payload: &Payload) -> Result<Self> {
        payload.decode().map(Collected)
    }
}

/// A function that runs jobs of one task: `async fn(T, Ctx<S>) -> Result<T::Output, TaskError>`.
///
/// ```
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Mail;
/// # impl quell::Task for Mail {
/// #     const NAME: &'static str = "mail";
/// #     type Output = ();
/// # }
/// use quell::{Ctx, Quell, TaskError};
///
/// async fn send(_: Mail, _: Ctx<()>) -> Result<(), TaskError> {
///     Ok(())
/// }
///
/// fn register(quell: &Quell) {
///     let _worker = quell.worker(()).register(send);
/// }
/// ```
///
/// A function without a context is no handler:
///
/// ```compile_fail,E0593
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Mail;
/// # impl quell::Task for Mail {
/// #     const NAME: &'static str = "mail";
/// #     type Output = ();
/// # }
/// use quell::{Ctx, Quell, TaskError};
///
/// async fn send(_: Mail) -> Result<(), TaskError> {
///     Ok(())
/// }
///
/// fn register(quell: &Quell) {
///     let _worker = quell.worker(()).register(send);
/// }
/// ```
///
/// Nor is one of something that is no task:
///
/// ```compile_fail,E0277
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Mail;
/// # impl quell::Task for Mail {
/// #     const NAME: &'static str = "mail";
/// #     type Output = ();
/// # }
/// use quell::{Ctx, Quell, TaskError};
///
/// async fn send(_: String, _: Ctx<()>) -> Result<(), TaskError> {
///     Ok(())
/// }
///
/// fn register(quell: &Quell) {
///     let _worker = quell.worker(()).register(send);
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for a worker with state `{S}`",
    label = "not a handler",
    note = "a handler is `async fn(task: T, ctx: quell::Ctx<{S}>) -> Result<T::Output, quell::TaskError>`, \
            where `T` implements `quell::Task`"
)]
pub trait Handler<S, I: Input>: Send + Sync + 'static {
    /// Runs one attempt.
    fn call(
        &self,
        input: I,
        ctx: Ctx<S>,
    ) -> impl Future<Output = Result<<I::Task as Task>::Output, TaskError>> + Send;
}

impl<F, Fut, S, I> Handler<S, I> for F
where
    F: Fn(I, Ctx<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<<I::Task as Task>::Output, TaskError>> + Send,
    I: Input,
{
    fn call(
        &self,
        input: I,
        ctx: Ctx<S>,
    ) -> impl Future<Output = Result<<I::Task as Task>::Output, TaskError>> + Send {
        self(input, ctx)
    }
}

/// A handler as the worker sees it.
pub(crate) struct AnyHandler<S>(Arc<Erased<S>>);

type Erased<S> = dyn Fn(Payload, Ctx<S>) -> Ended + Send + Sync;
/// What a handler returned, as it is kept; an error where it cannot be.
pub(crate) type Output = Result<Option<Payload>>;
type Ended = BoxFuture<'static, Result<Output, TaskError>>;

impl<S> Clone for AnyHandler<S> {
    fn clone(&self) -> Self {
        AnyHandler(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for AnyHandler<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyHandler")
    }
}

impl<S: Send + Sync + 'static> AnyHandler<S> {
    /// A handler that takes its task.
    pub(crate) fn typed<I: Input, H: Handler<S, I>>(handler: H) -> Self {
        let handler = Arc::new(handler);
        AnyHandler(Arc::new(move |payload: Payload, ctx: Ctx<S>| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                // A payload that does not fit will not fit on the next attempt either.
                let input = I::decode(&payload).map_err(TaskError::permanent)?;
                let output = handler.call(input, ctx).await?;
                Ok(encoded_output(&output))
            })
        }))
    }

    /// A handler that takes the bare payload.
    pub(crate) fn raw<F, Fut, R>(handler: F) -> Self
    where
        F: Fn(Payload, Ctx<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, TaskError>> + Send + 'static,
        R: RawOutput,
    {
        AnyHandler(Arc::new(move |payload, ctx| {
            let answered = handler(payload, ctx);
            Box::pin(
                async move { Ok(answered.await?.into_output().map_or(Ok(None), checked_output)) },
            )
        }))
    }

    pub(crate) fn call(&self, payload: Payload, ctx: Ctx<S>) -> Ended {
        (self.0)(payload, ctx)
    }
}

/// What a handler that takes the bare payload returns: `()`, or the output as JSON.
pub trait RawOutput: Send + 'static {
    /// The output, if any.
    fn into_output(self) -> Option<Payload>;
}

impl RawOutput for () {
    fn into_output(self) -> Option<Payload> {
        None
    }
}

impl RawOutput for Option<Payload> {
    fn into_output(self) -> Option<Payload> {
        self
    }
}

/// Refuses a handler whose argument does not match how its task folds payloads.
pub(crate) fn check_input<I: Input>(fold: &Fold) -> Result<()> {
    let name = <I::Task as Task>::NAME;
    match (matches!(fold, Fold::Collect { .. }), I::COLLECTED) {
        (true, false) => Err(Error::invalid(
            "fold",
            format!("task {name} collects its payloads: its handler takes `Collected<T>`"),
        )),
        (false, true) => Err(Error::invalid(
            "fold",
            format!("the handler of task {name} takes `Collected<T>`: set `Fold::Collect`"),
        )),
        (true, true) | (false, false) => Ok(()),
    }
}
