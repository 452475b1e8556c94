//! RDMA between a program of the guest and one of its host, whose memory is the file behind the device.

use std::fs;
use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::programs::require;
use sluice_tests::suite::{Verdict, ensure, skip, trial};
use sluice_tests::verbs::{cm, finish_both};

use crate::stage::{self, LIMIT, PLACES, Place, Stage};

const PORT: u16 = 18_515;

/// They exchange numbers over TCP.
const PROGRAMS: [(&str, &[&str]); 7] = [
    ("ibv_rc_pingpong", &["-c"]),
    ("ibv_ud_pingpong", &[]),
    ("ibv_srq_pingpong", &["-c"]),
    ("ib_send_bw", &["-n", "500", "-s", "65536"]),
    ("ib_write_lat", &["-n", "500"]),
    ("ib_read_bw", &["-n", "100", "-s", "1048576"]),
    ("ib_atomic_lat", &["-n", "500"]),
];

/// They are connected by librdmacm, over the window: the options of both, and of the client alone.
const BY_CM: [(&str, &[&str], [&str; 2]); 3] = [
    ("rping", &["-C", "20", "-V"], ["-s", "-c"]),
    ("ucmatose", &["-C", "20", "-S", "4000"], ["", ""]),
    ("ib_write_lat", &["-R", "-n", "300"], ["", ""]),
];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (program, words, ends) in BY_CM {
        for server in PLACES {
            let name = format!("{program}-cm/{server:?}-serves").to_lowercase();
            trials.push(trial(name, move || by_cm(program, words, ends, server)));
        }
    }
    for (program, words) in PROGRAMS {
        for server in PLACES {
            let name = format!("{program}/{server:?}-serves").to_lowercase();
            trials.push(trial(name, move || {
                let stage = stage::borrow()?;
                both(&stage, program, words, server)
            }));
        }
    }
    for server in PLACES {
        let name = format!("pyverbs/{server:?}-serves").to_lowercase();
        trials.push(trial(name, move || pyverbs(server)));
    }
    trials
}

/// SENDs, WRITEs, READs and atomics of a program of pyverbs, which looks at what they bring.
fn pyverbs(place: Place) -> Verdict {
    /// The interpreter that Debian's modules are for.
    const PYTHON: &str = "/usr/bin/python3";
    if !Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir() {
        return skip("python3-pyverbs is not installed; scripts/setup test");
    }
    let stage = stage::borrow()?;
    let (port, address) = (PORT.to_string(), stage.address(place).to_string());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/apps/scripts/verbs_pair.py");
    let python = Path::new(PYTHON);
    let mut server = stage.start_verbs(place, python, &[script, "serve", &port])?;
    stage.await_listener(place, &mut server, Protocol::Tcp, PORT)?;
    let words = [script, "ask", &port, &address];
    let client = stage.start_verbs(place.other(), python, &words)?;
    let said = [server.stdout_path(), client.stdout_path()].map(Path::to_owned);
    finish_both([server, client], LIMIT)?;
    for file in said {
        let text = fs::read_to_string(file)?;
        ensure(text.contains("all as it should be"), || text.clone())?;
    }
    Ok(())
}

fn by_cm(program: &str, words: &[&str], ends: [&str; 2], place: Place) -> Verdict {
    let path = require(program)?;
    let stage = stage::borrow()?;
    let (port, address) = (PORT.to_string(), stage.address(place).to_string());
    let all = |end: usize| -> Vec<&str> {
        let own = [ends[end], "-p", &port].into_iter();
        own.chain(words.iter().copied())
            .filter(|word| !word.is_empty())
            .collect()
    };
    let (server, mut client) = (all(0), all(1));
    client.extend(match program {
        "rping" => vec!["-a", &address],
        "ucmatose" => vec!["-s", &address],
        _ => vec![address.as_str()],
    });
    let mut server = stage.start_verbs(place, &path, &server)?;
    server.await_ready(LIMIT, "rdma_cm listener", || {
        stage.is_cm_listening(place, PORT).unwrap_or(false)
    })?;
    let client = stage.start_verbs(place.other(), &path, &client)?;
    cm::success(client.finish(LIMIT)?)?;
    cm::success(server.finish(LIMIT)?)?;
    Ok(())
}

/// A server at one place, and its client at the other one once it listens.
pub fn both(stage: &Stage, program: &str, words: &[&str], place: Place) -> Verdict {
    let path = require(program)?;
    let address = stage.address_seen(place, place.other()).to_string();
    let port = PORT.to_string();
    let mut all = vec!["-p", &port];
    all.extend(words);
    let mut server = stage.start_verbs(place, &path, &all)?;
    stage.await_listener(place, &mut server, Protocol::Tcp, PORT)?;
    all.push(&address);
    let client = stage.start_verbs(place.other(), &path, &all)?;
    finish_both([server, client], LIMIT)
}
