//! A server for a browser, with tokens where a test needs them.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use quell_server::access::{Limits, NewToken, Tokens};
use quell_server::config::Config;
use quell_server::serve::Server;
use quell_services::Chromium;
use reqwest::{Client, Method};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::page::{Page, Theme, WIDTHS};

/// A server in this process, and a browser.
pub(crate) struct Scene {
    runtime: Runtime,
    server: Option<Server>,
    // After the server, which has files in it.
    _folder: TempDir,
    client: Client,
    browser: Arc<Chromium>,
    tokens: HashMap<String, String>,
}

impl Scene {
    /// Starts a server with these tables in its configuration. It asks for no tokens.
    pub(crate) fn start(tables: &str) -> Scene {
        Scene::guarded(tables, &[])
    }

    /// As [`Scene::start`], for who has one of these tokens: their names with their scopes.
    pub(crate) fn guarded(tables: &str, tokens: &[(&str, &str)]) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let (file, audit) = (folder.path().join("tokens.json"), folder.path().join("audit"));
        let mut server = format!("[server]\nlisten = \"127.0.0.1:0\"\naudit_file = {audit:?}\n");
        let mut made = HashMap::new();
        if !tokens.is_empty() {
            Tokens::make(&file).unwrap();
            let file_of_tokens = Tokens::open(&file).unwrap();
            for (name, scopes) in tokens {
                let new = NewToken {
                    name: (*name).to_owned(),
                    scopes: scopes.split(' ').map(|scope| scope.parse().unwrap()).collect(),
                    limits: Limits { tasks: vec![], queues: vec![] },
                    expires_at: None,
                };
                made.insert((*name).to_owned(), file_of_tokens.add(new).unwrap().token);
            }
            server.push_str(&format!("tokens = {file:?}\n"));
        }
        write_secret(&folder.path().join("secret"));
        let url = format!("sqlite://{}", folder.path().join("q.db").display());
        let text = format!(
            "{server}[store]\nurl = \"{url}\"\nsynchronous = \"normal\"\n\
             [worker]\ngrace = \"100ms\"\n{tables}"
        );
        let config = Config::parse(&text, &folder.path().join("quell.toml")).unwrap();
        let runtime = Runtime::new().unwrap();
        let server = Some(runtime.block_on(Server::start(config, None)).unwrap());
        let browser = Arc::new(Chromium::start().unwrap());
        Scene { runtime, server, _folder: folder, client: Client::new(), browser, tokens: made }
    }

    /// A new page, with cookies of its own.
    pub(crate) fn page(&self) -> Page {
        Page::open(&self.browser)
    }

    /// The address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.as_ref().unwrap().address())
    }

    pub(crate) fn token(&self, name: &str) -> &str {
        &self.tokens[name]
    }

    /// Calls the API without a browser, as the owner of a token where one is named.
    pub(crate) fn call(&self, by: &str, method: Method, path: &str, body: &Value) -> Value {
        let mut request = self.client.request(method, self.url(path)).json(body);
        if let Some(token) = self.tokens.get(by) {
            request = request.bearer_auth(token);
        }
        self.runtime.block_on(async {
            let response = request.send().await.unwrap();
            let status = response.status();
            let text = response.text().await.unwrap();
            assert!(status.is_success(), "{path}: {status} {text}");
            serde_json::from_str(&text).unwrap_or(Value::String(text))
        })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let stopped = self.runtime.block_on(server.stop());
            assert!(stopped.is_ok() || std::thread::panicking(), "{stopped:?}");
        }
    }
}

impl Page {
    /// Fails where the page in any theme and width is not accessible or does not fit. Leaves a picture of each.
    pub(crate) fn suits_everybody(&self, name: &str) {
        let flaws = self.flaws(name);
        assert!(flaws.is_empty(), "{}", flaws.join("\n\n"));
    }

    fn fold(&self, folded: bool) {
        self.eval(&format!(
            "document.querySelectorAll('details').forEach((one) => {{ one.open = !{folded}; }})"
        ));
    }

    /// What does not suit everybody.
    pub(crate) fn flaws(&self, name: &str) -> Vec<String> {
        let mut flaws = Vec::new();
        for width in WIDTHS {
            self.size(width);
            for theme in Theme::ALL {
                self.theme(theme);
                let shown = format!("{name}-{}-{width}", theme.name());
                self.screenshot(&shown);
                // What is folded has to be accessible, too.
                self.fold(false);
                let found = self.violations();
                self.fold(true);
                let count = found.len();
                let first = found.into_iter().take(8);
                flaws.extend(first.map(|flaw| format!("{shown}, {count} flaws: {flaw}")));
            }
            flaws.extend(self.sideways_scroll());
        }
        self.size(WIDTHS[0]);
        self.theme(Theme::Light);
        flaws
    }
}

/// The secret of a webhook source, for its owner alone.
fn write_secret(path: &Path) {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(b"the secret of webhooks").unwrap();
}
