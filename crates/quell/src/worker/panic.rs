//! Catches panics of a user's code, and keeps their message, place and backtrace (R25).
//!
//! Place and backtrace are known only to the process's panic hook. Where a worker asks for it,
//! [`install`] puts one before the hook that is there, once; it takes notes while an attempt is
//! being polled on the panicking thread, and calls the hook before it in any case, so an
//! application's own goes on as it was.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

use quell_core::Failure;

thread_local! {
    /// Whether an attempt is polled on this thread, and the hook's notes of its panic.
    static WATCH: RefCell<Watch> = const { RefCell::new(Watch::Off) };
}

enum Watch {
    Off,
    On,
    Panicked { place: String, trace: Backtrace },
}

/// Puts Quell's hook before the process's, the first time it is called. A hook that the application
/// sets later replaces it; panics are then kept without place and backtrace.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    // Hooks cannot be changed by a thread that panics.
    if std::thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            note(info.location());
            before(info);
        }));
    });
}

fn note(location: Option<&std::panic::Location<'_>>) {
    // A panic while a thread ends, or within a note, has nowhere to go.
    let _gone = WATCH.try_with(|watch| {
        if let Ok(mut watch) = watch.try_borrow_mut()
            && matches!(*watch, Watch::On)
        {
            let place = location.map_or_else(String::new, ToString::to_string);
            *watch = Watch::Panicked { place, trace: Backtrace::force_capture() };
        }
    });
}

/// A panic of a user's code: its message, and its place and backtrace where the hook noted them.
pub(super) struct Panic {
    message: String,
    noted: Watch,
}

/// Runs a user's code; a panic in it ends here.
pub(super) fn caught<R>(code: impl FnOnce() -> R) -> Result<R, Panic> {
    // What is noted of an outer call is kept for it.
    let before = WATCH.replace(Watch::On);
    let result = catch_unwind(AssertUnwindSafe(code));
    let noted = WATCH.replace(before);
    result.map_err(|payload| Panic { message: message(payload), noted })
}

/// The message of a panic, whose payload is dropped.
pub(crate) fn message(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let mut text = text.unwrap_or("(no message)").to_owned();
    // Room for place and trace, however long the message.
    let most = Failure::MAX_ERROR_BYTES / 2;
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    // The drop of a payload is a user's code, too. Its own panic is leaked rather than dropped.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    text
}

impl Panic {
    /// What is kept of it: `what` panicked, after `before` where something was known by then.
    pub(super) fn describe(&self, what: &str, before: Option<&str>) -> String {
        let mut text = format!("{what} panicked: {}", self.message);
        if let Some(before) = before {
            let shown = before.get(..before.floor_char_boundary(Failure::MAX_ERROR_BYTES / 4));
            text.push_str("\nbefore that: ");
            text.push_str(shown.unwrap_or_default());
        }
        if let Watch::Panicked { place, trace } = &self.noted {
            text.push_str("\nat ");
            text.push_str(place);
            text.push_str("\nbacktrace:\n");
            text.push_str(&handlers_part(&trace.to_string()));
        }
        text
    }
}

/// Polls a user's future until it is dropped; its panics end here.
pub(super) struct Caught<'f, F>(pub(super) Pin<&'f mut Option<F>>);

impl<F: Future> Future for Caught<'_, F> {
    type Output = Result<F::Output, Panic>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = self.0.as_mut().as_pin_mut() else { return Poll::Pending };
        // After a panic the handler is dropped and not polled again.
        match caught(|| future.poll(context)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl<F> Caught<'_, F> {
    /// Drops the future in any state; a panic in a destructor ends here.
    pub(super) fn finish(mut self) -> Result<(), Panic> {
        caught(|| self.0.set(None))
    }
}

/// Without [`Caught::finish`], as where a hook panics while the handler waits: a second panic in a
/// destructor would end the process.
impl<F> Drop for Caught<'_, F> {
    fn drop(&mut self) {
        let _second = caught(|| self.0.set(None));
    }
}

/// The frames between the panic's machinery and this file's, which say nothing about the handler.
/// All of them where that is unknown.
fn handlers_part(trace: &str) -> String {
    let lines: Vec<&str> = trace.lines().collect();
    let is = |line: &str, names: &[&str]| names.iter().any(|name| line.contains(name));
    let machinery = ["core::panicking::panic", "std::panicking::begin_panic", "rust_begin_unwind"];
    let ours = ["quell::worker::panic::Caught", "quell::worker::panic::caught"];
    let end = lines.iter().position(|line| is(line, &ours)).unwrap_or(lines.len());
    let head = lines.get(..end).unwrap_or_default();
    let last = head.iter().rposition(|line| is(line, &machinery));
    // The frame's line is followed by the one that says where it is.
    let start = last.map_or(0, |index| {
        let placed = head.get(index + 1).is_some_and(|next| next.trim_start().starts_with("at "));
        if placed { index + 2 } else { index + 1 }
    });
    head.get(start..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r25_a_backtrace_is_kept_from_the_panic_to_the_worker() {
        let trace = "   0: std::backtrace::Backtrace::create\n   1: rust_begin_unwind\n             \
                     at /rustc/x.rs:1\n   2: core::panicking::panic_fmt\n             at /rustc/y.rs:2\n   \
                     3: app::charge\n             at ./src/app.rs:7\n   \
                     4: <quell::worker::panic::Caught<F> as Future>::poll\n   5: tokio::run";
        assert_eq!(handlers_part(trace), "   3: app::charge\n             at ./src/app.rs:7");
        assert_eq!(handlers_part("   0: unknown"), "   0: unknown");
    }

    #[test]
    fn r25_a_long_message_leaves_room_for_the_place() {
        let noted =
            Watch::Panicked { place: "src/app.rs:7:1".to_owned(), trace: Backtrace::disabled() };
        let message = message(Box::new("é".repeat(Failure::MAX_ERROR_BYTES)));
        let before = "è".repeat(Failure::MAX_ERROR_BYTES);
        let text = Panic { message, noted }.describe("the handler", Some(&before));
        let kept = text.floor_char_boundary(Failure::MAX_ERROR_BYTES);
        assert!(text[..kept].contains("at src/app.rs:7:1"), "{}", text.len());
    }
}
