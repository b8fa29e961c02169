//! Encrypts what waits for long by the newest key.

use quell_core::schedule::{Schedule, ScheduleInfo};
use quell_core::{NewTrigger, Payload, Result};
use tracing::warn;

use super::seal::{Place, Seal};
use crate::Quell;

impl Quell {
    /// Encrypts the payloads of schedules again that an older key encrypted, or none (R43); returns how
    /// many. A schedule keeps its payload for as long as it is there, and each tick takes it as it is, so
    /// without this an old key would have to stay for good. A server does it each minute.
    ///
    /// One whose key is not there any more stays as it is.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// let quell = quell::Quell::open("memory:").await?;
    /// assert_eq!(quell.renew_encryption().await?, 0, "nothing is encrypted here");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the store and of the cipher.
    pub async fn renew_encryption(&self) -> Result<u64> {
        let Some(encrypted) = self.encrypted() else { return Ok(0) };
        let (seal, below) = (encrypted.seal(), encrypted.inner());
        let mut renewed = 0;
        for ScheduleInfo { schedule, .. } in below.schedules().await? {
            let Some(payload) = newest(seal, &schedule.trigger)? else { continue };
            let trigger = NewTrigger { payload, ..schedule.trigger };
            let schedule = Schedule { trigger, ..schedule };
            below.set_schedule(self.clock().store_time(), &schedule).await?;
            renewed += 1;
        }
        Ok(renewed)
    }
}

/// The payload of a trigger by the newest key; none where it is so already, or cannot be read.
fn newest(seal: &Seal, trigger: &NewTrigger) -> Result<Option<Payload>> {
    let key = trigger.keyed.as_ref().map(|keyed| &keyed.key);
    let place = Place::Payload(&trigger.task, key);
    if seal.is_newest(trigger, place)? {
        return Ok(None);
    }
    match seal.opened(&trigger.payload, place) {
        Ok(plain) if seal.encrypts(&trigger.task) => seal.document(&plain, place).map(Some),
        Ok(plain) => Ok(Some(plain)),
        Err(unopened) => {
            let error = unopened.error("the payload of a schedule");
            warn!(task = %trigger.task, %error, "its ticks wait for the key");
            Ok(None)
        }
    }
}
