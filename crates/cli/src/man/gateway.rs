//! The page of `sluice gateway`.

use super::page::Block::{Entry, Example, Text};
use super::page::{LIBDIR_VARIABLE, Page, SOCKET_VARIABLE, Section, USUAL_STATUS};

pub const PAGE: Page = Page {
    name: "sluice-gateway",
    sections: &[
        Section {
            title: "CONFIGURATION",
            blocks: &[
                Text(
                    "Who may publish what is said in the configuration of the two daemons \
                     (sluice up --config); sluiced.toml, which comes with Sluice, has every key.",
                ),
                Entry(
                    "[gateway]",
                    "On the gateway: addresses, where clients connect to.",
                ),
                Entry(
                    "[[gateway.node]]",
                    "On the gateway, for each application node: name, the ports that its programs \
                     may publish, and at which addresses; connect, the networks to which they may \
                     connect by the gateway. A node that is not named may do nothing.",
                ),
                Entry(
                    "[node]",
                    "On an application node: gateways, the peers that its programs may name in \
                     sluice run --gateway; direct, the networks to which these programs connect \
                     by themselves.",
                ),
            ],
        },
        Section {
            title: "NODES AND CLIENTS",
            blocks: &[
                Text(
                    "A port that several nodes publish is shared: a client goes to the node with \
                     the fewest connections. A node whose daemon does not talk to the gateway's, \
                     or where nobody listens any more, gets no clients; one that does not answer \
                     gets none for a while. A port that nobody publishes is closed.",
                ),
                Text(
                    "The program sees the address of the client and the gateway's own outside \
                     address, as if both were its host's. listen() fails with EACCES where the \
                     gateway does not allow the port, and with EADDRINUSE where something else \
                     has it. A gateway that is not there keeps no program from listening: it is \
                     published when the gateway comes.",
                ),
                Text(
                    "When the daemon ends, connections go on and clients are still accepted for \
                     the nodes that are known; so they do when the next daemon refuses the gateway, \
                     which ends only where it was refused from the start. When the gateway itself is killed, all connections \
                     are reset at both ends; started again, it has every port that is published.",
                ),
            ],
        },
        Section {
            title: "EXAMPLES",
            blocks: &[
                Example(
                    "On the gateway, as root:",
                    "sluice up --system --config /etc/sluice/sluiced.toml\n\
                     sluice gateway --socket /run/sluice/control.sock",
                ),
                Example(
                    "On an application node:",
                    "sluice up --config /etc/sluice/sluiced.toml\n\
                     sluice run --gateway gw -- nginx -c /etc/nginx/nginx.conf",
                ),
                Example(
                    "Take a node out of service for maintenance, and back:",
                    "sluice gateway drain app1\nsluice gateway resume app1",
                ),
            ],
        },
        Section {
            title: "ENVIRONMENT",
            blocks: &[SOCKET_VARIABLE, LIBDIR_VARIABLE],
        },
        USUAL_STATUS,
    ],
};
