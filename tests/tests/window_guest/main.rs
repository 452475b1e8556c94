//! Sockets between a guest and the host that it runs on: direct lanes in the memory of QEMU's
//! `ivshmem-doorbell`, which `sluice window serve` serves (docs/windows.md, "Virtual machines"). Two kernels,
//! each with a `sluiced` of its own. Verbs between them, in a file behind an `ivshmem-plain`.

mod stage;
mod verbs;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::fleet::repeat_until;
use sluice_tests::programs::redis::Redis;
use sluice_tests::stream::{self, Ends, Kill, Transfer};
use sluice_tests::suite::{self, Verdict, trial};

use stage::{LIMIT, PLACES, Place};

const CONNECTIONS: usize = 3;
const RECORDS: u32 = 1500;
const PORT: u16 = 6399;

fn main() -> ExitCode {
    let mut trials: Vec<Trial> = Vec::new();
    for server in PLACES {
        for kill in stream::KILLS {
            let name = format!("stream/{server:?}-serves/kill-{kill:?}").to_lowercase();
            trials.push(trial(name, move || stream(server, kill)));
        }
        let name = format!("redis/{server:?}-serves").to_lowercase();
        trials.push(trial(name, move || redis(server)));
    }
    trials.extend(verbs::trials());
    // Behind the others: they have the guest that it ends.
    trials.push(trial("guest-killed", guest_killed));
    let conclusion = suite::run(trials, 1);
    stage::dismiss();
    conclusion.exit_code()
}

fn transfer(records: u32) -> Transfer {
    Transfer {
        server: "thread",
        connections: CONNECTIONS,
        records,
    }
}

/// Every byte is what it must be, whoever is killed, and what was lent comes back: the kernel of a host
/// knows nothing of who has the memory mapped under the other.
fn stream(server: Place, kill: Kill) -> Verdict {
    let stage = stage::borrow()?;
    let before = stage.lane_bytes()?;
    let run = || {
        let ends = stage.flow(server, transfer(kill.records(RECORDS)))?;
        ends.judge(kill, LIMIT)
    };
    if kill == Kill::Nobody {
        repeat_until(LIMIT, run, || stage.require_lane_bytes_since(before))?;
        stage.require_direct()?;
    } else {
        run()?;
    }
    stage.await_all_back()
}

fn redis(server: Place) -> Verdict {
    let redis = Redis::find()?;
    let stage = stage::borrow()?;
    let before = stage.lane_bytes()?;
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let at = SocketAddr::new(stage.address(server), PORT);
    let command = stage.program(server, &redis.server);
    let job = redis.serve(command, any, stage.dir(), LIMIT)?;
    let client = server.other();
    let start = |program: &std::path::Path| stage.program(client, program);
    redis.exercise(start, at, stage.address(client), stage.dir(), LIMIT)?;
    let _ = job.stop(LIMIT)?;
    stage.require_lane_bytes_since(before)?;
    stage.require_direct()?;
    stage.await_all_back()
}

/// The machine is switched off in the middle: what the host's program got is an exact prefix. Another one that
/// has the same name joins, and lanes are there again.
fn guest_killed() -> Verdict {
    let mut stage = stage::borrow()?;
    let Ends { client, server, .. } = stage.flow(Place::Host, transfer(0))?;
    stage.await_lanes(CONNECTIONS as u64)?;
    // Any moment of the transfer will do.
    std::thread::sleep(Duration::from_millis(300));
    stage.boot_again()?;
    // What it had said is lost with it, its end of each connection as well: nothing tells this host.
    let _ = client.signal(Signal::KILL);
    let _ = client.finish(LIMIT)?;
    let _ = server.signal(Signal::KILL);
    let _ = server.finish(LIMIT)?;
    let before = stage.lane_bytes()?;
    let run = || {
        let ends = stage.flow(Place::Guest, transfer(RECORDS))?;
        ends.check_complete(LIMIT)
    };
    repeat_until(LIMIT, run, || stage.require_lane_bytes_since(before))
}
