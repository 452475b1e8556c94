//! Programs that find each other by librdmacm, between two hosts.

use libtest_mimic::Trial;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::suite::{Verdict, ensure, fail, trial};
use sluice_tests::verbs::cm::{self, CmRow, ROWS};

use sluice_tests::verbs::link::{CORNERS, DEVICES, End, LIMIT, Link, Way, qperf};

/// A multicast group of each version of IP.
const GROUPS: [(u8, &str); 2] = [(4, "239.1.2.3"), (6, "ff0e::1")];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        for way in ways(row, number) {
            let name = format!("{}/{}", row.name(), way.name());
            trials.push(trial(name, move || {
                row.run(&mut Link::new(way)?, less(row))
            }));
        }
    }
    for device in DEVICES {
        for corner in 0..CORNERS.len() {
            let way = Way::corner(device, corner);
            trials.push(trial(format!("mckey/plain/{}", way.name()), move || {
                multicast(way)
            }));
            trials.push(trial(format!("udpong/echo/{}", way.name()), move || {
                cm::udpong(&mut Link::new(way)?)
            }));
            // Its server listens on all IPv4 addresses.
            if way.family == 4 {
                trials.push(trial(format!("rcopy/plain/{}", way.name()), move || {
                    cm::rcopy(&mut Link::new(way)?)
                }));
            }
        }
        let way = Way::corner(device, 0);
        trials.push(trial(format!("qperf/cm/{}", way.name()), move || {
            qperf(way)
        }));
        for (provider, endpoint) in FABRIC {
            let name = format!("fi_pingpong/{provider}-{endpoint}/{}", way.name());
            trials.push(trial(name, move || fi_pingpong(way, provider, endpoint)));
        }
    }
    trials
}

/// One row of each program has every corner, the others have one for each device, by turns.
fn ways(row: &CmRow, number: usize) -> Vec<Way> {
    let every = ["plain", "cm"].contains(&row.case);
    let mut ways = Vec::new();
    for (turn, device) in DEVICES.into_iter().enumerate() {
        let corners = (0..CORNERS.len())
            .map(|step| Way::corner(device, number + 2 * turn + step))
            .filter(|way| row.speaks(way.family));
        ways.extend(corners.take(if every { CORNERS.len() } else { 1 }));
    }
    ways
}

/// Options that make a program do less than within a host: of two the last one counts. One row of
/// the stream's program does all that it does by itself.
fn less(row: &CmRow) -> &'static [&'static str] {
    match (row.program, row.case) {
        ("rstream", "plain" | "async" | "sizes") => &[],
        ("rstream", _) => &["-S", "20000", "-C", "20", "-I", "20"],
        // They wait for bytes in memory and never call the library meanwhile: each of their turns
        // needs a thread to get a processor that the program does not give away.
        ("riostream", _) => &["-S", "20000", "-C", "10", "-I", "10"],
        ("ib_write_lat", _) => &["-n", "100"],
        _ => &[],
    }
}

fn multicast(way: Way) -> Verdict {
    let group = GROUPS.iter().find(|(family, _)| *family == way.family);
    match group.map(|(_, group)| group.parse()) {
        Some(Ok(group)) => cm::mckey(&mut Link::new(way)?, group, 20),
        other => fail(format!("no group of IPv{}: {other:?}", way.family)),
    }
}

/// libfabric's providers over verbs, and the endpoints that its tool measures with them. Datagrams go
/// by GID 0, and connections to the address that the server's device has.
const FABRIC: [(&str, &str); 4] = [
    ("verbs", "msg"),
    ("verbs", "dgram"),
    ("verbs;ofi_rxm", "rdm"),
    ("verbs;ofi_rxd", "rdm"),
];

fn fi_pingpong(way: Way, provider: &str, endpoint: &str) -> Verdict {
    let mut link = Link::new(way)?;
    let number = link.hosts().right.free_port(Protocol::Tcp)?;
    let port = number.to_string();
    let common = [
        "-p", provider, "-e", endpoint, "-S", "64", "-I", "200", "-c",
    ];
    let listen = [&common[..], &["-B", &port]].concat();
    let mut server = link.start(End::Right, "fi_pingpong", &listen)?;
    link.hosts()
        .right
        .await_listener(&mut server, Protocol::Tcp, number, LIMIT)?;
    let address = link.hosts().right.v4().to_string();
    let connect = [&common[..], &["-P", &port, &address]].concat();
    let client = link.start(End::Left, "fi_pingpong", &connect)?;
    let client = client.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    let text = client.text();
    ensure(text.lines().any(|line| line.starts_with("64 ")), || {
        client.describe()
    })
}
