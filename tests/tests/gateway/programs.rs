//! Real programs behind a gateway.

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use sluice_tests::apps::{self, BUILDS};
use sluice_tests::job::{Job, find_program};
use sluice_tests::stream;
use sluice_tests::suite::{Verdict, ensure, skip, trial};

use crate::lab::{At, LIMIT, Lab, PORT, await_line, on_client, outside};

const CONNECTIONS: usize = 8;
const RECORDS: u32 = 2000;
/// Clients at one time.
const CROWD: usize = 1000;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for family in [4, 6] {
        for kind in ["thread", "fork", "prefork"] {
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
    trials
}

/// Checked records of random lengths both ways, in many connections at once.
fn records(kind: &str, family: u8) -> Verdict {
    let mut lab = Lab::new()?;
    let source = apps::apps_dir().join("stream.c");
    let binary = apps::compile(&source, BUILDS[0], &lab.path(""))?;
    let mut command = lab.published(At::NodeA, "gw", &binary);
    let node = lab.host(At::NodeA).address(family).to_string();
    command
        .args(["server", kind, &CONNECTIONS.to_string()])
        .env("APP_FAMILY", family.to_string())
        .env("APP_HOST", node);
    let mut server = lab.start(command, "server")?;
    let port = stream::await_port(&mut server, LIMIT)?;
    let mut command = on_client(&lab, &binary);
    command
        .args(["client", &port.to_string()])
        .args([CONNECTIONS.to_string(), RECORDS.to_string()])
        .env("APP_FAMILY", family.to_string())
        .env("APP_HOST", outside(family).to_string());
    let client = lab.start(command, "client")?;
    let client = client.finish(LIMIT)?;
    if !client.status.success() {
        println!("{}", lab.describe());
    }
    stream::check_complete(&client.success()?, CONNECTIONS, RECORDS)?;
    stream::check_complete(&server.finish(LIMIT)?.success()?, CONNECTIONS, RECORDS)?;
    if kind == "thread" {
        lab.require_ring_bytes()?;
    }
    Ok(())
}

fn programs<const N: usize>(names: [&str; N]) -> Verdict<[PathBuf; N]> {
    let mut found = Vec::new();
    for name in names {
        match find_program(name) {
            Some(path) => found.push(path),
            None => return skip(format!("{name} is not installed")),
        }
    }
    match found.try_into() {
        Ok(found) => Ok(found),
        Err(_) => skip("a program is not installed"),
    }
}

fn start_nginx(lab: &mut Lab, program: &Path, workers: u32) -> Verdict<Job> {
    let dir = lab.path("nginx");
    fs::create_dir_all(dir.join("www"))?;
    let at = dir.display();
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| ((n * 31) >> 3) as u8).collect();
    fs::write(dir.join("www/large"), large)?;
    fs::write(dir.join("www/small"), "small and known")?;
    let config = format!(
        "daemon off; user root; worker_processes {workers}; worker_rlimit_nofile 4096;\n\
         pid {at}/pid; error_log {at}/error;\n\
         events {{ worker_connections 2048; }}\n\
         http {{ log_format it '$remote_addr $server_addr:$server_port $status $uri';\n\
           access_log {at}/access it; sendfile on; tcp_nopush on; keepalive_requests 100000;\n\
           client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f;\n\
           uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
           server {{ listen {PORT}; listen [::]:{PORT} ipv6only=on; root {at}/www; }} }}\n"
    );
    fs::write(dir.join("conf"), config)?;
    let mut command = lab.published(At::NodeA, "gw", program);
    command.arg("-c").arg(dir.join("conf")).arg("-p").arg(&dir);
    let mut job = lab.start(command, "nginx")?;
    job.await_ready(LIMIT, "an open port", || lab.is_open(PORT).unwrap_or(false))?;
    Ok(job)
}

/// Files arrive whole, the access log has the clients, and a crowd is served.
fn nginx(workers: u32) -> Verdict {
    let [nginx, curl, wrk] = programs(["nginx", "curl", "wrk"])?;
    let mut lab = Lab::new()?;
    let server = start_nginx(&mut lab, &nginx, workers)?;
    let mut expected = Vec::new();
    for (family, base) in [
        (4, format!("http://{}:{PORT}", outside(4))),
        (6, format!("http://[{}]:{PORT}", outside(6))),
    ] {
        for (name, times) in [("small", 10), ("large", 3)] {
            let got = lab.path(&format!("got-{name}"));
            let mut command = on_client(&lab, &curl);
            command.arg("-sSfg");
            for _ in 0..times {
                command.arg("-o").arg(&got).arg(format!("{base}/{name}"));
            }
            lab.start(command, "curl")?.finish(LIMIT)?.success()?;
            let sent = fs::read(lab.path("nginx/www").join(name))?;
            ensure(fs::read(&got)? == sent, || {
                format!("{name} is another file")
            })?;
            let client = lab.host(At::Client).address(family);
            expected.push((
                format!("{client} {}:{PORT} 200 /{name}\n", outside(family)),
                times,
            ));
        }
    }
    let log = fs::read_to_string(lab.path("nginx/access"))?;
    for (line, times) in expected {
        let found = log.matches(&line).count();
        ensure(found == times, || {
            format!("{found} times {line:?} in\n{log}")
        })?;
    }
    let mut command = on_client(&lab, &wrk);
    command
        .args(["-t", "2", "-d", "4", "--timeout", "60"])
        .args(["-c", &CROWD.to_string()])
        .arg(format!("http://{}:{PORT}/small", outside(4)));
    let crowd = lab.start(command, "wrk")?.finish(LIMIT)?.success()?;
    let text = crowd.text();
    let is_clean = !text.contains("Socket errors") && !text.contains("Non-2xx");
    ensure(is_clean && text.contains("requests in"), || {
        format!("{}\n{}", crowd.describe(), lab.describe())
    })?;
    let _ = server.stop(LIMIT)?;
    lab.require_ring_bytes()
}

fn redis() -> Verdict {
    let [server, benchmark, cli] = programs(["redis-server", "redis-benchmark", "redis-cli"])?;
    let mut lab = Lab::new()?;
    let mut command = lab.published(At::NodeA, "gw", &server);
    command.args(["--port", &PORT.to_string(), "--bind", "0.0.0.0"]);
    command.args(["--save", "", "--protected-mode", "no"]);
    let mut job = lab.start(command, "redis")?;
    await_line(&mut job, "Ready to accept")?;
    let (host, port) = (outside(4).to_string(), PORT.to_string());
    let at = ["-h", &host, "-p", &port];
    let mut command = on_client(&lab, &benchmark);
    command.args(at).args(["-t", "set,get,lpush,lrange_100"]);
    command.args(["-n", "4000", "-c", "10", "-d", "2048", "-q"]);
    lab.start(command, "benchmark")?.finish(LIMIT)?.success()?;
    let mut ask = |words: &[&str]| -> Verdict<String> {
        let mut command = on_client(&lab, &cli);
        command.args(at).args(words);
        Ok(lab.start(command, "cli")?.finish(LIMIT)?.success()?.text())
    };
    // What one client stores another one reads.
    let value = "0123456789abcdef".repeat(1 << 12);
    ask(&["set", "large", &value])?;
    let got = ask(&["get", "large"])?;
    ensure(got.trim() == value, || "another value came back".to_owned())?;
    let clients = ask(&["client", "list"])?;
    let client = format!(" addr={}:", lab.host(At::Client).v4());
    ensure(clients.contains(&client), || clients)?;
    let _ = job.stop(LIMIT)?;
    lab.require_ring_bytes()
}
