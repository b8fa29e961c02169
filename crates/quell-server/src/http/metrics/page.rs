//! The part of the page that comes from the store, in the text format.
//!
//! Names of queues and tasks hold no character that would need escaping.

use std::collections::{BTreeMap, BTreeSet};

use quell::checkup::Checkup;
use quell::job::Counts;
use quell::{JobState, QueueName, TaskName};

use super::{Lane, OTHER};

/// The gauges of jobs. At most `most` queues with their tasks have lines of their own: those that are declared, then
/// those that come first by name. The others share one line of each state.
pub(super) fn of_jobs(counts: &[Counts], declared: &[Lane], most: usize) -> String {
    let named = named(counts, declared, most);
    let mut jobs: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    let mut dead: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (queue, task) in declared {
        dead.insert(labels(&named, queue, task), 0);
    }
    for Counts { queue, task, state, jobs: count } in counts {
        let (queue, task) = labels(&named, queue, task);
        add(jobs.entry((queue, task, state.name())).or_default(), *count);
        if *state == JobState::Dead {
            add(dead.entry((queue, task)).or_default(), *count);
        }
    }
    let mut text =
        String::from("# HELP quell_jobs Jobs by queue, task and state.\n# TYPE quell_jobs gauge\n");
    for ((queue, task, state), count) in jobs {
        text.push_str(&format!(
            "quell_jobs{{queue=\"{queue}\",task=\"{task}\",state=\"{state}\"}} {count}\n"
        ));
    }
    text.push_str(
        "# HELP quell_dead_jobs Dead jobs by queue and task.\n# TYPE quell_dead_jobs gauge\n",
    );
    for ((queue, task), count) in dead {
        text.push_str(&format!("quell_dead_jobs{{queue=\"{queue}\",task=\"{task}\"}} {count}\n"));
    }
    text
}

/// The gauges of the store's health.
pub(super) fn of_store(checkup: &Checkup) -> String {
    checkup.gauges().map(|gauge| gauge.to_string()).collect()
}

fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

/// Those that have lines of their own.
fn named<'c>(
    counts: &'c [Counts],
    declared: &'c [Lane],
    most: usize,
) -> BTreeSet<(&'c QueueName, &'c TaskName)> {
    let declared = declared.iter().map(|(queue, task)| (queue, task)).collect::<BTreeSet<_>>();
    let counted: BTreeSet<_> = counts.iter().map(|count| (&count.queue, &count.task)).collect();
    let others = counted.difference(&declared).copied().collect::<Vec<_>>();
    declared.into_iter().chain(others).take(most).collect()
}

fn labels<'c>(
    named: &BTreeSet<(&QueueName, &TaskName)>,
    queue: &'c QueueName,
    task: &'c TaskName,
) -> (&'c str, &'c str) {
    if named.contains(&(queue, task)) { (queue.as_str(), task.as_str()) } else { (OTHER, OTHER) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(name: &str) -> Lane {
        (QueueName::new("q").unwrap(), TaskName::new(name).unwrap())
    }

    #[test]
    fn many_tasks_share_a_line_and_none_of_their_jobs_is_left_out() {
        let count = |number: usize, state| {
            let (queue, task) = lane(&format!("t{number:06}"));
            Counts { queue, task, state, jobs: 2 }
        };
        let mut counts: Vec<_> = (0..100_000).map(|n| count(n, JobState::Scheduled)).collect();
        counts.push(count(99_999, JobState::Dead));
        let page = of_jobs(&counts, &[lane("t099998"), lane("none")], 100);
        let lines: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
        // 99 of 100 have a job, and the shared line has two states.
        assert_eq!(lines.len(), 99 + 1 + 1 + 3, "{page}");
        for line in [
            "quell_jobs{queue=\"q\",task=\"t000000\",state=\"scheduled\"} 2",
            "quell_jobs{queue=\"q\",task=\"t099998\",state=\"scheduled\"} 2",
            "quell_jobs{queue=\"(other)\",task=\"(other)\",state=\"scheduled\"} 199802",
            "quell_jobs{queue=\"(other)\",task=\"(other)\",state=\"dead\"} 2",
            "quell_dead_jobs{queue=\"(other)\",task=\"(other)\"} 2",
            "quell_dead_jobs{queue=\"q\",task=\"none\"} 0",
        ] {
            assert!(lines.contains(&line), "{line} is missing in\n{page}");
        }
        assert!(!page.contains("t000099"), "{page}");
    }
}
