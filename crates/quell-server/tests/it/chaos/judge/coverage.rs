//! R1, R2 and R36: what was accepted is in the store, and has run or was absorbed;
//! the ticks that fired are all there were.

use std::collections::BTreeMap;

use quell::history::Event;
use quell::job::ExplainTarget;
use quell::store::Store;
use quell::{Job, JobId, JobState, Receipt};

use super::super::processes::BEAT;
use super::super::seen::Counts;

/// R1 and R2. Jobs that died of crashes were redriven and ran.
pub(super) fn none_lost(
    events: &[Event],
    jobs: &BTreeMap<JobId, Job>,
    counts: &mut Counts,
) -> Result<(), String> {
    for event in events {
        let Event::TriggerOk { receipt, .. } = event else { continue };
        let (job, seq) = match receipt {
            Receipt::Accepted { trigger, .. } | Receipt::Debounced { trigger, .. } => {
                (trigger.job, trigger.seq)
            }
            Receipt::Existing { job, .. } => (*job, 1),
            // R16: it waits in no job, and the checker judges who holds the key.
            Receipt::Duplicate { .. } => continue,
            Receipt::Pending => continue,
            _ => return Err(format!("nothing was asked that is answered so: {event:?}")),
        };
        match jobs.get(&job) {
            Some(row) if seq <= row.window.triggers => {}
            row => return Err(format!("a trigger is lost: {event:?}, {row:?}")),
        }
        counts.add("accepted triggers found in their jobs", 1);
    }
    for job in jobs.values() {
        let is_well = match job.state {
            JobState::Succeeded => job.started_at >= Some(job.window.last_at),
            JobState::Absorbed => job.absorbed_by.is_some_and(|by| jobs.contains_key(&by)),
            _ => false,
        };
        if !is_well {
            return Err(format!("a job did not run after its last trigger: {job:?}"));
        }
    }
    Ok(())
}

/// R36: the ticks that fired are all there were, and each is a job that knows it.
pub(crate) async fn each_tick_is_one_job(store: &dyn Store, jobs: &BTreeMap<JobId, Job>) -> usize {
    let mut ticks = BTreeMap::new();
    for job in jobs.values().filter(|job| job.task.as_str() == BEAT) {
        let explained = store.explain(None, &ExplainTarget::Job(job.id)).await.unwrap().unwrap();
        let [tick] = &explained.ticks[..] else { panic!("{explained}") };
        let twice = ticks.insert(tick.tick, job.id);
        assert_eq!(twice, None, "tick {} fired twice: {explained}", tick.tick);
    }
    let info = store.schedules().await.unwrap().remove(0);
    let first = *ticks.first_key_value().expect("ticks").0;
    let all = std::iter::once(first).chain(info.schedule.spec.ticks(first));
    let all: Vec<_> = all.take_while(|tick| Some(*tick) <= info.last).collect();
    assert_eq!(ticks.keys().copied().collect::<Vec<_>>(), all, "some ticks were missed");
    ticks.len()
}

#[cfg(test)]
mod tests {
    use quell::trigger::TriggerId;

    use super::super::made::{at, job};
    use super::*;

    #[test]
    fn r01_r02_a_trigger_without_its_job_or_a_run_after_it_is_found() {
        let accepted = |job, seq| {
            let trigger = TriggerId { job: JobId::new(job), seq };
            let receipt = Receipt::Accepted { job: trigger.job, trigger, due: at(1) };
            Event::TriggerOk { op: 1, receipt }
        };
        let mut ran = job(1, "note", "1");
        ran.started_at = Some(at(2));
        let verdict = |events: &[Event], job: &Job| {
            let jobs = BTreeMap::from([(job.id, job.clone())]);
            none_lost(events, &jobs, &mut Counts::default()).is_ok()
        };
        assert!(verdict(&[accepted(1, 1)], &ran));
        assert!(!verdict(&[accepted(2, 1)], &ran), "there is no such job");
        assert!(!verdict(&[accepted(1, 2)], &ran), "the job counts one trigger");
        ran.started_at = Some(at(0));
        assert!(!verdict(&[accepted(1, 1)], &ran), "it ran before its trigger");
    }
}
