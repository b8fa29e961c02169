//! Stores with one bug each: the suite must say which rule is broken, or it proves nothing.
//!
//! `bug` lists the bugs, `store` has them. A bug that no test notices is a gap in the suite, not in this table.

mod bug;
mod dead;
mod store;

use std::collections::BTreeSet;

use quell_conformance::registry::{RuleTest, all};
use quell_conformance::report::{self, Verdict};
use quell_conformance::{Report, Rig};
use quell_core::MemoryStore;

pub(crate) use bug::Bug;
pub(crate) use store::Broken;

/// Each bug, and tests that must fail on it; their names say under which rule.
const TABLE: &[(Bug, &[&str])] = &[
    (Bug::LosesEveryThird, &["r02_every_accepted_trigger_is_covered_by_a_later_attempt"]),
    (Bug::PushesTheMessageLater, &["r01_r02_a_crash_between_key_and_message_cannot_exist"]),
    (Bug::BurnsDedupKeys, &["r16_a_call_that_was_cut_off_burns_no_key"]),
    (Bug::AcceptsMemberByMember, &["r05_a_batch_that_was_cut_off_is_whole_or_never_was"]),
    (Bug::CutsLargeBatches, &["r18_a_large_batch_is_accepted_or_refused_whole"]),
    (Bug::CountsOneTooMany, &["r03_receipts_tell_what_became_of_each_trigger"]),
    (Bug::AnswersOutOfOrder, &["r05_a_batch_keeps_its_order_and_a_duplicate_fails_nobody"]),
    (
        Bug::OpensSecondWindows,
        &["r06_triggers_that_race_share_one_window", "r06_r08_the_published_scenarios_are_exact"],
    ),
    (Bug::GluesTaskAndKey, &["r06_keys_of_different_tasks_and_parts_never_meet"]),
    (
        Bug::NeverCaps,
        &[
            "r07_joins_move_due_but_never_past_max",
            "r08_max_is_a_timer_and_needs_no_message_to_come_by",
        ],
    ),
    (Bug::ForgetsMaxTriggers, &["r07_joins_move_due_but_never_past_max"]),
    (Bug::FlushesNothing, &["r07_a_window_is_flushed_and_cancelled_by_key"]),
    (
        Bug::StartsEarly,
        &[
            "r08_quiet_period_bound_and_backoff_hold_to_the_microsecond",
            "r09_a_delay_holds_to_the_microsecond",
        ],
    ),
    (Bug::CountsWholeSeconds, &["r08_r38_thresholds_are_not_whole_seconds_nor_on_callers_clocks"]),
    (Bug::MakesPlainTriggersWait, &["r09_a_trigger_without_a_key_is_its_own_job_at_once"]),
    (Bug::ForgetsDelays, &["r09_a_delay_holds_to_the_microsecond"]),
    (Bug::CutsReasons, &["r25_a_reason_of_any_length_is_kept_up_to_its_bound"]),
    (
        Bug::CutsDelays,
        &[
            "r07_r40_a_delay_beyond_max_is_refused_and_one_within_it_is_kept",
            "r14_r40_a_delay_is_judged_by_the_queues_thresholds",
        ],
    ),
    (
        Bug::KeepsTheLastPayload,
        &[
            "r10_payloads_fold_as_the_policy_says",
            "r09_r10_a_task_that_collects_gets_an_array_without_a_key_too",
            "r26_a_large_window_is_carried_and_edited_at_its_size",
        ],
    ),
    (
        Bug::RunsKeysSideBySide,
        &[
            "r11_one_attempt_of_a_key_at_a_time",
            "r11_an_overdue_window_still_waits_for_the_running_attempt",
        ],
    ),
    (
        Bug::BuriesInsteadOfAbsorbing,
        &["r12_the_run_of_failures_goes_on_in_the_heir_and_buries_nobody"],
    ),
    (Bug::ForgetsOverlap, &["r11_overlap_lets_attempts_of_a_key_run_together"]),
    (
        Bug::EndsTheNewerWindowToo,
        &[
            "r02_r11_a_trigger_during_a_run_is_never_marked_done_by_it",
            "r12_a_success_leaves_the_newer_window_as_it_is",
        ],
    ),
    (Bug::ForgetsEdges, &["r13_edges_run_what_they_say"]),
    (Bug::ForgetsTheQueuesThresholds, &["r14_thresholds_come_from_the_queue"]),
    (Bug::ExplainsNothing, &["r15_a_job_a_trigger_and_a_key_are_explained"]),
    (Bug::ForgetsDedupKeys, &["r16_a_key_is_taken_for_its_ttl", "r17_one_key_for_a_batch"]),
    (Bug::ForgetsBatchKeys, &["r17_one_key_for_a_batch"]),
    (Bug::ClaimsNoDedupAndAcceptsKeys, &["r18_a_dedup_key_is_kept_or_refused"]),
    (
        Bug::SettlesWithoutToken,
        &[
            "r21_a_lapsed_lease_is_taken_back_and_nothing_it_reports_counts",
            "r21_only_the_current_token_counts",
        ],
    ),
    (Bug::RenewsWhatIsLost, &["r21_a_renewed_lease_holds"]),
    (
        Bug::NeverReaps,
        &["r21_lapsed_leases_are_taken_back_in_order", "r31_a_crashed_slot_comes_back"],
    ),
    (Bug::ForgetsBackoff, &["r24_a_retry_waits_for_its_backoff"]),
    (
        Bug::ForgetsLapses,
        &[
            "r21_r25_lapses_in_a_row_are_counted_until_an_attempt_reports",
            "r12_r25_the_heir_takes_over_the_lapses",
            "r25_a_crash_beside_other_workers_counts",
            "r25_the_crash_of_the_only_worker_counts_once_the_next_one_starts",
        ],
    ),
    (
        Bug::CountsEveryLapse,
        &[
            "r39_an_outage_of_the_store_counts_no_crash",
            "r21_r25_a_worker_that_is_back_has_not_crashed",
        ],
    ),
    (Bug::ForgetsWorkers, &["r25_workers_are_listed_until_they_stop_or_stay_away"]),
    (Bug::KeepsTheLastAttemptsOnly, &["r25_the_first_and_the_last_attempts_are_kept"]),
    (Bug::SeesNoTrouble, &["r27_dead_jobs_and_the_oldest_due_one_are_told"]),
    (
        Bug::WritesAlertsUnseen,
        &[
            "r27_an_alerts_row_is_changed_by_who_knows_it",
            "r27_servers_that_race_raise_once_and_clear_once",
        ],
    ),
    (Bug::DropsTheDead, &["r25_a_dead_job_keeps_everything"]),
    (Bug::RedrivesNothing, &["r26_a_redrive_brings_fresh_attempts_or_joins_the_window"]),
    (Bug::ListsAllTheDead, &["r25_the_dead_are_found_by_what_they_died_of"]),
    (Bug::ForgetsTheOriginal, &["r26_an_edited_payload_runs_and_the_original_is_kept"]),
    (Bug::ForgetsAttemptsAtRedrive, &["r26_a_redriven_job_keeps_its_history"]),
    (Bug::DiscardsTheLiving, &["r25_a_discard_takes_the_dead_and_nobody_else"]),
    (Bug::ImportsTwice, &["r26_an_import_made_twice_makes_one_job"]),
    (Bug::HandsOutUnknownTasks, &["r28_unknown_tasks_are_left_alone"]),
    (Bug::SpendsAttemptsOnReleases, &["r29_released_and_snoozed_attempts_are_not_spent"]),
    (
        Bug::IgnoresPriorities,
        &["r30_priority_then_due_then_id", "r30_the_whole_range_of_priorities"],
    ),
    (Bug::ClaimsTheBacklog, &["r31_a_claim_is_bounded"]),
    (
        Bug::IgnoresLimits,
        &["r31_the_concurrency_of_a_queue_is_exact", "r18_a_queues_limit_is_exact_or_refused"],
    ),
    (Bug::IgnoresRates, &["r31_a_rate_is_a_sliding_log", "r31_a_partitions_rate_is_its_own"]),
    (
        Bug::RefillsABucket,
        &["r31_a_rate_is_a_sliding_log", "r31_r34_the_next_start_heeds_the_rates"],
    ),
    (Bug::RestartsTheRate, &["r31_a_rate_counts_from_when_it_is_set"]),
    (Bug::IgnoresWorkers, &["r31_a_workers_limit_is_its_own"]),
    (
        Bug::IgnoresPartitions,
        &["r31_a_full_partition_holds_up_nobody_else", "r31_claims_that_race_keep_all_limits"],
    ),
    (
        Bug::LimitsTheQueueForItsPartitions,
        &["r31_a_full_partition_holds_up_nobody_else", "r30_r31_the_order_holds_across_partitions"],
    ),
    (
        Bug::SplitsPartitionsByTask,
        &["r31_a_partition_is_one_across_tasks_and_priorities_of_its_queue"],
    ),
    (Bug::KeepsThePartition, &["r31_a_join_moves_the_window_to_the_triggers_partition"]),
    (Bug::TakesAnySettings, &["r40_limits_that_cannot_be_meant_are_refused"]),
    (Bug::DeletesNothing, &["r32_a_deleted_queue_waits_until_it_is_set_again"]),
    (Bug::IgnoresPausedTasks, &["r33_a_paused_task_waits_and_others_go_on"]),
    (Bug::PausesTheQueuesOfATask, &["r33_a_paused_task_waits_and_others_go_on"]),
    (
        Bug::IgnoresPause,
        &["r32_r33_settings_are_live", "r33_a_paused_queue_starts_nothing_and_loses_nothing"],
    ),
    (Bug::WakesNobody, &["r34_new_and_earlier_due_times_are_told", "r34_a_freed_key_is_told"]),
    (
        Bug::TellsNoEnds,
        &["r19_who_waits_hears_of_every_end", "r12_r19_who_waits_hears_that_a_job_was_absorbed"],
    ),
    (Bug::LooksTooLate, &["r34_next_due_is_exact"]),
    (Bug::ListsNothing, &["r18_jobs_are_listed_or_the_list_is_refused"]),
    (
        Bug::ForgetsEffects,
        &["r23_an_intent_and_its_result_are_on_record", "r23_a_bare_intent_keeps_its_key"],
    ),
    (
        Bug::ChangesKeysOfEffects,
        &["r23_a_bare_intent_keeps_its_key", "r23_intents_that_race_have_one_key"],
    ),
    (
        Bug::RecordsWithoutLease,
        &[
            "r21_r23_an_attempt_without_its_lease_records_nothing",
            "r23_a_result_needs_its_intent_and_stays",
        ],
    ),
    (
        Bug::SharesEffects,
        &[
            "r23_names_are_each_jobs_own",
            "r12_r23_an_heir_has_effects_of_its_own",
            "r23_the_same_intent_twice_is_one",
        ],
    ),
    (Bug::LosesEffectsOnTheWay, &["r23_r26_effects_outlast_every_way_back"]),
    (Bug::KeepsEffectsOfRemovedJobs, &["r23_r37_effects_go_with_their_jobs_row"]),
    (Bug::RecordsAnyResult, &["r23_r40_what_is_too_large_is_refused"]),
    (Bug::PrunesAtOnce, &["r37_each_end_has_its_retention"]),
    (
        Bug::KeepsExpiredKeys,
        &[
            "r37_expired_keys_go_as_fast_as_they_come",
            "r37_an_expired_key_goes_once_its_job_has_ended",
        ],
    ),
    (Bug::TimeGoesBack, &["r38_store_time_never_goes_back"]),
    (Bug::CutsKeys, &["r40_the_largest_input_that_is_allowed_is_kept_whole"]),
    (Bug::FiresNoTicks, &["r36_a_tick_is_a_trigger_at_its_time"]),
    (Bug::FiresTicksTwice, &["r36_ticks_that_race_fire_once"]),
    (
        Bug::CatchesUpNothing,
        &["r36_missed_ticks_follow_catch_up", "r15_r36_a_job_tells_the_ticks_it_came_from"],
    ),
    (Bug::IgnoresTheBoundOfTicks, &["r36_a_step_of_ticks_is_bounded"]),
    (
        Bug::IgnoresPausesOfSchedules,
        &[
            "r36_a_paused_schedule_fires_nothing_and_catches_up_nothing",
            "r36_r40_an_unknown_schedule_is_said_to_be",
        ],
    ),
    (Bug::PlansAnewWhenSet, &["r36_a_schedule_is_set_again"]),
    (Bug::RunsSchedulesTwice, &["r36_a_run_is_outside_the_plan"]),
    (
        Bug::ForgetsWhichTicksFired,
        &["r36_a_backfill_fires_each_tick_at_most_once", "r36_r37_what_fired_is_known_for_a_year"],
    ),
    (
        Bug::ForgetsIdempotencyKeys,
        &[
            "r19_later_triggers_get_the_first_ones_job_and_output",
            "r19_another_payload_is_refused",
            "r20_equal_payloads_of_a_window_are_one_trigger",
            "r03_idempotency_is_checked_before_dedup_and_debounce",
        ],
    ),
    (
        Bug::KeepsIdempotencyKeysForever,
        &[
            "r19_a_key_is_kept_for_its_retention",
            "r19_a_key_that_was_free_stays_free_after_a_redrive",
        ],
    ),
    (
        Bug::ForgetsOutputs,
        &["r19_an_output_is_kept_with_its_job", "r37_an_output_outlives_its_jobs_row"],
    ),
    (Bug::InventsResults, &["r37_an_output_without_a_key_goes_with_its_job"]),
    (Bug::CutsBackfillsShort, &["r36_r40_a_backfill_is_bounded"]),
];

