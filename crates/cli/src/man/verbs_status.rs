//! What the page of `sluice status` says of verbs programs.

use super::page::{
    Block::{Entry, Text},
    Section,
};

pub(super) const SECTION: Section = Section {
    title: "VERBS PROGRAMS",
    blocks: &[
        Text(
            "Programs of sluice verbs that have opened a device are listed behind the connections, \
             with or without a daemon: each is asked by itself. A user sees the own ones, root \
             those of all users. Without --json there is a line for each device of each process:",
        ),
        Entry(
            "OVER, ADDRESS",
            "shared memory; or UDP, behind AF_XDP and the interfaces that have it, and the address \
             that peers know.",
        ),
        Entry("QPS", "Queue pairs by state (RTS, RTR, INIT, ERR, ...)."),
        Entry(
            "SENDS, SENT",
            "Requests that were posted (SEND, WRITE, READ, atomics), and bytes of those that \
             succeeded, of all queue pairs since the device was made.",
        ),
        Entry(
            "RECVS, RCVD",
            "Receives that got a message, and bytes. What a peer writes to memory or reads from \
             it by itself is not counted here.",
        ),
        Entry(
            "AGAIN, DROPS",
            "Over a network: packets that were sent again, and packets that were dropped here, \
             the sum of all counters rx_* and tx_* that sluice-verbs(1) explains (STATISTICS).",
        ),
        Text(
            "A process that is stopped is listed without figures. One that was killed is not \
             listed; the names that it left are counted by sluice doctor, and swept up by the next \
             verbs program.",
        ),
        Text(
            "In JSON the member verbs has processes, leftovers (names of killed processes), \
             failures (directories that could not be looked at) and complete (false if the time \
             was over). A process has pid, uid, program, state (answers, stopped, silent or \
             unknown), same_network and, if it answered, report, with network_namespace, open_s \
             and devices; peers of a device are the processes that share its memory, and counters \
             those of sluice verbs --stats that are not 0.",
        ),
    ],
};
