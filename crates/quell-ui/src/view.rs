//! Templates. Every value is escaped, but for what the functions here make of it.

use std::fmt::Write as _;

use jiff::Timestamp;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, HtmlEscape, State, context};

use crate::assets::Assets;
use crate::{json, text};

/// The templates, by name.
const TEMPLATES: &[(&str, &str)] = &[
    ("action", include_str!("templates/action.html")),
    ("actions", include_str!("templates/actions.html")),
    ("audit", include_str!("templates/audit.html")),
    ("dead", include_str!("templates/dead.html")),
    ("error", include_str!("templates/error.html")),
    ("job", include_str!("templates/job.html")),
    ("jobs", include_str!("templates/jobs.html")),
    ("layout", include_str!("templates/layout.html")),
    ("new-action", include_str!("templates/new-action.html")),
    ("overview", include_str!("templates/overview.html")),
    ("pager", include_str!("templates/pager.html")),
    ("pause", include_str!("templates/pause.html")),
    ("proof", include_str!("templates/proof.html")),
    ("queue", include_str!("templates/queue.html")),
    ("queues", include_str!("templates/queues.html")),
    ("review", include_str!("templates/review.html")),
    ("rows", include_str!("templates/rows.html")),
    ("schedule", include_str!("templates/schedule.html")),
    ("schedules", include_str!("templates/schedules.html")),
    ("settings", include_str!("templates/settings.html")),
    ("sources", include_str!("templates/sources.html")),
    ("task", include_str!("templates/task.html")),
    ("tasks", include_str!("templates/tasks.html")),
    ("timeline", include_str!("templates/timeline.html")),
    ("triggers", include_str!("templates/triggers.html")),
    ("what-if", include_str!("templates/what-if.html")),
    ("worker", include_str!("templates/worker.html")),
    ("workers", include_str!("templates/workers.html")),
    ("wrong", include_str!("templates/wrong.html")),
];

/// The templates with their functions.
#[derive(Debug)]
pub(crate) struct Views {
    engine: Environment<'static>,
}

impl Views {
    pub(crate) fn new(assets: &Assets) -> Self {
        let mut engine = Environment::new();
        engine.set_auto_escape_callback(|_| AutoEscape::Html);
        let tidy = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        engine.set_syntax(tidy.unwrap_or_default());
        for (name, source) in TEMPLATES {
            // A template that is broken is missing from its page; a test renders each.
            let _broken = engine.add_template(name, source);
        }
        engine.add_global("assets", assets.links());
        engine.add_function("part", part);
        engine.add_function("now_ms", || Timestamp::now().as_millisecond());
        engine.add_function("time", |at: Value| {
            at.as_str().map_or_else(|| dash("–"), |at| Value::from_safe_string(time(at)))
        });
        engine.add_function("state", |name: Value| Value::from_safe_string(state(&name)));
        engine.add_filter("enc", |part: Value| text::encode(&plain(&part)));
        engine.add_filter("indented", |document: Value| json::indented(&plain(&document)));
        engine.add_filter("n", |number: Value| match u64::try_from(number.clone()) {
            Ok(number) => text::number(number),
            Err(_) => plain(&number),
        });
        engine.add_filter("seconds", |length: f64| text::seconds(length));
        engine.add_filter("truncate_text", |text: Value, most: usize| {
            let text = plain(&text);
            let cut: String = text.chars().take(most).collect();
            if cut.len() == text.len() { cut } else { format!("{cut}…") }
        });
        engine.add_filter("late", |millis: Value| match f64::try_from(millis) {
            Ok(millis) => Value::from(text::seconds(millis / 1_000.0)),
            Err(_) => dash("–"),
        });
        engine.add_function("spark", |minutes: Value, of: usize| spark(&minutes, of));
        engine.add_filter("shell", |word: Value| text::shell(&plain(&word)));
        Views { engine }
    }

    /// The page of a template within the layout. What cannot be rendered is a page that says so.
    pub(crate) fn page(&self, template: &str, visit: Value, own: Value) -> String {
        let all = context! { v => visit, ..own };
        let body = self.render(template, &all);
        let body = body.unwrap_or_else(|error| {
            format!(
                "<p role=\"alert\">The page cannot be shown: {}</p>",
                HtmlEscape(&error.to_string())
            )
        });
        let whole = context! { body => Value::from_safe_string(body), ..all };
        self.render("layout", &whole).unwrap_or_else(|error| error.to_string())
    }

    fn render(&self, template: &str, values: &Value) -> Result<String, minijinja::Error> {
        self.engine.get_template(template)?.render(values)
    }
}

/// The bars of a series of minutes as an SVG path; `of` says which of their numbers. All series of a task have
/// the scale of its triggers and runs.
fn spark(minutes: &Value, of: usize) -> String {
    let number = |minute: &Value, at: usize| {
        minute.get_item_by_index(at).ok().and_then(|n| f64::try_from(n).ok()).unwrap_or_default()
    };
    let all: Vec<Value> = minutes.try_iter().map(Iterator::collect).unwrap_or_default();
    let top = all.iter().flat_map(|minute| [number(minute, 0), number(minute, 1)]);
    let top = top.fold(1.0, f64::max);
    let mut path = String::new();
    for (at, minute) in all.iter().enumerate() {
        let height = 24.0 * number(minute, of) / top;
        if height > 0.0 {
            let _infallible = write!(path, "M{} 24V{:.1}h1.6V24z", 2 * at, 24.0 - height.max(1.0));
        }
    }
    path
}

/// A part of a page that several templates have: `part("pause", v=v, path=…)`.
fn part(state: &State<'_, '_>, name: &str, values: Kwargs) -> Result<Value, minijinja::Error> {
    let values: Value = values
        .args()
        .map(|name| Ok((name.to_owned(), values.get::<Value>(name)?)))
        .collect::<Result<std::collections::BTreeMap<_, _>, minijinja::Error>>()?
        .into();
    Ok(Value::from_safe_string(state.env().get_template(name)?.render(values)?))
}

/// A map with these entries.
pub(crate) fn map<T: Into<Value>>(entries: impl IntoIterator<Item = (&'static str, T)>) -> Value {
    let entries = entries.into_iter().map(|(name, value)| (name, value.into()));
    entries.collect::<std::collections::BTreeMap<_, Value>>().into()
}

/// The text of a value; nothing of none.
fn plain(value: &Value) -> String {
    if value.is_none() || value.is_undefined() {
        return String::new();
    }
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn dash(text: &str) -> Value {
    Value::from_safe_string(format!("<span class=\"none\">{text}</span>"))
}

/// A time: relative, and exact for who points at it.
fn time(at: &str) -> String {
    let Ok(moment) = at.parse::<Timestamp>() else { return HtmlEscape(at).to_string() };
    let relative = text::relative(Timestamp::now(), moment);
    let exact = text::exact(at);
    format!("<time datetime=\"{moment}\" title=\"{exact}\">{relative}</time>")
}

/// A state: a word and a colour, by its name alone.
fn state(name: &Value) -> String {
    let name = plain(name);
    let name = HtmlEscape(&name);
    format!("<span class=\"state\" data-state=\"{name}\">{name}</span>")
}
