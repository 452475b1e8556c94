//! One echo protocol in Go (static), Python, Node and Java, every one with every other.

use libtest_mimic::Trial;
use sluice_tests::apps::{Linked, apps_dir, compile_go};
use sluice_tests::job::Job;
use sluice_tests::lab::Mode;
use sluice_tests::programs::{require, text};
use sluice_tests::suite::{Verdict, ensure, fail, trial, until};

use crate::tools::{LIMIT, Stage};

/// FNV-1a over the 2,000 messages, as all four programs print it.
const SUM: &str = "sum 686cd60e312b4da5";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Go,
    Java,
    Node,
    Python,
}

pub fn trials() -> Vec<Trial> {
    use Language::{Go, Java, Node, Python};
    let all = [Go, Java, Node, Python];
    let pairs = all
        .into_iter()
        .flat_map(|server| all.into_iter().map(move |client| (server, client)));
    let mut trials: Vec<Trial> = pairs
        .map(|(server, client)| {
            let name = format!("echo/{server:?}-server-{client:?}-client").to_lowercase();
            trial(name, move || until(|| echo(server, client)))
        })
        .collect();
    trials.push(trial(
        "echo/server-outlives-clients",
        server_outlives_clients,
    ));
    trials
}

/// Program and first arguments of the language's version.
fn program(stage: &Stage, language: Language) -> Verdict<(String, Vec<String>)> {
    let script = |name: &str| text(apps_dir().join("scripts").join(name));
    Ok(match language {
        Language::Go => (
            text(compile_go("echo.go", Linked::Statically, stage.lab.path())?),
            vec![],
        ),
        Language::Java => (text(require("java")?), vec![script("Echo.java")]),
        Language::Node => (text(require("node")?), vec![script("echo.js")]),
        Language::Python => ("/usr/bin/python3".to_string(), vec![script("echo.py")]),
    })
}

/// Starts the echo server and reads its port from what it prints.
fn start_server(stage: &mut Stage, server: Language) -> Verdict<(Job, u16)> {
    let (program_path, mut args) = program(stage, server)?;
    args.push("server".to_string());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut server_job = stage.start(Mode::Accelerated, &program_path, &args)?;
    let mut port = None;
    let mut output = String::new();
    while port.is_none() {
        let before = output.len();
        let label = format!("1-{}.stdout", program_path.replace('/', "_"));
        let path = stage.path(&label);
        server_job.await_ready(LIMIT, "port", || {
            output = std::fs::read_to_string(&path).unwrap_or_default();
            output.len() > before
        })?;
        port = output
            .split_once('\n')
            .and_then(|(line, _)| line.strip_prefix("port ")?.parse::<u16>().ok());
    }
    match port {
        Some(port) => Ok((server_job, port)),
        None => fail("no port"),
    }
}

fn run_client(stage: &mut Stage, client: Language, port: u16) -> Verdict {
    let (program_path, mut args) = program(stage, client)?;
    args.extend(["client".to_string(), port.to_string()]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = stage.run(Mode::Accelerated, &program_path, &args)?;
    ensure(outcome.text().trim() == SUM, || outcome.describe())
}

fn echo(server: Language, client: Language) -> Verdict<Verdict> {
    let mut stage = Stage::new()?;
    let (server_job, port) = start_server(&mut stage, server)?;
    run_client(&mut stage, client, port)?;
    let has_lanes = if server != Language::Go && client != Language::Go {
        stage.lab.require_lanes()
    } else {
        Ok(())
    };
    server_job.stop(LIMIT)?;
    Ok(has_lanes)
}

/// Memory shared with clients that have ended is given back, or a server would fill with it.
fn server_outlives_clients() -> Verdict {
    const CLIENTS: usize = 8;
    /// A client's chunk and parking table, of which the last ones may not have been given back yet.
    const SLACK: usize = 4;
    let mut stage = Stage::new()?;
    let (server_job, port) = start_server(&mut stage, Language::Python)?;
    let maps = format!("/proc/{}/maps", server_job.id());
    let shared = || -> Verdict<usize> {
        let text = std::fs::read_to_string(&maps)?;
        Ok(text.lines().filter(|l| l.contains("sluice-")).count())
    };
    run_client(&mut stage, Language::Python, port)?;
    let first = shared()?;
    for _ in 1..CLIENTS {
        until(|| {
            stage.lab.reset_totals()?;
            run_client(&mut stage, Language::Python, port)?;
            Ok(stage.lab.require_lanes())
        })?;
    }
    let mut last = shared()?;
    for _ in 0..CLIENTS {
        if last <= first + SLACK {
            break;
        }
        // A daemon without a processor gives back later; a leak would grow with each client.
        run_client(&mut stage, Language::Python, port)?;
        last = shared()?;
    }
    server_job.stop(LIMIT)?;
    ensure(last <= first + SLACK, || {
        format!("{first} shared mappings after one client, {last} after {CLIENTS}")
    })
}
