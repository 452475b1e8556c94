//! The pages of `sluice enable` and `sluice disable`.

use super::page::Block::{Entry, Example, Text};
use super::page::{Page, Section, USUAL_STATUS};

const FILES: Section = Section {
    title: "FILES",
    blocks: &[Entry(
        "/etc/systemd/system/UNIT.service.d/zz-sluice.conf",
        "The drop-in. Its name comes behind override.conf, which 'systemctl edit' makes: what a service runs \
         is what the last drop-in says.",
    )],
};

pub const ENABLE: Page = Page {
    name: "sluice-enable",
    sections: &[
        Section {
            title: "WHAT IS WRITTEN",
            blocks: &[
                Text(
                    "Each command of ExecStart=, of the unit and its drop-ins, behind 'sluice run --no-daemon'. \
                     Prefixes (- @ : + !), quotes, specifiers and variables stay. The process is the program's \
                     own, so Type=, PIDFile=, watchdogs and sockets work as before. Other commands, \
                     such as ExecStartPre=, are left alone.",
                ),
                Entry(
                    "RestrictAddressFamilies=AF_UNIX",
                    "Where the service may make no Unix sockets: the daemon is reached by one.",
                ),
                Entry(
                    "ExecPaths=, BindReadOnlyPaths=",
                    "Where the service may execute only what is listed, or sees another root.",
                ),
                Entry(
                    "Wants=sluiced.service, After=",
                    "The daemon is started first. Without it the service runs on TCP.",
                ),
                Text(
                    "The drop-in repeats what the unit ran when it was made. 'sluice status' says where that has \
                     changed, and 'sluice enable --refresh' writes all of them anew; packages of Sluice do so \
                     when units change. Run 'sluice disable --all' before you remove a Sluice that no package \
                     brought: services that are enabled would not start any more.",
                ),
                Text(
                    "A service whose SystemCallFilter= leaves out what lanes need runs on TCP. One whose filter kills \
                     for it, instead of refusing, may not start: allow @system-service.",
                ),
            ],
        },
        FILES,
        Section {
            title: "EXAMPLES",
            blocks: &[
                Example(
                    "A server and its clients on this host:",
                    "sluice enable redis-server worker@.service\n\
                     systemctl restart redis-server worker@1",
                ),
                Example("What would be written:", "sluice enable --dry-run nginx"),
                Example(
                    "In an image that is being built:",
                    "sluice enable --root /mnt/image nginx",
                ),
            ],
        },
        USUAL_STATUS,
    ],
};

pub const DISABLE: Page = Page {
    name: "sluice-disable",
    sections: &[
        FILES,
        Section {
            title: "EXAMPLES",
            blocks: &[
                Example(
                    "One service, at once:",
                    "sluice disable nginx\n\
                     systemctl restart nginx",
                ),
                Example("All, before Sluice is removed:", "sluice disable --all"),
            ],
        },
        USUAL_STATUS,
    ],
};
