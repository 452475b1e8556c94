//! RDMA between a program of the guest and one of its host, whose memory is the file behind the device.

use libtest_mimic::Trial;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::programs::require;
use sluice_tests::suite::{Verdict, trial};

use crate::stage::{self, LIMIT, PLACES, Place};

/// They exchange numbers over TCP: librdmacm's connection messages do not go over the window.
const PROGRAMS: [(&str, &[&str]); 7] = [
    ("ibv_rc_pingpong", &["-c"]),
    ("ibv_ud_pingpong", &[]),
    ("ibv_srq_pingpong", &["-c"]),
    ("ib_send_bw", &["-n", "500", "-s", "65536"]),
    ("ib_write_lat", &["-n", "500"]),
    ("ib_read_bw", &["-n", "100", "-s", "1048576"]),
    ("ib_atomic_lat", &["-n", "500"]),
];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (program, words) in PROGRAMS {
        for server in PLACES {
            let name = format!("{program}/{server:?}-serves").to_lowercase();
            trials.push(trial(name, move || both(program, words, server)));
        }
    }
    trials
}

/// A server at one place, and its client at the other one once it listens.
fn both(program: &str, words: &[&str], place: Place) -> Verdict {
    let path = require(program)?;
    let stage = stage::borrow()?;
    let number = 18_515;
    let (port, address) = (number.to_string(), stage.address(place).to_string());
    let mut all = vec!["-p", &port];
    all.extend(words);
    let mut server = stage.start_verbs(place, &path, &all)?;
    stage.await_listener(place, &mut server, Protocol::Tcp, number)?;
    all.push(&address);
    let client = stage.start_verbs(place.other(), &path, &all)?;
    client.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    Ok(())
}
