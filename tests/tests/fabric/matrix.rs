//! The suite `matrix` between two hosts: byte-exact streams in every combination of who is
//! accelerated, device and version of IP, kind of server, and who is killed in mid-transfer.

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::Side;
use sluice_tests::stream::{self, Ends, KILLS, Kill, SERVERS, Transfer};
use sluice_tests::suite::{Verdict, trial};

use crate::hosts::{FLUSHED, Two, Way};
use crate::programs::WAYS;

pub const CONNECTIONS: usize = 4;
pub const RECORDS: u32 = 3000;

#[derive(Clone, Copy, Debug)]
struct Case {
    way: Way,
    /// The client, the server.
    accelerated: [bool; 2],
    server: &'static str,
    kill: Kill,
}

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let flushed = Way {
        device: FLUSHED,
        ..WAYS[2]
    };
    for way in WAYS.into_iter().chain([flushed]) {
        for (accelerated, who) in [
            ([true, true], "both"),
            ([true, false], "client"),
            ([false, true], "server"),
        ] {
            for server in SERVERS {
                for kill in KILLS {
                    let case = Case {
                        way,
                        accelerated,
                        server,
                        kill,
                    };
                    let (device, family) = (way.device, way.family);
                    let name = format!("stream/{who}/{device}/ipv{family}/{server}/kill-{kill:?}");
                    trials.push(trial(name.to_lowercase(), move || case.check()));
                }
            }
        }
    }
    trials
}

/// Each kind once: everybody on all devices, one way of ending, one of being half accelerated.
pub fn is_usual(name: &str) -> bool {
    const ROWS: [&str; 10] = [
        "stream/both/roce-udp/ipv4/thread/kill-nobody",
        "stream/both/roce/ipv6/prefork/kill-nobody",
        "stream/both/roce/ipv6/fork/kill-nobody",
        "stream/both/roce-udp/ipv4/thread/kill-client",
        "stream/both/roce/ipv6/thread/kill-server",
        "stream/client/roce-udp/ipv4/thread/kill-nobody",
        "stream/server/roce-udp/ipv4/prefork/kill-nobody",
        "stream/both/window/ipv4/thread/kill-nobody",
        "stream/both/window/ipv4/prefork/kill-client",
        "stream/both/window-flushed/ipv4/thread/kill-nobody",
    ];
    ROWS.contains(&name)
}

/// Both ends of a transfer; `records` 0: until somebody ends it.
pub fn flow(two: &Two, kind: &'static str, accelerated: [bool; 2], records: u32) -> Verdict<Ends> {
    let binary = stream::compile_plain(two.dir())?;
    let transfer = Transfer {
        server: kind,
        connections: CONNECTIONS,
        records,
    };
    let server = two.program(Side::Right, accelerated[1], &binary);
    let client = two.program(Side::Left, accelerated[0], &binary);
    transfer.start(server, client, two.dir(), LIMIT)
}

/// Transfers between accelerated ends, until one of them has used lanes.
pub fn complete_by_lanes(two: &Two) -> Verdict {
    two.run_until_ring_bytes(|| complete(two, "thread", [true; 2]))
}

/// A transfer from the first to the last byte.
pub fn complete(two: &Two, kind: &'static str, accelerated: [bool; 2]) -> Verdict {
    flow(two, kind, accelerated, RECORDS)?.check_complete(LIMIT)
}

impl Case {
    fn check(self) -> Verdict {
        let two = self.way.set_up()?;
        let records = self.kill.records(RECORDS);
        let run = || flow(&two, self.server, self.accelerated, records)?.judge(self.kill, LIMIT);
        // A server's children end by themselves and count for nobody who waits for them.
        if self.kill == Kill::Nobody && self.accelerated == [true, true] && self.server == "thread"
        {
            return two.run_until_ring_bytes(run);
        }
        run()
    }
}
