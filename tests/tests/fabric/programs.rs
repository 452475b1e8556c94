//! Programs that do what they do over TCP, with bytes on rings between the hosts.

use libtest_mimic::Trial;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::job::find_program;
use sluice_tests::stream;
use sluice_tests::suite::{Verdict, ensure, skip, trial};

use crate::hosts::{LIMIT, Side, Two, Way};

const CONNECTIONS: usize = 4;
const RECORDS: u32 = 3000;

/// Both devices, and both versions of IP.
pub const WAYS: [Way; 2] = [
    Way {
        device: "roce-udp",
        family: 4,
        faults: false,
    },
    Way {
        device: "roce",
        family: 6,
        faults: false,
    },
];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for way in WAYS {
        let name = |what: &str| format!("{what}/{}/ipv{}", way.device, way.family);
        for server in ["thread", "fork", "prefork"] {
            trials.push(trial(name(&format!("stream/{server}")), move || {
                records(way, server, [true, true])
            }));
        }
        trials.push(trial(name("redis"), move || redis(way)));
    }
    for (accelerated, name) in [([true, false], "client"), ([false, true], "server")] {
        trials.push(trial(format!("stream/{name}-only"), move || {
            records(WAYS[0], "thread", accelerated)
        }));
    }
    trials
}

/// Checked records both ways; `accelerated`: the client, the server.
fn records(way: Way, kind: &str, accelerated: [bool; 2]) -> Verdict {
    let two = Two::new(way)?;
    let binary = two.stream()?;
    let mut command = two.command(Side::Right, accelerated[1], &binary);
    command.args(["server", kind, &CONNECTIONS.to_string()]);
    let mut server = two.start_program(command, "server")?;
    let port = stream::await_port(&mut server, LIMIT)?;
    let mut command = two.command(Side::Left, accelerated[0], &binary);
    command.args([
        "client",
        &port.to_string(),
        &CONNECTIONS.to_string(),
        &RECORDS.to_string(),
    ]);
    let client = two.start_program(command, "client")?;
    stream::check_complete(&client.finish(LIMIT)?.success()?, CONNECTIONS, RECORDS)?;
    stream::check_complete(&server.finish(LIMIT)?.success()?, CONNECTIONS, RECORDS)?;
    if accelerated == [true, true] && kind == "thread" {
        two.require_ring_bytes()?;
    }
    Ok(())
}

fn redis(way: Way) -> Verdict {
    let programs = ["redis-server", "redis-benchmark", "redis-cli"].map(find_program);
    let [Some(server), Some(benchmark), Some(cli)] = programs else {
        return skip("redis is not installed");
    };
    let two = Two::new(way)?;
    let (host, address) = (two.host(Side::Right), two.address(Side::Right).to_string());
    let port = host.free_port(Protocol::Tcp)?.to_string();
    let mut command = two.command(Side::Right, true, &server);
    command.args([
        "--bind",
        &address,
        "--port",
        &port,
        "--save",
        "",
        "--protected-mode",
        "no",
    ]);
    let mut server = two.start_program(command, "redis")?;
    let output = server.stdout_path().to_owned();
    server.await_ready(LIMIT, "redis", || {
        std::fs::read_to_string(&output).is_ok_and(|text| text.contains("Ready to accept"))
    })?;
    let at = ["-h", &address, "-p", &port];
    let mut command = two.command(Side::Left, true, &benchmark);
    command.args(at).args([
        "-t",
        "set,get,lpush,lrange_100",
        "-n",
        "4000",
        "-c",
        "10",
        "-d",
        "2048",
        "-q",
    ]);
    two.start_program(command, "benchmark")?
        .finish(LIMIT)?
        .success()?;
    // What one client stores another one reads.
    let value = "0123456789abcdef".repeat(1 << 12);
    let mut command = two.command(Side::Left, true, &cli);
    command.args(at).args(["set", "large", &value]);
    two.start_program(command, "set")?
        .finish(LIMIT)?
        .success()?;
    let mut command = two.command(Side::Left, true, &cli);
    command.args(at).args(["get", "large"]);
    let got = two
        .start_program(command, "get")?
        .finish(LIMIT)?
        .success()?;
    ensure(got.text().trim() == value, || {
        "another value came back".to_owned()
    })?;
    let _ = server.stop(LIMIT)?;
    two.require_ring_bytes()
}
