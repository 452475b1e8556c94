//! The conformance suite, twice: a device that claims everything, and one that claims little.

use sluice_transport_loop::LoopTransport;
use sluice_verbs::opcode::Opcodes;
use sluice_verbs::transport::{Identity, TransportCaps};
use sluice_verbs::{Device, WrOpcode};
use sluice_verbs_testing::{Row, Side, rows};

const EVERYTHING: TransportCaps = TransportCaps::EVERYTHING;

/// As a first adapter of RDMA over TCP would be.
const LITTLE: TransportCaps = TransportCaps {
    identity: Identity::IWARP,
    atomic_cap: 0,
    uc: false,
    ud: false,
    xrc: false,
    opcodes: Opcodes::of(&[
        WrOpcode::Send,
        WrOpcode::SendWithInv,
        WrOpcode::RdmaWrite,
        WrOpcode::RdmaRead,
    ]),
    rnr_retry: false,
    ..EVERYTHING
};

fn run_on(row: &Row, caps: TransportCaps) {
    let [left, right] = LoopTransport::pair(caps).unwrap();
    row.in_threads(
        move |site| Side::new(Device::new("sluice0", left), site),
        move |site| Side::new(Device::new("sluice1", right), site),
    );
}

mod everything {
    sluice_verbs_testing::conformance!(|_, row| super::run_on(row, super::EVERYTHING));
}

mod little {
    sluice_verbs_testing::conformance!(|_, row| super::run_on(row, super::LITTLE));
}

#[test]
fn what_is_left_out_is_what_is_not_claimed() {
    assert_eq!(rows::left_out(&EVERYTHING), [""; 0]);
    assert_eq!(
        rows::left_out(&LITTLE),
        [
            "immediate_data_arrives",
            "atomics_are_atomic",
            "unreliable_connections_carry_sends_and_writes",
            "unreliable_connections_drop_silently",
            "datagrams_arrive_or_are_dropped",
            "a_group_gets_each_datagram_while_it_is_joined",
            "extended_connections_name_a_shared_receive_queue",
            "reads_and_atomics_that_follow_each_other_keep_their_order",
            "an_atomic_beside_its_word_is_refused",
            "a_send_waits_for_its_receive",
            "a_sender_runs_ahead_of_its_receiver",
            "a_send_without_a_receive_ends_after_its_retries",
            "an_error_flushes_what_was_posted",
            "an_unreliable_queue_recovers_from_an_error",
            "a_drained_queue_holds_what_is_posted",
            "a_peer_that_goes_away_ends_what_waits_for_it",
        ]
    );
}
