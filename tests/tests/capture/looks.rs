//! Connections that are captured: every byte, and the addresses that programs see.

use std::net::SocketAddr;

use libtest_mimic::Trial;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::job::{Job, find_program};
use sluice_tests::stream;
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};

use crate::hosts::{LIMIT, Side, Two};

const CONNECTIONS: usize = 4;
const RECORDS: u32 = 2000;

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
    trials.push(trial("programs_by_name", programs_by_name));
    trials.push(trial("preloaded", preloaded));
    trials
}

/// The two addresses behind a word.
fn addresses(job: &Job, word: &str) -> Verdict<Vec<[SocketAddr; 2]>> {
    let text = job.stdout_so_far();
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

/// Static programs in Go: checked bytes by a lane, and the addresses of a direct connection.
fn go(family: u8) -> Verdict {
    let two = Two::new(family)?;
    let ends = two.ends()?;
    let before = [two.counts(Side::Left)?, two.counts(Side::Right)?];
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    // While this one is open, one can see what carries it.
    let command = two.program(Side::Left, &ends, &["client", &to, "1000000", "ping"]);
    let mut open = two.start_program(command, "open")?;
    let output = open.stdout_path().to_owned();
    open.await_ready(LIMIT, "rounds", || {
        std::fs::read_to_string(&output).is_ok_and(|text| text.contains("round 50"))
    })?;
    let on_lane = |status: &serde_json::Value| {
        let processes = status["processes"].as_array();
        processes.into_iter().flatten().any(|process| {
            let connections = process["connections"].as_array();
            let mut connections = connections.into_iter().flatten();
            connections.any(|connection| connection["state"] == "lane")
        })
    };
    for side in [Side::Left, Side::Right] {
        let status = two.status(side)?;
        ensure(on_lane(&status), || {
            format!("no lane: {status:#}\n{}", two.describe())
        })?;
    }
    let command = two.program(Side::Left, &ends, &["client", &to, "5000000"]);
    let client = two.start_program(command, "client")?;
    let output = client.stdout_path().to_owned();
    client.finish(LIMIT)?.success()?;
    let said = std::fs::read_to_string(output)?;
    ensure(said.contains("checked 5000000"), || said.clone())?;

    let accepted = addresses(&server, "accepted ")?;
    let mut connected = addresses(&open, "connected ")?;
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("connected "));
    let mut words = line
        .into_iter()
        .flat_map(str::split_whitespace)
        .map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(peer)), Some(Ok(local))) => connected.push([peer, local]),
        _ => return fail(said),
    }
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
    let binary = two.stream()?;
    let count = CONNECTIONS.to_string();
    let before = two.counts(Side::Left)?;
    let command = two.program(Side::Right, &binary, &["server", "thread", &count]);
    let mut server = two.start_program(command, "server")?;
    let port = stream::await_port(&mut server, LIMIT)?.to_string();
    let arguments = ["client", &port, &count, &RECORDS.to_string()];
    let client = two.start_program(two.program(Side::Left, &binary, &arguments), "client")?;
    stream::check_complete(&client.finish(LIMIT)?.success()?, CONNECTIONS, RECORDS)?;
    stream::check_complete(&server.finish(LIMIT)?.success()?, CONNECTIONS, RECORDS)?;
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
    let client = two.start_program(two.program(Side::Left, &ends, &arguments), "client")?;
    client.finish(LIMIT)?.success()?;
    for side in [Side::Left, Side::Right] {
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
    let programs = ["redis-server", "redis-benchmark", "redis-cli"].map(find_program);
    let [Some(server), Some(benchmark), Some(cli)] = programs else {
        return skip("redis is not installed");
    };
    let two = Two::new(4)?;
    let before = two.counts(Side::Left)?;
    let address = two.address(Side::Right).to_string();
    let port = two.host(Side::Right).free_port(Protocol::Tcp)?.to_string();
    let arguments = [
        "--bind",
        &address,
        "--port",
        &port,
        "--save",
        "",
        "--protected-mode",
        "no",
    ];
    let mut server = two.start_program(
        two.program(Side::Right, &server, &arguments),
        "redis-server",
    )?;
    let output = server.stdout_path().to_owned();
    server.await_ready(LIMIT, "redis", || {
        std::fs::read_to_string(&output).is_ok_and(|text| text.contains("Ready to accept"))
    })?;
    let at = ["-h", &address, "-p", &port];
    let measured = [
        "-t",
        "set,get,lrange_100",
        "-n",
        "2000",
        "-c",
        "10",
        "-d",
        "2048",
        "-q",
    ];
    let arguments = [&at[..], &measured].concat();
    two.start_program(two.program(Side::Left, &benchmark, &arguments), "benchmark")?
        .finish(LIMIT)?
        .success()?;
    // The server sees who its clients are.
    let arguments = [&at[..], &["client", "list"]].concat();
    let listed = two.start_program(two.program(Side::Left, &cli, &arguments), "list")?;
    let listed = listed.finish(LIMIT)?.success()?.text();
    let client = format!(" addr={}:", two.address(Side::Left));
    ensure(listed.contains(&client), || listed.clone())?;
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
    let mut server = two.start_program(command, "server")?;
    let to = two.listening(&mut server)?;
    // Refused by the other host's relay, it goes its own way.
    let command = two.program(Side::Left, &ends, &["client", &to, "100000"]);
    two.start_program(command, "client")?
        .finish(LIMIT)?
        .success()?;
    two.await_counts(Side::Left, "direct", |now| now.direct == before.direct + 1)?;
    two.await_counts(Side::Right, "refused", |now| now.refused >= 1)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A program under `sluice run` has lanes of its own: it is left alone as soon as it is known.
fn preloaded() -> Verdict {
    let Some(python) = find_program("python3") else {
        return skip("python3 is not installed");
    };
    let two = Two::new(4)?;
    let ends = two.ends()?;
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    let before = two.counts(Side::Left)?;
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
    let command = two.accelerated(Side::Left, &[&python, "-c", script, &to]);
    let client = two.start_program(command, "client")?;
    let said = client.finish(LIMIT)?.success()?.text();
    ensure(said.contains("done"), || said.clone())?;
    // What comes now is captured, so all of the above are counted when this one is.
    let command = two.program(Side::Left, &ends, &["client", &to, "1"]);
    two.start_program(command, "last")?
        .finish(LIMIT)?
        .success()?;
    let now = two.await_counts(Side::Left, "captured", |now| {
        now.captured > before.captured && now.open == 0
    })?;
    ensure(now.captured - before.captured < 50, || format!("{now:?}"))?;
    server.stop(LIMIT)?;
    Ok(())
}

/// Programs that are not named are left alone.
fn programs_by_name() -> Verdict {
    let two = Two::with_choice(4, ["programs = [\"ends\"]", ""])?;
    let ends = two.ends()?;
    let other = two.pair.path().join("other");
    std::fs::copy(&ends, &other)?;
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    let before = two.counts(Side::Left)?;
    for (program, label) in [(&other, "other"), (&ends, "named")] {
        let command = two.program(Side::Left, program, &["client", &to, "1000"]);
        two.start_program(command, label)?
            .finish(LIMIT)?
            .success()?;
    }
    // The later one was, so the earlier one would have been counted.
    let now = two.await_counts(Side::Left, "captured", |now| now.captured > before.captured)?;
    ensure(now.captured == before.captured + 1, || format!("{now:?}"))?;
    server.stop(LIMIT)?;
    Ok(())
}
