//! The server's clock beside the store's (R38).

use quell_core::checkup::{Checkup, ClockReading};
use quell_core::{Result, Timestamp};

use crate::look::Read;
use crate::row::corrupt;
use crate::shard::{Shard, Time};

impl Shard {
    /// Reads both clocks.
    pub(crate) async fn checkup(&self) -> Result<Checkup> {
        let reads = [Read::ServerTime(self.keys.clock())];
        let mut looked = self.look("check the store", Time::Last, &reads).await?;
        let time = looked.members()?;
        let number = |index: usize| time.get(index).and_then(|text| text.parse::<i64>().ok());
        let (Some(seconds), Some(micros)) = (number(0), number(1)) else {
            return Err(corrupt(format_args!("the server's time {time:?}")));
        };
        let host = seconds.saturating_mul(1_000_000).saturating_add(micros);
        let clock = ClockReading { host: Timestamp::from_micros(host), mark: looked.now };
        Ok(Checkup { id: None, clock, facts: Vec::new() })
    }
}
