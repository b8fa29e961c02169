//! `quell tokens`: make, list, replace and revoke tokens, in a file or through a server.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::source::{Server, ask, join, print_json};
use super::text::{join_lists, rows, table};
use crate::access::{Limits, NewToken, Pattern, Scope, Tokens};
use crate::config::duration;
use crate::view;

/// `quell tokens`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the tokens with their scopes, without what they are.
    List(At),
    /// Make a token, and show it this once.
    Add(Add),
    /// Make a new token in place of one, with the same scopes, and show it this once.
    Rotate(Rotate),
    /// End a token at once.
    Revoke(Revoke),
}

/// Where the tokens are.
#[derive(Debug, clap::Args)]
pub struct At {
    /// The file of tokens, as `server.tokens` names it. Without it, the server is asked.
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    file: Option<PathBuf>,
    #[command(flatten)]
    server: Server,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// `quell tokens add`.
#[derive(Debug, clap::Args)]
pub struct Add {
    /// Its name in the log and the audit.
    name: String,
    /// What it permits: `read`, `payload`, `operate`, `admin`, `trigger`, `work`, or `trigger:TASK` and
    /// `work:QUEUE`, where a name may end with `*`. Give it once for each.
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    scopes: Vec<Scope>,
    /// Limit it to this task, or to those that begin so: `mail*`.
    #[arg(long = "task", value_name = "TASK")]
    tasks: Vec<Pattern>,
    /// Limit it to this queue, or to those that begin so.
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<Pattern>,
    /// Let it expire after this time, such as `720h`.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    at: At,
}

/// `quell tokens rotate`.
#[derive(Debug, clap::Args)]
pub struct Rotate {
    /// Its name.
    name: String,
    /// How long the old token counts yet, up to `168h`. It ends at once without this.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    keep: Option<Duration>,
    #[command(flatten)]
    at: At,
}

/// `quell tokens revoke`.
#[derive(Debug, clap::Args)]
pub struct Revoke {
    /// Its name.
    name: String,
    #[command(flatten)]
    at: At,
}

/// Runs `quell tokens`.
///
/// # Errors
/// What the file or the server says.
pub fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::List(at) => list(&at, out),
        Command::Add(add) => made(&add.at, add.run()?, out),
        Command::Rotate(rotate) => made(&rotate.at, rotate.run()?, out),
        Command::Revoke(revoke) => revoke.run(out),
    }
}

fn list(at: &At, out: &mut dyn Write) -> anyhow::Result<()> {
    let tokens = match &at.file {
        Some(file) => {
            let listed = Tokens::open(file)?.list();
            view::Tokens { tokens: listed.into_iter().map(view::Token::from).collect() }
        }
        None => {
            let url = join(&at.server, &["v1", "tokens"])?;
            ask(&at.server, |client| client.get(url))?
        }
    };
    if at.json {
        return print_json(&tokens, out);
    }
    let mut rows = rows(&tokens.tokens);
    join_lists(&mut rows, &["scopes", "tasks", "queues"]);
    let columns = ["name", "scopes", "tasks", "queues", "created_at", "expires_at", "last_used_at"];
    Ok(out.write_all(table(columns, &rows).as_bytes())?)
}

impl Add {
    fn run(&self) -> anyhow::Result<view::MadeToken> {
        let Add { name, scopes, tasks, queues, expires_in, at } = self;
        let lasts = expires_in.map(SignedDuration::try_from).transpose()?;
        let expires_at = lasts.map(|lasts| Timestamp::now().checked_add(lasts)).transpose()?;
        if let Some(file) = &at.file {
            Tokens::make(file)?;
            let limits = Limits { tasks: tasks.clone(), queues: queues.clone() };
            let (name, scopes) = (name.clone(), scopes.clone());
            let made = Tokens::open(file)?.add(NewToken { name, scopes, limits, expires_at })?;
            return Ok(made.into());
        }
        let asked = json!({
            "name": name, "scopes": scopes, "tasks": tasks, "queues": queues,
            "expires_at": expires_at.map(|at| at.to_string()),
        });
        let url = join(&at.server, &["v1", "tokens"])?;
        ask(&at.server, |client| client.post(url).json(&asked))
    }
}

impl Rotate {
    fn run(&self) -> anyhow::Result<view::MadeToken> {
        let Rotate { name, keep, at } = self;
        let keep = keep.unwrap_or_default();
        if let Some(file) = &at.file {
            return Ok(Tokens::open(file)?.rotate(name, keep)?.into());
        }
        let url = join(&at.server, &["v1", "tokens", name, "rotate"])?;
        let asked = json!({ "keep": duration::exact(keep) });
        ask(&at.server, |client| client.post(url).json(&asked))
    }
}

impl Revoke {
    fn run(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let Revoke { name, at } = self;
        let revoked = match &at.file {
            Some(file) => {
                Tokens::open(file)?.revoke(name)?;
                view::RevokedToken { name: name.clone(), revoked: true }
            }
            None => {
                let url = join(&at.server, &["v1", "tokens", name])?;
                ask(&at.server, |client| client.delete(url))?
            }
        };
        if at.json {
            return print_json(&revoked, out);
        }
        Ok(writeln!(out, "token {name} is revoked")?)
    }
}

fn made(at: &At, made: view::MadeToken, out: &mut dyn Write) -> anyhow::Result<()> {
    if at.json {
        return print_json(&made, out);
    }
    let view::MadeToken { token, info } = made;
    writeln!(out, "{token}")?;
    let scopes = info.scopes.join(", ");
    let until = info.replaced_until.map(|at| format!("; the old one counts until {at}"));
    let until = until.unwrap_or_default();
    Ok(writeln!(out, "token {} has {scopes}{until}. It is not shown again.", info.name)?)
}
