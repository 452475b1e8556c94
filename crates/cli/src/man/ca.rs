//! The page of `sluice ca`.

use super::page::Block::{Entry, Example, Text};
use super::page::{Page, Section, USUAL_STATUS};

pub const PAGE: Page = Page {
    name: "sluice-ca",
    sections: &[
        Section {
            title: "COMMANDS",
            blocks: &[
                Entry(
                    "create DIR",
                    "Makes an authority: ca.key and ca.pem. It is valid for ten years.",
                ),
                Entry(
                    "host DIR NAME [--peer NAME=ADDRESS]... [--days N]",
                    "Makes the folder DIR/NAME with ca.pem, host.pem, host.key, sluiced.toml and environment, by which sluiced.service reads it: all that \
                     the daemon of that host needs. What was made is read as the daemon will before it is \
                     left there.",
                ),
                Entry(
                    "key FILE",
                    "Makes a key of 32 random bytes, in hexadecimal digits, for psk_file in \
                     sluiced.toml(5). Every host has the same one, and whoever reads it can pass for any host.",
                ),
            ],
        },
        Section {
            title: "FILES",
            blocks: &[
                Text(
                    "Private keys, and the configuration, have mode 0600, folders 0700. sluiced refuses a key that \
                     others than its user can read.",
                ),
                Text(
                    "A certificate that ends soon is renewed by moving DIR/NAME away and making it again. \
                     'systemctl reload sluiced' then reads it, and sessions go on.",
                ),
                Text(
                    "There are no lists of revoked certificates. A host that is not to be believed any more is kept out by \
                     a new authority, or by fingerprint in each [[peer]].",
                ),
            ],
        },
        Section {
            title: "EXAMPLES",
            blocks: &[
                Example(
                    "An authority and two hosts that find each other:",
                    "sluice ca create sluice-ca\n\
                     sluice ca host sluice-ca alpha\n\
                     sluice ca host sluice-ca beta",
                ),
                Example(
                    "Then, for each of them:",
                    "scp -pr sluice-ca/alpha/. root@alpha:/etc/sluice/\n\
                     ssh root@alpha systemctl enable --now sluiced",
                ),
                Example(
                    "A host that keeps a connection to another, whatever its address:",
                    "sluice ca host sluice-ca alpha --peer beta=198.51.100.2",
                ),
            ],
        },
        USUAL_STATUS,
    ],
};
