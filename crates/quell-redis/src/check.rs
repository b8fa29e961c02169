//! Warnings, once at startup, about server settings that put accepted triggers at risk (R1).

use redis::Value;
use tracing::warn;

use crate::link::Link;
use crate::look::text;

/// Warns where the server may drop keys, or forgets everything when it stops. Answers whether each
/// write waits for the disk.
///
/// A server that does not answer such questions, because a right is missing, is taken at its word:
/// no promise depends on the answers.
pub(crate) async fn check_settings(link: &Link) -> bool {
    let info = info(link).await;
    for warning in warnings(&info) {
        warn!("{warning}");
    }
    values(&info, "aof_enabled").contains(&"1") && values(&info, "appendfsync").contains(&"always")
}

async fn info(link: &Link) -> String {
    let mut all = String::new();
    for section in ["memory", "persistence"] {
        let mut command = redis::cmd("INFO");
        command.arg(section);
        if let Ok(answer) = link.ask_servers("ask for the server's settings", &command).await {
            all.push_str(&readable(answer));
        }
    }
    for name in ["save", "appendfsync"] {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg(name);
        if let Ok(answer) = link.ask_servers("ask for the server's settings", &command).await {
            all.push_str(&format!("{name}:{}\n", setting(answer)));
        }
    }
    all
}

/// An answer of one node, or those of several.
fn readable(answer: Value) -> String {
    match answer {
        Value::Map(nodes) => {
            nodes.into_iter().map(|(_, node)| readable(node)).collect::<Vec<_>>().join("\n")
        }
        Value::VerbatimString { text, .. } => text,
        other => text(other).unwrap_or_default(),
    }
}

/// The value that `CONFIG GET` answered with.
fn setting(answer: Value) -> String {
    match answer {
        Value::Array(pair) => pair.into_iter().nth(1).map(readable).unwrap_or_default(),
        Value::Map(pairs) => {
            pairs.into_iter().next().map(|(_, value)| setting(value)).unwrap_or_default()
        }
        other => readable(other),
    }
}

/// The values of a name, of each node; a line is `name:value`.
fn values<'i>(info: &'i str, name: &str) -> Vec<&'i str> {
    let lines = info.lines().filter_map(|line| line.trim().split_once(':'));
    lines.filter(|(known, _)| *known == name).map(|(_, value)| value).collect()
}

/// What is wrong with these settings.
fn warnings(info: &str) -> Vec<String> {
    let values = |name| values(info, name);
    let mut warnings = Vec::new();
    let evicts = values("maxmemory_policy").into_iter().find(|policy| *policy != "noeviction");
    if let Some(policy) = evicts {
        warnings.push(format!(
            "the Redis server may drop keys when its memory is full (maxmemory-policy {policy}), \
             accepted triggers among them: set maxmemory-policy noeviction"
        ));
    }
    let logs = values("aof_enabled");
    let has_log = logs.iter().all(|enabled| *enabled == "1");
    let saves = values("save");
    if !has_log && !saves.is_empty() && saves.iter().all(|save| save.is_empty()) {
        warnings.push(
            "the Redis server keeps nothing on disk, so that a restart forgets what was accepted: \
             set appendonly yes, and appendfsync always or everysec"
                .to_owned(),
        );
    } else if !has_log {
        warnings.push(
            "the Redis server writes snapshots only, so that a crash forgets what was accepted \
             since the last one: set appendonly yes, and appendfsync always or everysec"
                .to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r01_settings_that_lose_what_was_accepted_are_warned_of() {
        let reported = |info: &str| warnings(info).join("; ");
        let safe = "maxmemory_policy:noeviction\r\naof_enabled:1\r\nsave:\n";
        assert_eq!(reported(safe), "");
        let evicts = "maxmemory_policy:allkeys-lru\r\naof_enabled:1\r\n";
        assert!(reported(evicts).contains("allkeys-lru"), "{}", reported(evicts));
        let none = "maxmemory_policy:noeviction\r\naof_enabled:0\r\nsave:\n";
        assert!(reported(none).contains("nothing on disk"), "{}", reported(none));
        let snapshots = "maxmemory_policy:noeviction\r\naof_enabled:0\r\nsave:3600 1\n";
        assert!(reported(snapshots).contains("snapshots only"), "{}", reported(snapshots));
        assert_eq!(reported(""), "", "a server that does not answer");
    }
}
