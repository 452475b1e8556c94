//! The page of `sluice window`.

use super::page::Block::{Entry, Example, Text};
use super::page::{Page, Section, USUAL_STATUS};

pub const PAGE: Page = Page {
    name: "sluice-window",
    sections: &[
        Section {
            title: "COMMANDS",
            blocks: &[
                Entry(
                    "create FILE [--size SIZE] [--hosts N] [--kind KIND] [--force]",
                    "Makes a window. The room for a file is allocated, so that nobody who maps it \
                     faults for want of room later. A device has the size that it has.",
                ),
                Entry(
                    "show FILE [--json]",
                    "Says what the window is, how many doorbells there are, who holds which slot, and \
                     how long ago the holder gave a sign of life. One that gives none \
                     for three quarters of a second is silent; after three seconds others \
                     may take its slot. Of a slot that sluiced holds it says how much is lent to \
                     programs for direct lanes, and how many pieces of it processes have mapped. \
                     FILE may be the socket of serve.",
                ),
                Entry(
                    "list [--config FILE] [--socket PATH] [--json]",
                    "Says the same of all windows that the sluiced of this user has, and those that \
                     the configuration names. The status is 1 if one of them cannot be looked at.",
                ),
                Entry(
                    "serve SOCKET [--size SIZE] [--hosts N] [--vectors N]",
                    "Makes a window in memory and gives it, with doorbells, to whoever connects: \
                     virtual machines and programs. The memory is sealed, so that no peer can \
                     make it shorter under the others. When serve is started anew it gives out \
                     other memory, which every sluiced joins within seconds; connections in the \
                     memory before go on there.",
                ),
            ],
        },
        Section {
            title: "TRUST",
            blocks: &[Text(
                "Whoever can open a window can write everywhere in it, and whoever can write a \
                 file can cut it short, at which those who have it mapped get SIGBUS. Share a file \
                 among containers of one owner only; serve has neither of the two problems for \
                 its size, and docs/windows.md says what a stranger can do.",
            )],
        },
        Section {
            title: "EXAMPLES",
            blocks: &[
                Example(
                    "A window for two containers on one host:",
                    "sluice window create /dev/shm/window --size 64M",
                ),
                Example("Who is in it:", "sluice window show /dev/shm/window"),
                Example("Who is in those that sluiced has:", "sluice window list"),
                Example(
                    "A window for a virtual machine and its host:",
                    "sluice window serve /run/window.sock --size 64M",
                ),
            ],
        },
        USUAL_STATUS,
    ],
};
