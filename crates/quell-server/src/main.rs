//! The `quell` binary: reads the command line and hands it to the library.
//!
//! Each command gets its parsed arguments and the locked standard output; what it returns is
//! printed as one line on standard error and becomes the exit status.

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use quell_server::cli;

/// Durable background tasks that run once per burst.
#[derive(Debug, Parser)]
#[command(name = "quell", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch bursts collapse: a real history, replayed at speed through a real server.
    Demo(quell_server::demo::Args),
    /// Run the server: the tasks of a configuration, the HTTP API, a worker.
    Serve(quell_server::serve::Args),
    /// Trigger a task of a server.
    Trigger(cli::trigger::Args),
    /// List jobs, newest first.
    Jobs(cli::jobs::JobsArgs),
    /// Show one job.
    Job(cli::jobs::JobArgs),
    /// Show a job's result. `--wait` blocks until the job ends.
    Result(cli::result::Args),
    /// Show what happened to a key, a job or a trigger, and why.
    Explain(cli::jobs::ExplainArgs),
    /// Cancel a job, or the open window of a key.
    Cancel(cli::cancel::CancelArgs),
    /// Make the open window of a key due now.
    Flush(cli::cancel::FlushArgs),
    /// Make a job that waits due now.
    Run(cli::cancel::RunArgs),
    /// Change the priority of a job that waits.
    Reprioritise(cli::cancel::ReprioritiseArgs),
    /// Set, pause and resume queues.
    #[command(subcommand)]
    Queue(cli::queue::Command),
    /// Pause and resume tasks.
    #[command(subcommand)]
    Task(cli::task::Command),
    /// List, show, redrive, discard, export and import dead jobs.
    #[command(subcommand)]
    Dead(cli::dead::Command),
    /// List schedules; pause, resume, run, backfill or remove one.
    Schedule(cli::schedule::Args),
    /// List alerts with what they watch and whether they are raised.
    Alerts(cli::alerts::Args),
    /// List workers: where each runs, how busy it is, and when it was last seen.
    Workers(cli::workers::Args),
    /// Make, list, replace and revoke tokens.
    #[command(subcommand)]
    Tokens(cli::tokens::Command),
    /// Make, list, rotate and remove the keys that encrypt payloads.
    #[command(subcommand)]
    Keys(cli::keys::Command),
    /// Show what operators did through a server, the newest first.
    Audit(cli::audit::Args),
    /// Judge event histories: was anything lost, run twice, too early or too late?
    Check(cli::check::Args),
    Replay(cli::replay::Args),
    Simulate(cli::simulate::Args),
    /// Check a store: its clock, its disk, its rights, its workers, and what a configuration expects.
    Doctor(cli::doctor::Args),
    /// Copy a store on SQLite to a file, while processes use it.
    Backup(cli::backup::BackupArgs),
    /// Put a copy in the place of a store on SQLite that no process uses.
    Restore(cli::backup::RestoreArgs),
    /// Check that a server works (`/v1/healthz`): exit status 0 if it does.
    Health(cli::health::Args),
    /// Print the description of the HTTP API (OpenAPI 3.1).
    Openapi,
    /// Print the reference of all settings of the configuration file (Markdown).
    Settings,
    /// Print the script that completes commands and options in a shell.
    Completions(cli::completions::Args),
    /// Write the manual pages, one for each command.
    Man(cli::man::Args),
}

fn main() -> ExitCode {
    if let Some(ended) = quell_server::handlers::guard::main() {
        return ended;
    }
    let cli = Cli::parse();
    let default = if matches!(cli.command, Command::Demo(_)) { "warn" } else { "info" };
    let _log = match quell_server::log::start(default) {
        Ok(log) => log,
        // As a wrong option: it prints the usage and ends with status 2.
        Err(refused) => Cli::command().error(ErrorKind::InvalidValue, refused).exit(),
    };
    let mut out = std::io::stdout().lock();
    let outcome = match cli.command {
        Command::Demo(args) => quell_server::demo::run(args, &mut out),
        Command::Serve(args) => quell_server::serve::run(args, &mut out),
        Command::Trigger(args) => cli::trigger::run(args, &mut out),
        Command::Jobs(args) => cli::jobs::jobs(args, &mut out),
        Command::Job(args) => cli::jobs::job(args, &mut out),
        Command::Result(args) => cli::result::run(args, &mut out),
        Command::Explain(args) => cli::jobs::explain(args, &mut out),
        Command::Cancel(args) => cli::cancel::cancel(args, &mut out),
        Command::Flush(args) => cli::cancel::flush(&args, &mut out),
        Command::Run(args) => cli::cancel::run(&args, &mut out),
        Command::Reprioritise(args) => cli::cancel::reprioritise(&args, &mut out),
        Command::Queue(command) => cli::queue::run(command, &mut out),
        Command::Task(command) => cli::task::run(command, &mut out),
        Command::Dead(command) => cli::dead::run(command, &mut out),
        Command::Schedule(args) => cli::schedule::run(args, &mut out),
        Command::Alerts(args) => cli::alerts::run(&args, &mut out),
        Command::Workers(args) => cli::workers::run(&args, &mut out),
        Command::Tokens(command) => cli::tokens::run(command, &mut out),
        Command::Keys(command) => cli::keys::run(command, &mut out),
        Command::Audit(args) => cli::audit::run(&args, &mut out),
        Command::Check(args) => cli::check::run(args, &mut out),
        Command::Replay(args) => cli::replay::run(args, &mut out),
        Command::Simulate(args) => cli::simulate::run(args, &mut out),
        Command::Doctor(args) => cli::doctor::run(&args, &mut out),
        Command::Backup(args) => cli::backup::backup(&args, &mut out),
        Command::Restore(args) => cli::backup::restore(&args, &mut out),
        Command::Health(args) => cli::health::run(&args, &mut out),
        Command::Openapi => cli::openapi::run(&mut out),
        Command::Settings => cli::settings::run(&mut out),
        Command::Completions(args) => cli::completions::run(&args, Cli::command(), &mut out),
        Command::Man(args) => cli::man::run(&args, Cli::command(), &mut out),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed, too: then only the exit status shows the failure.
            let _closed = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
