//! The server or the store of `quell dead`, by HTTP or directly.
//!
//! Invariant: both return the same.

use anyhow::Context as _;
use quell::dead::{BulkResult, DeadExport, DeadFilter, DeadPlace, Redrive, UnreadablePage};
use quell::job::ExplainTarget;
use quell::{JobId, Payload, Quell, Timestamp};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Url};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::cli::source::{Server, Source, ask, join, open_store};
use crate::http::EXPORTED;
use crate::view::{
    Causes, DeadJobs, DiscardedJob, Explanation, Exports, Imported, Redriven, RestoredJob, Swept,
    Unreadable,
};

/// A page of an export, and the place of the next one.
pub(super) struct Page {
    pub(super) exports: Vec<DeadExport>,
    pub(super) next: Option<DeadPlace>,
}

/// A server or a store, for as long as a command runs.
pub(super) struct Desk {
    runtime: Runtime,
    place: Place,
}

enum Place {
    Server(Server),
    Store(Quell),
}

impl Desk {
    pub(super) fn open(source: &Source) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let place = match &source.store {
            Some(url) => Place::Store(runtime.block_on(open_store(url))?),
            None => Place::Server(source.server.clone()),
        };
        Ok(Desk { runtime, place })
    }

    /// Waits.
    pub(super) fn sleep(&self, length: std::time::Duration) {
        // A sleep is made where its runtime is.
        self.runtime.block_on(async { tokio::time::sleep(length).await });
    }

    pub(super) fn list(&self, filter: &DeadFilter) -> anyhow::Result<DeadJobs> {
        self.listed(filter, false)
    }

    /// A page; `whole` jobs have their payloads.
    pub(super) fn listed(&self, filter: &DeadFilter, whole: bool) -> anyhow::Result<DeadJobs> {
        match &self.place {
            Place::Server(server) => {
                let mut url = listing(server, &["v1", "dead"], filter)?;
                url.query_pairs_mut().extend_pairs(whole.then_some(("payload", "true")));
                ask(server, |client| client.get(url))
            }
            Place::Store(quell) => self.runtime.block_on(async {
                let jobs = quell.dead().list(filter).await?;
                let matching = quell.dead().count(filter).await?;
                Ok(DeadJobs::new(&jobs, filter, matching, whole))
            }),
        }
    }

    /// The causes of death with their numbers, as many as the filter's limit.
    pub(super) fn causes(&self, filter: &DeadFilter) -> anyhow::Result<Causes> {
        match &self.place {
            Place::Server(server) => get(server, &["v1", "dead", "causes"], filter),
            Place::Store(quell) => self.runtime.block_on(async {
                let found = quell.dead().causes(filter).await?;
                Ok(Causes::new(&found, filter.page()))
            }),
        }
    }

    /// The number of matches.
    pub(super) fn count(&self, filter: &DeadFilter) -> anyhow::Result<u64> {
        let one = DeadFilter { limit: 1, ..filter.clone() };
        Ok(self.list(&one)?.matching)
    }

    pub(super) fn export(&self, filter: &DeadFilter) -> anyhow::Result<Page> {
        match &self.place {
            Place::Server(server) => {
                let answer: Exports = get(server, &["v1", "dead", EXPORTED], filter)?;
                Ok(Page { exports: answer.exports, next: place(answer.next_before)? })
            }
            Place::Store(quell) => {
                let (exports, next) = self.runtime.block_on(quell.dead().exports(filter))?;
                Ok(Page { exports, next })
            }
        }
    }

    /// A job with every detail.
    pub(super) fn show(&self, id: JobId) -> anyhow::Result<Explanation> {
        match &self.place {
            Place::Server(server) => {
                let url = join(server, &["v1", "jobs", &id.to_string()])?;
                ask(server, |client| client.get(url))
            }
            Place::Store(quell) => self.runtime.block_on(async {
                let found = quell.store().explain(None, &ExplainTarget::Job(id)).await?;
                Ok(Explanation::from(&found.ok_or_else(|| quell::store::no_such_job(id))?))
            }),
        }
    }

    pub(super) fn redrive(&self, id: JobId, payload: Option<Payload>) -> anyhow::Result<Redriven> {
        match &self.place {
            Place::Server(server) => {
                let path = ["v1", "jobs", &id.to_string(), "redrive"];
                let body = match &payload {
                    // As it was written: a number keeps all its digits.
                    Some(payload) => format!("{{\"payload\":{}}}", payload.as_str()),
                    None => "{}".to_owned(),
                };
                post(server, &path, body)
            }
            Place::Store(quell) => self.runtime.block_on(async {
                let became = quell.dead().redrive(Redrive { id, payload }).await?;
                Ok(Redriven { job: id, became })
            }),
        }
    }

    pub(super) fn discard(&self, id: JobId, reason: &str) -> anyhow::Result<DiscardedJob> {
        match &self.place {
            Place::Server(server) => {
                let path = ["v1", "jobs", &id.to_string(), "discard"];
                post(server, &path, json!({ "reason": reason }).to_string())
            }
            Place::Store(quell) => self.runtime.block_on(async {
                quell.dead().discard(id, reason).await?;
                Ok(DiscardedJob { job: id, discarded: true })
            }),
        }
    }

    /// A page of the jobs whose rows cannot be decoded.
    pub(super) fn unreadable(&self, page: &UnreadablePage) -> anyhow::Result<Unreadable> {
        match &self.place {
            Place::Server(server) => {
                let mut url = join(server, &["v1", "dead", "unreadable"])?;
                url.query_pairs_mut().append_pair("limit", &page.size().to_string());
                if let Some(before) = page.before {
                    url.query_pairs_mut().append_pair("before", &before.to_string());
                }
                ask(server, |client| client.get(url))
            }
            Place::Store(quell) => {
                let jobs = self.runtime.block_on(quell.dead().unreadable(page))?;
                Ok(Unreadable::new(&jobs, page))
            }
        }
    }

    pub(super) fn restore(&self, id: JobId) -> anyhow::Result<RestoredJob> {
        match &self.place {
            Place::Server(server) => {
                post(server, &["v1", "jobs", &id.to_string(), "restore"], String::new())
            }
            Place::Store(quell) => {
                self.runtime.block_on(quell.dead().restore(id))?;
                Ok(RestoredJob { job: id, restored: true })
            }
        }
    }

    pub(super) fn redrive_page(&self, filter: &DeadFilter) -> anyhow::Result<BulkResult> {
        match &self.place {
            Place::Server(server) => {
                let body = Value::Object(fields(filter)).to_string();
                swept(post(server, &["v1", "dead", "redrive"], body)?)
            }
            Place::Store(quell) => Ok(self.runtime.block_on(quell.dead().redrive_page(filter))?),
        }
    }

    pub(super) fn discard_page(
        &self,
        filter: &DeadFilter,
        reason: &str,
    ) -> anyhow::Result<BulkResult> {
        match &self.place {
            Place::Server(server) => {
                let mut body = fields(filter);
                body.insert("reason".to_owned(), json!(reason));
                let body = Value::Object(body).to_string();
                swept(post(server, &["v1", "dead", "discard"], body)?)
            }
            Place::Store(quell) => {
                Ok(self.runtime.block_on(quell.dead().discard_page(filter, reason))?)
            }
        }
    }

    /// Imports dead jobs with their lines; returns the numbers of new and of known ones.
    pub(super) fn import(&self, exports: &[(DeadExport, String)]) -> anyhow::Result<[u64; 2]> {
        match &self.place {
            Place::Server(server) => {
                let lines: Vec<&str> = exports.iter().map(|(_, line)| line.as_str()).collect();
                let body = format!("{{\"{EXPORTED}\":[{}]}}", lines.join(","));
                let answer: Imported = post(server, &["v1", "dead", "import"], body)?;
                Ok([answer.imported, answer.known])
            }
            Place::Store(quell) => {
                let exports: Vec<DeadExport> =
                    exports.iter().map(|(export, _)| export.clone()).collect();
                let imported = self.runtime.block_on(quell.dead().import(&exports))?;
                let Imported { imported, known, .. } = Imported::new(imported);
                Ok([imported, known])
            }
        }
    }
}

