//! The axes that both drawings share: their ticks, and the place of a value on them.

use std::time::Duration;

use super::Picture;

/// Delays shorter than this are drawn as this: a logarithm has no zero.
const SHORTEST: f64 = 0.001;

/// The ticks of the delay, in milliseconds with their names.
const ROUND: [(u64, &str); 16] = [
    (1, "1ms"),
    (10, "10ms"),
    (100, "100ms"),
    (1_000, "1s"),
    (5_000, "5s"),
    (10_000, "10s"),
    (30_000, "30s"),
    (60_000, "1m"),
    (300_000, "5m"),
    (600_000, "10m"),
    (1_800_000, "30m"),
    (3_600_000, "1h"),
    (21_600_000, "6h"),
    (86_400_000, "1d"),
    (604_800_000, "7d"),
    (2_592_000_000, "30d"),
];

/// Where values lie, as parts of each axis from 0 to 1.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    /// Logarithms of the delays at both ends.
    delay: (f64, f64),
    /// Savings at both ends, in percent.
    saved: (f64, f64),
}

/// A tick: its place and its name.
pub(super) type Tick = (f64, String);

impl Axes {
    pub(super) fn of(picture: &Picture) -> Axes {
        let points = &picture.points;
        let shortest = points.iter().map(|p| log(p.median)).fold(f64::INFINITY, f64::min);
        let longest = points.iter().map(|p| log(p.p99)).fold(f64::NEG_INFINITY, f64::max);
        let (shortest, longest) =
            if shortest.is_finite() { (shortest, longest.max(shortest)) } else { (0.0, 1.0) };
        let margin = ((longest - shortest) * 0.08).max(0.15);
        let lowest = points.iter().map(|p| p.saved * 100.0).fold(100.0, f64::min);
        let highest = points.iter().map(|p| p.saved * 100.0).fold(0.0, f64::max);
        let low = ((lowest - 1.0) / 10.0).floor().max(0.0) * 10.0;
        let high =
            (((highest + 1.0) / 10.0).ceil() * 10.0).clamp(low + 10.0, 100.0_f64.max(low + 10.0));
        Axes { delay: (shortest - margin, longest + margin), saved: (low, high) }
    }

    /// Where a delay lies, from the left.
    pub(super) fn across(&self, delay: Duration) -> f64 {
        part(log(delay), self.delay)
    }

    /// Where a saving lies, from below.
    pub(super) fn up(&self, saved: f64) -> f64 {
        part(saved * 100.0, self.saved)
    }

    /// Ticks of the delay, at least `gap` of the axis apart.
    pub(super) fn delay_ticks(&self, gap: f64) -> Vec<Tick> {
        let mut ticks: Vec<Tick> = Vec::new();
        for (millis, name) in ROUND {
            let place = self.across(Duration::from_millis(millis));
            let has_space = ticks.last().is_none_or(|(last, _)| place - last >= gap);
            if (0.0..=1.0).contains(&place) && has_space {
                ticks.push((place, name.to_owned()));
            }
        }
        ticks
    }

    /// Ticks of the saving.
    pub(super) fn saved_ticks(&self) -> Vec<Tick> {
        let (low, high) = self.saved;
        let step = match high - low {
            range if range > 50.0 => 20.0,
            range if range > 20.0 => 10.0,
            range if range > 10.0 => 5.0,
            _ => 2.0,
        };
        let ticks = std::iter::successors(Some(low), |tick| Some(tick + step));
        let ticks = ticks.take_while(|tick| *tick <= high + 0.01);
        ticks.map(|tick| (part(tick, self.saved), format!("{tick:.0}%"))).collect()
    }
}

fn log(delay: Duration) -> f64 {
    delay.as_secs_f64().max(SHORTEST).log10()
}

fn part(value: f64, (low, high): (f64, f64)) -> f64 {
    (value - low) / (high - low)
}
