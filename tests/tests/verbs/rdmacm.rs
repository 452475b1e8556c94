//! Programs that find each other through librdmacm, and perftest over it.

use libtest_mimic::Trial;
use sluice_tests::net::free_port;
use sluice_tests::suite::{Verdict, ensure, trial};

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
        ("ib_write_lat", &["-R", "-F", "-n", "1000"]),
        ("ib_write_lat", &["-R", "-F", "-n", "1000", "127.0.0.1"]),
    ),
    (
        "ib_send_bw",
        ("ib_send_bw", &["-R", "-F", "-n", "1000"]),
        ("ib_send_bw", &["-R", "-F", "-n", "1000", "127.0.0.1"]),
    ),
    (
        "ib_read_bw",
        ("ib_read_bw", &["-R", "-F", "-n", "1000"]),
        ("ib_read_bw", &["-R", "-F", "-n", "1000", "127.0.0.1"]),
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

/// A client that comes before the server listens is refused, and tries again: there is no socket
/// of the kernel's to wait for.
fn meet(server: Program, client: Program) -> Verdict {
    const ATTEMPTS: u32 = 20;
    let mut stage = Stage::new()?;
    let port = free_port()?.to_string();
    let with_port = |arguments: &[&'static str]| [&["-p", port.as_str()], arguments].concat();
    let mut server_job = stage.start(server.0, &with_port(server.1))?;
    let client_arguments = with_port(client.1);
    for attempt in 1.. {
        let outcome = stage.run(client.0, &client_arguments)?;
        if outcome.status.success() || attempt == ATTEMPTS {
            outcome.success()?;
            break;
        }
        let ended = server_job.poll()?.is_some();
        ensure(!ended, || {
            format!("{}\n{}", outcome.describe(), server_job.describe())
        })?;
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    server_job.finish(LIMIT)?.success()?;
    Ok(())
}
