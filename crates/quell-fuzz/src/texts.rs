//! Texts: templates, configurations, traces, histories, payloads, and the small values in them.

use std::path::Path;

use quell_core::{Fold, JobId, Key, Payload, QueueName, TaskName, TriggerId};
use quell_lab::trace::{Source, Trace};
use quell_server::config::Config;
use quell_server::config::key_template::KeyTemplate;
use quell_server::config::{duration, fold};
use quell_server::handlers::Allowed;
use quell_server::secrets::Secret;
use serde_json::{Map, Value};

use crate::parts;

/// A template and a payload: the same key each time, within its bound, or an error with words.
pub fn key_template(data: &[u8]) {
    let Some([template, payload]) = parts(data) else { return };
    let made = match KeyTemplate::new(template) {
        Ok(made) => made,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(made.text(), template);
    let Ok(payload) = serde_json::from_str::<Value>(payload) else { return };
    let shown = |key: Result<Option<Key>, _>| key.map_err(|error| format!("{error}"));
    let key = shown(made.key(&payload));
    assert_eq!(shown(made.key(&payload)), key, "a key is made again as it was");
    match key {
        Ok(Some(key)) => {
            assert!(!key.as_str().is_empty() && key.as_str().len() <= quell_core::MAX_KEY_BYTES);
        }
        Ok(None) => {}
        Err(error) => assert!(!error.is_empty()),
    }
}

/// A configuration: read the same each time, or refused with the file's name on every line.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let path = Path::new("some/quell.toml");
    match (Config::parse(text, path), Config::parse(text, path)) {
        (Ok(one), Ok(two)) => {
            assert_eq!(one.tasks.len(), two.tasks.len());
            assert!(one.max_body > 0 && one.concurrency > 0 && !one.lease.is_zero());
        }
        (Err(one), Err(two)) => {
            let (one, two) = (one.to_string(), two.to_string());
            assert_eq!(one, two);
            assert!(one.starts_with("some/quell.toml"), "{one}");
        }
        (one, two) => panic!("{one:?} and then {two:?}"),
    }
}

/// A trace file, plain or gzipped, with the usual columns: events in the order of time, or an
/// error that names the file.
pub fn trace(data: &[u8]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), data).unwrap();
    let template = KeyTemplate::new("{{ repo }}").unwrap();
    let source = Source::new(file.path()).key(move |row| template.key(row)).payloads();
    match Trace::read(&source) {
        Ok(trace) => {
            let times: Vec<_> = trace.events().iter().map(|event| event.at).collect();
            assert!(times.is_sorted());
            for event in trace.events() {
                let payload = trace.payload(event).map(Payload::as_str).unwrap_or_default();
                assert!(serde_json::from_str::<Value>(payload).is_ok(), "{payload}");
                assert!(trace.key(event).is_none_or(|key| !key.as_str().is_empty()));
            }
        }
        Err(error) => assert!(!format!("{error:#}").is_empty()),
    }
}

/// A history file: what can be read can be written and read again, and the checker has an answer.
pub fn history(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = match quell_check::parse("it", text) {
        Ok(lines) => lines,
        Err(error) => return assert!(error.to_string().contains("line ")),
    };
    let written: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let again = quell_check::parse("it", &written.join("\n")).unwrap();
    assert_eq!(again.iter().map(ToString::to_string).collect::<Vec<_>>(), written);
    let report = quell_check::check(&quell_check::merge(vec![lines.clone()]));
    let shown = report.text(&lines);
    assert_eq!(report.violations.is_empty(), shown.is_empty());
}

/// Payloads of one window: the fold is JSON whatever comes, and merge is RFC 7396's.
pub fn payload_fold(data: &[u8]) {
    let Some([older, newer]) = parts(data) else { return };
    let (Ok(older), Ok(newer)) = (Payload::from_text(older), Payload::from_text(newer)) else {
        return;
    };
    let fields = ["a".to_owned(), "b".to_owned()].into_iter().collect();
    let folds = [
        Fold::Last,
        Fold::First,
        Fold::Merge,
        Fold::Collect { cap: 3 },
        Fold::Accumulate { fields },
    ];
    for fold in &folds {
        let window = fold.open(&older);
        let joined = fold.join(&window, &newer);
        let absorbed = fold.absorb(&window, &joined);
        for folded in [&joined, &absorbed] {
            Payload::from_text(folded.as_str()).unwrap();
        }
    }
    let values = (serde_json::from_str(older.as_str()), serde_json::from_str(newer.as_str()));
    if let (Ok(target), Ok(patch)) = values {
        let merged: Value = Fold::Merge.join(&older, &newer).decode().unwrap();
        assert_eq!(merged, merge_patch(&target, &patch));
    }
    let collected: Result<Vec<Value>, _> =
        Fold::Collect { cap: 3 }.join(&Fold::Collect { cap: 3 }.open(&older), &newer).decode();
    assert!(collected.is_err() || collected.is_ok_and(|all| all.len() == 2));
}

/// RFC 7396, section 2, written once more.
fn merge_patch(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let empty = Map::new();
    let mut merged = target.as_object().unwrap_or(&empty).clone();
    for (name, value) in patch {
        let old = merged.remove(name).unwrap_or(Value::Null);
        if !value.is_null() {
            merged.insert(name.clone(), merge_patch(&old, value));
        }
    }
    Value::Object(merged)
}

/// Durations, names, ids, folds, secrets and allowed hosts: what is read is shown as it was read.
pub fn values(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(length) = duration::parse(text) {
        assert_eq!(duration::parse(&duration::exact(length)), Ok(length), "{text:?}");
        assert!(!duration::rough(length).is_empty());
    }
    if let Ok(id) = text.parse::<JobId>() {
        assert_eq!(id.to_string().parse::<JobId>().ok(), Some(id));
    }
    if let Ok(id) = text.parse::<TriggerId>() {
        assert_eq!(id.to_string().parse::<TriggerId>().ok(), Some(id));
    }
    let names = [
        Key::new(text).map(|name| name.to_string()),
        TaskName::new(text).map(|name| name.to_string()),
        QueueName::new(text).map(|name| name.to_string()),
    ];
    assert!(names.into_iter().flatten().all(|name| name == text));
    if let Ok(fold) = fold::parse_fold(text) {
        let once = fold.open(&Payload::from_stored("{}"));
        Payload::from_text(fold.join(&once, &Payload::from_stored("1")).as_str()).unwrap();
    }
    if let Ok(secret) = Secret::new(text) {
        assert!(secret.is(text.trim().as_bytes()) && !secret.is(b""));
        assert!(secret.signing_key().is_err() || !secret.signing_key().unwrap().is_empty());
    }
    if let Ok(Allowed::Subnet(address, bits)) = text.parse::<Allowed>() {
        let shown = format!("{address}/{bits}");
        assert_eq!(shown.parse::<Allowed>().unwrap(), Allowed::Subnet(address, bits));
    }
}
