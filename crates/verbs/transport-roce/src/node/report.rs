//! What has happened, in the words of network engineers: where Linux's RDMA devices have a counter
//! for it (`/sys/class/infiniband/*/ports/*/hw_counters`), it has that name.

use core::sync::atomic::{AtomicU64, Ordering};

use sluice_packet::PortCounters;
use sluice_transport::counting::Count;

use crate::counters::{Seen, ShardCounters};
use crate::node::Node;

/// Of all queue pairs, those that are gone too.
fn of_queue_pairs(node: &Node, count: &mut Count) -> Seen {
    let mut all = node.remembered();
    for part in node.common().queue_pairs.table().by_index.iter().flatten() {
        // One that a thread does not let go of is left out.
        let shard = &node.shards[part.shard];
        if let Some(seen) = count.in_time(|| shard.try_with_key(|key| part.machine(key).seen())) {
            all += &seen;
        }
    }
    all
}

fn of_ports(node: &Node, count: &mut Count) -> PortCounters {
    let mut all = PortCounters::default();
    for shard in node.shards.iter() {
        count.in_time(|| shard.try_ports(|port| all += port.facts().counters));
    }
    all
}

/// All counters, and whether some that threads did not let go of in time are left out. The manual
/// page of `sluice verbs` explains them.
pub fn all(node: &Node, patience_ns: u64) -> (Vec<(&'static str, u64)>, bool) {
    let mut count = Count::with_patience(patience_ns);
    let ports = of_ports(node, &mut count);
    let Seen {
        protocol,
        not_taken,
    } = of_queue_pairs(node, &mut count);
    let shards = |of: fn(&ShardCounters) -> &AtomicU64| -> u64 {
        let each = node.shards.iter().map(|shard| of(&shard.gate.counters));
        each.map(|counter| counter.load(Ordering::Relaxed)).sum()
    };
    let counts = vec![
        ("sent_pkts", ports.sent),
        ("rcvd_pkts", ports.received),
        ("retransmitted_pkts", protocol.repeated_packets),
        // As requester.
        ("local_ack_timeout_err", protocol.timeouts),
        ("roce_adp_retrans", protocol.probes),
        ("packet_seq_err", protocol.sequence_naks),
        ("loss_reports", protocol.reports),
        ("implied_nak_seq_err", protocol.implied_naks),
        ("rnr_nak_retry_err", protocol.rnr_naks),
        (
            "bad_responses",
            protocol.bad_responses + protocol.future_responses,
        ),
        // As responder.
        ("duplicate_request", protocol.duplicate_requests),
        (
            "out_of_sequence",
            protocol.out_of_sequence + protocol.early_packets,
        ),
        ("loss_reports_sent", protocol.reports_sent),
        ("send_rnr_err", protocol.rnr_naks_sent),
        ("refused_requests", protocol.refused),
        ("dropped_messages", protocol.messages_dropped),
        // Congestion.
        ("np_ecn_marked_roce_packets", protocol.marked_packets),
        ("np_cnp_sent", protocol.notifications_sent),
        ("rp_cnp_handled", protocol.notifications),
        // Packets that were dropped on their way in, from the outside to the inside.
        ("rx_udp_dropped", ports.socket_drops),
        ("rx_xsk_ring_full", ports.ring_full),
        ("rx_xsk_fill_ring_empty", ports.fill_ring_empty),
        ("rx_xsk_dropped", ports.ring_drops),
        (
            "rx_malformed",
            ports.malformed + shards(|shard| &shard.malformed),
        ),
        ("rx_icrc_encapsulated", ports.bad_icrc),
        ("rx_crowded", shards(|shard| &shard.crowded)),
        ("rx_unknown_qp", shards(|shard| &shard.unknown_qp)),
        ("rx_qp_not_ready", not_taken.not_ready),
        ("rx_wrong_peer", not_taken.wrong_peer),
        ("bad_pkey_cntr", not_taken.bad_pkey),
        ("qkey_viol_cntr", protocol.bad_qkeys),
        ("rx_wrong_service", protocol.misdirected),
        // And out.
        ("tx_unreachable", shards(|shard| &shard.unreachable)),
        ("tx_refused", ports.refused),
    ];
    (counts, count.is_partial())
}
