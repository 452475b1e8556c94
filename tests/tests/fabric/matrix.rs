//! The suite `matrix` between two hosts: byte-exact streams in every combination of who is
//! accelerated, device and version of IP, kind of server, and who is killed in mid-transfer.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process_group};
use sluice_tests::job::Job;
use sluice_tests::stream;
use sluice_tests::suite::{Verdict, fail, trial};

use crate::hosts::{LIMIT, Side, Two, Way};
use crate::programs::WAYS;

pub const CONNECTIONS: usize = 4;
pub const RECORDS: u32 = 3000;

/// The first is in the usual set.
const SERVERS: [&str; 3] = ["thread", "fork", "prefork"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    Nobody,
    Client,
    Server,
}

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
    for way in WAYS {
        for (accelerated, who) in [
            ([true, true], "both"),
            ([true, false], "client"),
            ([false, true], "server"),
        ] {
            for server in SERVERS {
                for kill in [Kill::Nobody, Kill::Client, Kill::Server] {
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

/// Each kind once: everybody on both devices, one way of ending, one of being half accelerated.
pub fn is_usual(name: &str) -> bool {
    const ROWS: [&str; 7] = [
        "stream/both/roce-udp/ipv4/thread/kill-nobody",
        "stream/both/roce/ipv6/prefork/kill-nobody",
        "stream/both/roce/ipv6/fork/kill-nobody",
        "stream/both/roce-udp/ipv4/thread/kill-client",
        "stream/both/roce/ipv6/thread/kill-server",
        "stream/client/roce-udp/ipv4/thread/kill-nobody",
        "stream/server/roce-udp/ipv4/prefork/kill-nobody",
    ];
    ROWS.contains(&name)
}

/// Both ends of a transfer; `records` 0: until somebody ends it.
pub fn flow(two: &Two, kind: &str, accelerated: [bool; 2], records: u32) -> Verdict<[Job; 2]> {
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
        &records.to_string(),
    ]);
    Ok([two.start_program(command, "client")?, server])
}

/// A transfer from the first to the last byte.
pub fn complete(two: &Two, kind: &str, accelerated: [bool; 2]) -> Verdict {
    for end in flow(two, kind, accelerated, RECORDS)? {
        stream::check_complete(&end.finish(LIMIT)?.success()?, CONNECTIONS, RECORDS)?;
    }
    Ok(())
}

impl Case {
    fn check(self) -> Verdict {
        let two = Two::new(self.way)?;
        if self.kill == Kill::Nobody {
            complete(&two, self.server, self.accelerated)?;
            // A server's children end by themselves and count for nobody who waits for them.
            if self.accelerated == [true, true] && self.server == "thread" {
                two.require_ring_bytes()?;
            }
            return Ok(());
        }
        let [client, server] = flow(&two, self.server, self.accelerated, 0)?;
        // Any moment of the transfer will do.
        std::thread::sleep(Duration::from_millis(500));
        let (victim, survivor) = match self.kill {
            Kill::Client => (client, server),
            _ => (server, client),
        };
        let Some(group) = Pid::from_raw(victim.id().try_into().unwrap_or(0)) else {
            return fail("the victim has no process id");
        };
        kill_process_group(group, Signal::KILL).map_err(std::io::Error::from)?;
        stream::check_cut(&survivor.finish(LIMIT)?.success()?, CONNECTIONS)
    }
}
