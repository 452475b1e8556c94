//! Programs that do what they do over TCP, with bytes on rings between the hosts.

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::programs::between;
use sluice_tests::programs::iperf;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::hosts::{WINDOW, Way};
use crate::tools::Stage;

/// All devices, and both versions of IP.
pub const WAYS: [Way; 3] = [
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
    Way {
        device: WINDOW,
        family: 4,
        faults: false,
    },
];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for way in WAYS {
        let name = |what: &str| format!("{what}/{}/ipv{}", way.device, way.family);
        trials.push(trial(name("redis"), move || redis(way)));
        trials.push(trial(name("iperf3"), move || iperf(way)));
    }
    // sockperf has no IPv6.
    trials.push(trial("sockperf/roce-udp/ipv4", || sockperf(WAYS[0])));
    trials
}

/// Each program once.
pub fn is_usual(name: &str) -> bool {
    [
        "redis/roce-udp/ipv4",
        "redis/roce/ipv6",
        "redis/window/ipv4",
        "iperf3/roce-udp/ipv4",
        "sockperf/roce-udp/ipv4",
    ]
    .contains(&name)
}

/// Several streams both ways; iperf3 counts what arrived.
fn iperf(way: Way) -> Verdict {
    let stage = Stage::new(way)?;
    let (address, port) = (stage.address(), stage.port()?);
    let words = ["-s", "-B", &address, "-p", &port.to_string()];
    let server = stage.serve("iperf3", &words, port)?;
    for more in [&[][..], &["-R"]] {
        let port = port.to_string();
        let words = ["-c", &address, "-p", &port, "-P", "4", "-n", "200M", "-J"];
        let words = [&words[..], more].concat();
        // One run may be over before the first lane if sluiced gets no processor; so with the others here.
        stage.two.run_until_ring_bytes(|| {
            iperf::received(&iperf::run(|| stage.run("iperf3", &words))?).map(drop)
        })?;
    }
    let _ = server.stop(LIMIT)?;
    stage.two.require_ring_bytes()
}

/// Small messages one at a time and in streams, from programs that block and programs that poll.
/// sockperf checks each message.
fn sockperf(way: Way) -> Verdict {
    for polls in [&[][..], &["--nonblocked"]] {
        let stage = Stage::new(way)?;
        let (address, port) = (stage.address(), stage.port()?);
        let number = port.to_string();
        let words = ["server", "-i", &address, "-p", &number, "--tcp"];
        let server = stage.serve("sockperf", &[&words[..], polls].concat(), port)?;
        for mode in [
            &["ping-pong", "--data-integrity", "--mps", "5000000"][..],
            &["under-load", "--data-integrity", "--mps", "20000"],
            &["throughput"],
        ] {
            let more = [
                "-i", &address, "-p", &number, "--tcp", "-t", "2", "-m", "500",
            ];
            stage.two.run_until_ring_bytes(|| {
                let outcome = stage.run("sockperf", &[mode, &more[..], polls].concat())?;
                let said = outcome.text() + &String::from_utf8_lossy(&outcome.stderr);
                ensure(!said.contains("ERROR"), || outcome.describe())
            })?;
        }
        let _ = server.stop(LIMIT)?;
        stage.two.require_ring_bytes()?;
    }
    Ok(())
}

fn redis(way: Way) -> Verdict {
    let two = way.set_up()?;
    two.run_until_ring_bytes(|| between::redis(&two))
}
