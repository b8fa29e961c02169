//! A queue's settings as people write them, in the configuration and over HTTP: durations as text.
//!
//! One parser for both, so that a field means the same everywhere.

use std::time::Duration;

use quell::queue::{PartitionOrder, QueueSettings, Rate};
use quell::trigger::Thresholds;
use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::duration;

/// Settings of a queue.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = QueueSettings)]
pub(crate) struct QueueText {
    /// Attempts at once, over all processes.
    concurrency: Option<u32>,
    /// Attempts at once by one worker.
    worker_concurrency: Option<u32>,
    /// Attempts at once of one partition.
    partition_concurrency: Option<u32>,
    /// In which order the jobs of one partition start: `by_priority` as others, or `strict`, one at a
    /// time, each after all before it have ended.
    #[schema(value_type = Option<String>)]
    partition_order: Option<PartitionOrder>,
    /// Starts in a time.
    rate: Option<RateText>,
    /// Starts in a time of one partition.
    partition_rate: Option<RateText>,
    /// Whether nothing of it starts; false where it is left out.
    paused: Option<bool>,
    /// The thresholds of tasks that name none.
    debounce: Option<ThresholdsText>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRate)]
struct RateText {
    /// How many.
    limit: u32,
    /// In which time, such as `1m`.
    #[schema(value_type = String)]
    period: Length,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewThresholds)]
pub(crate) struct ThresholdsText {
    /// The quiet period, such as `10s`.
    #[schema(value_type = String)]
    min: Length,
    /// The longest delay, such as `1m`.
    #[schema(value_type = String)]
    max: Length,
}

/// A duration such as `10s`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length(pub(crate) Duration);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        duration::parse(&text).map(Length).map_err(de::Error::custom)
    }
}

impl ThresholdsText {
    /// What it means.
    ///
    /// # Errors
    /// As for [`Thresholds::new`].
    pub(crate) fn thresholds(&self) -> quell::Result<Thresholds> {
        Thresholds::new(self.min.0, self.max.0)
    }
}

/// Thresholds as they are written; null where there are none.
pub(crate) fn write_thresholds(set: Option<Thresholds>) -> Value {
    set.map_or(
        Value::Null,
        |set| json!({ "min": duration::exact(set.min()), "max": duration::exact(set.max()) }),
    )
}

impl QueueText {
    /// Whether it says if the queue is paused.
    pub(crate) fn says_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// What it means.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) that names the field.
    pub(crate) fn settings(self) -> quell::Result<QueueSettings> {
        let rate = |text: RateText| Rate { limit: text.limit, period: text.period.0 };
        let debounce = self.debounce.map(|text| text.thresholds());
        let settings = QueueSettings {
            concurrency: self.concurrency,
            worker_concurrency: self.worker_concurrency,
            partition_concurrency: self.partition_concurrency,
            partition_order: self.partition_order.unwrap_or_default(),
            rate: self.rate.map(rate),
            partition_rate: self.partition_rate.map(rate),
            paused: self.paused.unwrap_or_default(),
            debounce: debounce.transpose()?,
            ..QueueSettings::default()
        };
        settings.validate()?;
        Ok(settings.completed())
    }
}

/// Settings as they are written.
pub(crate) fn write(settings: &QueueSettings) -> Map<String, Value> {
    let rate = |rate: Rate| json!({ "limit": rate.limit, "period": duration::exact(rate.period) });
    // It follows from a strict order: without that it would stay.
    let partition = settings.partition_concurrency.filter(|_| !settings.is_strict());
    let fields = [
        ("concurrency", json!(settings.concurrency)),
        ("worker_concurrency", json!(settings.worker_concurrency)),
        ("partition_concurrency", json!(partition)),
        ("partition_order", json!(settings.partition_order)),
        ("rate", settings.rate.map_or(Value::Null, rate)),
        ("partition_rate", settings.partition_rate.map_or(Value::Null, rate)),
        ("paused", json!(settings.paused)),
        ("debounce", write_thresholds(settings.debounce)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The settings with the fields of `patch` in place of their own; null takes one away.
///
/// # Errors
/// What is wrong with the patch, by serde.
pub(crate) fn patched(
    settings: &QueueSettings,
    patch: Map<String, Value>,
) -> serde_json::Result<QueueText> {
    let mut fields = write(settings);
    fields.extend(patch);
    serde_json::from_value(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> quell::Result<QueueSettings> {
        serde_json::from_str::<QueueText>(text).unwrap().settings()
    }

    #[test]
    fn r32_settings_are_read_as_they_are_written() {
        let text = r#"{"concurrency":4,"worker_concurrency":2,"partition_concurrency":1,
            "rate":{"limit":5,"period":"1m30s"},"partition_rate":{"limit":1,"period":"250ms"},
            "paused":true,"debounce":{"min":"1s","max":"2s"}}"#;
        let strict = r#"{"partition_order":"strict"}"#;
        assert_eq!(read(strict).unwrap().partition_concurrency, Some(1));
        for text in [text, strict, "{}"] {
            let settings = read(text).unwrap();
            let written = Value::Object(write(&settings));
            assert_eq!(read(&written.to_string()).unwrap(), settings, "{written}");
        }
        assert_eq!(read("{}").unwrap(), QueueSettings::default());
    }

    #[test]
    fn r32_a_patch_changes_what_it_names() {
        let before = read(r#"{"concurrency":4,"rate":{"limit":5,"period":"1m"}}"#).unwrap();
        let patch = |text: &str| {
            let patch = serde_json::from_str(text).unwrap();
            patched(&before, patch).map(|text| text.settings().unwrap())
        };
        let expected = QueueSettings { rate: None, paused: true, ..before.clone() };
        assert_eq!(patch(r#"{"rate":null,"paused":true}"#).unwrap(), expected);
        assert_eq!(patch("{}").unwrap(), before);
        assert!(patch(r#"{"typo":1}"#).is_err());
    }

    #[test]
    fn r40_limits_that_cannot_be_meant_name_their_field() {
        for (text, field) in [
            (r#"{"rate":{"limit":0,"period":"1s"}}"#, "rate"),
            (r#"{"concurrency":1,"worker_concurrency":2}"#, "worker_concurrency"),
            (r#"{"debounce":{"min":"2s","max":"1s"}}"#, "min"),
        ] {
            assert_eq!(read(text).unwrap_err().field(), Some(field), "{text}");
        }
    }
}
