//! Logs go to standard error; `QUELL_LOG` says how much (else the command's own default).

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// The variable that says how much is logged.
const VARIABLE: &str = "QUELL_LOG";
/// What the variable may be.
const ALLOWED: &str = "give error, warn, info, debug, trace or off, for everything or by module: \
                       warn,quell_server=debug";

/// Starts logging for the process; a second call changes nothing.
///
/// # Errors
/// The value of `QUELL_LOG` and what it may be, where it is something else.
pub fn start(default: &str) -> Result<(), String> {
    let filter = match std::env::var(VARIABLE) {
        Ok(text) if !text.trim().is_empty() => filter(&text)?,
        Ok(_) | Err(std::env::VarError::NotPresent) => EnvFilter::new(default),
        Err(std::env::VarError::NotUnicode(text)) => return Err(refused(&text)),
    };
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    if let Err(error) = started {
        tracing::debug!(%error, "logging was started before");
    }
    Ok(())
}

/// The filter of a value. A word that is no level would be taken for the name of a module, which a typo is
/// not.
fn filter(text: &str) -> Result<EnvFilter, String> {
    let means_something = |part: &str| {
        let part = part.trim();
        part.is_empty() || part.contains('=') || part.parse::<LevelFilter>().is_ok()
    };
    let parsed = EnvFilter::try_new(text).ok().filter(|_| text.split(',').all(means_something));
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
