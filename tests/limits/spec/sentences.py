"""Every testable sentence of the contract on rate limits, in short, with its tests.

Sentences that only describe something, that name undisclosed values, or that address users have no test.
"""

from collections.abc import Mapping, Sequence
from typing import Final

Tests = Mapping[str, Sequence[str]]

CONTRACT: Final[Mapping[str, Tests]] = {
    "what the service does": {
        "it limits how many requests may be made in a given time": [
            "test_unauthenticated_60_requests_per_hour_per_originating_ip_address"
        ],
        "two kinds of limit exist, primary and secondary": [
            "test_5_2_messages_of_each_kind_contain_the_text_that_clients_search_for"
        ],
        "search endpoints have more restrictive primary limits": [
            "test_search_endpoints_have_more_restrictive_primary_limits"
        ],
        "GraphQL has its own primary limit and its own points": [
            "test_a_separate_graphql_api_has_its_own_primary_limit",
            "test_at_most_2000_points_to_the_graphql_endpoint_per_minute",
        ],
        "activity, with requests beyond primary limits, can be viewed per organization": [
            "test_activity_of_an_organization_has_the_format_of_insights",
            "test_an_owner_sees_the_requests_for_an_organization_in_the_format_that_clients_know",
        ],
        "a log is there to find out what exceeded limits": [
            "test_explain_finds_refusals_in_the_log_file_which_holds_no_token"
        ],
    },
    "headers": {
        "every response carries the status": [
            "test_every_reply_of_the_application_has_the_rate_limit_headers",
            "test_every_reply_of_the_service_has_the_limit_headers",
            "test_the_rate_limit_status_is_carried_by_headers_of_admitted_and_refused_responses",
        ],
        "x-ratelimit-limit": ["test_x_ratelimit_limit_is_the_maximum_number_of_requests"],
        "x-ratelimit-remaining": ["test_x_ratelimit_remaining_is_the_requests_remaining_in_the_current_window"],
        "x-ratelimit-used": ["test_x_ratelimit_used_is_the_requests_made_in_the_current_window"],
        "x-ratelimit-reset": ["test_x_ratelimit_reset_is_the_time_at_which_the_window_resets_in_utc_epoch_seconds"],
        "x-ratelimit-resource": ["test_x_ratelimit_resource_is_the_bucket_that_the_request_counted_against"],
        "they are integers": ["test_headers_hold_whole_numbers"],
        "retry-after is in seconds": ["test_retry_after_is_present_on_secondary_limit_responses_in_seconds"],
        "the status of a secondary limit cannot be queried": [
            "test_there_is_no_way_to_query_the_status_of_a_secondary_limit_unless_an_operator_allows_it"
        ],
    },
    "states": {
        "within: remaining decreases, used increases": [
            "test_within_limits_a_counted_request_decreases_remaining_and_increases_used"
        ],
        "within to primary exceeded, remaining 0": [
            "test_within_limits_a_request_beyond_the_primary_limit_leads_to_primary_exceeded_with_remaining_0"
        ],
        "primary exceeded ends at x-ratelimit-reset": [
            "test_primary_exceeded_ends_when_time_reaches_x_ratelimit_reset"
        ],
        "within to secondary exceeded": ["test_within_limits_a_secondary_condition_leads_to_secondary_exceeded"],
        "going on while limited stays there": ["test_limited_callers_that_continue_stay_limited"],
        "and may be banned": ["test_limited_callers_that_continue_may_be_banned"],
    },
    "endpoints": {
        "GET /rate_limit does not count against the primary limit": [
            "test_get_rate_limit_does_not_count_against_the_primary_limit"
        ],
        "it can count against a secondary one": ["test_get_rate_limit_can_count_against_a_secondary_limit"],
        "it answers JSON": ["test_5_3_the_status_shows_every_bucket_and_repeats_core_as_rate"],
        "GET /meta, also with client id and secret as basic credentials": [
            "test_the_meta_page_accepts_client_id_and_secret",
            "test_get_meta_counts_like_any_request",
        ],
    },
    "credentials": {
        "none: the address": ["test_none_is_counted_against_the_originating_ip_address_not_a_user_or_application"],
        "personal access token": ["test_a_personal_access_token_is_counted_against_the_users_personal_limit"],
        "authorized app: combined": [
            "test_an_authorized_app_is_counted_against_the_users_limit_combined_with_other_apps_and_tokens"
        ],
        "installation": ["test_an_app_installation_access_token_is_counted_against_the_installations_limit"],
        "app user token": ["test_an_app_user_access_token_is_counted_against_the_authenticated_users_limit"],
        "client id and secret": ["test_client_id_and_client_secret_are_counted_per_oauth_app"],
        "workflow token": ["test_a_built_in_workflow_token_is_counted_per_repository"],
    },
    "errors": {
        "1: primary: 403 or 429, remaining 0": ["test_1_a_primary_limit_answers_403_or_429_with_remaining_0"],
        "2: secondary: 403 or 429 with a message": [
            "test_2_a_secondary_limit_answers_403_or_429_with_a_message_stating_that_a_secondary_limit_was_exceeded"
        ],
        "3: no retry before the reset": [
            "test_a_client_waits_for_the_reset_of_a_used_up_primary_limit",
            "test_3_a_client_that_waits_for_reset_after_a_primary_exceedance_is_admitted",
        ],
        "4: retry-after first": [
            "test_a_client_waits_for_the_time_in_retry_after",
            "test_4_a_client_that_waits_for_retry_after_is_admitted",
        ],
        "4: else the reset when remaining is 0": ["test_a_client_waits_for_the_reset_of_a_used_up_primary_limit"],
        "4: else a minute, then exponentially longer": [
            "test_without_retry_after_it_waits_a_minute_and_twice_as_long_each_further_time"
        ],
        "4: an error after a number of retries": [
            "test_it_gives_up_after_the_last_retry_and_reports_until_when_to_wait"
        ],
        "never a retry while limited": ["test_a_client_sends_nothing_while_a_refusal_is_in_force"],
        "5: going on may be a ban": [
            "test_4_3_over_60_refusals_in_each_of_three_consecutive_minutes_are_a_ban_of_ten_minutes"
        ],
    },
    "primary limits": {
        "unauthenticated 60": [
            "test_unauthenticated_60_requests_per_hour_per_originating_ip_address",
            "test_unauthenticated_addresses_are_counted_apart",
            "test_unauthenticated_requests_get_no_further_bucket_at_endpoints_for_users",
        ],
        "user 5,000": ["test_authenticated_user_5000_requests_per_hour_per_user"],
        "app of an enterprise-tier organization 15,000": [
            "test_user_through_an_app_owned_by_an_enterprise_tier_organization_15000_requests_per_hour"
        ],
        "OAuth app owned or approved, for members 15,000": [
            "test_member_through_an_oauth_app_owned_or_approved_by_an_enterprise_tier_organization_15000_requests_per_hour"
        ],
        "audit log 1,750 by user and address": [
            "test_enterprise_audit_log_1750_queries_per_hour_per_user_and_ip_address",
            "test_enterprise_audit_log_is_counted_apart_for_each_address_of_a_user",
        ],
        "large files 300 and 3,000 a minute, apart": [
            "test_large_file_storage_300_requests_per_minute_unauthenticated_and_3000_authenticated",
            "test_large_file_storage_is_a_separate_bucket",
        ],
        "100 objects a batch": ["test_large_file_storage_batch_api_100_objects_processed_per_request"],
        "installation at least 5,000": ["test_app_installation_minimum_5000_requests_per_hour"],
        "installation on an enterprise 15,000": [
            "test_app_installation_on_an_enterprise_tier_organization_or_enterprise_15000_requests_per_hour"
        ],
        "installation elsewhere scales, never above 12,500": [
            "test_app_installation_elsewhere_scales_by_50_for_repositories_and_users_over_20_never_above_12500"
        ],
        "client id and secret 5,000 or 15,000": [
            "test_oauth_app_client_id_and_secret_5000_requests_per_hour_per_oauth_app",
            "test_oauth_app_client_id_and_secret_15000_when_owned_by_an_enterprise_tier_organization",
        ],
        "workflow token 1,000 or 15,000": [
            "test_built_in_workflow_token_1000_requests_per_hour_per_repository",
            "test_built_in_workflow_token_15000_for_resources_of_an_enterprise_tier_account",
        ],
    },
    "secondary limits": {
        "100 concurrent, shared": ["test_at_most_100_concurrent_requests_shared_by_rest_and_graphql"],
        "900 points an endpoint": [
            "test_at_most_900_points_to_a_single_rest_endpoint_per_minute",
            "test_points_are_counted_for_each_endpoint_apart",
        ],
        "2,000 points of GraphQL": ["test_at_most_2000_points_to_the_graphql_endpoint_per_minute"],
        "90 s CPU in 60 s": ["test_cpu_time_at_most_90_seconds_per_60_seconds_of_real_time"],
        "60 s of it for GraphQL": ["test_cpu_time_at_most_60_seconds_of_that_for_graphql"],
        "response time estimates CPU time": ["test_cpu_time_excludes_the_time_spent_waiting_for_the_caller"],
        "excessive compute": ["test_requests_that_consume_excessive_compute_in_a_short_period_are_limited"],
        "content 80 a minute, 500 an hour": [
            "test_content_generating_requests_at_most_80_per_minute",
            "test_content_generating_requests_at_most_500_per_hour",
        ],
        "content over web, REST and GraphQL": [
            "test_content_counts_actions_through_the_web_interface_rest_and_graphql_together"
        ],
        "they can change without notice": ["test_secondary_limits_can_change_without_notice"],
        "some endpoints have lower ones": ["test_lower_content_creation_limits_of_some_endpoints_are_rules"],
    },
    "points": {
        "GraphQL 1 and 5": ["test_graphql_without_mutations_1_point", "test_graphql_with_mutations_5_points"],
        "REST 1": ["test_most_rest_get_head_options_1_point"],
        "REST 5": ["test_most_rest_post_patch_put_delete_5_points"],
        "some costs are withheld": [
            "test_some_rest_endpoints_have_a_different_point_cost_that_is_withheld_from_the_public"
        ],
    },
}

