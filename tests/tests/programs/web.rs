//! nginx with workers, haproxy before it, python's http.server; curl, wrk and ab.

use std::fs;

use libtest_mimic::Trial;
use sluice_tests::job::Job;
use sluice_tests::lab::Mode;
use sluice_tests::programs::load::{check_ab, check_wrk};
use sluice_tests::programs::nginx::Nginx;
use sluice_tests::programs::{files, text};
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::tools::{LIMIT, Stage, port, write};

const SMALL: usize = 1000;
const MEDIUM: usize = 900_000;
const LARGE: usize = 50_000_000;

pub fn trials() -> Vec<Trial> {
    use Mode::{Accelerated, Plain};
    vec![
        trial("nginx/both", || nginx(Accelerated, Accelerated)),
        trial("nginx/client-only", || nginx(Plain, Accelerated)),
        trial("nginx/server-only", || nginx(Accelerated, Plain)),
        trial("nginx/clients-in-turn", clients_in_turn),
        trial("haproxy/before-nginx", || haproxy("")),
        trial("haproxy/splicing", || haproxy("option splice-response\n")),
        trial("http.server/curl", python_server),
    ]
}

fn start_nginx(stage: &mut Stage, mode: Mode, port: u16) -> Verdict<Job> {
    let nginx = Nginx {
        workers: 2,
        listen: vec![format!("127.0.0.1:{port}")],
        requests_per_connection: 1000,
        has_log: false,
    };
    let arguments = nginx.prepare(stage.lab.path())?;
    files::make(&stage.path("www/small"), SMALL)?;
    files::make(&stage.path("www/large"), LARGE)?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    stage.serve(mode, "nginx", &arguments, port)
}

/// Fetches a file several ways and compares it with the original.
fn fetch(stage: &mut Stage, mode: Mode, port: u16) -> Verdict {
    let base = format!("http://127.0.0.1:{port}");
    let (small, large) = (format!("{base}/small"), format!("{base}/large"));
    let (to_small, to_large) = (text(stage.path("got-small")), text(stage.path("got-large")));
    // Several transfers over one connection, small and large by turns.
    stage.run(
        mode,
        "curl",
        &[
            "-sSf",
            "-o",
            &to_small,
            &small,
            "-o",
            &to_large,
            &large,
            "-o",
            "again",
            &small,
            "-o",
            "again-large",
            &large,
        ],
    )?;
    files::check_same(&stage.path("www/small"), &stage.path("got-small"))?;
    files::check_same(&stage.path("www/large"), &stage.path("got-large"))?;
    files::check_same(&stage.path("www/large"), &stage.path("again-large"))?;
    stage.run(
        mode,
        "curl",
        &["-sSf", "-r", "1234567-7654321", "-o", "part", &large],
    )?;
    let (whole, part) = (
        fs::read(stage.path("www/large"))?,
        fs::read(stage.path("part"))?,
    );
    ensure(part == whole[1_234_567..=7_654_321], || {
        "a range of the file differs".to_string()
    })
}

/// Small answers, and then on the same connections one that fits a ring as a whole: its sender is
/// done, and sleeps, before anybody reads it.
fn fetch_behind_small(stage: &mut Stage, mode: Mode, port: u16) -> Verdict {
    files::make(&stage.path("www/medium"), MEDIUM)?;
    let url = |name| format!("http://127.0.0.1:{port}/{name}");
    let (small, medium) = (url("small"), url("medium"));
    for _ in 0..3 {
        let mut args = vec!["-sSf"];
        for _ in 0..100 {
            args.extend(["-o", "got-small", &small]);
        }
        args.extend(["-o", "got-medium", &medium]);
        stage.run(mode, "curl", &args)?;
        files::check_same(&stage.path("www/medium"), &stage.path("got-medium"))?;
    }
    Ok(())
}

