//! The one list of the suite's tests, by module, with what a store must claim to be asked.
//!
//! A macro, because tests are functions that a store author's crate has by name; it hands the list
//! to whatever macro of this crate is named: `suite!` makes tests of it, `registry` data.

/// Hands the list to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! rule_tests {
    ($then:ident [$($with:tt)*]) => {
        $crate::$then! {
            [$($with)*]
            plain: {
                accept: [
                    r02_every_accepted_trigger_is_covered_by_a_later_attempt,
                    r03_receipts_tell_what_became_of_each_trigger needs Dedup,
                    r05_a_batch_keeps_its_order_and_a_duplicate_fails_nobody needs Dedup LargeBatches,
                    r05_a_batch_may_mix_tasks_queues_priorities_and_delays needs AcrossQueues,
                    r09_a_trigger_without_a_key_is_its_own_job_at_once,
                    r09_a_delay_holds_to_the_microsecond,
                    r09_r10_a_task_that_collects_gets_an_array_without_a_key_too,
                    r07_r40_a_delay_beyond_max_is_refused_and_one_within_it_is_kept,
                    r14_r40_a_delay_is_judged_by_the_queues_thresholds,
                    r38_store_time_never_goes_back,
                    r06_keys_of_different_tasks_and_parts_never_meet,
                    r40_hostile_text_is_only_text,
                ]
                debounce: [
                    r06_r08_the_published_scenarios_are_exact,
                    r07_joins_move_due_but_never_past_max,
                    r07_a_join_keeps_the_higher_priority_and_the_later_delay needs Priorities,
                    r07_a_window_is_flushed_and_cancelled_by_key,
                    r10_payloads_fold_as_the_policy_says,
                    r11_one_attempt_of_a_key_at_a_time,
                    r11_overlap_lets_attempts_of_a_key_run_together,
                    r12_a_failed_run_is_absorbed_by_the_newer_window,
                    r12_without_a_newer_window_it_becomes_the_open_window_again,
                    r12_snoozed_released_and_reclaimed_jobs_join_the_newer_window_too,
                    r13_edges_run_what_they_say,
                    r13_a_throttled_key_starts_once_per_period,
                    r14_thresholds_come_from_the_queue,
                    r14_r33_thresholds_of_a_task_are_kept_beside_its_pause,
                    r02_r11_a_trigger_during_a_run_is_never_marked_done_by_it,
                    r08_max_is_a_timer_and_needs_no_message_to_come_by,
                    r02_a_backlog_outlives_every_ttl,
                ]
                dedup: [
                    r16_a_key_is_taken_for_its_ttl needs Dedup,
                    r16_a_key_is_taken_until_started_or_done needs Dedup,
                    r16_every_end_frees_a_key_that_is_taken_until_done needs Dedup,
                    r16_a_ttl_outlasts_the_job_and_the_hosts_clock needs Dedup,
                    r16_callers_that_race_for_a_key_get_one_job needs Dedup,
                    r16_a_key_counts_within_one_call_too needs Dedup,
                    r16_a_hold_follows_its_job_to_the_successor needs Dedup,
                    r16_a_key_that_a_start_freed_stays_free needs Dedup,
                    r16_a_key_that_death_freed_stays_free_after_a_redrive needs Dedup,
                    r16_a_ttl_outlasts_death_and_redrive needs Dedup,
                    r16_a_duplicate_joins_no_window needs Dedup,
                    r17_one_key_for_a_batch needs Dedup,
                    r17_the_batchs_key_is_held_by_a_job_of_the_batch needs Dedup,
                ]
                idempotency: [
                    r19_later_triggers_get_the_first_ones_job_and_output needs Dedup,
                    r19_an_output_is_kept_with_its_job,
                    r19_outputs_of_one_call_do_not_mix needs Dedup,
                    r19_another_payload_is_refused needs Dedup,
                    r05_r19_a_conflict_refuses_its_batch_and_no_other needs Dedup,
                    r19_a_key_counts_within_one_call_too needs Dedup,
                    r19_callers_that_race_for_a_key_get_one_job needs Dedup,
                    r19_a_key_is_kept_for_its_retention needs Dedup,
                    r19_a_key_is_kept_until_its_job_has_ended needs Dedup,
                    r19_every_end_is_told needs Dedup,
                    r19_a_key_that_was_free_stays_free_after_a_redrive needs Dedup,
                    r19_a_key_follows_its_job_to_the_successor needs Dedup,
                    r19_a_window_answers_for_each_of_its_keys needs Dedup,
                    r13_r19_a_suppressed_triggers_key_names_the_leader needs Dedup,
                    r03_idempotency_is_checked_before_dedup_and_debounce needs Dedup,
                    r03_r17_a_duplicate_batch_tells_of_known_keys needs Dedup,
                    r37_an_output_outlives_its_jobs_row needs Dedup,
                    r37_an_output_without_a_key_goes_with_its_job,
                    r19_r21_only_the_end_that_counts_leaves_its_output needs Dedup,
                    r20_equal_payloads_of_a_window_are_one_trigger needs Dedup,
                    r02_r19_a_call_that_was_cut_off_burns_no_key needs Dedup,
                ]
                lease: [
                    r21_an_expired_lease_is_taken_back_and_nothing_it_reports_counts,
                    r21_two_ends_of_one_job_in_a_call_go_by_their_tokens,
                    r21_a_claim_says_when_the_next_lease_expires,
                    r25_an_attempt_is_on_record_as_it_ended,
                    r11_two_failures_of_one_key_in_a_call_leave_it_free,
                    r21_a_renewed_lease_holds,
                    r21_a_lease_expires_at_its_end_and_no_sooner,
                    r21_expired_leases_are_taken_back_in_order,
                    r21_a_cancelled_attempt_has_lost_its_lease,
                    r25_a_reason_of_any_length_is_kept_up_to_its_bound,
                    r25_every_attempt_is_on_record,
                    r24_a_retry_waits_for_its_backoff,
                    r25_a_dead_job_keeps_everything,
                    r29_released_and_snoozed_attempts_are_not_spent,
                    r29_r30_a_released_job_keeps_its_place,
                    r31_a_crashed_slot_comes_back needs ExactLimits,
                    r21_a_settlement_counts_once,
                ]
                queue: [
                    r28_unknown_tasks_are_left_alone,
                    r30_priority_then_due_then_id needs Priorities,
                    r31_the_concurrency_of_a_queue_is_exact needs ExactLimits,
                    r32_r33_settings_are_live,
                    r31_limits_change_at_the_next_claim_and_are_each_queues_own needs ExactLimits,
                    r31_every_end_gives_the_slot_back needs ExactLimits,
                    r31_claims_that_race_hand_out_each_job_once needs ExactLimits,
                    r33_a_paused_queue_starts_nothing_and_loses_nothing,
                    r28_a_job_of_an_unknown_task_waits_and_shows needs Listing,
                    r30_the_whole_range_of_priorities needs Priorities,
                    r31_a_claim_is_bounded,
                ]
                limits: [
                    r31_a_workers_limit_is_its_own needs ExactLimits,
                    r31_a_full_partition_holds_up_nobody_else needs ExactLimits,
                    r31_a_long_line_of_a_full_partition_holds_up_nobody_else needs ExactLimits,
                    r31_a_partition_is_one_across_tasks_and_priorities_of_its_queue needs ExactLimits,
                    r30_r31_the_order_holds_across_partitions needs ExactLimits Priorities,
                    r31_a_join_moves_the_window_to_the_triggers_partition needs ExactLimits,
                    r31_every_end_gives_a_partitions_slot_back needs ExactLimits,
                    r31_a_rate_is_a_sliding_log needs ExactLimits,
                    r31_a_rates_slot_is_never_given_back needs ExactLimits,
                    r31_a_partitions_rate_is_its_own needs ExactLimits,
                    r31_a_rate_counts_from_when_it_is_set needs ExactLimits,
                    r31_r34_the_next_start_heeds_the_rates needs ExactLimits,
                    r31_r34_a_full_partition_hides_nobodys_due_time needs ExactLimits,
                    r31_claims_that_race_keep_all_limits needs ExactLimits,
                    r32_a_deleted_queue_waits_until_it_is_set_again needs ExactLimits,
                    r33_a_paused_task_waits_and_others_go_on,
                    r33_a_pause_is_on_record_with_its_time_and_caller,
                    r32_a_declaration_stays_on_record_beside_settings_by_hand,
                    r32_all_settings_are_kept needs ExactLimits,
                    r40_limits_that_cannot_be_meant_are_refused needs ExactLimits,
                ]
                turns: [
                    r41_jobs_of_a_partition_start_one_at_a_time_in_the_order_of_acceptance needs ExactLimits Priorities,
                    r41_a_retry_holds_up_those_behind_it needs ExactLimits,
                    r41_whatever_brings_a_job_back_it_is_next needs ExactLimits,
                    r34_r41_an_end_in_front_lets_the_next_one_start needs ExactLimits Push,
                    r41_a_delayed_job_holds_up_from_its_time_on needs ExactLimits,
                    r28_r33_r41_a_job_in_front_holds_up_whoever_may_run_it needs ExactLimits,
                    r26_r41_a_redriven_job_is_next needs ExactLimits,
                    r11_r41_who_waits_for_its_key_holds_up_nobody needs ExactLimits,
                    r07_r41_a_window_takes_its_place_when_it_is_due needs ExactLimits,
                    r32_r41_the_order_is_live needs ExactLimits,
                    r40_r41_an_order_of_several_at_a_time_is_refused needs ExactLimits,
                    r31_r41_rates_hold_beside_the_order needs ExactLimits,
                    r41_long_lines_and_many_retries_hold_up_nobody_else needs ExactLimits,
                    r41_claims_and_ends_that_race_keep_the_order needs ExactLimits,
                ]
                failures: [
                    r21_r25_crashes_in_a_row_are_counted_until_an_attempt_reports,
                    r21_r25_a_job_whose_lease_expires_again_waits,
                    r12_r25_the_successor_takes_over_the_crashes,
                    r25_a_crash_beside_other_workers_counts,
                    r25_the_crash_of_the_only_worker_counts_once_the_next_one_starts,
                    r39_an_outage_of_the_store_counts_no_crash,
                    r21_r25_a_worker_that_is_back_has_not_crashed,
                    r25_workers_are_listed_until_they_stop_or_stay_away,
                    r15_r25_a_worker_row_names_the_tasks_of_its_worker,
                    r29_a_worker_learns_with_its_heartbeats_that_it_is_drained,
                    r25_the_first_and_the_last_attempts_are_kept,
                ]
                alerts: [
                    r27_dead_jobs_and_the_oldest_due_one_are_told needs Listing,
                    r27_an_alerts_row_is_changed_by_who_knows_it,
                    r27_servers_that_race_raise_once_and_clear_once,
                ]
                operate: [
                    r15_a_job_a_trigger_and_a_key_are_explained,
                    r15_useless_keys_are_pointed_out,
                    r26_a_redrive_brings_fresh_attempts_or_joins_the_window,
                    r37_ended_jobs_go_after_their_retention,
                    r26_illegal_moves_are_refused,
                    jobs_are_listed_page_by_page needs Listing,
                ]
                backlog: [
                    r31_partitions_are_listed_by_what_waits_in_them,
                    r11_r31_a_job_that_waits_for_its_key_is_in_the_backlog,
                    r31_a_look_at_a_backlog_is_bounded_and_hides_no_line needs Priorities,
                ]
                leads: [
                    r15_a_dedup_and_an_idempotency_key_lead_to_their_job needs Dedup,
                    r15_a_key_of_any_task_leads_to_the_newest_job needs Dedup,
                    r15_a_key_that_is_free_leads_nowhere needs Dedup,
                    r15_r37_a_key_tells_of_a_job_that_was_removed needs Dedup,
                ]
                adjust: [
                    r15_run_now_ends_each_wait,
                    r07_r15_a_join_does_not_undo_a_run_now,
                    r11_run_now_waits_for_the_running_attempt,
                    r13_run_now_waits_for_the_throttles_period,
                    r15_r30_a_new_priority_moves_a_job_in_line needs Priorities,
                    r15_only_jobs_that_wait_are_changed,
                    r32_settings_are_replaced_by_who_knows_them,
                ]
                dead: [
                    r25_the_dead_are_found_by_what_they_died_of needs Listing,
                    r25_deaths_of_one_moment_are_paged_without_gaps needs Listing,
                    r26_a_redriven_job_keeps_its_history,
                    r26_an_edited_payload_runs_and_the_original_is_kept,
                    r26_an_edited_payload_joins_the_open_window,
                    r26_a_large_window_is_carried_and_edited_at_its_size needs LargeBatches,
                    r26_only_the_dead_are_edited,
                    r25_a_discard_takes_the_dead_and_nobody_else,
                    r26_exports_of_another_store_come_in,
                    r26_an_import_made_twice_makes_one_job,
                    r19_r26_a_key_outlives_edits_and_discards needs Dedup,
                    r25_r37_a_retention_takes_all_of_a_dead_job,
                    r26_a_redrive_of_many_of_one_key_makes_one_window needs Listing,
                ]
                window: [
                    r06_triggers_that_race_share_one_window,
                    r07_a_trigger_may_bring_its_own_thresholds,
                    r07_a_join_moves_the_window_to_the_triggers_queue needs AcrossQueues,
                    r07_a_flush_during_a_run_waits_for_its_end,
                    r07_a_cancel_by_key_ends_only_the_window,
                    r08_quiet_period_bound_and_backoff_hold_to_the_microsecond,
                    r08_r38_thresholds_are_not_whole_seconds_nor_on_callers_clocks,
                    r11_an_overdue_window_still_waits_for_the_running_attempt,
                    r11_every_end_of_an_attempt_frees_its_key,
                    r11_a_join_that_forbids_overlap_waits_for_the_running_attempt,
                    r11_a_failed_run_that_forbids_overlap_waits_for_the_one_beside_it,
                    r15_the_reason_of_a_due_time_is_on_record,
                ]
                absorb: [
                    r10_r12_a_join_brings_the_fold_of_what_follows,
                    r12_the_failed_payload_is_folded_in_as_older,
                    r12_the_run_of_failures_goes_on_in_the_successor_and_buries_nobody,
                    r12_the_successor_keeps_its_times_but_heeds_the_backoff needs Priorities,
                    r12_no_count_undercuts_a_backoff,
                    r12_a_success_leaves_the_newer_window_as_it_is,
                ]
                closed: [
                    r10_a_window_closes_at_its_byte_limit_and_the_next_trigger_opens_another,
                    r10_windows_that_keep_one_payload_never_close,
                    r10_a_window_holds_a_mebibyte_unless_its_task_says_otherwise,
                    r10_a_trigger_above_the_limit_has_a_window_of_its_own,
                    r10_collect_never_holds_more_than_its_cap_while_the_queue_is_paused,
                    r10_r11_closed_windows_run_one_at_a_time_in_order,
                    r10_r12_a_closed_window_that_fails_runs_again_before_newer_ones needs Listing,
                    r10_r12_an_absorption_that_does_not_fit_stays_a_window_of_its_own,
                    r10_r12_no_job_is_absorbed_past_a_closed_window,
                    r10_r26_a_redriven_job_that_does_not_fit_runs_first,
                    r10_r26_an_edit_counts_against_the_cap,
                    r10_r26_windows_run_in_the_order_of_their_ids_whatever_was_put_back,
                    r10_r13_what_does_not_fit_into_a_leading_window_leads_another,
                    r10_r13_a_throttled_window_does_not_close,
                    r07_r10_a_key_names_its_open_window,
                    r10_r11_a_cancelled_window_holds_back_nothing,
                    r10_r11_closed_windows_overlap_where_attempts_may,
                    r10_r16_r19_keys_name_the_window_that_took_them needs Dedup,
                    r10_r15_closed_windows_are_explained,
                ]
                closed_crowd: [
                    r10_r11_no_window_is_stuck_however_many_calls_meet needs Listing,
                    r10_r11_no_window_is_stuck_while_overlap_comes_and_goes needs Listing,
                ]
                edges: [
                    r13_suppressed_triggers_are_on_record,
                    r13_a_leading_run_that_fails_is_joined_and_retried,
                    r13_the_trailing_run_waits_for_the_leading_one,
                    r13_a_throttle_gathers_what_comes_between_two_starts,
                    r13_nothing_starts_a_throttled_key_twice_in_a_period,
                    r13_a_redriven_job_heeds_the_keys_last_start,
                    r13_keys_do_not_share_their_edges,
                ]
                refuse: [
                    r21_moves_that_do_not_exist_are_refused,
                    r40_what_is_unknown_is_said_to_be,
                    r40_empty_calls_are_fine needs Listing,
                    r21_only_the_current_token_counts,
                    r40_the_largest_input_that_is_allowed_is_kept_whole needs Dedup,
                ]
                effects: [
                    r23_an_intent_and_its_result_are_on_record,
                    r23_a_bare_intent_keeps_its_key,
                    r23_the_same_intent_twice_is_one,
                    r23_intents_that_race_have_one_key,
                    r21_r23_an_attempt_without_its_lease_records_nothing,
                    r23_a_result_needs_its_intent_and_stays,
                    r23_r26_effects_outlast_every_way_back,
                    r23_r26_effects_travel_with_their_export,
                    r23_names_are_each_jobs_own,
                    r12_r23_a_successor_has_effects_of_its_own,
                    r23_r37_effects_go_with_their_jobs_row,
                    r23_r40_what_is_too_large_is_refused,
                ]
                retention: [
                    r37_what_has_not_ended_is_never_removed,
                    r37_each_end_has_its_retention,
                    r37_a_dedup_key_outlives_its_jobs_row needs Dedup,
                    r37_keys_that_are_still_taken_stay needs Dedup,
                    r37_expired_keys_go_as_fast_as_they_come needs Dedup,
                    r37_an_expired_key_goes_once_its_job_has_ended needs Dedup,
                    r13_r37_a_burst_outlives_its_leaders_row,
                ]
                wake: [
                    r34_new_and_earlier_due_times_are_told needs Push,
                    r10_r34_a_window_that_waited_for_a_cancelled_one_is_told needs Push,
                    r21_r34_a_cancelled_attempt_is_notified needs Push,
                    r34_a_job_that_goes_back_is_told needs Push,
                    r34_a_freed_key_is_told needs Push,
                    r31_a_freed_slot_is_told needs ExactLimits Push,
                    r31_a_freed_partition_is_told needs ExactLimits Push,
                    r33_a_resumed_task_is_told needs Push,
                    r34_settings_are_told needs Push,
                    r34_every_subscriber_hears_the_earliest needs Push,
                    r34_next_due_is_exact,
                    r19_who_waits_hears_of_every_end needs Push,
                    r12_r19_who_waits_hears_that_a_job_was_absorbed needs Push,
                ]
                schedule: [
                    r36_a_tick_is_a_trigger_at_its_time,
                    r36_ticks_that_race_fire_once,
                    r36_missed_ticks_follow_catch_up,
                    r36_a_step_of_ticks_is_bounded,
                    r36_a_paused_schedule_fires_nothing_and_catches_up_nothing,
                    r36_a_schedule_is_set_again,
                    r36_a_run_is_outside_the_plan,
                    r36_a_backfill_fires_each_tick_at_most_once,
                    r36_the_record_of_ticks_is_read_by_time,
                    r36_r40_a_backfill_is_bounded,
                    r15_r36_a_job_tells_the_ticks_it_came_from,
                    r36_r40_an_unknown_schedule_is_said_to_be,
                    r36_r37_what_fired_is_known_for_a_year,
                    r34_r36_a_new_tick_is_told needs Push,
                ]
                traces: [
                    r42_an_attempt_is_given_the_traces_of_its_triggers,
                    r42_a_job_without_a_key_has_the_trace_of_its_trigger,
                    r42_the_first_sixteen_traces_are_kept,
                    r42_the_same_trace_in_a_row_is_kept_once,
                    r42_a_window_that_absorbs_a_job_has_its_traces_first,
                    r26_r42_a_dead_job_keeps_its_traces,
                    r13_r42_a_suppressed_trigger_adds_no_trace,
                    r42_traces_outlast_every_way_back,
                ]
                cut: [
                    r01_r02_a_crash_between_key_and_message_cannot_exist,
                    r16_a_call_that_was_cut_off_burns_no_key needs Dedup,
                    r05_a_batch_that_was_cut_off_is_whole_or_never_was,
                ]
                capability: [
                    r18_a_dedup_key_is_kept_or_refused,
                    r18_priorities_decide_or_due_times_do,
                    r18_a_queues_limit_is_exact_or_refused,
                    r18_hints_come_or_a_poll_finds_the_work,
                    r18_jobs_are_listed_or_the_list_is_refused,
                    r18_a_task_has_its_keys_in_every_queue_or_in_one,
                    r18_a_large_batch_is_accepted_or_refused_whole,
                ]
            }
            recorded: {
                history: [
                    every_change_of_a_window_is_recorded,
                    an_end_is_recorded_before_what_it_led_to,
                    two_ends_in_one_call_are_told_in_their_order,
                    expiries_cancels_and_redrives_are_recorded,
                    discards_and_imports_are_recorded,
                    what_operators_set_is_recorded,
                    what_changes_nothing_is_not_recorded,
                    the_last_event_of_a_window_is_its_row,
                ]
            }
        }
    };
}
