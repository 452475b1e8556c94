//! What has happened is counted under the name that says what it was.

mod common;

use std::collections::BTreeMap;

use common::{End, MTU, QKEY, Side, connected, stray, until, world};
use sluice_verbs::{Gid, QpType, SendWr, Transport, UdDestination, WrOpcode, send_flags};

/// Several packets.
const LONG: usize = 10 * MTU;

/// The counters that are not 0. What a thread is at work on is left out if it gets no processor: then they are asked for
/// again.
fn counts(side: &Side) -> BTreeMap<&'static str, u64> {
    let mut all = Vec::new();
    until("all counters", || {
        let report = side.transport.report();
        all = report.counters;
        !report.is_partial
    });
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Waits until a counter has this value; somebody has to look at the ports.
fn wait_for(side: &Side, end: &End, name: &str, count: u64) {
    until(name, || {
        let _ = end.cq.poll_one();
        counts(side).get(name).copied().unwrap_or_default() == count
    });
}

#[test]
fn each_reason_to_drop_a_packet_has_its_counter() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, 4096);
    let early = right.end(QpType::Rc, 64, None);
    early.to_init();
    let good = |qpn| stray(&a.gid, &b.gid, qpn);
    assert!(counts(&right).is_empty(), "{:?}", counts(&right));

    let mut short = good(b.qp.num());
    short.packet.truncate(9);
    right.inbox.put(short);
    wait_for(&right, &b, "rx_malformed", 1);

    right.inbox.put(good(b.qp.num() ^ 0xff_0000));
    wait_for(&right, &b, "rx_unknown_qp", 1);

    right.inbox.put(good(early.qp.num()));
    wait_for(&right, &b, "rx_qp_not_ready", 1);

    right.inbox.put(stray(&Gid([0xfd; 16]), &b.gid, b.qp.num()));
    wait_for(&right, &b, "rx_wrong_peer", 1);

    let mut foreign = good(b.qp.num());
    // The partition key of the base transport header (IBTA 9.2.6).
    foreign.packet[2..4].copy_from_slice(&0x8001u16.to_be_bytes());
    right.inbox.put(foreign);
    wait_for(&right, &b, "bad_pkey_cntr", 1);

    let (from, to) = connected(&left, &right, QpType::Ud, 4096);
    to.post_recv(1, 0, 2048);
    let ah = End::ah_attr(&to.gid);
    let sge = [from.sge(0, 8)];
    for (id, qkey) in [(1, QKEY ^ 1), (2, QKEY)] {
        from.qp
            .post_send(&SendWr {
                flags: send_flags::SIGNALED,
                sges: &sge,
                ud: Some(UdDestination {
                    ah: &ah,
                    qpn: to.qp.num(),
                    qkey,
                }),
                ..SendWr::new(WrOpcode::Send, id)
            })
            .unwrap();
        from.good();
    }
    to.good();
    let all = counts(&right);
    assert_eq!(all.get("qkey_viol_cntr"), Some(&1), "{all:?}");
    for name in [
        "rx_malformed",
        "rx_unknown_qp",
        "rx_qp_not_ready",
        "rx_wrong_peer",
    ] {
        assert_eq!(all.get(name), Some(&1), "{name}: {all:?}");
    }
    assert_eq!(all.get("bad_pkey_cntr"), Some(&1));
    assert_eq!(all.get("rcvd_pkts"), Some(&7));
    assert_eq!(all.len(), 7, "{all:?}");
}

#[test]
fn a_lost_packet_is_seen_by_both_sides_and_is_not_forgotten_with_the_queue_pair() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, 2 * LONG);
    // The second packet of ten is lost.
    right.inbox.allow(1);
    let sge = [a.sge(0, LONG)];
    a.qp.post_send(&End::request(WrOpcode::RdmaWrite, 1, &sge, &b, 0))
        .unwrap();
    until("all ten packets", || {
        let _ = a.cq.poll_one();
        right.inbox.seen() >= 10
    });
    right.inbox.lose();
    a.good();
    let (requester, responder) = (counts(&left), counts(&right));
    let repeated = requester.get("retransmitted_pkts").copied();
    assert!(repeated.is_some_and(|count| count >= 9), "{requester:?}");
    // All nine were lost, so that only the clock tells: on suspicion, or in the end.
    let told = ["roce_adp_retrans", "local_ack_timeout_err"];
    assert!(
        told.iter().any(|name| requester.contains_key(name)),
        "{requester:?}"
    );
    assert!(responder.contains_key("rcvd_pkts"), "{responder:?}");

    // Now one in front of others, which are out of sequence. The requester learns of it from a
    // NAK, from a report, or because it asked again in the meantime.
    let before = right.inbox.seen();
    right.inbox.allow(0);
    a.qp.post_send(&End::request(WrOpcode::RdmaWrite, 2, &sge, &b, 0))
        .unwrap();
    until("all ten packets again", || {
        let _ = a.cq.poll_one();
        right.inbox.seen() >= before + 10
    });
    right.inbox.lose_first();
    a.good();
    let repeated = requester["retransmitted_pkts"];
    let (requester, responder) = (counts(&left), counts(&right));
    assert!(responder.contains_key("out_of_sequence"), "{responder:?}");
    assert!(requester["retransmitted_pkts"] > repeated, "{requester:?}");

    let sent = requester["retransmitted_pkts"];
    a.qp.destroy().unwrap();
    b.qp.destroy().unwrap();
    assert_eq!(counts(&left)["retransmitted_pkts"], sent);
    assert_eq!(
        counts(&right).get("out_of_sequence"),
        responder.get("out_of_sequence")
    );
}

#[test]
fn a_message_that_finds_no_receive_is_counted_by_both_sides() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, 4096);
    let sge = [a.sge(0, 8)];
    a.qp.post_send(&End::request(WrOpcode::Send, 1, &sge, &b, 0))
        .unwrap();
    until("the refusal", || {
        let _ = (a.cq.poll_one(), b.cq.poll_one());
        counts(&right).contains_key("send_rnr_err")
            && counts(&left).contains_key("rnr_nak_retry_err")
    });
    b.post_recv(1, 0, 64);
    a.good();
}
