//! Verbs between two hosts by memory that they share: unmodified programs in two network namespaces,
//! whose queue pairs find each other by numbers over TCP, or by librdmacm over the window.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::hosts::{Host, Pair, Settings};
use sluice_tests::job::{Job, run};
use sluice_tests::lab::find_sluice;
use sluice_tests::suite::{self, Verdict, ensure, trial};
use sluice_tests::verbs::cm::{self, PortSpace};
use sluice_tests::verbs::sluice_verbs;

const LIMIT: Duration = Duration::from_secs(60);

/// Programs that exchange numbers over TCP, and their options.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["-c"]),
    ("ibv_rc_pingpong", &["-e"]),
    ("ibv_uc_pingpong", &["-c"]),
    ("ibv_ud_pingpong", &[]),
    ("ibv_srq_pingpong", &["-c"]),
    ("ibv_xsrq_pingpong", &[]),
    ("ib_write_lat", &["-n", "2000"]),
    ("ib_send_lat", &["-n", "2000"]),
    ("ib_send_lat", &["-n", "2000", "-e"]),
    ("ib_send_lat", &["-n", "2000", "-c", "UD"]),
    ("ib_read_lat", &["-n", "1000"]),
    ("ib_atomic_lat", &["-n", "1000"]),
    ("ib_send_bw", &["-n", "2000", "-a"]),
    ("ib_send_bw", &["-n", "2000", "-c", "UC"]),
    ("ib_write_bw", &["-n", "500", "-s", "1048576", "-q", "4"]),
    ("ib_write_bw", &["-n", "500", "-b"]),
    ("ib_read_bw", &["-n", "500", "-s", "1048576"]),
    ("ib_atomic_bw", &["-n", "1000"]),
];

/// Two hosts, a window, and a folder in which programs of both meet.
struct Stage {
    pair: Pair,
    window: PathBuf,
    started: usize,
}

impl Stage {
    fn new(kind: &str) -> Verdict<Stage> {
        let pair = Pair::new(Settings::default())?;
        let window = pair.path().join("window");
        let mut create = Command::new(find_sluice()?);
        create.args(["window", "create"]).arg(&window);
        create.args(["--size", "16M", "--hosts", "2", "--kind", kind]);
        run(create, pair.path(), "create", LIMIT)?.success()?;
        Ok(Stage {
            pair,
            window,
            started: 0,
        })
    }

    fn start(&mut self, host: fn(&Pair) -> &Host, program: &str, words: &[&str]) -> Verdict<Job> {
        let device = format!("window:{}", self.window.display());
        let options = ["--device".to_owned(), device];
        let mut command = sluice_verbs(program, words, &options)?;
        host(&self.pair).place(&mut command);
        // As on two machines: librdmacm's processes of each host meet in a folder of their own.
        let own = host(&self.pair).runtime();
        command.env("XDG_RUNTIME_DIR", own);
        self.started += 1;
        let label = format!("{}-{program}", self.started);
        Job::start(command, self.pair.path(), &label)
    }

    fn meeting(&self) -> &Path {
        self.pair.right.runtime()
    }

    /// A server at the right, and its client at the left once it listens.
    fn both(&mut self, program: &str, words: &[&str]) -> Verdict<[Job; 2]> {
        let number = self.pair.right.free_port(Protocol::Tcp)?;
        let (port, address) = (number.to_string(), self.pair.right.v4().to_string());
        let mut all = vec!["-p", &port];
        all.extend(words);
        let mut server = self.start(|pair| &pair.right, program, &all)?;
        let right = &self.pair.right;
        right.await_listener(&mut server, Protocol::Tcp, number, LIMIT)?;
        all.push(&address);
        let client = self.start(|pair| &pair.left, program, &all)?;
        Ok([server, client])
    }
}

fn pair_of(kind: &str, program: &str, words: &[&str]) -> Verdict {
    let mut stage = Stage::new(kind)?;
    let [server, client] = stage.both(program, words)?;
    client.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    Ok(())
}

/// Connected by librdmacm, to an address of the other host.
fn by_cm(program: &str, server: &[&str], client: &[&str]) -> Verdict {
    let mut stage = Stage::new("coherent")?;
    let number = stage.pair.right.free_port(Protocol::Tcp)?;
    let (port, address) = (number.to_string(), stage.pair.right.v4().to_string());
    let fill = |own: &[&str]| -> Vec<String> {
        let all = own.iter().map(|word| match *word {
            "PORT" => port.clone(),
            "ADDRESS" => address.clone(),
            word => word.to_owned(),
        });
        all.collect()
    };
    let (server, client) = (fill(server), fill(client));
    let server: Vec<&str> = server.iter().map(String::as_str).collect();
    let client: Vec<&str> = client.iter().map(String::as_str).collect();
    let mut server = stage.start(|pair| &pair.right, program, &server)?;
    let meeting = stage.meeting().to_owned();
    server.await_ready(LIMIT, "rdma_cm listener", || {
        cm::listens(&meeting, PortSpace::Tcp, number)
    })?;
    let client = stage.start(|pair| &pair.left, program, &client)?;
    client.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    Ok(())
}

/// A program whose peer is killed says so and ends, and the next pair finds both slots.
fn killed() -> Verdict {
    let mut stage = Stage::new("coherent")?;
    let [server, client] = stage.both("ib_write_bw", &["-D", "40", "-s", "65536"])?;
    std::thread::sleep(Duration::from_millis(1500));
    server.signal_group(Signal::KILL);
    let client = client.finish(LIMIT)?;
    ensure(!client.status.success(), || {
        format!("it has noticed nothing\n{}", client.describe())
    })?;
    let _ = server.finish(LIMIT)?;
    let [server, client] = stage.both("ibv_rc_pingpong", &[])?;
    client.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    Ok(())
}

/// What is no window, and one that is full.
fn refused() -> Verdict {
    let mut stage = Stage::new("coherent")?;
    let window = std::mem::replace(&mut stage.window, PathBuf::from("/nowhere/window"));
    let program = stage.start(|pair| &pair.left, "ibv_devinfo", &[])?;
    let outcome = program.finish(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
    ensure(said.contains("/nowhere/window"), || outcome.describe())?;
    stage.window = window;
    let [first, second] = stage.both("ib_write_bw", &["-D", "10"])?;
    std::thread::sleep(Duration::from_millis(500));
    let third = stage.start(|pair| &pair.left, "ibv_devinfo", &[])?;
    let outcome = third.finish(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
    ensure(said.contains("all 2 slots"), || outcome.describe())?;
    for job in [second, first] {
        job.finish(LIMIT)?.success()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut trials: Vec<Trial> = Vec::new();
    for kind in ["coherent", "flush"] {
        for (program, words) in PROGRAMS {
            let name = format!("{program}/{kind}{}", words.concat().replace('-', "/"));
            trials.push(trial(name, move || pair_of(kind, program, words)));
        }
    }
    trials.push(trial("rping/cm".to_owned(), || {
        by_cm(
            "rping",
            &["-s", "-C", "20", "-V", "-p", "PORT"],
            &["-c", "-C", "20", "-V", "-p", "PORT", "-a", "ADDRESS"],
        )
    }));
    trials.push(trial("ib_send_lat/cm".to_owned(), || {
        by_cm(
            "ib_send_lat",
            &["-R", "-n", "500", "-p", "PORT"],
            &["-R", "-n", "500", "-p", "PORT", "ADDRESS"],
        )
    }));
    trials.push(trial("killed".to_owned(), killed));
    trials.push(trial("refused".to_owned(), refused));
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}
