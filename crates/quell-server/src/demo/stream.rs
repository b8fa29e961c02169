//! What the demo replays: the git history of a directory, or a made-up webhook stream.

use std::path::{Path, PathBuf};

use quell::{Key, Payload};
use quell_lab::trace::{Source, Trace};
use serde_json::{Value, json};

/// Fewer events than this show nothing.
const ENOUGH: usize = 30;
/// The newest events that are replayed.
const MOST: usize = 5_000;
/// The longest silence that is kept, as a share of the whole: histories rest at night.
const LONGEST_GAP: f64 = 0.02;

/// One event: when, as a share of the whole, and for what.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) at: f64,
    pub(super) key: Key,
    pub(super) payload: Payload,
}

/// A stream of events in order.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) name: String,
    /// What `quell simulate` would be given to read the same.
    pub(super) trace: Option<PathBuf>,
    pub(super) events: Vec<Event>,
}

impl Stream {
    /// The history of a directory, if it has enough of one.
    pub(super) fn find(directory: &Path) -> Stream {
        Stream::of_git(directory).unwrap_or_else(Stream::made_up)
    }

    fn of_git(directory: &Path) -> Option<Stream> {
        let top_folder = |row: &Value| {
            let top = row["path"].as_str().and_then(|path| path.split('/').next());
            top.filter(|top| !top.is_empty()).map(Key::new).transpose()
        };
        let trace = Trace::read(&Source::new(directory).key(top_folder).payloads()).ok()?;
        let skip = trace.events().len().saturating_sub(MOST);
        let mut at = Vec::new();
        let mut events = Vec::new();
        for event in trace.events().iter().skip(skip) {
            let (Some(key), Some(payload)) = (trace.key(event), trace.payload(event)) else {
                continue;
            };
            at.push(event.at.as_micros() as f64);
            events.push(Event { at: 0.0, key: key.clone(), payload: payload.clone() });
        }
        if events.len() < ENOUGH {
            return None;
        }
        for (event, share) in events.iter_mut().zip(squeeze(&at)) {
            event.at = share;
        }
        let name = "the git history of this directory, by top folder".to_owned();
        Some(Stream { name, trace: Some(directory.to_owned()), events })
    }

    /// Bursts of webhooks of a few repositories: the same stream every time.
    fn made_up() -> Stream {
        let mut random = fastrand::Rng::with_seed(7);
        let names = ["acme/shop", "acme/site", "acme/docs", "lab/data", "lab/model", "ops/infra"];
        let mut events = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let mut at = random.f64() * 0.05;
            while at < 1.0 {
                for _ in 0..random.usize(1..40) {
                    at += random.f64() * 0.004;
                    let payload = json!({ "key": name, "ref": "main", "push": events.len() });
                    let made = Key::new(name).ok().zip(Payload::encode(&payload).ok());
                    events.extend(made.map(|(key, payload)| Event { at, key, payload }));
                }
                at += 0.02 + random.f64() * 0.04 * (index + 1) as f64;
            }
        }
        events.retain(|event| event.at < 1.0);
        events.sort_by(|a, b| a.at.total_cmp(&b.at));
        Stream { name: "a made-up stream of webhooks".to_owned(), trace: None, events }
    }
}

/// Times as shares of the whole, with long silences cut short.
fn squeeze(times: &[f64]) -> Vec<f64> {
    let first = times.first().copied().unwrap_or_default();
    let whole = (times.last().copied().unwrap_or_default() - first).max(1.0);
    let (mut at, mut before) = (0.0, first);
    let mut squeezed: Vec<f64> = times
        .iter()
        .map(|time| {
            at += ((time - before) / whole).clamp(0.0, LONGEST_GAP);
            before = *time;
            at
        })
        .collect();
    let end = squeezed.last().copied().unwrap_or_default().max(f64::MIN_POSITIVE);
    squeezed.iter_mut().for_each(|at| *at /= end);
    squeezed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silences_are_cut_short_and_order_is_kept() {
        let shares = squeeze(&[0.0, 1.0, 2.0, 1_000_000.0, 1_000_001.0]);
        assert_eq!(shares.len(), 5);
        assert!(shares.windows(2).all(|pair| pair[0] <= pair[1]), "{shares:?}");
        assert!((shares[4] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_directory_without_history_gets_the_made_up_stream() {
        let folder = tempfile::tempdir().unwrap();
        let stream = Stream::find(folder.path());
        assert!(stream.trace.is_none());
        assert!(stream.events.len() > 500, "{}", stream.events.len());
        assert!(stream.events.iter().all(|event| (0.0..1.0).contains(&event.at)));
    }
}
