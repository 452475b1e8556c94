//! The rows of the conformance suite: each file has those about one thing.

use sluice_verbs::transport::TransportCaps;

use crate::row::Row;

pub mod claims;
pub mod completions;
pub mod endings;
pub mod order;
pub mod protection;
pub mod random;
pub mod receives;
pub mod resizing;
pub mod services;
pub mod states;
pub mod transfer;

/// Makes the list of the rows, and the macro that makes tests of them.
macro_rules! rows {
    ($dollar:tt $($module:ident: $($name:ident),+;)+) => {
        /// All rows by their names.
        pub const ROWS: &[(&str, Row)] = &[
            $($((stringify!($name), $module::$name())),+),+
        ];

        /// A test of each row: `run` gets the test's path, from the crate on, and the row.
        #[macro_export]
        macro_rules! conformance {
            ($dollar run:expr) => {
                $($(
                    #[test]
                    fn $name() {
                        let run: fn(&str, &$crate::Row) = $dollar run;
                        let test = concat!(module_path!(), "::", stringify!($name));
                        run(test, &$crate::rows::$module::$name());
                    }
                )+)+
            };
        }
    };
}

rows! { $
    claims:
        what_a_device_does_not_claim_it_refuses,
        a_device_says_what_its_transport_is;
    transfer:
        writes_and_reads_arrive,
        sends_arrive,
        immediate_data_arrives,
        inline_data_arrives,
        atomics_are_atomic;
    services:
        unreliable_connections_carry_sends_and_writes,
        unreliable_connections_drop_silently,
        datagrams_arrive_or_are_dropped,
        a_group_gets_each_datagram_while_it_is_joined,
        extended_connections_name_a_shared_receive_queue;
    order:
        different_operations_keep_their_order,
        reads_and_atomics_that_follow_each_other_keep_their_order,
        a_fence_waits_for_what_is_read,
        unsignalled_requests_give_their_room_back;
    random:
        random_programs_end_as_the_oracle_says;
    protection:
        what_is_forbidden_is_refused_and_writes_nothing,
        nothing_behind_a_failure_is_carried_out,
        rights_of_the_key_count,
        rights_of_the_queue_pair_count,
        an_atomic_beside_its_word_is_refused,
        a_window_opens_its_part,
        a_send_takes_a_key_away,
        a_send_takes_no_key_that_is_not_open_to_it,
        a_refusal_is_an_event_of_the_responder;
    receives:
        a_send_waits_for_its_receive,
        a_sender_runs_ahead_of_its_receiver,
        a_send_without_a_receive_ends_after_its_retries,
        a_peer_that_is_ready_late_gets_everything,
        a_message_longer_than_the_receive_ends_the_connection,
        a_receive_with_bad_memory_ends_the_connection,
        a_shared_receive_queue_serves_all,
        a_shared_receive_queue_warns_below_its_limit;
    resizing:
        queues_change_their_length_while_messages_arrive;
    states:
        an_error_flushes_what_was_posted,
        bad_memory_of_its_own_ends_a_connection,
        an_unreliable_queue_recovers_from_an_error,
        a_peer_in_error_answers_nothing,
        a_drained_queue_holds_what_is_posted,
        after_a_reset_both_begin_anew,
        a_reset_in_the_middle_leaves_nothing_behind;
    completions:
        a_full_completion_queue_breaks_its_queue_pair_only,
        those_who_sleep_miss_nothing,
        a_solicited_event_is_for_solicited_messages,
        threads_post_and_poll_at_once;
    endings:
        a_hundred_queue_pairs_share_the_way,
        a_queue_pair_goes_in_the_middle,
        a_peer_whose_queue_pair_is_gone_is_noticed,
        a_peer_that_goes_away_is_noticed,
        a_peer_that_goes_away_ends_what_waits_for_it;
}

/// The rows that a device with these capabilities does not run.
pub fn left_out(caps: &TransportCaps) -> Vec<&'static str> {
    let out = ROWS.iter().filter(|(_, row)| !row.is_for(caps));
    out.map(|(name, _)| *name).collect()
}

/// Bytes of an end's memory that hold the longest message of [`sizes`] twice.
const AREA: usize = 4 << 20;
const HALF: usize = AREA / 2;

/// Lengths of messages: none, few, around a packet's, many packets.
fn sizes(mtu: usize) -> [usize; 13] {
    [
        0,
        1,
        3,
        8,
        63,
        64,
        mtu - 1,
        mtu,
        mtu + 1,
        3 * mtu + 5,
        70_000,
        300_001,
        1 << 20,
    ]
}
