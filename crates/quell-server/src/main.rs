//! The `quell` binary: reads the command line and hands it to the library.
//!
//! Each command gets its parsed arguments and the locked standard output; what it returns is
//! printed as one line on standard error and becomes the exit status.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Trigger(quell_server::client::TriggerArgs),
    /// List jobs, newest first.
    Jobs(quell_server::client::JobsArgs),
    /// Show one job.
    Job(quell_server::client::JobArgs),
    /// Say what came of a job, waiting for it if asked.
    Result(quell_server::result::Args),
    /// Say what happened to a key, a job or a trigger, and why.
    Explain(quell_server::client::ExplainArgs),
    /// Set, pause and resume queues.
    #[command(subcommand)]
    Queue(quell_server::operator::QueueCommand),
    /// Pause and resume tasks.
    #[command(subcommand)]
    Task(quell_server::operator::TaskCommand),
    /// List, show, redrive, discard, export and import dead jobs.
    #[command(subcommand)]
    Dead(quell_server::dead::Command),
    /// List schedules; pause, resume, run, backfill or remove one.
    Schedule(quell_server::schedule::Args),
    /// List alerts: what is watched, and what is raised.
    Alerts(quell_server::alert_command::Args),
    /// List workers: where each runs, how busy it is, and when it was last seen.
    Workers(quell_server::workers::Args),
    /// Judge event histories: was anything lost, run twice, too early or too late?
    Check(quell_server::check::Args),
    Replay(quell_server::cli::replay::Args),
    Simulate(quell_server::cli::simulate::Args),
    /// Check a store: how far its clock is ahead, and what else is wrong.
    Doctor(quell_server::doctor::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    quell_server::log::start(if matches!(cli.command, Command::Demo(_)) { "warn" } else { "info" });
    let mut out = std::io::stdout().lock();
    let done = match cli.command {
        Command::Demo(args) => quell_server::demo::run(args, &mut out),
        Command::Serve(args) => quell_server::serve::run(args, &mut out),
        Command::Trigger(args) => quell_server::client::trigger(args, &mut out),
        Command::Jobs(args) => quell_server::client::jobs(args, &mut out),
        Command::Job(args) => quell_server::client::job(args, &mut out),
        Command::Result(args) => quell_server::result::run(args, &mut out),
        Command::Explain(args) => quell_server::client::explain(args, &mut out),
        Command::Queue(command) => quell_server::operator::queue(command, &mut out),
        Command::Task(command) => quell_server::operator::task(command, &mut out),
        Command::Dead(command) => quell_server::dead::run(command, &mut out),
        Command::Schedule(args) => quell_server::schedule::run(args, &mut out),
        Command::Alerts(args) => quell_server::alert_command::run(&args, &mut out),
        Command::Workers(args) => quell_server::workers::run(&args, &mut out),
        Command::Check(args) => quell_server::check::run(args, &mut out),
        Command::Replay(args) => quell_server::cli::replay::run(args, &mut out),
        Command::Simulate(args) => quell_server::cli::simulate::run(args, &mut out),
        Command::Doctor(args) => quell_server::doctor::run(&args, &mut out),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed too: then the exit status alone has to say it.
            let _unheard = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
