//! Where a command reads from: a server, by HTTP, or a store directly.
//!
//! Invariant: no command creates a store.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read as _, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use quell::Quell;
use reqwest::header::LOCATION;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::exit::Misuse;
use crate::encryption::FileKeys;
use crate::https;

/// Where a server answers without a setting.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7777";
/// The variable with the file of keys that decrypt what a store has.
const KEYS: &str = "QUELL_KEYS_FILE";
/// How long a request may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The server of a command.
///
/// `QUELL_SERVER` is read where a server is asked, and not as a default of the option: options that exclude
/// `--server` go with the variable.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Server {
    /// The server to ask; by default that of QUELL_SERVER, or http://127.0.0.1:7777.
    #[arg(long, value_name = "URL")]
    server: Option<Url>,
}

impl Server {
    /// Its URL.
    pub(crate) fn url(&self) -> anyhow::Result<Url> {
        if let Some(url) = &self.server {
            return Ok(url.clone());
        }
        let set = std::env::var("QUELL_SERVER").ok().filter(|text| !text.is_empty());
        let text = set.as_deref().unwrap_or(DEFAULT_SERVER);
        let url = text.parse::<Url>();
        url.map_err(|error| Misuse::error(format!("QUELL_SERVER: {text:?} is no URL: {error}")))
    }
}

/// The server of a command that no store can answer.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Asked {
    #[command(flatten)]
    server: Server,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Asked {
    /// Prints what a path answers, as JSON or as `text` has it.
    pub(super) fn print<T: Serialize + DeserializeOwned>(
        &self,
        parts: &[&str],
        out: &mut dyn Write,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let url = join(&self.server, parts)?;
        let answer: T = ask(&self.server, |client| client.get(url))?;
        if self.json {
            return print_json(&answer, out);
        }
        Ok(out.write_all(text(&answer).as_bytes())?)
    }
}

/// The server or the store of a command.
#[derive(Clone, Debug, clap::Args)]
pub struct Source {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Use this store instead of asking a server.
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    pub(crate) store: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// An argument itself, `@FILE`, or `-` for standard input.
pub(crate) fn read_argument(text: &str) -> anyhow::Result<String> {
    Ok(match text.strip_prefix('@') {
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?
        }
        None if text == "-" => {
            let mut read = String::new();
            std::io::stdin().read_to_string(&mut read).context("cannot read standard input")?;
            read
        }
        None => text.to_owned(),
    })
}

/// The path of a server's Unix socket, where `--server` names one: `unix:/run/quell/quell.sock`.
fn socket_of(server: &Url) -> anyhow::Result<Option<PathBuf>> {
    if server.scheme() != "unix" {
        return Ok(None);
    }
    // The same path as a URL that has one.
    let file = Url::parse(&format!("file://{}", server.path())).ok();
    let path =
        file.filter(|_| server.path().starts_with('/')).and_then(|url| url.to_file_path().ok());
    let remedy = "give an absolute path, as in unix:/run/quell/quell.sock";
    Ok(Some(path.with_context(|| format!("--server {server}: {remedy}"))?))
}

/// The URL of a path of the server.
pub(crate) fn join(server: &Server, parts: &[&str]) -> anyhow::Result<Url> {
    joined(&server.url()?, parts)
}

fn joined(server: &Url, parts: &[&str]) -> anyhow::Result<Url> {
    let mut url = match socket_of(server)? {
        // The socket's server answers to this name.
        Some(_) => Url::parse("http://localhost")?,
        None => server.clone(),
    };
    match url.path_segments_mut() {
        Ok(mut path) => path.pop_if_empty().extend(parts),
        Err(()) => {
            return Err(Misuse::error(format!(
                "--server {server}: give a URL such as {DEFAULT_SERVER}"
            )));
        }
    };
    Ok(url)
}

/// Sends a request to the server and returns the body of its response; its refusal is the error, and so is what
/// no Quell server says.
pub(crate) fn ask<T: DeserializeOwned>(
    server: &Server,
    request: impl FnOnce(&Client) -> RequestBuilder,
) -> anyhow::Result<T> {
    exchange(server, request)?.map_err(anyhow::Error::msg)
}

/// The same of what may not be there: none where the server does not find it.
pub(crate) fn ask_for<T: DeserializeOwned>(
    server: &Server,
    request: impl FnOnce(&Client) -> RequestBuilder,
) -> anyhow::Result<Option<T>> {
    match exchange(server, request)? {
        Ok(found) => Ok(Some(found)),
        Err(refusal) if refusal.kind.as_deref() == Some("not_found") => Ok(None),
        Err(refusal) => Err(anyhow::Error::msg(refusal)),
    }
}

/// What a server refuses.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) kind: Option<String>,
    message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

fn exchange<T: DeserializeOwned>(
    server: &Server,
    request: impl FnOnce(&Client) -> RequestBuilder,
) -> anyhow::Result<Result<T, Refusal>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Remote::new(server, PATIENCE)?.exchange(request).await })
}

/// A server that is asked again and again.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    url: Url,
    client: Client,
    token: Option<String>,
}

