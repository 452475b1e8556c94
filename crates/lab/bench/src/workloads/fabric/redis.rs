//! redis between two hosts, and how that scales with clients.

use std::net::SocketAddrV4;

use super::capture::Capture;
use super::proxies::Proxies;
use super::{Cell, Options, Workload, variants};
use crate::error::{BenchError, Result};
use crate::figures::counted;
use crate::model::{Sample, Variant};
use crate::parse;
use crate::process::{Process, Ready};
use crate::session::Session;
use crate::session::hosts::{Hosts, Side};
use crate::words::{path_text, words};
use crate::workloads::redis as within_host;

pub const WORKLOAD: Workload = Workload {
    name: "redis",
    title: "redis-server and redis-benchmark on two hosts, values of 2,048 bytes",
    about: "A new server without persistence and new daemons for every run, filled with all keys \
            before anything is measured. A GET run with the same clients, whose result is dropped, \
            warms up and chooses the number of requests. 'Sluice' are programs under 'sluice run', \
            '[capture] by default' programs as they are, which the daemons leave to TCP because there is no RDMA adapter, \
            'Sluice, captured' such whose connections go through a relay on each host all the same, as they do with \
            'two haproxies' (configuration: bench/haproxy-tcp.cfg), one thread each.",
    programs: &["redis-server", "redis-benchmark"],
    compared_with: &["haproxy"],
    obstacle: None,
    cells,
};

const TESTS: [&str; 2] = ["set", "get"];
const CLIENTS: [u32; 7] = [1, 10, 30, 40, 50, 100, 500];
const CLIENTS_BRIEF: [u32; 3] = [1, 10, 50];

fn cells(options: &Options) -> Vec<Cell> {
    let standard: &[u32] = if options.brief {
        &CLIENTS_BRIEF
    } else {
        &CLIENTS
    };
    let clients = match &*options.redis_clients {
        [] => standard,
        chosen => chosen,
    };
    let mut variants = variants(options, &[]);
    variants.extend([
        Variant::CaptureByDefault,
        Variant::SluiceCaptured,
        Variant::TwoProxies,
    ]);
    let cell = |&clients: &u32| {
        let tests = TESTS.map(str::to_owned);
        Cell {
            title: format!("redis, {}", counted(clients, "client")),
            variants: variants.clone(),
            repetitions: options.repetitions,
            points: within_host::points(&tests, clients),
            run: Box::new(move |session, variant| measure(session, variant, clients)),
        }
    };
    clients.iter().map(cell).collect()
}

fn measure(session: &Session, variant: Variant, clients: u32) -> Result<Vec<Sample>> {
    measure_tests(session, variant, clients, &TESTS)
}

/// Starts a server, reached at an address by a Unix socket too in that variant.
pub fn start_server(
    hosts: &Hosts<'_>,
    variant: Variant,
) -> Result<(Process, SocketAddrV4, Option<String>)> {
    let session = hosts.session();
    let at = SocketAddrV4::new(hosts.address(), session.free_port()?);
    let mut server = words!["redis-server", "--bind", at.ip(), "--port", at.port()];
    server.extend(words!["--protected-mode", "no", "--save", ""]);
    server.extend(words![
        "--appendonly",
        "no",
        "--dir",
        path_text(&session.folder("redis")?)
    ]);
    let unix = (variant == Variant::Unix).then(|| path_text(&hosts.folder().join("redis.sock")));
    if let Some(path) = &unix {
        server.extend(words!["--unixsocket", path]);
    }
    let mut server = hosts.server(&server, &Ready::Listens(at.port()))?;
    if let Some(path) = &unix {
        server.wait_ready(&Ready::Unix(path.into()))?;
    }
    Ok((server, at, unix))
}

/// The command line of redis-benchmark.
pub fn client_words(
    at: SocketAddrV4,
    unix: Option<&str>,
    (test, clients, requests): (&str, u32, f64),
) -> Vec<String> {
    let mut words = words!["redis-benchmark"];
    match unix {
        Some(path) => words.extend(words!["-s", path]),
        None => words.extend(words!["-h", at.ip(), "-p", at.port()]),
    }
    words.extend(within_host::benchmark_words(test, clients, requests));
    words
}

/// Starts a server and runs these tests against it, one after the other. LPOP takes what LPUSH of the same
/// run has put.
pub fn measure_tests(
    session: &Session,
    variant: Variant,
    clients: u32,
    tests: &[&str],
) -> Result<Vec<Sample>> {
    let hosts = Hosts::new(session, variant)?;
    let capture = Capture::begin(&hosts, variant)?;
    let (server, at, unix) = start_server(&hosts, variant)?;
    let proxies = (variant == Variant::TwoProxies)
        .then(|| Proxies::start(&hosts, at))
        .transpose()?;
    let mut servers = vec![&server];
    servers.extend(proxies.iter().flat_map(Proxies::processes));
    let at = proxies.as_ref().map_or(at, Proxies::address);
    let near = hosts.host(Side::Client);
    near.inside(|| Ok(within_host::fill(at)))??;
    if tests.contains(&within_host::HGET) {
        near.inside(|| Ok(within_host::fill_hash(at)))??;
    }
    let client =
        |test: &str, requests: f64| client_words(at, unix.as_deref(), (test, clients, requests));
    let pilot = client("get", within_host::pilot_requests(clients));
    let pilot = hosts.client(&pilot, session.seconds)?;
    let pilot = pilot.read(|text| parse::redis(text, "GET"))?;
    let requests = within_host::requests_for(pilot.requests_per_s, session.seconds);
    let misses_before = near.inside(|| Ok(within_host::get_misses(at)))??;
    let mut samples = Vec::with_capacity(tests.len());
    for &test in tests {
        if test == "lpop" {
            let length = near.inside(|| Ok(within_host::list_length(at)))??;
            if (length as f64) < requests.floor() {
                return Err(BenchError::Failed(within_host::KEYS_MISSING.to_owned()));
            }
        }
        let (output, sample) = hosts.measured(&servers, &client(test, requests))?;
        samples.push(within_host::sample(&output, sample, test, requests)?);
    }
    if near.inside(|| Ok(within_host::get_misses(at)))?? != misses_before {
        return Err(BenchError::Failed(within_host::KEYS_MISSING.to_owned()));
    }
    // Those of the pilot and of each test.
    capture.ensure(&hosts, u64::from(clients) * (1 + tests.len() as u64))?;
    Ok(samples)
}
