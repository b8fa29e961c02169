//! Alerts of a server (R27): measures what they watch, raises and clears them, notifies their sinks.
//!
//! Every server with the same configuration measures; the row in the store decides which of them
//! raises, clears and notifies (`quell::alert`). The notice of a server that dies while it sends is
//! sent by another one. `tally` counts the attempts of this server for failure rates.

mod tally;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell::Quell;
use quell::alert::{Alert, Measure, Notice, Overview};
use quell::alert::{AlertName, AlertState};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::engine::sha256;
use crate::handlers::{Handler, Message};
pub use tally::{Ended, Tally};

/// How often a row that another server changed meanwhile is read again, before the next round.
const TRIES: usize = 8;

/// An alert's sinks, by name.
pub type Sinks = BTreeMap<String, Handler>;

/// An alert that the configuration declares.
#[derive(Debug)]
pub struct DeclaredAlert {
    /// What it watches.
    pub alert: Alert,
    /// The receivers of its notices, besides the log and the metric.
    pub sinks: Sinks,
}

/// What one server does for its alerts.
#[derive(Debug)]
pub struct Watch {
    quell: Quell,
    alerts: Arc<[DeclaredAlert]>,
    tally: Arc<Tally>,
    /// The counts of this server's attempts that the store has, for each alert.
    counted: Vec<Counted>,
    notices_in_flight: JoinSet<()>,
}

/// Attempts that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The number of successes.
    pub succeeded: u64,
    /// The number of failures.
    pub failed: u64,
}

impl Watch {
    /// Watches these alerts.
    #[must_use]
    pub fn new(quell: Quell, alerts: Arc<[DeclaredAlert]>, tally: Arc<Tally>) -> Self {
        let counted = vec![Counted::default(); alerts.len()];
        Watch { quell, alerts, tally, counted, notices_in_flight: JoinSet::new() }
    }

    /// Measures every `interval` until `stop`. Notices in flight then are sent by another server, or
    /// by this one after its next start.
    pub async fn run(mut self, interval: Duration, stop: CancellationToken) {
        let mut rounds = tokio::time::interval(interval);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = rounds.tick() => {}
                () = stop.cancelled() => break,
            }
            let measured = tokio::select! {
                measured = self.measure_all() => measured,
                () = stop.cancelled() => break,
            };
            if let Err(error) = measured {
                warn!(%error, "cannot evaluate alerts, retrying");
            }
            while self.notices_in_flight.try_join_next().is_some() {}
        }
        self.notices_in_flight.shutdown().await;
    }

    /// Measures once.
    async fn measure_all(&mut self) -> quell::Result<()> {
        // Measured after the rows were read: another server's newer measurement would be taken back by an
        // older one.
        let mut rows: BTreeMap<AlertName, (u64, AlertState)> = rows(&self.quell).await?;
        let mut overview = self.quell.store().overview(None).await?;
        for index in 0..self.alerts.len() {
            let name = self.alerts.get(index).map(|declared| declared.alert.name.clone());
            let row = name.and_then(|name| rows.remove(&name)).unwrap_or_default();
            self.update(index, row, &mut overview).await?;
        }
        Ok(())
    }

    /// Updates one alert's row, and sends the notices that are due.
    async fn update(
        &mut self,
        index: usize,
        (mut version, mut state): (u64, AlertState),
        overview: &mut Overview,
    ) -> quell::Result<()> {
        let alerts = Arc::clone(&self.alerts);
        let (Some(declared), Some(counted)) = (alerts.get(index), self.counted.get_mut(index))
        else {
            return Ok(());
        };
        let alert = &declared.alert;
        let total = self.tally.total(alert);
        for _ in 0..TRIES {
            let known = state.clone();
            count(alert, &mut state, overview, total, *counted);
            let value = alert.measure(overview, &state);
            let changed = state.observe(alert, value, overview.now);
            let notices = state.take(overview.now);
            metrics::gauge!("quell_alert", "name" => alert.name.to_string()).set(if state.raised {
                1.0
            } else {
                0.0
            });
            if state == known {
                *counted = total;
                return Ok(());
            }
            if self.quell.store().set_alert(&alert.name, version, Some(&state)).await? {
                *counted = total;
                if changed {
                    log(alert, &state);
                }
                self.notify(index, notices);
                return Ok(());
            }
            (version, state) = rows(&self.quell).await?.remove(&alert.name).unwrap_or_default();
            *overview = self.quell.store().overview(None).await?;
        }
        debug!(alert = %alert.name, tries = TRIES, "write conflicts on an alert, leaving it to other servers");
        Ok(())
    }

    /// Sends each sink its notice, in the background.
    fn notify(&mut self, index: usize, notices: Vec<Notice>) {
        for notice in notices {
            let (quell, alerts) = (self.quell.clone(), Arc::clone(&self.alerts));
            self.notices_in_flight.spawn(async move {
                if let Some(declared) = alerts.get(index)
                    && let Err(error) = deliver(&quell, declared, &notice).await
                {
                    let name = &declared.alert.name;
                    warn!(alert = %name, %error, "cannot record an alert notice, it may be sent twice");
                }
            });
        }
    }
}

