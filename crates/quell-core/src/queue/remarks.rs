//! What is on record beside the settings of a queue or a task: its pause (R33), the declaration that it
//! was set by (R32), and the thresholds that an operator set for a task (R14).

use serde::{Deserialize, Serialize};

use super::{QueueSettings, TaskSettings};
use crate::window::Thresholds;
use crate::{Error, Result, Timestamp};

/// What a store keeps beside settings. An earlier version refuses settings with members that it does not
/// know, so both are rows of their own; of this one it ignores what it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Remarks {
    /// Since when it is paused: the store's time of the step that paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_since: Option<Timestamp>,
    /// Who paused it, by the words of that caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// Which declaration was applied last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared: Option<String>,
    /// The thresholds that an operator set for the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debounce: Option<Thresholds>,
}

impl Remarks {
    /// Whether there is nothing to keep.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Remarks::default()
    }
}

impl QueueSettings {
    /// The settings without what is on record beside them, and that. Stores keep both apart.
    #[must_use]
    pub fn split_remarks(&self) -> (Self, Remarks) {
        let remarks = Remarks {
            paused_since: self.paused_since,
            paused_by: self.paused_by.clone(),
            declared: self.declared.clone(),
            debounce: None,
        };
        (self.clone().with_remarks(Remarks::default()), remarks)
    }

    /// The settings with what is on record beside them. What is not paused has no pause.
    #[must_use]
    pub fn with_remarks(self, remarks: Remarks) -> Self {
        let Remarks { paused_since, paused_by, declared, debounce: _ } = remarks;
        let (paused_since, paused_by) = pause(self.paused, paused_since, paused_by);
        QueueSettings { paused_since, paused_by, declared, ..self }
    }
}

impl TaskSettings {
    /// The settings and what is on record beside them, as [`QueueSettings::split_remarks`].
    #[must_use]
    pub fn split_remarks(&self) -> (Self, Remarks) {
        let (paused_since, paused_by) = (self.paused_since, self.paused_by.clone());
        let remarks = Remarks { paused_since, paused_by, declared: None, debounce: self.debounce };
        (self.clone().with_remarks(Remarks::default()), remarks)
    }

    /// The settings with what is on record beside them, as [`QueueSettings::with_remarks`].
    #[must_use]
    pub fn with_remarks(self, remarks: Remarks) -> Self {
        let (paused_since, paused_by) = pause(self.paused, remarks.paused_since, remarks.paused_by);
        TaskSettings { paused_since, paused_by, debounce: remarks.debounce, ..self }
    }
}

type Pause = (Option<Timestamp>, Option<String>);

fn pause(is_paused: bool, since: Option<Timestamp>, by: Option<String>) -> Pause {
    if is_paused { (since, by) } else { (None, None) }
}

pub(crate) fn check_text(field: &'static str, text: Option<&str>) -> Result<()> {
    const MOST: usize = QueueSettings::MOST_REMARK;
    match text.map(str::len) {
        Some(bytes) if bytes > MOST => {
            let message = format!("{field} has {bytes} bytes, and {MOST} is the limit: shorten it");
            Err(Error::invalid(field, message))
        }
        Some(_) | None => Ok(()),
    }
}
