//! What is kept of alerts (R27).

use quell_core::alert::{AlertRow, AlertState};
use quell_core::checkup::{Checkup, ClockReading};
use quell_core::{AlertName, Result, Timestamp};

use crate::look::Read;
use crate::row::{corrupt, from_json, to_json};
use crate::shard::Time;
use crate::store::ShardStore;
use crate::tx::{Cell, Tx};

impl ShardStore {
    /// The server's clock beside the store's (R38).
    pub(crate) async fn read_checkup(&self) -> Result<Checkup> {
        let reads = [Read::ServerTime(self.shard.keys.clock())];
        let mut looked = self.shard.look("check the store", Time::Last, &reads).await?;
        let time = looked.members()?;
        let number = |index: usize| time.get(index).and_then(|text| text.parse::<i64>().ok());
        let (Some(seconds), Some(micros)) = (number(0), number(1)) else {
            return Err(corrupt(format_args!("the server's time {time:?}")));
        };
        let host = seconds.saturating_mul(1_000_000).saturating_add(micros);
        let clock = ClockReading { host: Timestamp::from_micros(host), mark: looked.now };
        Ok(Checkup { id: None, clock, facts: Vec::new() })
    }

    pub(crate) async fn read_alerts(&self) -> Result<Vec<AlertRow>> {
        let reads = [Read::All(self.shard.keys.alerts())];
        let mut looked = self.shard.look("read alerts", Time::Last, &reads).await?;
        let mut rows = Vec::new();
        for (name, row) in looked.pairs()? {
            let (version, state) = from_json("an alert", &row)?;
            rows.push(AlertRow { name: AlertName::new(name)?, version, state });
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }
}

impl Tx<'_> {
    /// Writes an alert's row if it still has this version; says whether it did.
    pub(crate) async fn write_alert(
        &mut self,
        name: &AlertName,
        version: u64,
        to: Option<&AlertState>,
    ) -> Result<bool> {
        let key = self.shard.keys.alerts();
        self.fetch(vec![Cell::new(key.clone(), name.as_str())], Vec::new()).await?;
        let known: Option<(u64, AlertState)> = self
            .cell(key.clone(), name.as_str())
            .map(|row| from_json("an alert", row))
            .transpose()?;
        if known.map_or(0, |(version, _)| version) != version {
            return Ok(false);
        }
        match to {
            Some(state) => {
                let row = to_json(&(version.saturating_add(1), state))?;
                self.beside.hash_set(key, name, row);
            }
            None => self.beside.hash_delete(key, name),
        }
        Ok(true)
    }
}
