//! Logs go to standard error; `QUELL_LOG` says how much (else the command's own default), and `QUELL_LOG_FORMAT`
//! whether lines are text or JSON.
//!
//! Invariant: a log that cannot be written, or that nothing reads, holds up no work and ends nothing. A thread of its own
//! writes the lines; those that it does not keep up with are dropped.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// The variable that says how much is logged.
const VARIABLE: &str = "QUELL_LOG";
/// The variable that says how.
const FORMAT: &str = "QUELL_LOG_FORMAT";
/// What the variable may be.
const ALLOWED: &str = "give error, warn, info, debug, trace or off, for everything or by module: \
                       warn,quell_server=debug";
/// The most lines that wait to be written.
const MAX_WAITING: usize = 16_384;

/// Writes the last lines when it is dropped.
#[derive(Debug)]
pub struct Log {
    _writes: Option<WorkerGuard>,
}

/// How much is logged, and how.
#[derive(Debug)]
pub struct Settings {
    filter: EnvFilter,
    is_json: bool,
}

/// A layer that makes spans for an exporter.
pub type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;

impl Settings {
    /// Reads the two variables.
    ///
    /// # Errors
    /// The value of `QUELL_LOG` or `QUELL_LOG_FORMAT` and what it may be, where it is something else.
    pub fn read(default: &str) -> Result<Self, String> {
        settings(default)
    }

    /// Starts logging for the process, until what it returns is dropped; a second call changes nothing. Spans go to
    /// the layer, too, whatever is logged.
    #[must_use]
    pub fn start(self, spans: Option<SpanLayer>) -> Log {
        let (writer, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(MAX_WAITING)
            .lossy(true)
            .thread_name("log")
            .finish(std::io::stderr());
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(writer)
            // Else it would report a failure to write on the very same output.
            .log_internal_errors(false)
            .with_ansi(std::io::stderr().is_terminal() && !self.is_json);
        let lines: SpanLayer = if self.is_json {
            lines.json().flatten_event(true).with_filter(self.filter).boxed()
        } else {
            lines.with_filter(self.filter).boxed()
        };
        let layers: Vec<SpanLayer> = std::iter::once(lines).chain(spans).collect();
        match tracing_subscriber::registry().with(layers).try_init() {
            Ok(()) => Log { _writes: Some(guard) },
            Err(error) => {
                tracing::debug!(%error, "logging was started before");
                Log { _writes: None }
            }
        }
    }
}

fn settings(default: &str) -> Result<Settings, String> {
    let filter = match std::env::var(VARIABLE) {
        Ok(text) if !text.trim().is_empty() => filter(&text)?,
        Ok(_) | Err(std::env::VarError::NotPresent) => EnvFilter::new(with_runs(default)),
        Err(std::env::VarError::NotUnicode(text)) => return Err(refused(&text)),
    };
    let is_json = match std::env::var(FORMAT).as_deref() {
        Ok("json") => true,
        Ok("text" | "") | Err(std::env::VarError::NotPresent) => false,
        other => {
            return Err(format!("invalid value {other:?} for '{FORMAT}': give text or json"));
        }
    };
    Ok(Settings { filter, is_json })
}

/// A level with a line for each run, which the library logs one level below where it went well.
fn with_runs(text: &str) -> String {
    if text.trim().eq_ignore_ascii_case("info") {
        return "info,quell::attempt=debug".to_owned();
    }
    text.to_owned()
}

/// The filter of a value. A word that is no level would be taken for the name of a module, which a typo is
/// not.
fn filter(text: &str) -> Result<EnvFilter, String> {
    let means_something = |part: &str| {
        let part = part.trim();
        part.is_empty() || part.contains('=') || part.parse::<LevelFilter>().is_ok()
    };
    let parsed =
        EnvFilter::try_new(with_runs(text)).ok().filter(|_| text.split(',').all(means_something));
    parsed.ok_or_else(|| refused(&text))
}

fn refused(value: &dyn std::fmt::Debug) -> String {
    format!("invalid value {value:?} for '{VARIABLE}': {ALLOWED}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_level_or_levels_of_modules() {
        for text in
            ["warn", "DEBUG", "off", "warn,quell_server=debug", "quell::attempt=trace, info"]
        {
            assert!(filter(text).is_ok(), "{text}");
        }
        for text in ["nonsense", "warning", "quell_server", "quell_server=loud", "warn,nonsense"] {
            let error = filter(text).unwrap_err();
            assert!(error.contains(&format!("{text:?}")) && error.contains("debug"), "{error}");
        }
    }
}
