//! Programs that find each other through librdmacm, and perftest over it.

use libtest_mimic::Trial;
use sluice_tests::net::free_port;
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::cm;

use crate::stage::{LIMIT, Stage};

/// A program and its arguments, without the port.
type Program = (&'static str, &'static [&'static str]);
/// A test's name, the server and the client.
type Case = (&'static str, Program, Program);

const CASES: &[Case] = &[
    (
        "rping",
        ("rping", &["-s", "-v", "-V", "-C", "1000"]),
        (
            "rping",
            &["-c", "-v", "-V", "-C", "1000", "-a", "127.0.0.1"],
        ),
    ),
    (
        "ucmatose",
        ("ucmatose", &[]),
        ("ucmatose", &["-s", "127.0.0.1"]),
    ),
    (
        "rdma_client",
        ("rdma_server", &[]),
        ("rdma_client", &["-s", "127.0.0.1"]),
    ),
    (
        "rdma_xclient",
        ("rdma_xserver", &[]),
        ("rdma_xclient", &["-s", "127.0.0.1"]),
    ),
    (
        "rstream",
        ("rstream", &["-T", "a"]),
        ("rstream", &["-T", "a", "-s", "127.0.0.1"]),
    ),
    (
        "ib_write_lat",
        ("ib_write_lat", &["-R", "-n", "1000"]),
        ("ib_write_lat", &["-R", "-n", "1000", "127.0.0.1"]),
    ),
    (
        "ib_send_bw",
        ("ib_send_bw", &["-R", "-n", "1000"]),
        ("ib_send_bw", &["-R", "-n", "1000", "127.0.0.1"]),
    ),
    (
        "ib_read_bw",
        ("ib_read_bw", &["-R", "-n", "1000"]),
        ("ib_read_bw", &["-R", "-n", "1000", "127.0.0.1"]),
    ),
];

pub fn trials() -> Vec<Trial> {
    CASES
        .iter()
        .map(|(name, server, client)| {
            trial(format!("rdma_cm/{name}"), move || meet(*server, *client))
        })
        .collect()
}

fn meet(server: Program, client: Program) -> Verdict {
    let mut stage = Stage::new()?;
    let port = free_port()?.to_string();
    let with_port = |arguments: &[&'static str]| [&["-p", port.as_str()], arguments].concat();
    let mut job = stage.start(server.0, &with_port(server.1))?;
    stage.until_success(client.0, &with_port(client.1), &[], &mut job)?;
    cm::success(job.finish(LIMIT)?)?;
    Ok(())
}
