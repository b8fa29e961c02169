//! R19: an idempotency key that was accepted has one job, every answer names it and its output, and
//! the key with another payload is refused.

use std::collections::BTreeMap;

use quell::{Job, JobId, JobState};

use super::super::seen::Counts;
use crate::chaos::workload::record::Entry;
use crate::chaos::workload::tasks::ORDER;

/// Judges what callers were answered against the store's rows; `outputs` are those of the jobs.
pub(super) fn each_key_has_one_job(
    entries: &[Entry],
    jobs: &BTreeMap<JobId, Job>,
    outputs: &BTreeMap<JobId, String>,
    counts: &mut Counts,
) -> Result<(), String> {
    let made = made(jobs)?;
    // How often each was asked for, and how often that was answered.
    let mut asked: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for entry in entries {
        match entry {
            Entry::Answer { order, job, existing, output } => {
                asked.entry(*order).or_default().1 += 1;
                let expected = made.get(order);
                if expected != Some(&JobId::new(*job)) {
                    return Err(format!("{entry:?}, and the key's job is {expected:?}"));
                }
                let recorded = outputs.get(&JobId::new(*job));
                if output.is_some() && output.as_ref() != recorded {
                    return Err(format!("{entry:?}, and the job's output is {recorded:?}"));
                }
                counts.add("answers compared with their job", 1);
                counts.add("answers that named an existing job", usize::from(*existing));
                counts.add("answers with an output", usize::from(output.is_some()));
            }
            Entry::Taken { .. } => return Err(format!("another payload was accepted: {entry:?}")),
            Entry::Unanswered { kind, .. } if kind == "IdempotencyConflict" => {
                return Err(format!("the same payload was refused: {entry:?}"));
            }
            Entry::Conflict { .. } => counts.add("other payloads refused", 1),
            Entry::Ask { order } => asked.entry(*order).or_default().0 += 1,
            _ => {}
        }
    }
    let (answered, open): (Vec<_>, Vec<_>) =
        asked.into_values().partition(|(_, answers)| *answers > 0);
    let retried = answered.iter().filter(|(asks, answers)| asks > answers).count();
    counts.add("orders answered after calls without an answer", retried);
    counts.add("orders never answered", open.len());
    Ok(())
}

/// The one job of each order.
fn made(jobs: &BTreeMap<JobId, Job>) -> Result<BTreeMap<u64, JobId>, String> {
    let mut made = BTreeMap::new();
    for job in jobs.values().filter(|job| job.task.as_str() == ORDER) {
        let payload: serde_json::Value =
            serde_json::from_str(job.payload.as_str()).map_err(|error| format!("{error}"))?;
        let order = payload["order"].as_u64().ok_or_else(|| format!("no order: {job:?}"))?;
        if let Some(other) = made.insert(order, job.id) {
            return Err(format!("order {order} made two jobs: {other} and {}", job.id));
        }
        if job.state != JobState::Succeeded {
            return Err(format!("order {order} did not run: {job:?}"));
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(job: u64, existing: bool, output: Option<&str>) -> Entry {
        Entry::Answer { order: 7, job, existing, output: output.map(str::to_owned) }
    }

    #[test]
    fn r19_answers_that_name_no_job_or_another_output_or_a_taken_key_are_found() {
        let job = super::super::made::job(1, ORDER, r#"{"order":7,"cents":7}"#);
        let jobs = BTreeMap::from([(job.id, job.clone())]);
        let outputs = BTreeMap::from([(job.id, "7".to_owned())]);
        let verdict = |entries: &[Entry]| {
            each_key_has_one_job(entries, &jobs, &outputs, &mut Counts::default()).is_ok()
        };
        let kind = "IdempotencyConflict".to_owned();
        let table = [
            (answer(1, false, None), true),
            (answer(1, true, Some("7")), true),
            (answer(1, true, Some("8")), false),
            (answer(2, true, None), false),
            (Entry::Conflict { order: 7 }, true),
            (Entry::Taken { order: 7 }, false),
            (Entry::Unanswered { order: 7, kind: "UnknownOutcome".to_owned() }, true),
            (Entry::Unanswered { order: 7, kind }, false),
        ];
        for (entry, expected) in table {
            assert_eq!(verdict(std::slice::from_ref(&entry)), expected, "{entry:?}");
        }
        let twice = super::super::made::job(2, ORDER, job.payload.as_str());
        let jobs = BTreeMap::from([(job.id, job), (twice.id, twice)]);
        assert!(made(&jobs).is_err(), "two jobs of one key");
    }
}
