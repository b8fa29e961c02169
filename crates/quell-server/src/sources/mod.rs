//! Webhook sources: what other services send, made triggers.
//!
//! A request passes `scheme` (its signature, over the bytes as they came), then `document` (its body as JSON),
//! then the templates of `template`. `http::sources` has the route. Nothing here waits: `Source::read` is a
//! function of a request and the time.
//!
//! Invariant: a payload is the body's own bytes, or what a template made of values that it can carry exactly.

mod document;
mod scheme;
mod template;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::DeclaredTask;
use crate::config::engine::sha256;
use crate::secrets::Secrets;
use axum::http::HeaderMap;
use document::Document;
use quell::trigger::{Dedup, NewTrigger};
use quell::{HoldUntil, Key, Payload, TaskName, Timestamp};
pub(crate) use scheme::{Algorithm, Encoding, HmacScheme, Scheme, TokenPlace};
use template::Scope;
pub(crate) use template::{Expression, Template};

/// The largest body that a source may allow.
pub(crate) const MAX_BODY: usize = 25 << 20;
/// The longest dedup key that is kept as it is; a longer one is kept as its digest.
const MAX_DEDUP_BYTES: usize = 256;

/// A webhook source as the configuration declares it.
#[derive(Debug)]
pub struct Source {
    pub(crate) name: String,
    pub(crate) scheme: Scheme,
    pub(crate) secrets: Secrets,
    /// How far the sender's clock may be from this one.
    pub(crate) tolerance: Duration,
    pub(crate) max_body: usize,
    pub(crate) task: Template,
    pub(crate) filter: Option<Expression>,
    pub(crate) payload: Option<Expression>,
    pub(crate) key: Option<Template>,
    pub(crate) partition: Option<Template>,
    pub(crate) dedup: DedupBy,
    pub(crate) dedup_ttl: Duration,
}

/// What makes the dedup key of a delivery.
#[derive(Debug)]
pub(crate) enum DedupBy {
    /// The provider's id of the delivery.
    Delivery,
    Template(Box<Template>),
    Nothing,
}

/// A request to a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'r> {
    pub(crate) headers: &'r HeaderMap,
    /// The query of its URL, without the question mark.
    pub(crate) query: &'r str,
    pub(crate) body: &'r [u8],
    /// The time of its arrival by this host's clock, as its sender knows no other.
    pub(crate) at: Timestamp,
}

/// What a verified request asks for.
#[derive(Debug)]
pub(crate) enum Reading {
    Trigger(TaskName, Box<NewTrigger>),
    /// Nothing is to be done, and why.
    Ignored(&'static str),
    /// The sender wants this text back (Slack's `url_verification`).
    Challenge(String),
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its signature or token is missing, wrong, or too old.
    Unsigned { header: String, why: String },
    /// Its body cannot be read.
    Unreadable(String),
    /// Its content type is neither JSON nor a form.
    MediaType,
    /// A template made nothing of it that can be used; the setting and the reason.
    Unusable { setting: &'static str, why: String },
}

impl Source {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its deliveries are verified, as `verify` names it.
    pub(crate) fn provider(&self) -> &'static str {
        self.scheme.name()
    }

    /// The task, or the template of its name, as the configuration has it.
    pub(crate) fn task_text(&self) -> &str {
        self.task.as_str()
    }

    /// The task, where it is the same for every delivery.
    pub(crate) fn fixed_task(&self) -> Option<TaskName> {
        TaskName::new(self.task.fixed()?).ok()
    }

    /// The largest body that it reads, in bytes.
    pub(crate) fn max_body(&self) -> usize {
        self.max_body
    }

    /// Whether its sender shows answers to people.
    pub(crate) fn is_slack(&self) -> bool {
        matches!(self.scheme, Scheme::Slack)
    }

    /// Refuses a request that does not even claim to be signed, or has another token, before its body is read.
    pub(crate) fn claims(&self, headers: &HeaderMap, query: &str) -> Result<(), Refusal> {
        if self.scheme.is_token() {
            let request = Request { headers, query, body: &[], at: Timestamp::MIN };
            return self.scheme.verify(&self.secrets.current(), request, self.tolerance);
        }
        self.scheme.claim(headers, query).map(drop)
    }

    /// Verifies a request and makes a trigger of it.
    pub(crate) fn read(
        &self,
        request: Request<'_>,
        tasks: &BTreeMap<TaskName, DeclaredTask>,
    ) -> Result<Reading, Refusal> {
        self.scheme.verify(&self.secrets.current(), request, self.tolerance)?;
        let document = Document::read(request.headers, request.body)?;
        if let Some(why) = self.scheme.ignores(request.headers) {
            return Ok(Reading::Ignored(why));
        }
        let scope = Scope::new(&self.name, self.scheme.place(), request, &document);
        if let Some(challenge) = self.scheme.challenge(&scope)? {
            return Ok(Reading::Challenge(challenge));
        }
        if let Some(filter) = &self.filter {
            let named = |why| unusable("filter")(format!("{why} in {}", filter.quoted()));
            let passes = filter.is_true(&scope).map_err(named)?;
            if !passes {
                return Ok(Reading::Ignored("the filter is false"));
            }
        }
        let (name, task) = self.task(&scope, tasks)?;
        Ok(Reading::Trigger(name, Box::new(self.trigger(task, &scope, request)?)))
    }

    fn task<'t>(
        &self,
        scope: &Scope<'_>,
        tasks: &'t BTreeMap<TaskName, DeclaredTask>,
    ) -> Result<(TaskName, &'t DeclaredTask), Refusal> {
        let named = self.task.render(scope).map_err(unusable("task"))?;
        let known = TaskName::new(&named).ok().and_then(|name| {
            let declared = tasks.get(&name)?;
            Some((name, declared))
        });
        let unknown = || format!("made {named:?}, and no such task is declared: add it, or filter");
        known.ok_or_else(|| Refusal::Unusable { setting: "task", why: unknown() })
    }

