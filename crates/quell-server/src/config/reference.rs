//! The reference of all settings, made of the types that the file is read into: what a page says of
//! them cannot lag behind.
//!
//! The first part of a field's documentation is its meaning, and the paragraph that begins with
//! `Default: ` what counts where it is left out.

use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::alerts::RawAlert;
use super::listen::RawTls;
use super::otel::RawOtel;
use super::parse::{RawEncryption, RawServer, RawStore, RawWorker};
use super::queues::QueueText;
use super::schedules::RawSchedule;
use super::sources::{RawHmac, RawSource, RawToken};
use super::tasks::{RawDebounce, RawExec, RawHttp, RawIdempotency, RawRetry, RawTask};

/// A field: its name, its meaning, its default.
type Field = (String, String, String);

/// A table of the file.
struct Table {
    /// Its name, as the file has it.
    name: &'static str,
    /// What stands above its fields.
    text: &'static str,
    /// Its fields, in the order of the type.
    fields: Vec<Field>,
}

impl Table {
    fn of<T: ToSchema>(name: &'static str, text: &'static str) -> Self {
        Table { name, text, fields: fields::<T>() }
    }

    /// The fields of a table within this one, in place of its own name.
    fn with<T: ToSchema>(mut self, name: &str) -> Self {
        let place = self.fields.iter().position(|(field, ..)| field == name);
        let within = fields::<T>().into_iter();
        let within =
            within.map(|(field, meaning, default)| (format!("{name}.{field}"), meaning, default));
        let place = place.unwrap_or(self.fields.len());
        self.fields.splice(place..(place + 1).min(self.fields.len()), within);
        self
    }

    fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n", self.name);
        if !self.text.is_empty() {
            text.push_str(&format!("{}\n\n", self.text));
        }
        text.push_str("| setting | meaning | default |\n| --- | --- | --- |\n");
        for (name, meaning, default) in &self.fields {
            text.push_str(&format!("| `{name}` | {meaning} | {default} |\n"));
        }
        text
    }
}

/// The fields of a type, with their documentation.
fn fields<T: PartialSchema>() -> Vec<Field> {
    let RefOr::T(Schema::Object(object)) = T::schema() else { return Vec::new() };
    let field = |(name, schema): (&String, &RefOr<Schema>)| {
        let described = described(schema);
        let (meaning, default) =
            described.split_once("\n\nDefault: ").unwrap_or((&described, "none"));
        let in_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        (name.clone(), in_line(meaning), in_line(default))
    };
    object.properties.iter().map(field).collect()
}

/// What the documentation of a field says.
fn described(schema: &RefOr<Schema>) -> String {
    match schema {
        RefOr::Ref(reference) => reference.description.clone(),
        RefOr::T(Schema::Object(object)) => object.description.clone().unwrap_or_default(),
        // Of one that may be left out, it stands at the type.
        RefOr::T(Schema::OneOf(one)) => {
            let own = one.description.clone();
            let mut within = one.items.iter().map(described);
            own.or_else(|| within.find(|text| !text.is_empty())).unwrap_or_default()
        }
        RefOr::T(_) => String::new(),
    }
}

fn tables() -> Vec<Table> {
    vec![
        Table::of::<RawServer>("server", "").with::<RawTls>("tls"),
        Table::of::<RawStore>("store", ""),
        Table::of::<RawEncryption>("encryption", ""),
        Table::of::<RawWorker>("worker", ""),
        Table::of::<QueueText>(
            "queues.NAME",
            "[Live settings](#live-settings): \
             [what they limit](guide.md#queues-limits-partitions-rates-pauses-priorities). \
             A rate reads `{ limit = 100, period = \"1m\" }`. \
             A queue for which the file does not set `paused` stays as it was.",
        ),
        Table::of::<RawTask>("tasks.NAME", "A task has one handler: `exec`, `http` or `pull`.")
            .with::<RawDebounce>("debounce")
            .with::<RawRetry>("retry")
            .with::<RawIdempotency>("idempotency"),
        Table::of::<RawExec>(
            "tasks.NAME.exec",
            "[Commands](handlers.md#commands) has the details.",
        ),
        Table::of::<RawHttp>(
            "tasks.NAME.http",
            "[HTTP endpoints](handlers.md#http-endpoints) has the details.",
        ),
        Table::of::<RawSource>("sources.NAME", "[Webhooks in](webhooks.md) has the details.")
            .with::<RawHmac>("hmac")
            .with::<RawToken>("token"),
        Table::of::<RawSchedule>("schedules.NAME", ""),
        Table::of::<RawAlert>("alerts.NAME", "[Alerts](server.md#alerts) has examples."),
        Table::of::<RawOtel>(
            "otel",
            "[The server's exporter](observability.md#the-servers-exporter) has the details. Changes take a restart.",
        ),
    ]
}

/// All settings, as `docs/configuration.md` has them.
#[must_use]
pub fn reference() -> String {
    tables().iter().map(Table::markdown).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_meaning() {
        let tables = tables();
        let silent = |table: &Table| {
            let without = table.fields.iter().filter(|(_, meaning, _)| meaning.is_empty());
            let names = without.map(|(field, ..)| format!("{}.{field}", table.name));
            names.collect::<Vec<_>>()
        };
        assert_eq!(tables.iter().flat_map(silent).collect::<Vec<_>>(), Vec::<String>::new());
        assert!(tables.iter().all(|table| !table.fields.is_empty()));
        assert!(tables.iter().map(|table| table.fields.len()).sum::<usize>() > 90);
    }

    #[test]
    fn the_page_has_what_the_types_say() {
        let page = include_str!("../../../../docs/configuration.md");
        let (_, rest) = page.split_once("<!-- settings: begin -->\n").unwrap();
        let (shown, _) = rest.split_once("<!-- settings: end -->").unwrap();
        let remedy = "put what `quell settings` prints between the two markers";
        assert_eq!(shown.trim(), reference().trim(), "docs/configuration.md lags: {remedy}");
    }
}
