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
use sluice_tests::suite::{self, Verdict, ensure, trial};

use stage::{LIMIT, PLACES, Place, Stage};

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
    trials.push(trial("memory-limit/cgroup2", memory_limit));
    trials.push(trial("two-guests", two_guests));
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
    if kill == Kill::Nobody {
        complete(&stage, server, Place::Host)?;
        return stage.await_all_back();
    }
    let ends = stage.flow(server, transfer(kill.records(RECORDS)))?;
    ends.judge(kill, LIMIT)?;
    stage.await_all_back()
}

/// Every byte comes, and bytes that programs of `counted` have had went by direct lanes.
fn complete(stage: &Stage, server: Place, counted: Place) -> Verdict {
    let (before, ways) = (stage.lane_bytes(counted)?, stage.ways(counted)?);
    let run = || {
        let ends = stage.flow(server, transfer(RECORDS))?;
        ends.check_complete(LIMIT)
    };
    let went_by_a_lane = || stage.require_lane_bytes_since(counted, before);
    repeat_until(LIMIT, run, went_by_a_lane)?;
    stage.require_direct_since(counted, ways)
}

fn redis(server: Place) -> Verdict {
    let stage = stage::borrow()?;
    redis_at(&stage, server, Place::Host)?;
    stage.await_all_back()
}

fn redis_at(stage: &Stage, server: Place, counted: Place) -> Verdict {
    let redis = Redis::find()?;
    let (before, ways) = (stage.lane_bytes(counted)?, stage.ways(counted)?);
    let client = server.other();
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let at = SocketAddr::new(stage.address_seen(server, client), PORT);
    let seen = stage.address_seen(client, server);
    // One run may be over before the first lane, where a sluiced gets no processor.
    let run = || {
        let command = stage.program(server, &redis.server);
        let job = redis.serve(command, any, stage.dir(), LIMIT)?;
        let start = |program: &std::path::Path| stage.program(client, program);
        redis.exercise(start, at, seen, stage.dir(), LIMIT)?;
        job.stop(LIMIT).map(drop)
    };
    let went_by_a_lane = || stage.require_lane_bytes_since(counted, before);
    repeat_until(LIMIT, run, went_by_a_lane)?;
    stage.require_direct_since(counted, ways)
}

/// The kernel of this machine may count memory by control groups of version 1, or not at all; the guest's counts it by
/// those of version 2. Forty clients of the usual rings would take 80 MB.
fn memory_limit() -> Verdict {
    const SCRIPT: &str = r#"
        mkdir /run/groups
        mount -t cgroup2 none /run/groups
        echo +memory >/run/groups/cgroup.subtree_control
        mkdir /run/groups/tight
        echo 64M >/run/groups/tight/memory.max
        "$SLUICE" up >/dev/null
        ask() { redis-cli -p 6401 "$@"; }
        (
            echo 0 >/run/groups/tight/cgroup.procs
            exec "$SLUICE" run -- redis-server --port 6401 --save '' >/dev/null
        ) &
        until ask ping 2>/dev/null | grep -q PONG; do sleep 0.2; done
        ask eval "redis.call('set', 'key', string.rep('x', 200000))" 0 >/dev/null
        "$SLUICE" run -- redis-benchmark -p 6401 -c 40 -l -q get key >/dev/null &
        client=$!
        until "$SLUICE" status | grep "of lanes with smaller rings"; do
            kill -0 $client
            sleep 0.5
        done
        ask ping
        grep -w oom_kill /run/groups/tight/memory.events
        kill $client
        ask shutdown nosave
        "$SLUICE" down
    "#;
    let stage = stage::borrow()?;
    let said = stage.script(Place::Guest, SCRIPT)?;
    ensure(said.contains("PONG") && said.contains("oom_kill 0"), || {
        said.clone()
    })
}

/// Two guests of one host, each with a kernel of its own: sockets by direct lanes, and verbs.
fn two_guests() -> Verdict {
    let mut stage = stage::borrow()?;
    stage.boot_second()?;
    complete(&stage, Place::Second, Place::Second)?;
    redis_at(&stage, Place::Second, Place::Second)?;
    stage.await_all_back()?;
    verbs::both(&stage, "ib_send_bw", &["-n", "200"], Place::Second)?;
    verbs::both(&stage, "ib_atomic_lat", &["-n", "100"], Place::Second)
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
    complete(&stage, Place::Guest, Place::Host)
}
