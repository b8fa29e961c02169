//! `quell keys`: the file of keys that encrypt payloads (R43).

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use quell::Error;
use quell::encryption::Keyring;
use serde_json::json;

use super::source::print_json;
use crate::encryption::MAX_FILE_BYTES;
use crate::private_file;

/// `quell keys`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the names of the keys; the first encrypts, all decrypt.
    List(At),
    /// Add a key that only decrypts, until `use`. The first key of a new file encrypts at once.
    Add(Named),
    /// Encrypt with this key from now on. Every process must have read it before.
    Use(Named),
    /// Remove a key. Jobs that it encrypted wait until it is back: its line stays in the file as a comment.
    Remove(Named),
}

/// Where the keys are.
#[derive(Debug, clap::Args)]
pub struct At {
    /// The file of keys, as `encryption.keys_file` names it.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A key of a file.
#[derive(Debug, clap::Args)]
pub struct Named {
    /// Its name, such as the month.
    name: String,
    #[command(flatten)]
    at: At,
}

/// Runs `quell keys`.
///
/// # Errors
/// What is wrong with the file or the name.
pub fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::List(at) => show(&at, &read(&at.file)?, out),
        Command::Add(Named { name, at }) => change(&at, out, |text| {
            if text.is_empty() {
                return Keyring::generate(&name);
            }
            Ok(format!("{}{}", ended(text), Keyring::line(&name)?))
        }),
        Command::Use(Named { name, at }) => change(&at, out, |text| {
            let (own, others) = apart(text, &name)?;
            Ok(format!("{own}\n{others}"))
        }),
        Command::Remove(Named { name, at }) => change(&at, out, |text| {
            let (own, others) = apart(text, &name)?;
            let keys = Keyring::parse(text)?.names();
            if keys.first() == Some(&name) {
                let message = format!("the key {name} encrypts: use another one first");
                return Err(Error::invalid("name", message));
            }
            // It stays as a comment: a job may turn out to need it.
            Ok(format!("{others}# removed: {own}\n"))
        }),
    }
}

fn read(file: &Path) -> quell::Result<String> {
    Ok(private_file::read(file, MAX_FILE_BYTES)?.1)
}

/// Changes the text of the file, which others may change at the same time; none stands for no file yet.
fn change(
    at: &At,
    out: &mut dyn Write,
    change: impl Fn(&str) -> quell::Result<String>,
) -> anyhow::Result<()> {
    let made = private_file::locked(&at.file, || {
        let text = if at.file.exists() { read(&at.file)? } else { String::new() };
        let text = change(&text)?;
        Keyring::parse(&text)?;
        private_file::write(&at.file, &text)?;
        Ok(text)
    });
    show(at, &made.with_context(|| format!("{}", at.file.display()))?, out)
}

/// The line of a key, and the others.
fn apart(text: &str, name: &str) -> quell::Result<(String, String)> {
    let is_own = |line: &&str| line.split_whitespace().next() == Some(name);
    let (own, others): (Vec<&str>, Vec<&str>) = text.lines().partition(is_own);
    let names = || Keyring::parse(text).map(|keys| keys.names().join(", ")).unwrap_or_default();
    let own = own.first().filter(|_| Keyring::line(name).is_ok());
    let own = own.ok_or_else(|| {
        Error::invalid("name", format!("there is no key {name:?}: there are {}", names()))
    })?;
    Ok(((*own).to_owned(), others.iter().map(|line| format!("{line}\n")).collect()))
}

fn ended(text: &str) -> String {
    if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

fn show(at: &At, text: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let names = Keyring::parse(text).with_context(|| format!("{}", at.file.display()))?.names();
    if at.json {
        let keys: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(n, name)| json!({ "name": name, "encrypts": n == 0 }))
            .collect();
        return print_json(&json!({ "keys": keys }), out);
    }
    for (place, name) in names.iter().enumerate() {
        writeln!(out, "{name}{}", if place == 0 { "  encrypts" } else { "  decrypts" })?;
    }
    Ok(())
}
