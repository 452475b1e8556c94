//! More than a server has as a rule.

use std::path::Path;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::fleet::LIMIT;
use sluice_tests::programs::require;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::lab::{At, Lab};

pub fn trials() -> Vec<Trial> {
    vec![trial("many-ports", many_ports)]
}

const FIRST_PORT: u16 = 61_000;
/// Words about so many do not fit the socket to the gateway's process.
const PORTS: u16 = 900;

/// A gateway that is started anew gets them all.
fn many_ports() -> Verdict {
    let python = require("/usr/bin/python3")?;
    let mut lab = Lab::new()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/many.py");
    let mut command = lab.published(At::NodeA, "gw", &python);
    command
        .arg(script)
        .args(["a", &FIRST_PORT.to_string(), &PORTS.to_string()]);
    let mut server = lab.fleet.start_program(command, "many")?;
    server.await_text("ready", LIMIT)?;
    let probes = [0, PORTS / 2, PORTS - 1].map(|at| FIRST_PORT + at);
    for port in probes {
        lab.meet(4, port)?;
    }
    lab.end_gateway(Signal::KILL)?;
    lab.start_gateway()?;
    for port in probes {
        let met = lab.meet(4, port)?;
        ensure(met.name == "a", || format!("at {}", met.name))?;
    }
    let said = lab.describe();
    let begun = said.matches("the gateway's process is there").count();
    ensure(begun == 2, || format!("it has begun {begun} times\n{said}"))?;
    let _ = server.stop(LIMIT)?;
    lab.await_closed(FIRST_PORT)
}