# Tests of numbered rules of the design, for rules without tests that have the number in their names, or with more tests.
DESIGN: Final[Tests] = {
    "3.1": [
        "test_3_1_decisions_continue_on_the_new_master_of_sentinel",
        "test_3_1_a_redis_with_tls_a_user_and_a_password_accepts_only_connections_with_all_three",
    ],
    "3.2": ["test_a_cancelled_request_is_not_charged_and_affects_no_other_request"],
    "6": [
        "test_time_spent_waiting_is_not_counted_as_cpu_time",
        "test_waiting_requests_do_not_count_as_concurrent",
        "test_a_heartbeat_is_admitted_while_all_other_requests_are_refused",
        "test_a_rule_that_would_refuse_a_heartbeat_is_an_error",
        "test_several_api_processes_share_their_counters",
        "test_counters_in_memory_serve_one_machine_only",
        "test_top_adds_up_the_requests_of_all_processes_of_the_machine",
    ],
    "7": ["test_the_example_of_the_design_is_read"],
    "8": [
        "test_only_its_owner_can_connect_to_the_socket",
        "test_the_admin_port_accepts_commands_only_with_the_token",
        "test_a_grant_applies_at_once_ends_automatically_and_is_audited",
        "test_addresses_in_the_decision_log_can_be_truncated",
        "test_shared_records_are_bounded_and_a_lost_store_delays_no_request",
        "test_changed_files_are_applied_and_invalid_ones_are_ignored",
        "test_a_closing_gateway_answers_running_requests_and_frees_their_slots",
        "test_rules_prints_lines_of_the_file_and_reload_reports_an_invalid_file",
        "test_limits_can_be_switched_off_and_on_again",
        "test_partial_enforcement_holds_for_the_same_share_of_owners_at_every_request",
        "test_each_level_sends_one_alert_per_window",
        "test_a_simulated_outage_applies_the_policies_of_the_rules_for_a_lost_store",
        "test_the_gateway_serves_its_own_pages",
        "test_the_gateway_speaks_tls_with_callers",
        "test_the_gateway_trusts_only_the_configured_authority_of_the_service",
        "test_the_result_lists_what_was_not_simulated",
        "test_pipelined_requests_are_answered_in_order",
        "test_an_ambiguous_request_gets_a_4xx_with_limit_headers_and_nothing_smuggled_is_forwarded",
        "test_hop_by_hop_headers_and_marks_are_not_forwarded",
        "test_the_decision_comes_before_100_continue",
        "test_after_a_refusal_a_short_body_is_drained_and_a_long_one_closes_the_connection",
        "test_a_reply_that_ends_with_the_connection_is_sent_to_the_caller_in_chunks",
        "test_a_slow_head_and_a_slow_body_get_408",
    ],
}

NUMBERED: Final = (
    "1",
    *(f"2.{number}" for number in range(1, 12)),
    *(f"3.{number}" for number in range(1, 7)),
    *(f"4.{number}" for number in range(1, 4)),
    *(f"5.{number}" for number in range(1, 5)),
    *("6", "7", "8"),
)
"""The rules of the design, by section and number."""