fn generate_load(stage: &mut Stage, mode: Mode, port: u16) -> Verdict {
    let url = format!("http://127.0.0.1:{port}/small");
    // Answers of a server without a processor are late; wrk's own limit is two seconds.
    let arguments = ["-t", "2", "-c", "50", "-d", "2", "--timeout", "60s", &url];
    let outcome = stage.run(mode, "wrk", &arguments)?;
    check_wrk(&outcome)?;
    for keep_alive in [true, false] {
        let mut args = vec!["-q", "-n", "3000", "-c", "20"];
        if keep_alive {
            args.push("-k");
        }
        args.push(&url);
        let outcome = stage.run(mode, "ab", &args)?;
        check_ab(&outcome, 3000, SMALL)?;
    }
    Ok(())
}

fn nginx(server_mode: Mode, client_mode: Mode) -> Verdict {
    let mut stage = Stage::new()?;
    let port = port()?;
    let server = start_nginx(&mut stage, server_mode, port)?;
    fetch(&mut stage, client_mode, port)?;
    generate_load(&mut stage, client_mode, port)?;
    fetch(&mut stage, client_mode, port)?;
    server.stop(LIMIT)?.success()?;
    if server_mode == Mode::Accelerated && client_mode == Mode::Accelerated {
        stage.lab.require_lane_bytes(10_000_000)?;
    }
    Ok(())
}

/// Clients that come and go: the memory of one is mapped where that of another was.
fn clients_in_turn() -> Verdict {
    const MODE: Mode = Mode::Accelerated;
    let mut stage = Stage::new()?;
    let port = port()?;
    let server = start_nginx(&mut stage, MODE, port)?;
    let url = format!("http://127.0.0.1:{port}/small");
    for _ in 0..15 {
        let outcome = stage.run(MODE, "ab", &["-q", "-k", "-n", "3000", "-c", "20", &url])?;
        check_ab(&outcome, 3000, SMALL)?;
    }
    server.stop(LIMIT)?.success()?;
    stage.lab.require_lane_bytes(10_000_000)
}

/// `option`: a line of haproxy's defaults.
fn haproxy(option: &str) -> Verdict {
    const MODE: Mode = Mode::Accelerated;
    let mut stage = Stage::new()?;
    let (back, front) = (port()?, port()?);
    let nginx = start_nginx(&mut stage, MODE, back)?;
    let config = format!(
        "global\n  nbthread 2\n  maxconn 500\n\
         defaults\n  {option}  mode http\n  timeout connect 60s\n  timeout client 60s\n  timeout server 60s\n\
         listen web\n  bind 127.0.0.1:{front}\n  server one 127.0.0.1:{back}\n"
    );
    write(&stage.path("haproxy.cfg"), config)?;
    let config = text(stage.path("haproxy.cfg"));
    let proxy = stage.serve(MODE, "haproxy", &["-db", "-f", &config], front)?;
    fetch(&mut stage, MODE, front)?;
    generate_load(&mut stage, MODE, front)?;
    fetch_behind_small(&mut stage, MODE, front)?;
    // haproxy ends on SIGTERM with a status that stands for the signal.
    proxy.stop(LIMIT)?;
    nginx.stop(LIMIT)?.success()?;
    stage.lab.require_lane_bytes(10_000_000)
}

fn python_server() -> Verdict {
    const MODE: Mode = Mode::Accelerated;
    let mut stage = Stage::new()?;
    let port = port()?;
    files::make(&stage.path("file"), LARGE)?;
    let port_text = port.to_string();
    let args = ["-m", "http.server", "--bind", "127.0.0.1", &port_text];
    let server = stage.serve(MODE, "/usr/bin/python3", &args, port)?;
    let url = format!("http://127.0.0.1:{port}/file");
    for _ in 0..3 {
        stage.run(MODE, "curl", &["-sSf", "-o", "got", &url])?;
        files::check_same(&stage.path("file"), &stage.path("got"))?;
    }
    // http.server ends by SIGINT as from a terminal, and writes its statistics then.
    server.signal(rustix::process::Signal::INT)?;
    server.finish(LIMIT)?;
    stage.lab.require_lane_bytes(1_000_000)
}
