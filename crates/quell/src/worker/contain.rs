//! Where a user's code runs within an attempt: for a limited time, and with its panics ended (R25).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use quell_core::{AttemptOutcome, Timestamp};
use tokio_util::sync::CancellationToken;

use super::panic::{Caught, caught};
use crate::TaskError;
use crate::clock::Clock;
use crate::handler::task::Answer;

/// How long hooks may go on after their attempt's timeout, so that they can report it.
const HOOKS_GRACE: Duration = Duration::from_secs(5);

/// A user's code as an error names it.
pub(super) struct Names {
    code: &'static str,
    drop: &'static str,
}

pub(super) const HANDLER: Names =
    Names { code: "the handler", drop: "the drop of the handler's future" };
pub(super) const HOOK: Names =
    Names { code: "a hook around the handler", drop: "the drop of a hook's future" };

/// When an attempt's time is over.
pub(super) struct Limit {
    clock: Arc<dyn Clock>,
    timeout: Duration,
    ends_at: Timestamp,
    cancelled: CancellationToken,
}

impl Limit {
    /// From now on.
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        timeout: Duration,
        cancelled: CancellationToken,
    ) -> Self {
        let ends_at = clock.now() + timeout;
        Limit { clock, timeout, ends_at, cancelled }
    }

    /// The end of the handler's time, at which the attempt is cancelled.
    pub(super) fn of_handler(&self) -> impl Future<Output = ()> + Send + use<> {
        let (over, cancelled) = (self.clock.sleep_until(self.ends_at), self.cancelled.clone());
        async move {
            over.await;
            cancelled.cancel();
        }
    }

    /// The end of the time of hooks.
    pub(super) fn of_hooks(&self) -> impl Future<Output = ()> + Send + use<> {
        let (handler, clock) = (self.of_handler(), Arc::clone(&self.clock));
        let ends_at = self.ends_at + HOOKS_GRACE;
        async move {
            handler.await;
            clock.sleep_until(ends_at).await;
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.ends_at <= self.clock.now()
    }

    pub(super) fn text(&self) -> String {
        format!("the attempt took longer than its timeout of {:?}", self.timeout)
    }
}

/// Runs a user's code until `limit`, and drops it there.
pub(super) async fn contained<R>(
    code: impl Future<Output = R>,
    limit: impl Future<Output = ()>,
    names: &Names,
    timed_out: impl FnOnce() -> String,
) -> Result<R, TaskError> {
    let mut code = std::pin::pin!(Some(code));
    let mut running = Caught(code.as_mut());
    let ended = tokio::select! {
        biased;
        ended = &mut running => Some(ended),
        () = limit => None,
    };
    let dropped = running.finish();
    let broke = |ended, error| Err(TaskError(Answer::Broke { ended, error }));
    let panicked = |text| broke(AttemptOutcome::Panicked, text);
    match (ended, dropped) {
        (Some(Ok(answer)), Ok(())) => Ok(answer),
        (Some(Ok(answer)), Err(panic)) => {
            // One panic is reported: this one adds nothing to it.
            let _again = caught(|| drop(answer));
            panicked(panic.describe(names.drop, None))
        }
        (Some(Err(panic)), _) => panicked(panic.describe(names.code, None)),
        (None, Ok(())) => broke(AttemptOutcome::TimedOut, timed_out()),
        (None, Err(panic)) => panicked(panic.describe(names.drop, Some(&timed_out()))),
    }
}
