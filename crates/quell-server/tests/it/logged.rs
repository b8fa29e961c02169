//! What is logged on a test's thread, as text: a server of the test runs there.

use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing_subscriber::fmt::MakeWriter;

/// The lines so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logged(Arc<Mutex<Vec<u8>>>);

impl Logged {
    /// Keeps lines of these levels until the guard is dropped.
    pub(crate) fn start(level: tracing::Level) -> (Self, DefaultGuard) {
        // Where there is one subscriber in a process, an event that happens first on a thread without it is
        // taken for one that no subscriber wants, for good.
        static OTHERS: LazyLock<[Dispatch; 2]> =
            LazyLock::new(|| [NoSubscriber::new(), NoSubscriber::new()].map(Dispatch::new));
        LazyLock::force(&OTHERS);
        let logged = Logged::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(logged.clone())
            .finish();
        (logged, tracing::subscriber::set_default(subscriber))
    }

    /// The lines that have this text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        let all = String::from_utf8(bytes).unwrap();
        all.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logged {
    type Writer = Logged;

    fn make_writer(&'a self) -> Logged {
        self.clone()
    }
}