impl Remote {
    /// A client of the server, each of whose requests may take this long.
    pub(crate) fn new(server: &Server, patience: Duration) -> anyhow::Result<Self> {
        let url = server.url()?;
        let on_loopback = match url.host_str().map(|host| host.trim_matches(['[', ']'])) {
            Some("localhost") => true,
            Some(host) => host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()),
            None => false,
        };
        let client = https::client(url.scheme()).timeout(patience);
        // A proxy of the environment has no way to this machine's loopback.
        let client = if on_loopback { client.no_proxy() } else { client };
        let client = match socket_of(&url)? {
            Some(path) => client.unix_socket(path),
            None => client,
        };
        // A client for plain HTTP trusts no certificate, so the user has to name the other address.
        let is_plain = url.scheme() != "https";
        let client = if is_plain { client.redirect(not_to_tls()) } else { client };
        let client = client.build().map_err(|error| {
            let causes = https::causes(&error);
            anyhow::anyhow!(
                "cannot ask {url}{causes}: install the certificates of authorities, or name a file of \
                 them with SSL_CERT_FILE"
            )
        })?;
        Ok(Remote { url, client, token: std::env::var("QUELL_TOKEN").ok() })
    }

    /// Its address.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// What a path answers.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        parts: &[&str],
        query: &[(&str, String)],
    ) -> anyhow::Result<Result<T, Refusal>> {
        let mut url = joined(&self.url, parts)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.exchange(|client| client.get(url)).await
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        request: impl FnOnce(&Client) -> RequestBuilder,
    ) -> anyhow::Result<Result<T, Refusal>> {
        let mut request = request(&self.client);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.map_err(|error| unreachable_server(&error))?;
        let status = answer.status();
        if let Some(to) = answer.headers().get(LOCATION).filter(|_| status.is_redirection()) {
            let to = to.to_str().unwrap_or("another address");
            bail!("{} redirects to {to}: name that with --server", self.url);
        }
        let text = answer.text().await.context("the server's response ended early")?;
        if status.is_success() {
            let read = serde_json::from_str(&text);
            return read.map(Ok).map_err(|error| no_quell_server(&self.url, &error));
        }
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let part = |name: &str| Some(body.get("error")?.get(name)?.as_str()?.to_owned());
        let field = part("field").map_or_else(String::new, |field| format!("{field}: "));
        let message = part("message").unwrap_or_else(|| format!("the server answered {status}"));
        Ok(Err(Refusal { kind: part("kind"), message: format!("{field}{message}") }))
    }
}

/// Follows redirects, but not to HTTPS.
fn not_to_tls() -> Policy {
    let usual = Policy::default();
    Policy::custom(move |attempt| {
        if attempt.url().scheme() == "https" { attempt.stop() } else { usual.redirect(attempt) }
    })
}

/// A proxy's login page, or another program's answer.
fn no_quell_server(server: &Url, error: &serde_json::Error) -> anyhow::Error {
    let what = "answers, but not as a Quell server of this version does: check --server";
    anyhow::anyhow!("{server} {what} ({error})")
}

fn unreachable_server(error: &reqwest::Error) -> anyhow::Error {
    let causes = https::causes(error);
    let what = if causes.contains("certificate") {
        "the server's certificate is not trusted: SSL_CERT_FILE may name the file of its authority"
    } else if error.is_connect() {
        "no server answers there: start `quell serve`, or name it with --server"
    } else {
        "the server did not answer"
    };
    anyhow::anyhow!("{what} ({error}{causes})")
}

/// Prints an answer as JSON, its payloads byte for byte.
pub(crate) fn print_json(
    answer: &impl Serialize,
    out: &mut dyn std::io::Write,
) -> anyhow::Result<()> {
    Ok(writeln!(out, "{}", serde_json::to_string(answer)?)?)
}

/// Reads from an existing store.
pub(crate) fn read_store<T>(
    url: &str,
    read: impl AsyncFnOnce(&Quell) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let quell = open_store(url).await?;
        let read = read(&quell).await?;
        quell.close().await?;
        Ok(read)
    })
}

/// Opens an existing store, with the keys that the environment names.
pub(crate) async fn open_store(url: &str) -> anyhow::Result<Quell> {
    check_exists(url)?;
    let builder = Quell::builder(&unmade(url)).await?;
    let builder = match std::env::var(KEYS).ok().filter(|file| !file.is_empty()) {
        Some(file) => {
            let keys = FileKeys::open(Path::new(&file), BTreeSet::new()).context(KEYS)?;
            builder.encryption(Arc::new(keys))
        }
        None => builder,
    };
    Ok(builder.build()?)
}

/// The URL with which opening a missing Azure table fails instead of creating it, and leaves its timer
/// unchanged: the last one of equal parameters counts.
pub(crate) fn unmade(url: &str) -> Cow<'_, str> {
    if !url.starts_with("azure:") {
        return Cow::Borrowed(url);
    }
    let mark = if url.contains('?') { '&' } else { '?' };
    Cow::Owned(format!("{url}{mark}create=false&set_timer=false"))
}

/// Refuses a missing file of a store, which opening would create.
pub(crate) fn check_exists(url: &str) -> anyhow::Result<()> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        let path = path.trim_start_matches("//").split('?').next().unwrap_or_default();
        if !std::path::Path::new(path).exists() {
            bail!("--store {url}: no such file");
        }
    }
    Ok(())
}