    fn trigger(
        &self,
        task: &DeclaredTask,
        scope: &Scope<'_>,
        request: Request<'_>,
    ) -> Result<NewTrigger, Refusal> {
        let payload = match &self.payload {
            None => Payload::from_stored(scope.document().text()),
            Some(expression) => {
                let made = expression.json(scope).map_err(unusable("payload"))?;
                Payload::from_stored(made.as_str())
            }
        };
        let key = match &self.key {
            Some(template) => key_of(template, scope, "key")?,
            None => task.key_of(&payload).map_err(of_task("key"))?,
        };
        let partition = match &self.partition {
            Some(template) => key_of(template, scope, "partition")?,
            None => task.partition_of(&payload).map_err(of_task("partition"))?,
        };
        let mut trigger = task.checked.trigger(payload, key);
        trigger.partition = partition;
        trigger.dedup = self.dedup(scope, request)?;
        Ok(trigger)
    }

    /// The key by which a delivery that comes again is a duplicate. It begins with the source: two may send to
    /// one task.
    fn dedup(&self, scope: &Scope<'_>, request: Request<'_>) -> Result<Option<Dedup>, Refusal> {
        let id = match &self.dedup {
            DedupBy::Nothing => None,
            DedupBy::Delivery => self.scheme.delivery(scope, request)?,
            DedupBy::Template(template) => Some(template.render(scope).map_err(unusable("dedup"))?),
        };
        let Some(id) = id.filter(|id| !id.is_empty()) else { return Ok(None) };
        let id = if id.len() > MAX_DEDUP_BYTES { sha256(id.as_bytes()) } else { id };
        let key = Key::new(format!("{}:{id}", self.name));
        let key = key.map_err(|error| unusable("dedup")(error.to_string()))?;
        Ok(Some(Dedup { key, until: HoldUntil::Elapsed(self.dedup_ttl) }))
    }
}

fn key_of(
    template: &Template,
    scope: &Scope<'_>,
    setting: &'static str,
) -> Result<Option<Key>, Refusal> {
    let text = template.render(scope).map_err(unusable(setting))?;
    if text.is_empty() {
        return Ok(None);
    }
    Key::new(&text).map(Some).map_err(|error| unusable(setting)(error.to_string()))
}

fn unusable(setting: &'static str) -> impl Fn(String) -> Refusal {
    move |why| Refusal::Unusable { setting, why }
}

fn of_task(setting: &'static str) -> impl Fn(quell::Error) -> Refusal {
    move |error| Refusal::Unusable { setting, why: error.to_string() }
}
