//! What is on record of the pause of a queue or a task (R33).

use serde::{Deserialize, Serialize};

use super::QueueSettings;
use crate::{Error, Result, Timestamp};

/// Since when a queue or a task is paused, and by whom (R33).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pause {
    /// The store's time of the step that paused it.
    pub since: Timestamp,
    /// The words of the caller, where there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Takes a pause on record out of settings, and puts it back.
macro_rules! splits_pause {
    ($settings:ty) => {
        impl $settings {
            /// The settings without the pause on record, and that pause. Stores keep both apart, as
            /// earlier versions refuse settings with members that they do not know.
            #[must_use]
            pub fn split_pause(&self) -> (Self, Option<$crate::queue::Pause>) {
                let by = self.paused_by.clone();
                let pause = self.paused_since.map(|since| $crate::queue::Pause { since, by });
                (self.clone().with_pause(None), pause)
            }

            /// The settings with what is on record of their pause. What is not paused has none.
            #[must_use]
            pub fn with_pause(self, pause: Option<$crate::queue::Pause>) -> Self {
                let pause = pause.filter(|_| self.paused);
                let (paused_since, paused_by) =
                    pause.map(|pause| (Some(pause.since), pause.by)).unwrap_or_default();
                Self { paused_since, paused_by, ..self }
            }
        }
    };
}

pub(super) use splits_pause;

pub(super) fn check_paused_by(by: Option<&str>) -> Result<()> {
    const MOST: usize = QueueSettings::MOST_PAUSED_BY;
    match by.map(str::len) {
        Some(bytes) if bytes > MOST => {
            let message =
                format!("paused_by has {bytes} bytes, and {MOST} is the limit: shorten it");
            Err(Error::invalid("paused_by", message))
        }
        Some(_) | None => Ok(()),
    }
}
