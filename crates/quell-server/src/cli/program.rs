//! The command line as a whole: all commands with their arguments, and the module that runs each.

use std::io::Write;

use clap::{CommandFactory, Parser, Subcommand};

/// Durable background tasks that run once per burst.
#[derive(Debug, Parser)]
#[command(name = "quell", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch bursts collapse: a real history, replayed at speed through a real server.
    Demo(crate::demo::Args),
    /// Run the server: the tasks of a configuration, the HTTP API, a worker.
    Serve(crate::serve::Args),
    /// Trigger a task of a server.
    Trigger(super::trigger::Args),
    /// List jobs, newest first.
    Jobs(super::jobs::JobsArgs),
    /// Follow what happens to jobs: one line for each that comes, starts, fails or ends.
    Tail(super::tail::Args),
    /// Watch queues, windows, running and dead jobs, workers and alerts, live.
    Top(super::top::Args),
    /// Show one job.
    Job(super::jobs::JobArgs),
    /// Show a job's result. `--wait` blocks until the job ends.
    Result(super::result::Args),
    /// Show what happened to a key, a job or a trigger, and why.
    Explain(super::jobs::ExplainArgs),
    /// Cancel a job, or the open window of a key.
    Cancel(super::cancel::CancelArgs),
    /// Make the open window of a key due now.
    Flush(super::cancel::FlushArgs),
    /// Make a job that waits due now.
    Run(super::cancel::RunArgs),
    /// Change the priority of a job that waits.
    Reprioritise(super::cancel::ReprioritiseArgs),
    /// Set, pause and resume queues.
    #[command(subcommand)]
    Queue(super::queue::Command),
    /// Pause and resume tasks.
    #[command(subcommand)]
    Task(super::task::Command),
    /// List, show, redrive, discard, export and import dead jobs.
    #[command(subcommand)]
    Dead(super::dead::Command),
    /// Do one thing to all jobs that match a filter, in a server; list, show and stop such actions.
    #[command(subcommand)]
    Actions(super::actions::Command),
    /// List schedules; pause, resume, run, backfill or remove one.
    Schedule(super::schedule::Args),
    /// List alerts with what they watch and whether they are raised.
    Alerts(super::alerts::Args),
    /// List the webhook sources with the numbers of their deliveries.
    Sources(super::sources::Args),
    /// List workers: where each runs, how busy it is, and when it was last seen.
    Workers(super::workers::Args),
    /// Make, list, replace and revoke tokens.
    #[command(subcommand)]
    Tokens(super::tokens::Command),
    /// Make, list, rotate and remove the keys that encrypt payloads.
    #[command(subcommand)]
    Keys(super::keys::Command),
    /// Show what operators did through a server, the newest first.
    Audit(super::audit::Args),
    /// Judge event histories: was anything lost, run twice, too early or too late?
    Check(super::check::Args),
    /// Feed recorded events as real triggers through a store and a worker, and measure.
    Replay(super::replay::Args),
    /// Try debounce thresholds on recorded events, from the rules alone: runs saved, delay added.
    Simulate(super::simulate::Args),
    /// Check a store: its clock, its disk, its rights, its workers, and what a configuration expects.
    Doctor(super::doctor::Args),
    /// Copy a store on SQLite to a file, while processes use it.
    Backup(super::backup::BackupArgs),
    /// Put a copy in the place of a store on SQLite that no process uses.
    Restore(super::backup::RestoreArgs),
    /// Check that a server works (`/v1/healthz`): exit status 0 if it does.
    Health(super::health::Args),
    /// Print the description of the HTTP API (OpenAPI 3.1).
    Openapi,
    /// Print the reference of all settings of the configuration file (Markdown).
    Settings,
    /// Print the script that completes commands and options in a shell.
    Completions(super::completions::Args),
    /// Write the manual pages, one for each command.
    Man(super::man::Args),
}

/// Runs a command, which prints to `out`. A server starts its log with the settings.
///
/// # Errors
/// Why it failed; [`status`](super::exit::status) has the exit status of it.
pub fn run(
    command: Command,
    log: Option<crate::log::Settings>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    match command {
        Command::Demo(args) => crate::demo::run(args, out),
        Command::Serve(args) => crate::serve::run(args, log, out),
        Command::Trigger(args) => super::trigger::run(args, out),
        Command::Jobs(args) => super::jobs::jobs(args, out),
        Command::Tail(args) => super::tail::run(&args, out),
        Command::Top(args) => super::top::run(&args, out),
        Command::Job(args) => super::jobs::job(args, out),
        Command::Result(args) => super::result::run(args, out),
        Command::Explain(args) => super::jobs::explain(args, out),
        Command::Cancel(args) => super::cancel::cancel(args, out),
        Command::Flush(args) => super::cancel::flush(&args, out),
        Command::Run(args) => super::cancel::run(&args, out),
        Command::Reprioritise(args) => super::cancel::reprioritise(&args, out),
        Command::Queue(command) => super::queue::run(command, out),
        Command::Task(command) => super::task::run(command, out),
        Command::Dead(command) => super::dead::run(command, out),
        Command::Actions(command) => super::actions::run(command, out),
        Command::Schedule(args) => super::schedule::run(args, out),
        Command::Alerts(args) => super::alerts::run(&args, out),
        Command::Sources(args) => super::sources::run(&args, out),
        Command::Workers(args) => super::workers::run(&args, out),
        Command::Tokens(command) => super::tokens::run(command, out),
        Command::Keys(command) => super::keys::run(command, out),
        Command::Audit(args) => super::audit::run(&args, out),
        Command::Check(args) => super::check::run(args, out),
        Command::Replay(args) => super::replay::run(args, out),
        Command::Simulate(args) => super::simulate::run(args, out),
        Command::Doctor(args) => super::doctor::run(&args, out),
        Command::Backup(args) => super::backup::backup(&args, out),
        Command::Restore(args) => super::backup::restore(&args, out),
        Command::Health(args) => super::health::run(&args, out),
        Command::Openapi => super::openapi::run(out),
        Command::Settings => super::settings::run(out),
        Command::Completions(args) => super::completions::run(&args, Cli::command(), out),
        Command::Man(args) => super::man::run(&args, Cli::command(), out),
    }
}