/// A filter as the API takes it.
fn fields(filter: &DeadFilter) -> Map<String, Value> {
    let time = |time: Option<Timestamp>| time.map(|time| json!(time.to_string()));
    let all = [
        ("task", filter.task.as_ref().map(|task| json!(task))),
        ("queue", filter.queue.as_ref().map(|queue| json!(queue))),
        ("error", filter.error.as_ref().map(|error| json!(error))),
        ("died_after", time(filter.died_after)),
        ("died_before", time(filter.died_before)),
        ("before", filter.before.map(|place| json!(place.to_string()))),
        ("limit", Some(json!(filter.page()))),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn get<T: DeserializeOwned>(
    server: &Server,
    path: &[&str],
    filter: &DeadFilter,
) -> anyhow::Result<T> {
    let url = listing(server, path, filter)?;
    ask(server, |client| client.get(url))
}

/// The URL of a list of dead jobs.
fn listing(server: &Server, path: &[&str], filter: &DeadFilter) -> anyhow::Result<Url> {
    let mut url = join(server, path)?;
    let mut query = url.query_pairs_mut();
    for (name, value) in fields(filter) {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        query.append_pair(&name, &text);
    }
    drop(query);
    Ok(url)
}

fn post<T: DeserializeOwned>(server: &Server, path: &[&str], body: String) -> anyhow::Result<T> {
    let url = join(server, path)?;
    ask(server, |client| {
        client.request(Method::POST, url).header(CONTENT_TYPE, "application/json").body(body)
    })
}

fn place(text: Option<String>) -> anyhow::Result<Option<DeadPlace>> {
    Ok(text.map(|text| text.parse()).transpose()?)
}

fn swept(answer: Swept) -> anyhow::Result<BulkResult> {
    let done = answer.redriven.or(answer.discarded);
    Ok(BulkResult {
        done: done.context("the server's response has no number of jobs")?,
        skipped: answer.skipped,
        failed: answer.failed,
        next: place(answer.next_before)?,
    })
}
