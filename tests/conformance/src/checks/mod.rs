//! The checks, by what they look at. A check is a function from a subject to a verdict; its name
//! quotes the ids of the contract that it covers.

mod bytes;
mod exhaustion;
mod faults;
mod fence;
mod invalidation;
mod limits;
mod messages;
mod recovery;
mod rights;

use crate::subject::Subject;
use crate::verdict::Verdict;
use memreg_core::MemReg;

/// One check.
pub(crate) type Check<S> = fn(&Subject<S>) -> Verdict;

/// Lists functions of a module under their own names.
macro_rules! list {
    ($($module:ident: $($check:ident),+;)+) => {
        vec![$($((stringify!($check), $module::$check::<S> as Check<S>)),+),+]
    };
}

/// Every check with its name, in the order in which they run.
pub(crate) fn all<S: MemReg>() -> Vec<(&'static str, Check<S>)> {
    list! {
        bytes:
            m_02_normal_cycle,
            map_19_segments_reach_the_bytes,
            map_19_peer_reads_the_bytes,
            map_19_partial_write_keeps_the_rest,
            map_21_segments_are_in_order,
            b51_piece_of_an_allocation;
        rights:
            map_16_one_direction_only,
            neighbours_are_out_of_reach,
            b57_local_memory_has_no_remote_key;
        fence:
            uns_01_h_12_bytes_return_only_after_the_fence,
            map_14_stale_keys_are_refused,
            never_posted_comes_back_at_once,
            h_14_h_31_cancel_fences_at_once,
            saf_01_cancel_ends_every_region,
            saf_02_cancel_posts_nothing,
            dropped_handle_is_fenced_by_poll,
            forgotten_handle_leaks_nothing,
            lease_ends_access;
        invalidation:
            uns_03_h_28_remote_invalidation_needs_no_local_inv,
            uns_05_nothing_to_invalidate_posts_nothing,
            rule_5_revoke_waits_for_the_reply,
            rule_5_dropped_handle_with_a_reply_out,
            h_66_bad_remote_invalidation_costs_the_connection;
        messages:
            messages_keep_order_and_size,
            message_too_long_is_refused,
            h_34_one_doorbell_per_message,
            o_5_reply_implies_registration,
            full_send_queue_is_retry;
        limits:
            b46_bad_lists_are_refused_alike,
            d_08_too_many_regions_grants_nothing,
            b31_thousand_pairs_without_a_full_queue,
            map_13_map_14_old_keys_after_the_tag_wraps;
        exhaustion:
            h_16_h_48_pool_exhaustion_is_retry,
            rule_7_full_queue_never_prevents_a_fence;
        recovery:
            st_11_h_01_m_08_states_at_disconnect,
            st_11_flushed_work_is_rebuilt,
            dead_peer_gives_all_bytes_back,
            refused_access_gives_all_bytes_back,
            removed_device_gives_all_bytes_back,
            rule_4_no_new_qp_while_a_key_lives,
            h_06_hundred_reconnects;
        faults:
            map_10_h_25_dma_map_failure_gives_all_back,
            one_failing_verb_loses_nothing,
            one_refused_post_loses_nothing,
            refused_messages_use_nothing_up,
            d_01_h_22_h_24_partial_revoke_cannot_hang,
            b85_swallowed_sentinel_ends_at_its_limit,
            rule_8_refused_sentinel_destroys_the_qp,
            duplicate_completions_fence_nothing,
            b68_failed_dereg_keeps_the_memory,
            kept_mapping_is_counted;
    }
}
