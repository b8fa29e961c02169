//! The `quell` binary: reads the command line and hands it to the library.
//!
//! Each command gets its parsed arguments and the locked standard output; what it returns is
//! printed as one line on standard error and becomes the exit status.

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use quell_server::cli::exit;
use quell_server::cli::program::{Cli, Command, run};

fn main() -> ExitCode {
    if let Some(ended) = quell_server::handlers::guard::main() {
        return ended;
    }
    let cli = Cli::parse();
    let default = if matches!(cli.command, Command::Demo(_)) { "warn" } else { "info" };
    let log = match quell_server::log::Settings::read(default) {
        Ok(log) => log,
        // As a wrong option: it prints the usage and ends with status 2.
        Err(refused) => Cli::command().error(ErrorKind::InvalidValue, refused).exit(),
    };
    // A server starts its log once it has read its configuration.
    let (log, _log) = match cli.command {
        Command::Serve(_) => (Some(log), None),
        _ => (None, Some(log.start(None))),
    };
    match run(cli.command, log, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed, too: then only the exit status shows the failure.
            let _closed = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::from(exit::status(&error))
        }
    }
}
