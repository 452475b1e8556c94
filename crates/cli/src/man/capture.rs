//! What the pages of `sluice up` and `sluice status` say of captured connections.

use super::page::{
    Block::{self, Text},
    Section,
};

/// Of `sluice status`.
pub(super) const OUTPUT: Block = Text(
    "Where connections are captured, a line says how many of programs here are open and were \
     captured, how many of these went to their destination by TCP because no relay took them, \
     and what was done for programs of other hosts. Another line has the reasons of those that \
     were left alone, went to their destination or were refused. Where they are left to TCP, it says why.",
);

pub(super) const SECTION: Section = Section {
    title: "CAPTURE",
    blocks: &[
        Text(
            "With a [capture] table in the configuration of both hosts, connections \
             of programs that cannot be preloaded (static ones, Go) get lanes between \
             them. The daemon, which must be root's, starts a relay: a process that \
             these connections go through, and at port 4796 those of other hosts. \
             Programs see the addresses that they would see without it. cgroup, \
             ports, networks and programs say which connections are captured, \
             serve_ports to which ports of this host those of others may go. Port 179 (BGP) \
             has to be named to be among them.",
        ),
        Text(
            "A socket with a key (TCP-MD5, TCP-AO), a TTL of its own or the lowest one that it \
             takes, or IP options goes its own way at both ends: the other program can check \
             what it would see without capture. So do connections of the kernel itself, and \
             those beyond three quarters of the local ports.",
        ),
        Text(
            "Without an RDMA adapter (device = \"hw:NAME\" in [fabric]) the relays cost \
             more than lanes give, and TCP is the faster path: connections are left to \
             it, and the relay is not started. over = \"any\" captures them all the same. \
             What the kernel emulates (rxe, siw) is no adapter.",
        ),
        Text(
            "Where the other host's relay is not to be had, a connection goes to its \
             destination by TCP. Captured connections survive the daemon, and are \
             reset when the relay is killed. When the daemon ends cleanly they have \
             another drain_seconds.",
        ),
    ],
};
