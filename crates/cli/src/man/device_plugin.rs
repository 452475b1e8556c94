//! The page of `sluice device-plugin`.

use super::page::Block::{Entry, Example, Text};
use super::page::{Page, Section, USUAL_STATUS};

pub const PAGE: Page = Page {
    name: "sluice-device-plugin",
    sections: &[
        Section {
            title: "WHAT A CONTAINER IS GIVEN",
            blocks: &[
                Entry(
                    "/opt/sluice",
                    "The folder --library of the node, read-only. The container's command is \
                     '/opt/sluice/sluice run -- PROGRAM'.",
                ),
                Entry(
                    "/run/sluice",
                    "The folder --run of the node, read-only: with the daemon's socket, also after the daemon \
                     was started again.",
                ),
                Entry(
                    "SLUICE_SOCKET",
                    "The path of the daemon's socket in the container.",
                ),
            ],
        },
        Section {
            title: "THE KUBELET",
            blocks: &[
                Text(
                    "The kubelet's folder has its socket, kubelet.sock, and gets one of this program, named after \
                     the resource, which its user alone can reach. When the kubelet has started again it is told \
                     of the resource again. It is of Kubernetes 1.26 or newer; older ones send a name of a host \
                     that HTTP/2 does not know.",
                ),
                Text(
                    "The daemon is asked each second whether it is there. While it is not, all of the \
                     resource is unhealthy: no new pod comes to the node for it, and those that are there stay.",
                ),
            ],
        },
        Section {
            title: "EXAMPLES",
            blocks: &[Example(
                "For 64 containers at once, beside a daemon that serves all users of the node:",
                "sluice device-plugin --count 64",
            )],
        },
        USUAL_STATUS,
    ],
};
