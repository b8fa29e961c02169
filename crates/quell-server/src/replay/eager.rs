//! Waiting without falling asleep at once.
//!
//! In virtual time the replay is a long chain of short store calls. Each answer comes in less time
//! than a thread takes to fall asleep and be woken, twice per statement. Asking again for a while
//! first takes a quarter off the whole.

use std::future::{Future, poll_fn};
use std::pin::pin;

/// How often to ask before sleeping: some hundred microseconds.
const TURNS: u32 = 400;

/// Waits for `future`, awake for a while and then asleep.
pub(super) async fn eagerly<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut turns = 0;
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() && turns < TURNS {
            turns += 1;
            context.waker().wake_by_ref();
        }
        polled
    })
    .await
}
