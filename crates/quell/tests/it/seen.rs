//! A subscriber that keeps the spans and events of triggers and attempts, as fields.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Fields by name.
pub(crate) type Fields = BTreeMap<String, String>;

/// A span, or an event in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct One {
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    pub(crate) fields: Fields,
    /// Of an event: the span that it happened in. Of a span: its parent.
    pub(crate) within: Option<u64>,
    id: Option<u64>,
}

impl One {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("(none)", String::as_str)
    }
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<One>>>);

impl Seen {
    /// Sees what happens on this thread until the guard is dropped.
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let seen = Seen::default();
        let guard = tracing_subscriber::registry().with(seen.clone()).set_default();
        (seen, guard)
    }

    pub(crate) fn all(&self) -> Vec<One> {
        self.0.lock().unwrap().clone()
    }

    /// The spans of that name.
    pub(crate) fn spans(&self, name: &str) -> Vec<One> {
        let is_asked = |one: &One| one.id.is_some() && one.name == name;
        self.all().into_iter().filter(is_asked).collect()
    }

    /// The span with this number.
    pub(crate) fn span(&self, id: u64) -> One {
        // A number is used again once its span is closed.
        self.all().into_iter().rfind(|one| one.id == Some(id)).unwrap()
    }

    /// The events at the ends of attempts.
    pub(crate) fn ends(&self) -> Vec<One> {
        let is_end = |one: &One| one.id.is_none() && one.fields.contains_key("outcome");
        self.all().into_iter().filter(is_end).collect()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Read(&mut fields));
        let within = ctx.span(id).and_then(|span| span.parent()).map(|span| span.id().into_u64());
        let (name, level) = (attributes.metadata().name(), *attributes.metadata().level());
        let one = One { name, level, fields, within, id: Some(id.into_u64()) };
        self.0.lock().unwrap().push(one);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut all = self.0.lock().unwrap();
        let found = all.iter_mut().rfind(|one| one.id == Some(id.into_u64())).unwrap();
        values.record(&mut Read(&mut found.fields));
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Read(&mut fields));
        let within = ctx.event_span(event).map(|span| span.id().into_u64());
        let (name, level) = (event.metadata().target(), *event.metadata().level());
        self.0.lock().unwrap().push(One { name, level, fields, within, id: None });
    }
}

struct Read<'f>(&'f mut Fields);

impl Visit for Read<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let before = self.0.insert(field.name().to_owned(), value.to_owned());
        assert_eq!(before, None, "field {field} is recorded twice");
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
