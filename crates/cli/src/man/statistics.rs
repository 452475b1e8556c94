//! What the counters of `sluice verbs --stats` mean.

use super::page::{
    Block::{Entry, Text},
    Section,
};

pub const STATISTICS: Section = Section {
    title: "STATISTICS",
    blocks: &[
        Text(
            "With --stats there is a line for each queue pair. Over RoCEv2 there also \
             is one for each thing that happened to packets of a process, if it \
             happened; a process that is killed says nothing. Where Linux's RDMA \
             devices count the same, it has the name that it has there \
             (/sys/class/infiniband, hw_counters):",
        ),
        Entry(
            "sent_pkts, rcvd_pkts",
            "Packets that were handed to the kernel, repeated ones too, and good \
             packets that came.",
        ),
        Entry(
            "retransmitted_pkts",
            "Request packets that were sent before.",
        ),
        Entry(
            "local_ack_timeout_err",
            "Requester: nothing was heard for the local ACK timeout, and all was sent \
             again; the third in a row waits two, and each later one four of them.",
        ),
        Entry(
            "roce_adp_retrans",
            "Requester: something was sent again on suspicion, before the timeout.",
        ),
        Entry(
            "packet_seq_err",
            "Requester: a NAK said that a packet was missing.",
        ),
        Entry(
            "loss_reports, loss_reports_sent",
            "Between two ends under Sluice: a report said which packets behind a missing one had \
             come, so that only what was lost is sent again; such reports sent.",
        ),
        Entry(
            "implied_nak_seq_err",
            "Requester: a later response showed that an earlier one was lost.",
        ),
        Entry(
            "rnr_nak_retry_err",
            "Requester: the peer had no receive posted (RNR NAK).",
        ),
        Entry(
            "bad_responses",
            "Requester: answers to what was not asked, or of another form.",
        ),
        Entry(
            "duplicate_request",
            "Responder: requests that had been carried out before.",
        ),
        Entry(
            "out_of_sequence",
            "Responder: packets behind a missing one. They are kept where there is room.",
        ),
        Entry(
            "send_rnr_err",
            "Responder: RNR NAKs sent, as no receive was posted.",
        ),
        Entry(
            "refused_requests",
            "Responder: requests refused with another NAK: wrong key, address, right \
             or length.",
        ),
        Entry(
            "dropped_messages",
            "UC and UD: messages given up, as a packet was lost or no receive was \
             posted.",
        ),
        Entry(
            "np_ecn_marked_roce_packets, np_cnp_sent, rp_cnp_handled",
            "Packets that a switch marked for congestion (ECN), congestion \
             notifications (CNP) sent, and taken in.",
        ),
        Entry(
            "rx_udp_dropped",
            "Dropped by the kernel, since a UDP socket's buffer was full \
             (net.core.rmem_max bounds it) or the UDP checksum was wrong.",
        ),
        Entry(
            "rx_xsk_ring_full, rx_xsk_fill_ring_empty, rx_xsk_dropped",
            "Dropped by the kernel before an AF_XDP socket: the receive ring was \
             full; there was no free memory; any other reason.",
        ),
        Entry(
            "rx_malformed",
            "Dropped: no RoCEv2 packet, cut short, or fields that contradict each \
             other.",
        ),
        Entry(
            "rx_icrc_encapsulated",
            "Dropped: the invariant checksum (ICRC) was wrong.",
        ),
        Entry(
            "rx_crowded",
            "Dropped: it came to another engine thread or process, where too many \
             waited to be handed on.",
        ),
        Entry(
            "rx_unknown_qp",
            "Dropped: no process of this user here has such a queue pair.",
        ),
        Entry(
            "rx_qp_not_ready",
            "Dropped: the queue pair is not in a state that receives.",
        ),
        Entry(
            "rx_wrong_peer",
            "Dropped: not from the address that the queue pair is connected to.",
        ),
        Entry(
            "bad_pkey_cntr, qkey_viol_cntr",
            "Dropped: another partition key; another Q_Key than the datagram queue \
             pair's.",
        ),
        Entry(
            "rx_wrong_service",
            "Dropped: an opcode of another service than the queue pair's.",
        ),
        Entry(
            "tx_unreachable",
            "Not sent: no way to the destination at that moment, or longer than its \
             MTU.",
        ),
        Entry(
            "tx_refused",
            "Not sent: refused by the kernel or the interface.",
        ),
    ],
};