async fn suite_on(bug: Bug) -> Report {
    report::run(&format!("{bug:?}"), move || async move {
        super::opened(Broken::new(MemoryStore::new(Rig::START), bug))
    })
    .await
}

#[tokio::test]
async fn each_bug_is_reported_under_the_rule_that_it_breaks() {
    let mut unnoticed = Vec::new();
    let plain = all().iter().filter(|test| !test.is_recorded());
    let mut never_failed: BTreeSet<_> = plain.map(|test| test.name).collect();
    for (bug, tests) in TABLE {
        let report = suite_on(*bug).await;
        let broken = report.broken_rules();
        for row in report.failures() {
            never_failed.remove(row.test.name);
        }
        for name in *tests {
            let test = named(name);
            let failed = matches!(report.verdict(name), Some(Verdict::Failed(_)));
            if !failed || !test.rules().iter().all(|rule| broken.contains(rule)) {
                let failing: Vec<_> = report.failures().map(|row| row.test.name).collect();
                unnoticed.push(format!("{bug:?} passes {name}; it fails {failing:#?}"));
            }
        }
    }
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
    assert!(never_failed.is_empty(), "no bug makes these fail: {never_failed:#?}");
}

#[tokio::test]
async fn a_store_without_a_bug_passes_behind_the_same_wrapper() {
    let report = suite_on(Bug::None).await;
    assert_eq!(report.failures().count(), 0, "{report}");
}

/// A rule that no bug breaks might have tests that cannot fail.
#[test]
fn every_rule_of_the_suite_is_broken_by_some_bug() {
    let plain = all().iter().filter(|test| !test.is_recorded());
    let tried: BTreeSet<u8> = plain.flat_map(RuleTest::rules).collect();
    let names = TABLE.iter().flat_map(|(_, tests)| tests.iter());
    let broken: BTreeSet<u8> = names.flat_map(|name| named(name).rules()).collect();
    assert_eq!(tried.difference(&broken).collect::<Vec<_>>(), Vec::<&u8>::new());
}

fn named(name: &str) -> &'static RuleTest {
    all().iter().find(|test| test.name == name).unwrap()
}
