//! What the pages of `sluice up` and `sluice status` say of hosts that are not in the configuration.

use super::page::{
    Block::{self, Text},
    Section,
};

/// Of `sluice status`.
pub(super) const OUTPUT: Block = Text(
    "Where the configuration has option = true, a line says what the option in handshakes has \
     shown: connections whose other end was found, was not, sent the option back, has another \
     key, or was reached without it only, and ends whose hosts were not asked for a daemon.",
);

pub(super) const SECTION: Section = Section {
    title: "FINDING HOSTS",
    blocks: &[
        Text(
            "With a [discovery] table in the configuration, hosts in its networks that no \
             [[peer]] names are asked for a daemon when a program has a connection with them.",
        ),
        Text(
            "With option = true in it, handshakes of these connections have a TCP option (an \
             experiment, kind 253), and only hosts that answer it are asked. It takes CAP_BPF and \
             CAP_NET_ADMIN when the daemon starts, and CAP_PERFMON for servers that listen \
             already; without, every host is asked, and the log says why. cgroup says for whose \
             connections: left out, for those of all programs. Set it on all hosts, and ask \
             whoever runs the network: something there may drop what it does not know, which \
             makes connections a second late until the daemon leaves that address alone.",
        ),
    ],
};
