//! Applies the queues and schedules that a configuration declares, each when its declaration has changed.
//!
//! The store keeps a digest of the declaration beside what was set by it (R32). So what an operator changed
//! by hand survives a restart of any server, and an edit of the file is applied once.

use std::collections::BTreeMap;

use quell::encryption::Cipher;
use quell::queue::QueueSettings;
use quell::schedule::Schedule;
use quell::{Payload, Quell, QueueName, TaskName};
use serde_json::json;
use tracing::info;

use crate::config::{DeclaredQueue, engine, queues};
use crate::encryption::FileKeys;

/// Whether declarations are applied that have not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// Only those that changed since they were applied.
    Changed,
    /// All, over what was set by hand.
    All,
}

/// Writes declared settings into the store.
///
/// # Errors
/// Those of the store.
pub async fn apply(
    quell: &Quell,
    queues: &BTreeMap<QueueName, DeclaredQueue>,
    schedules: &[Schedule],
    keys: Option<&FileKeys>,
    which: Apply,
) -> quell::Result<()> {
    let known = if queues.is_empty() { Vec::new() } else { quell.queues().await? };
    for (queue, declared) in queues {
        let known = known.iter().find(|info| info.name == *queue).map(|info| &info.settings);
        apply_queue(quell, queue, declared, known, which).await?;
    }
    let known = if schedules.is_empty() { Vec::new() } else { quell.schedules().await? };
    for schedule in schedules {
        let known = known.iter().map(|info| &info.schedule).find(|one| one.name == schedule.name);
        let digest = digest(&serde_json::to_value(schedule).unwrap_or_default());
        let digest = sealed(digest, &schedule.trigger.task, keys)?;
        let schedule = Schedule { declared: Some(digest), ..schedule.clone() };
        match known {
            Some(known) if which == Apply::Changed && known.declared == schedule.declared => {
                if *known != schedule {
                    info!(schedule = %schedule.name, "{BY_HAND}");
                }
            }
            Some(_) | None => quell.set_schedule(schedule).await?,
        }
    }
    Ok(())
}

const BY_HAND: &str = "changed by hand since it was declared: what is set in the store stays";

async fn apply_queue(
    quell: &Quell,
    queue: &QueueName,
    declared: &DeclaredQueue,
    known: Option<&QueueSettings>,
    which: Apply,
) -> quell::Result<()> {
    let digest = digest(&json!([queues::write(&declared.settings), declared.says_paused]));
    let wanted = declared.over(known).declared(digest);
    let is_paused = match known {
        Some(known) if which == Apply::Changed && known.declared == wanted.declared => {
            if limits(known) != limits(&wanted) {
                info!(%queue, "{BY_HAND}");
            }
            known.paused
        }
        Some(_) | None => {
            quell.queue(queue.as_str()).set(&wanted).await?;
            wanted.paused
        }
    };
    if is_paused {
        info!(%queue, "the queue is paused");
    }
    Ok(())
}

/// Settings without what is on record beside them.
fn limits(settings: &QueueSettings) -> QueueSettings {
    settings.split_remarks().0
}

/// The digest of a declaration whose payload is encrypted: the plain one would show a payload that can be
/// guessed. It is another one than before, so what was stored plain is written again.
fn sealed(digest: String, task: &TaskName, keys: Option<&FileKeys>) -> quell::Result<String> {
    match keys.filter(|keys| keys.encrypts(task)) {
        Some(keys) => Ok(keys.fingerprint(&Payload::encode(&digest)?).to_string()),
        None => Ok(digest),
    }
}

fn digest(declaration: &serde_json::Value) -> String {
    engine::sha256(declaration.to_string().as_bytes())
}
