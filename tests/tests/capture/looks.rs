//! Connections that are captured: every byte, and the addresses that programs see.

use std::net::SocketAddr;
use std::path::Path;

use libtest_mimic::Trial;
use serde_json::Value;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::programs::redis::Redis;
use sluice_tests::programs::require;
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::hosts::{Counts, Two};

const CONNECTIONS: usize = 4;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for family in [4, 6] {
        let name = |what: &str| format!("{what}/ipv{family}");
        trials.push(trial(name("go"), move || go(family)));
        trials.push(trial(name("c"), move || c(family)));
    }
    trials.push(trial("slow_reader", || slow_reader(4)));
    trials.push(trial("redis", redis));
    trials.push(trial("choices", choices));
    trials.push(trial("server_outside_cgroup", server_outside_cgroup));
    trials.push(trial("programs_by_name", programs_by_name));
    trials.push(trial("preloaded", preloaded));
    trials.push(trial("left_to_tcp", left_to_tcp));
    trials
}

/// The two addresses behind a word, of each line that begins with it.
fn addresses(text: &str, word: &str) -> Verdict<Vec<[SocketAddr; 2]>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(word));
    let parse = |line: &str| {
        let mut words = line.split_whitespace().map(str::parse);
        match (words.next(), words.next()) {
            (Some(Ok(peer)), Some(Ok(local))) => Ok([peer, local]),
            _ => fail(format!("no addresses in {line:?}")),
        }
    };
    lines.map(parse).collect()
}

/// Whether a connection of the daemon's programs is on a lane.
fn has_lane(status: &Value) -> bool {
    let processes = status["processes"].as_array();
    processes.into_iter().flatten().any(|process| {
        let connections = process["connections"].as_array();
        let mut connections = connections.into_iter().flatten();
        connections.any(|connection| connection["state"] == "lane")
    })
}

/// Static programs in Go: checked bytes by a lane, and the addresses of a direct connection.
fn go(family: u8) -> Verdict {
    let two = Two::new(family)?;
    let ends = two.ends()?;
    let before = [two.counts(Side::Left)?, two.counts(Side::Right)?];
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    // While this one is open, one can see what carries it.
    let mut open = two.start_rounds(&ends, &to)?;
    open.await_text("round 50", LIMIT)?;
    for side in SIDES {
        let mut status = Value::Null;
        open.await_ready(LIMIT, "lane", || {
            status = two.fleet.status(side).unwrap_or_default();
            has_lane(&status)
        })
        .map_err(|problem| problem.with(|| format!("{status:#}\n{}", two.fleet.describe())))?;
    }
    let command = two.program(Side::Left, &ends, &["client", &to, "5000000"]);
    let said = two.fleet.run_program(command, "client")?;
    ensure(said.contains("checked 5000000"), || said.clone())?;

    let accepted = addresses(&server.stdout_so_far(), "accepted ")?;
    let mut connected = addresses(&open.stdout_so_far(), "connected ")?;
    connected.extend(addresses(&said, "connected ")?);
    ensure(connected.len() == 2 && accepted.len() == 2, || {
        format!("{connected:?} {accepted:?}")
    })?;
    let listening: SocketAddr = to.parse().or_else(|_| fail(to.clone()))?;
    for ([far, own], [client, local]) in connected.into_iter().zip(accepted) {
        let is_true = far == listening
            && local == listening
            && own.ip() == two.address(Side::Left)
            && client == own;
        ensure(is_true, || {
            format!("the client sees {far} from {own}, the server {client} at {local}")
        })?;
    }
    let two_more = |now: u64, before: u64| now >= before + 2;
    two.await_counts(Side::Left, "captured", |now| {
        two_more(now.captured, before[0].captured) && now.direct == before[0].direct
    })?;
    two.await_counts(Side::Right, "served", |now| {
        two_more(now.served, before[1].served) && now.refused == before[1].refused
    })?;
    open.stop(LIMIT)?;
    server.stop(LIMIT)?;
    two.await_counts(Side::Left, "ended", |now| now.open == 0)?;
    Ok(())
}

/// Static programs in C, with records in both directions at once.
fn c(family: u8) -> Verdict {
    let two = Two::new(family)?;
    let before = two.counts(Side::Left)?;
    two.start_stream(CONNECTIONS, 2000)?.check_complete(LIMIT)?;
    two.await_counts(Side::Left, "captured", |now| {
        now.captured == before.captured + CONNECTIONS as u64 && now.direct == before.direct
    })?;
    Ok(())
}

/// A reader that sleeps: nothing is lost, and the relay does not keep what it does not take.
fn slow_reader(family: u8) -> Verdict {
    let two = Two::new(family)?;
    let ends = two.ends()?;
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    let arguments = ["client", &to, "100000000", "1500"];
    let command = two.program(Side::Left, &ends, &arguments);
    two.fleet.run_program(command, "client")?;
    for side in SIDES {
        let relay = two.relay(side)?.as_raw_nonzero();
        let status = std::fs::read_to_string(format!("/proc/{relay}/status"))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let Some(kib) = kib else {
            return fail(status);
        };
        // Of 100 MB that waited.
        ensure(kib < 32 * 1024, || format!("the relay has {kib} KiB"))?;
    }
    server.stop(LIMIT)?;
    Ok(())
}

