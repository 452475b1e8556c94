//! Bad paths between Sluice and the kernel: each repairs what the other one's packets lack. The kernel
//! goes back to the packet that is missing, as the specification has it, and so does Sluice for it
//! (docs/decisions/0013-selective-repetition.md).

use libtest_mimic::Trial;
use sluice_tests::guest::stranger;
use sluice_tests::hosts::paths::{self, Path};
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::Own;
use sluice_tests::verbs::rows::named;

use crate::stranger::{Meeting, Server, checked_in, program_in};

/// Requests of each side of `traffic`.
const PATHS: &[(Path, &str)] = &[
    (paths::LOSS_1_OF_1000, "400"),
    (paths::LOSS_1_OF_100, "200"),
    (paths::LOSS_10_OF_100, "60"),
    (paths::DUPLICATION, "200"),
    (paths::REORDERING, "150"),
    (paths::CORRUPTION, "200"),
];

/// Of those that say goodbye to each other by TCP, on the path with 1 % loss.
const PROGRAMS: &[(&str, &str)] = &[
    ("ib_send_lat/rc", "100"),
    ("ib_send_bw/rc", "20"),
    ("ib_write_bw/rc", "20"),
    ("ib_read_bw/rc", "20"),
    ("ib_atomic_bw/fetch-and-add", "100"),
];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (number, (path, requests)) in PATHS.iter().enumerate() {
        for meeting in meetings(number) {
            let name = format!("paths/{}/traffic/{}", path.name, meeting.name());
            trials.push(trial(name, move || traffic(path, requests, meeting)));
        }
    }
    for (number, (row, iterations)) in PROGRAMS.iter().enumerate() {
        for meeting in meetings(number) {
            let path = &paths::LOSS_1_OF_100;
            let name = format!("paths/{}/{row}/{}", path.name, meeting.name());
            trials.push(trial(name, move || program(path, row, iterations, meeting)));
        }
    }
    trials
}

/// Both ways; the devices and the versions of IP by turns.
fn meetings(number: usize) -> [Meeting; 2] {
    let mut devices = ["roce", "roce-udp"];
    devices.rotate_left(number % 2);
    let [first, second] = devices;
    let meeting = |server, device, family| Meeting {
        server,
        device,
        family,
        mtu: 1500,
    };
    [
        meeting(Server::Sluice, first, [4, 4, 6, 6][number % 4]),
        meeting(Server::Kernel, second, [4, 6, 6, 4][number % 4]),
    ]
}

fn traffic(path: &Path, requests: &str, meeting: Meeting) -> Verdict {
    let lab = stranger::borrow_behind_faults()?;
    let injector = lab.guest.injector()?;
    path.begin(injector);
    let arguments = ["-n", requests, "-b", "6000", "-r", "32", "-T", "18"];
    path.end(
        injector,
        checked_in(&lab, Own::Traffic, &arguments, meeting),
    )
}

fn program(path: &Path, row: &str, iterations: &str, meeting: Meeting) -> Verdict {
    let lab = stranger::borrow_behind_faults()?;
    let injector = lab.guest.injector()?;
    path.begin(injector);
    let result = program_in(&lab, &named(row), iterations, meeting);
    path.end(injector, result)
}
