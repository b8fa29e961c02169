//! What a panicking handler leaves behind: its message, its place and its backtrace (R25).
//!
//! Place and backtrace are known only to the process's panic hook. [`install`] puts one before the
//! hook that is there, once; it takes notes while an attempt is being polled on the panicking
//! thread, and calls the hook before it in any case, so an application's own goes on as it was.

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
    /// Whether an attempt is polled on this thread, and what the hook noted of its panic.
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

/// Polls a handler; its panic becomes an error's text.
pub(super) struct Caught<'f, F>(pub(super) Pin<&'f mut F>);

impl<F: Future> Future for Caught<'_, F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        WATCH.set(Watch::On);
        // After a panic the handler is dropped and not polled again.
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context)));
        let noted = WATCH.replace(Watch::Off);
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(describe(&*panic, &noted))),
        }
    }
}

fn describe(panic: &(dyn Any + Send), noted: &Watch) -> String {
    let message = panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let mut text = format!("the handler panicked: {}", message.unwrap_or("(no message)"));
    // Room for place and trace, however long the message.
    let most = Failure::MAX_ERROR_BYTES / 2;
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    if let Watch::Panicked { place, trace } = noted {
        text.push_str("\nat ");
        text.push_str(place);
        text.push_str("\nbacktrace:\n");
        text.push_str(&handlers_part(&trace.to_string()));
    }
    text
}

/// The frames between the panic's machinery and this file's, which say nothing about the handler.
/// All of them where it cannot be told.
fn handlers_part(trace: &str) -> String {
    let lines: Vec<&str> = trace.lines().collect();
    let is = |line: &str, names: &[&str]| names.iter().any(|name| line.contains(name));
    let machinery = ["core::panicking::panic", "std::panicking::begin_panic", "rust_begin_unwind"];
    let ours = "quell::worker::panic::Caught";
    let end = lines.iter().position(|line| line.contains(ours)).unwrap_or(lines.len());
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
        let text = describe(&"é".repeat(Failure::MAX_ERROR_BYTES), &noted);
        let kept = text.floor_char_boundary(Failure::MAX_ERROR_BYTES);
        assert!(text[..kept].contains("at src/app.rs:7:1"), "{}", text.len());
    }
}
