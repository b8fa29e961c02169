//! Where a command reads from: a server, by HTTP, or a store directly.
//!
//! Invariant: no command creates a store.

use std::borrow::Cow;
use std::io::Read as _;
use std::net::IpAddr;

use anyhow::{Context as _, bail};
use quell::Quell;
use reqwest::{Client, RequestBuilder, Url};
use serde_json::Value;

/// The server or the store of a command.
#[derive(Clone, Debug, clap::Args)]
pub struct Source {
    /// The server to ask.
    #[arg(long, value_name = "URL", env = "QUELL_SERVER", default_value = "http://127.0.0.1:7777")]
    pub(crate) server: Url,
    /// Use this store instead of asking a server.
    #[arg(long, value_name = "URL")]
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

/// The URL of a path of the server.
pub(crate) fn join(server: &Url, parts: &[&str]) -> anyhow::Result<Url> {
    let mut url = server.clone();
    match url.path_segments_mut() {
        Ok(mut path) => path.pop_if_empty().extend(parts),
        Err(()) => bail!("--server {server}: give a URL such as http://127.0.0.1:7777"),
    };
    Ok(url)
}

/// Sends a request to the server and returns the body of its response; its refusal is the error.
pub(crate) fn ask(
    server: &Url,
    request: impl FnOnce(&Client) -> RequestBuilder,
) -> anyhow::Result<Value> {
    let on_loopback = match server.host_str().map(|host| host.trim_matches(['[', ']'])) {
        Some("localhost") => true,
        Some(host) => host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()),
        None => false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::builder().timeout(std::time::Duration::from_secs(60));
        // A proxy of the environment has no way to this machine's loopback.
        let client = if on_loopback { client.no_proxy() } else { client }.build()?;
        let mut request = request(&client);
        if let Ok(token) = std::env::var("QUELL_TOKEN") {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.map_err(|error| unreachable_server(&error))?;
        let status = answer.status();
        let text = answer.text().await.context("the server's response ended early")?;
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        if status.is_success() {
            return Ok(body);
        }
        let part = |name: &str| Some(body.get("error")?.get(name)?.as_str()?.to_owned());
        let field = part("field").map_or_else(String::new, |field| format!("{field}: "));
        bail!(
            "{field}{}",
            part("message").unwrap_or_else(|| format!("the server answered {status}"))
        )
    })
}

fn unreachable_server(error: &reqwest::Error) -> anyhow::Error {
    let what = if error.is_connect() {
        "no server answers there: start `quell serve`, or name it with --server"
    } else {
        "the server did not answer"
    };
    anyhow::anyhow!("{what} ({error})")
}

/// Reads from an existing store.
pub(crate) fn read_store(
    url: &str,
    read: impl AsyncFnOnce(&Quell) -> anyhow::Result<Value>,
) -> anyhow::Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { read(&open_store(url).await?).await })
}

/// Opens an existing store.
pub(crate) async fn open_store(url: &str) -> anyhow::Result<Quell> {
    check_exists(url)?;
    Ok(Quell::open(&unmade(url)).await?)
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