/// Adds the counts of this server since the last time.
fn count(
    alert: &Alert,
    state: &mut AlertState,
    overview: &Overview,
    total: Counted,
    before: Counted,
) {
    let Measure::FailureRate { window, .. } = alert.on else { return };
    let succeeded = total.succeeded.saturating_sub(before.succeeded);
    let failed = total.failed.saturating_sub(before.failed);
    if succeeded > 0 || failed > 0 {
        state.count(overview.now, window, succeeded, failed);
    }
}

fn log(alert: &Alert, state: &AlertState) {
    let (name, measured) = (&alert.name, alert.on.describe(state.value));
    let threshold = alert.on.describe(if state.raised { alert.above } else { alert.clear });
    if state.raised {
        warn!(alert = %name, measured, threshold, "alert raised");
    } else {
        info!(alert = %name, measured, threshold, "alert cleared");
    }
}

/// The rows of all alerts.
async fn rows(quell: &Quell) -> quell::Result<BTreeMap<AlertName, (u64, AlertState)>> {
    let rows = quell.store().alerts().await?.into_iter();
    Ok(rows.map(|row| (row.name, (row.version, row.state))).collect())
}

/// Sends a notice to its sink, and records whether that succeeded.
async fn deliver(quell: &Quell, declared: &DeclaredAlert, notice: &Notice) -> quell::Result<()> {
    let alert = &declared.alert;
    let sent = match declared.sinks.get(&notice.sink) {
        Some(sink) => sink.notify(&message(alert, notice)).await,
        None => Err("the sink is not in this server's configuration".into()),
    };
    if let Err(error) = &sent {
        let (sink, tries) = (&notice.sink, notice.tries);
        warn!(alert = %alert.name, sink, tries, error, "cannot deliver an alert notice, retrying");
    }
    loop {
        let Some((version, mut state)) = rows(quell).await?.remove(&alert.name) else {
            return Ok(());
        };
        match &sent {
            Ok(()) => state.delivered(notice),
            Err(_) => state.undelivered(notice, quell.store().overview(None).await?.now),
        }
        if quell.store().set_alert(&alert.name, version, Some(&state)).await? {
            return Ok(());
        }
    }
}

fn message(alert: &Alert, notice: &Notice) -> Message {
    let state = if notice.raised { "raised" } else { "cleared" };
    let measured = alert.on.describe(notice.value);
    let body = json!({
        "type": format!("alert.{state}"),
        "timestamp": notice.at.to_string(),
        "data": {
            "alert": alert.name,
            "state": state,
            "on": alert.on.name(),
            "queue": alert.queue,
            "task": alert.task,
            "value": notice.value,
            "threshold": alert.above,
            "text": format!("{}: {state}, {measured}", alert.name),
            "change": notice.change,
        },
    });
    let body = body.to_string();
    let digest = sha256(body.as_bytes());
    let digest = digest.get(..16).unwrap_or_default();
    let name = |name: Option<&str>| name.unwrap_or_default().to_owned();
    Message {
        // The body has the time of the change: another store's alert of this name is another message.
        id: format!("quell-alert-{}-{}-{}", alert.name, notice.change, digest),
        body,
        variables: vec![
            ("QUELL_ALERT", alert.name.to_string()),
            ("QUELL_ALERT_STATE", state.to_owned()),
            ("QUELL_ALERT_ON", alert.on.name().to_owned()),
            ("QUELL_ALERT_VALUE", notice.value.to_string()),
            ("QUELL_ALERT_TEXT", measured),
            ("QUELL_QUEUE", name(alert.queue.as_ref().map(|queue| queue.as_str()))),
            ("QUELL_TASK", name(alert.task.as_ref().map(|task| task.as_str()))),
        ],
    }
}
