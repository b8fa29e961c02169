//! A task's live settings as people write them over HTTP (R14, R33): durations as text.

use quell::queue::TaskSettings;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::queues::{ThresholdsText, write_thresholds};

/// Settings of a task.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TaskSettings)]
pub(crate) struct TaskText {
    /// Whether nothing of it starts; false where it is left out.
    paused: Option<bool>,
    /// Thresholds that count in place of those that the task declares, of its queue's and of the default.
    debounce: Option<ThresholdsText>,
}

impl TaskText {
    /// What it means. A pause that goes on keeps its caller.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) that names the field.
    pub(crate) fn settings(&self) -> quell::Result<TaskSettings> {
        let debounce = self.debounce.as_ref().map(ThresholdsText::thresholds).transpose()?;
        let settings = TaskSettings::default().paused(self.paused.unwrap_or_default());
        Ok(settings.debounce(debounce))
    }
}

/// The settings with the fields of `patch` in place of their own; null takes one away.
///
/// # Errors
/// What is wrong with the patch, by serde.
pub(crate) fn patched(
    settings: &TaskSettings,
    patch: Map<String, Value>,
) -> serde_json::Result<TaskText> {
    let own =
        [("paused", json!(settings.paused)), ("debounce", write_thresholds(settings.debounce))];
    let mut fields: Map<String, Value> =
        own.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    fields.extend(patch);
    serde_json::from_value(Value::Object(fields))
}
