//! The examples that come with libibverbs, which check what they receive.

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::stage::{Environment, Stage, WAYS};

/// The first entry of the GID table: RoCE has no other addresses.
const GID: [&str; 2] = ["-g", "0"];

pub fn trials() -> Vec<Trial> {
    let rc: &[(&str, &[&str])] = &[
        ("plain", &[]),
        ("events", &["-e"]),
        ("on-demand-paging", &["-o"]),
        ("timestamps", &["-t"]),
        ("new-send", &["-N"]),
        ("device-memory", &["-j"]),
        ("events-new-send", &["-e", "-N"]),
        ("one-byte", &["-s", "1"]),
        ("large", &["-s", "1048576", "-n", "200"]),
        ("deep", &["-r", "64"]),
    ];
    let with_events: &[(&str, &[&str])] = &[("plain", &[]), ("events", &["-e"])];
    let srq: &[(&str, &[&str])] = &[
        ("plain", &[]),
        ("events", &["-e"]),
        ("one-qp", &["-q", "1"]),
    ];
    let programs = [
        ("ibv_rc_pingpong", rc),
        ("ibv_uc_pingpong", with_events),
        ("ibv_ud_pingpong", with_events),
        ("ibv_srq_pingpong", srq),
        ("ibv_xsrq_pingpong", with_events),
    ];
    let plain = programs.into_iter().flat_map(|(program, cases)| {
        cases.iter().map(move |(name, arguments)| {
            trial(format!("{program}/{name}"), move || {
                pingpong(program, arguments, &[])
            })
        })
    });
    // The other ways to a peer's memory, with small and with large messages.
    let others = WAYS[1..].iter().flat_map(|(way, environment)| {
        ["ibv_rc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"]
            .into_iter()
            .map(move |program| {
                trial(format!("{program}/{way}"), move || {
                    pingpong(program, &["-n", "300"], environment)
                })
            })
    });
    plain.chain(others).collect()
}

fn pingpong(program: &str, arguments: &[&str], environment: Environment) -> Verdict {
    let mut all = GID.to_vec();
    // -c validates the received buffer; elsewhere it means something else or nothing.
    if ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong"].contains(&program) {
        all.push("-c");
    }
    all.extend(arguments);
    let mut stage = Stage::new()?;
    stage.set(environment);
    let (server, client) = stage.pair(program, &all)?;
    for outcome in [server, client] {
        let text = outcome.text();
        let done = if program == "ibv_xsrq_pingpong" {
            text.contains("success")
        } else {
            text.contains("bytes in") && text.contains("iters in")
        };
        ensure(done && !text.contains("invalid data"), || {
            outcome.describe()
        })?;
    }
    Ok(())
}
