//! Bugs in the settings of queues and tasks: limits, rates, partitions and pauses.

use quell_core::{
    Answer, JobFilter, JobState, Key, Operation, PartitionOrder, QueueName, QueueSettings, Rate,
    Result, Store, Timestamp, WorkerId,
};

use super::store::at_once;
use super::{Bend, Bug, Buggy};

/// Changes the settings that a queue is given.
fn settings(operation: &mut Operation, change: impl FnOnce(&mut QueueSettings)) {
    if let Operation::SetQueue { settings, .. } = operation {
        change(settings);
    }
}

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &[
            "r31_the_concurrency_of_a_queue_is_exact",
            "r18_a_queues_limit_is_exact_or_refused",
        ],
        checker: &["P21"],
        alone: true,
        bends: &[Bend::Ask(|_, _, operation| {
            settings(operation, |it| {
                *it = QueueSettings {
                    paused: it.paused,
                    debounce: it.debounce,
                    partition_order: it.partition_order,
                    ..QueueSettings::default()
                };
            });
        })],
        ..Bug::new("OverLimits", 31, "a queue's limits are recorded and not applied")
    },
    Bug {
        suite: &["r31_a_rate_is_a_sliding_log", "r31_a_partitions_rate_is_its_own"],
        bends: &[Bend::Ask(|_, _, operation| {
            settings(operation, |it| (it.rate, it.partition_rate) = (None, None));
        })],
        ..Bug::new("IgnoresRates", 31, "rates are recorded and not applied")
    },
    Bug {
        suite: &["r31_a_rate_is_a_sliding_log", "r31_r34_the_next_start_heeds_the_rates"],
        bends: &[Bend::Ask(|_, _, operation| {
            let half = |rate: Rate| Rate { period: rate.period / 2, ..rate };
            settings(operation, |it| {
                it.rate = it.rate.map(half);
                it.partition_rate = it.partition_rate.map(half);
            });
        })],
        ..Bug::new("RefillsABucket", 31, "a rate is a bucket that refills within its period")
    },
    Bug {
        suite: &["r31_a_rate_counts_from_when_it_is_set"],
        bends: &[Bend::Perform(|buggy, now, operation| {
            let Operation::SetQueue { queue, .. } = operation else { return None };
            let none = QueueSettings::default();
            let set = buggy.unseen(buggy.inner.set_queue(now, queue, &none));
            Some(set.and_then(|()| at_once(buggy.inner.call(now, operation.clone()))))
        })],
        ..Bug::new("RestartsTheRate", 31, "a rate forgets earlier starts when it is set again")
    },
    Bug {
        suite: &["r31_a_workers_limit_is_its_own"],
        bends: &[Bend::Ask(|buggy, _, operation| {
            if let Operation::Claim { claim } = operation {
                let other = format!("w{}", buggy.count());
                claim.worker = WorkerId::new(other).expect("a valid name");
            }
        })],
        ..Bug::new("IgnoresWorkers", 31, "limits of one worker are not applied")
    },
    Bug {
        suite: &[
            "r31_a_full_partition_holds_up_nobody_else",
            "r31_claims_that_race_keep_all_limits",
        ],
        bends: &[Bend::Trigger(|_, trigger| trigger.partition = None)],
        ..Bug::new("IgnoresPartitions", 31, "partitions are ignored")
    },
    Bug {
        suite: &[
            "r31_a_full_partition_holds_up_nobody_else",
            "r30_r31_the_order_holds_across_partitions",
        ],
        bends: &[Bend::Ask(|_, _, operation| {
            settings(operation, |it| it.concurrency = it.partition_concurrency.or(it.concurrency));
        })],
        ..Bug::new(
            "LimitsTheQueueForItsPartitions",
            31,
            "the limit of a partition limits its queue",
        )
    },
    Bug {
        suite: &["r31_a_partition_is_one_across_tasks_and_priorities_of_its_queue"],
        bends: &[Bend::Trigger(|_, trigger| {
            let own = |name: Key| Key::from_parts([trigger.task.as_str(), name.as_str()]);
            let partition = trigger.partition.take();
            trigger.partition = partition.map(|name| own(name).expect("a valid key"));
        })],
        ..Bug::new("SplitsPartitionsByTask", 31, "each task has partitions of its own")
    },
    Bug {
        suite: &["r31_a_join_moves_the_window_to_the_triggers_partition"],
        bends: &[Bend::Trigger(|buggy, trigger| {
            if let Some(keyed) = &trigger.keyed {
                let partition = trigger.partition.clone();
                let mut memory = buggy.memory();
                let first = memory.partitions.entry(keyed.key.clone()).or_insert(partition);
                trigger.partition.clone_from(first);
            }
        })],
        ..Bug::new("KeepsThePartition", 31, "a window stays in the partition of its first trigger")
    },
    Bug {
        suite: &["r31_a_crashed_slot_comes_back"],
        checker: &["P7b", "P32"],
        bends: &[
            Bend::Ask(leave_slots),
            Bend::Answer(|buggy, _, _, answer| {
                let answer = answer?;
                if let Answer::Reap(expired) = &answer {
                    let queues = at_once(buggy.inner.queues())?;
                    if queues.iter().any(|queue| queue.settings.concurrency.is_some()) {
                        buggy.memory().leaked += expired.len();
                    }
                }
                Ok(answer)
            }),
        ],
        ..Bug::new("LeaksSlot", 31, "a crash leaves its slot in the limit taken")
    },
    Bug {
        suite: &["r40_limits_that_cannot_be_meant_are_refused"],
        bends: &[Bend::Perform(|_, _, operation| {
            let Operation::SetQueue { settings, .. } = operation else { return None };
            settings.validate().is_err().then(|| Ok(Answer::SetQueue(())))
        })],
        ..Bug::new("TakesAnySettings", 40, "invalid settings are accepted and dropped")
    },
    Bug {
        suite: &[
            "r41_a_retry_holds_up_those_behind_it",
            "r41_jobs_of_a_partition_start_one_at_a_time_in_the_order_of_acceptance",
            "r41_whatever_brings_a_job_back_it_is_next",
            "r26_r41_a_redriven_job_is_next",
            "r28_r33_r41_a_job_in_front_holds_up_whoever_may_run_it",
            "r41_a_delayed_job_holds_up_from_its_time_on",
            "r41_claims_and_ends_that_race_keep_the_order",
        ],
        checker: &["P34"],
        alone: true,
        bends: &[Bend::Ask(|_, _, operation| {
            settings(operation, |it| {
                // One at a time, as they come.
                if it.is_strict() {
                    it.partition_order = PartitionOrder::ByPriority;
                    it.partition_concurrency = Some(1);
                }
            });
        })],
        ..Bug::new("OvertakesRetries", 41, "a job starts while one before it waits for its retry")
    },
    Bug {
        suite: &["r32_a_deleted_queue_waits_until_it_is_set_again"],
        bends: &[Bend::Perform(|_, _, operation| {
            matches!(operation, Operation::DeleteQueue { .. })
                .then(|| Ok(Answer::DeleteQueue(true)))
        })],
        ..Bug::new("DeletesNothing", 32, "a queue is not deleted")
    },
    Bug {
        suite: &[
            "r32_r33_settings_are_live",
            "r33_a_paused_queue_starts_nothing_and_loses_nothing",
        ],
        checker: &["P24"],
        alone: true,
        bends: &[Bend::Ask(|_, _, operation| settings(operation, |it| it.paused = false))],
        ..Bug::new("StartsPaused", 33, "jobs of a paused queue are claimed")
    },
    Bug {
        suite: &["r33_a_paused_task_waits_and_others_go_on"],
        bends: &[Bend::Perform(|_, _, operation| {
            matches!(operation, Operation::SetTask { .. }).then(|| Ok(Answer::SetTask(())))
        })],
        ..Bug::new("IgnoresPausedTasks", 33, "jobs of a paused task are claimed")
    },
    Bug {
        suite: &["r33_a_paused_task_waits_and_others_go_on"],
        bends: &[Bend::Perform(|buggy, now, operation| {
            let Operation::SetTask { settings, .. } = operation else { return None };
            let queue = QueueName::new("q").expect("a valid name");
            let paused = QueueSettings { paused: settings.paused, ..QueueSettings::default() };
            let set = at_once(buggy.inner.set_queue(now, &queue, &paused));
            Some(set.and_then(|()| at_once(buggy.inner.call(now, operation.clone()))))
        })],
        ..Bug::new("PausesTheQueuesOfATask", 33, "a pause of a task pauses its queue")
    },
    Bug {
        suite: &["r33_a_pause_is_on_record_with_its_time_and_caller"],
        bends: &[Bend::Answer(|_, _, _, answer| {
            let mut answer = answer?;
            if let Answer::Queues(queues) = &mut answer {
                queues.iter_mut().for_each(|queue| queue.settings.paused_by = None);
            }
            Ok(answer)
        })],
        ..Bug::new("ForgetsWhoPauses", 33, "the caller of a pause is not kept")
    },
    Bug {
        suite: &["r14_r33_thresholds_of_a_task_are_kept_beside_its_pause"],
        bends: &[Bend::Ask(|_, _, operation| {
            let (Operation::SetTask { settings, .. } | Operation::ReplaceTask { settings, .. }) =
                operation
            else {
                return;
            };
            settings.debounce = settings.debounce.filter(|_| !settings.paused);
        })],
        ..Bug::new("ForgetsThresholdsOfATask", 14, "a pause takes the thresholds of a task away")
    },
    Bug {
        suite: &["r14_r33_thresholds_of_a_task_are_kept_beside_its_pause"],
        bends: &[Bend::Perform(|buggy, now, operation| {
            let Operation::ReplaceTask { task, settings, .. } = operation else { return None };
            let (task, settings) = (task.clone(), settings.clone());
            let set = at_once(buggy.inner.call(now, Operation::SetTask { task, settings }));
            Some(set.map(|_| Answer::ReplaceTask(true)))
        })],
        ..Bug::new(
            "ReplacesSettingsUnseen",
            14,
            "settings of a task replace others' without a look",
        )
    },
    Bug {
        suite: &["r32_a_declaration_stays_on_record_beside_settings_by_hand"],
        bends: &[Bend::Ask(|_, _, operation| {
            settings(operation, |it| {
                it.declared.get_or_insert_with(|| "by hand".to_owned());
            });
        })],
        ..Bug::new("ForgetsDeclarations", 32, "settings by hand replace the declaration on record")
    },
];

/// A claim leaves room for slots that are leaked.
fn leave_slots(buggy: &Buggy, _: &mut Option<Timestamp>, operation: &mut Operation) {
    let Operation::Claim { claim } = operation else { return };
    let free = |queue: &QueueName| -> Result<Option<usize>> {
        let queues = at_once(buggy.inner.queues())?;
        let of_queue = queues.into_iter().find(|it| it.name == *queue);
        let Some(limit) = of_queue.and_then(|it| it.settings.concurrency) else { return Ok(None) };
        let running = JobFilter::default().queue(queue.clone()).state(JobState::Running);
        let taken = at_once(buggy.inner.jobs(&running))?.len() + buggy.memory().leaked;
        Ok(Some(usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(taken)))
    };
    if let Ok(Some(free)) = free(&claim.queue) {
        claim.limit = claim.limit.min(free);
    }
}