/// Neither end under `sluice run`.
fn redis() -> Verdict {
    let redis = Redis::find()?;
    let two = Two::new(4)?;
    let before = two.counts(Side::Left)?;
    let port = two.fleet.host(Side::Right).free_port(Protocol::Tcp)?;
    let at = SocketAddr::new(two.address(Side::Right), port);
    let command = two.program(Side::Right, &redis.server, &[]);
    let server = redis.serve(command, at, two.fleet.dir(), LIMIT)?;
    let client = |program: &Path| two.program(Side::Left, program, &[]);
    let seen = two.address(Side::Left);
    redis.exercise(client, at, seen, two.fleet.dir(), LIMIT)?;
    server.stop(LIMIT)?;
    two.await_counts(Side::Left, "captured", |now| {
        now.captured > before.captured + 10 && now.direct == before.direct
    })?;
    Ok(())
}

/// Ports that are not captured, and such as are not served.
fn choices() -> Verdict {
    let two = Two::with_choice(4, ["", "serve_ports = \"10000-65535\""])?;
    let ends = two.ends()?;
    let before = two.counts(Side::Left)?;
    let at = SocketAddr::new(two.address(Side::Right), 4711).to_string();
    let command = two.program(Side::Right, &ends, &["server", &at]);
    let mut server = two.fleet.start_program(command, "server")?;
    let to = two.listening(&mut server)?;
    // Refused by the other host's relay, it goes its own way.
    two.run_client(&ends, &to, 100_000)?;
    two.await_counts(Side::Left, "direct", |now| now.direct == before.direct + 1)?;
    two.await_counts(Side::Right, "refused", |now| now.refused >= 1)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A server that would see its own host in the client's place is reached directly, and sees the client.
fn server_outside_cgroup() -> Verdict {
    let two = Two::new(4)?;
    let ends = two.ends()?;
    let before = two.counts(Side::Left)?;
    let any = SocketAddr::new(two.address(Side::Right), 0).to_string();
    let mut command = two.fleet.host(Side::Right).command(&ends);
    command.args(["server", &any]);
    let mut server = two.fleet.start_program(command, "server")?;
    let to = two.listening(&mut server)?;
    two.run_client(&ends, &to, 100_000)?;
    two.await_counts(Side::Left, "direct", |now| now.direct == before.direct + 1)?;
    two.await_counts(Side::Right, "refused", |now| now.refused >= 1)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A program under `sluice run` has lanes of its own: it is left alone as soon as it is known.
fn preloaded() -> Verdict {
    let python = require("python3")?;
    let two = Two::new(4)?;
    let ends = two.ends()?;
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    let script = "\
import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
for _ in range(50):
    with socket.create_connection((host, int(port))) as s:
        for i in range(20):
            s.sendall(b'x' * 100)
            while i and not s.recv(100): pass
        s.shutdown(socket.SHUT_WR)
        while s.recv(4096): pass
print('done')
";
    let python = python.to_string_lossy();
    // A daemon that gets no processor may come to know it when it has ended.
    const TRIES: u32 = 5;
    for last in 1..=TRIES {
        let before = two.counts(Side::Left)?;
        let command = two.accelerated(Side::Left, &[&python, "-c", script, &to]);
        let said = two.fleet.run_program(command, "client")?;
        ensure(said.contains("done"), || said.clone())?;
        // What comes now is captured, so all of the above are counted when this one is.
        two.run_client(&ends, &to, 1)?;
        let now = two.await_counts(Side::Left, "captured", |now| {
            now.captured > before.captured && now.open == 0
        })?;
        if now.captured - before.captured < 50 {
            break;
        }
        ensure(last < TRIES, || format!("{now:?}"))?;
    }
    server.stop(LIMIT)?;
    Ok(())
}

/// Programs that are not named are left alone.
fn programs_by_name() -> Verdict {
    let two = Two::with_choice(4, ["programs = [\"ends\"]", ""])?;
    let ends = two.ends()?;
    let other = two.fleet.dir().join("other");
    std::fs::copy(&ends, &other)?;
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    let before = two.counts(Side::Left)?;
    for program in [&other, &ends] {
        two.run_client(program, &to, 1000)?;
    }
    // The later one was, so the earlier one would have been counted.
    let now = two.await_counts(Side::Left, "captured", |now| now.captured > before.captured)?;
    ensure(now.captured == before.captured + 1, || format!("{now:?}"))?;
    server.stop(LIMIT)?;
    Ok(())
}

/// Without an RDMA adapter nothing is captured unless both hosts want it over any device: connections
/// go straight to their destination, and `sluice status` says why.
fn left_to_tcp() -> Verdict {
    for over in [
        ["adapter", "adapter"],
        ["any", "adapter"],
        ["adapter", "any"],
    ] {
        let two = Two::over(4, over, ["", ""])?;
        two.fleet.await_links()?;
        let ends = two.ends()?;
        let mut server = two.server(&ends, "server")?;
        let to = two.listening(&mut server)?;
        // What a relay would be asked for has been told by the time that this one has ended.
        for _ in 0..20 {
            two.run_client(&ends, &to, 1)?;
        }
        two.run_client(&ends, &to, 5_000_000)?;
        server.stop(LIMIT)?;
        for side in SIDES {
            let is_left = over[side as usize] == "adapter";
            let status = two.fleet.status(side)?;
            let why = status["fabric"]["left_to_tcp"].as_str();
            let says =
                why.is_some_and(|why| why.starts_with("[capture] leaves connections to TCP"));
            ensure(
                says == is_left
                    && two.relay(side).is_err() == is_left
                    && two.counts(side)? == Counts::default(),
                || format!("{over:?}, {side:?}: {status:#}\n{}", two.fleet.describe()),
            )?;
        }
    }
    Ok(())
}
