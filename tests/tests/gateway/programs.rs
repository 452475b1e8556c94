//! Real programs behind a gateway.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::job::Job;
use sluice_tests::programs::load::check_wrk;
use sluice_tests::programs::nginx::Nginx;
use sluice_tests::programs::redis::Redis;
use sluice_tests::programs::{files, require};
use sluice_tests::stream::{self, SERVERS};
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::lab::{At, Lab, PORT, client_address, outside};

/// Clients at one time.
const CLIENTS: usize = 1000;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for family in [4, 6] {
        for kind in SERVERS {
            trials.push(trial(format!("stream/{kind}/ipv{family}"), move || {
                records(kind, family)
            }));
        }
    }
    for workers in [1, 4] {
        trials.push(trial(format!("nginx/{workers}-workers"), move || {
            nginx(workers)
        }));
    }
    trials.push(trial("redis", redis));
    trials.push(trial("exec/clean-environment", clean_environment));
    trials
}

/// A program that gets the listener by exec and no environment, as nginx does when its binary is upgraded, sees the
/// clients, from the first one on.
fn clean_environment() -> Verdict {
    let lab = Lab::new()?;
    let server = lab.serve_who_again(At::NodeA, "0.0.0.0", PORT)?;
    for _ in 0..3 {
        let mut met = lab.meet(4, PORT)?;
        let client = client_address(4);
        ensure(met.peer.ip() == client, || {
            format!("it sees {}, and not {client}", met.peer)
        })?;
        met.echo(b"nothing before it")?;
    }
    let _ = server.stop(LIMIT)?;
    Ok(())
}

/// A server on a node, which listens at an address of its own, and a client outside.
fn records(kind: &'static str, family: u8) -> Verdict {
    let lab = Lab::new()?;
    let binary = stream::compile_plain(lab.fleet.dir())?;
    let run = || {
        let mut server = lab.published(At::NodeA, "gw", &binary);
        stream::meet_at(&mut server, lab.host(At::NodeA).address(family));
        let mut client = lab.outside(&binary);
        stream::meet_at(&mut client, outside(family));
        lab.check_records(kind, server, client, true)
    };
    if kind == "thread" {
        return lab.fleet.run_until_ring_bytes(run);
    }
    run()
}

fn start_nginx(lab: &Lab, program: &Path, workers: u32) -> Verdict<Job> {
    let nginx = Nginx {
        workers,
        listen: vec![PORT.to_string(), format!("[::]:{PORT} ipv6only=on")],
        requests_per_connection: 100_000,
        has_log: true,
    };
    let arguments = nginx.prepare(lab.fleet.dir())?;
    files::make(&lab.path("www/large"), 3_000_000)?;
    fs::write(lab.path("www/small"), "small and known")?;
    let mut command = lab.published(At::NodeA, "gw", program);
    command.args(arguments);
    let mut job = lab.fleet.start_program(command, "nginx")?;
    job.await_ready(LIMIT, "an open port", || lab.is_open(PORT).unwrap_or(false))?;
    Ok(job)
}

/// Files arrive whole, the access log has the clients, and many clients are served.
fn nginx(workers: u32) -> Verdict {
    let (nginx, curl, wrk) = (require("nginx")?, require("curl")?, require("wrk")?);
    let lab = Lab::new()?;
    let server = start_nginx(&lab, &nginx, workers)?;
    let mut expected = Vec::new();
    for (family, base) in [
        (4, format!("http://{}:{PORT}", outside(4))),
        (6, format!("http://[{}]:{PORT}", outside(6))),
    ] {
        for (name, times) in [("small", 10), ("large", 3)] {
            let got = lab.path(&format!("got-{name}"));
            let mut command = lab.outside(&curl);
            command.arg("-sSfg");
            for _ in 0..times {
                command.arg("-o").arg(&got).arg(format!("{base}/{name}"));
            }
            lab.fleet.run_program(command, "curl")?;
            files::check_same(&lab.path("www").join(name), &got)?;
            let client = lab.host(At::Client).address(family);
            expected.push((
                format!("{client} {}:{PORT} 200 /{name}\n", outside(family)),
                times,
            ));
        }
    }
    let log = fs::read_to_string(lab.path("access"))?;
    for (line, times) in expected {
        let found = log.matches(&line).count();
        ensure(found == times, || {
            format!("{found} times {line:?} in\n{log}")
        })?;
    }
    let mut command = lab.outside(&wrk);
    command
        .args(["-t", "2", "-d", "4", "--timeout", "60"])
        .args(["-c", &CLIENTS.to_string()])
        .arg(format!("http://{}:{PORT}/small", outside(4)));
    let served = lab.fleet.start_program(command, "wrk")?.finish(LIMIT)?;
    check_wrk(&served.success()?).map_err(|problem| problem.with(|| lab.describe()))?;
    let _ = server.stop(LIMIT)?;
    lab.fleet.require_ring_bytes()
}

fn redis() -> Verdict {
    let redis = Redis::find()?;
    let lab = Lab::new()?;
    let command = lab.published(At::NodeA, "gw", &redis.server);
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let server = redis.serve(command, any, lab.fleet.dir(), LIMIT)?;
    lab.await_open(PORT)?;
    let at = SocketAddr::new(outside(4), PORT);
    let client = |program: &Path| lab.outside(program);
    redis.exercise(client, at, client_address(4), lab.fleet.dir(), LIMIT)?;
    let _ = server.stop(LIMIT)?;
    lab.fleet.require_ring_bytes()
}
