//! One of two verbs programs is killed (SIGKILL) at a random moment: the other must hear of it
//! and end, nothing may stay behind, and the next two must meet as if nothing had happened.
//!
//! `SLUICE_KILLS` and `SLUICE_SEED`: see [`Kills::from_environment`].
//!
//! Not in the table, because they do not ask for what would tell them that a peer has died
//! (docs/verbs.md, "The end of a peer"): programs that wait for a byte in memory (`ib_write_lat`),
//! receivers of datagrams, and those on a shared receive queue (`--use-srq`), whose receives no
//! queue pair flushes and which do not read asynchronous events.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::job::{Job, command, find_program, wait_until};
use sluice_tests::lab::find_sluice;
use sluice_tests::net::{free_port, is_listening};
use sluice_tests::random::{Kills, Random};
use sluice_tests::suite::{self, Verdict, ensure, fail, skip, trial};
use sluice_tests::verbs::without_clock;
use tempfile::TempDir;

/// For a program that is to end by itself; not for the end of a survivor.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a survivor may take. It takes milliseconds; the rest is for a machine under load.
const SURVIVOR_LIMIT: Duration = Duration::from_secs(60);
/// The victim is killed up to this long after the client was started. Starting takes about a
/// tenth of it, meeting another, so most kills hit the middle of the transfer.
const MOMENT_MAX_US: u64 = 400_000;
/// A client that was killed before it met the server is replaced, this often at most.
const CLIENTS_MAX: u32 = 3;
/// What stays in the rendezvous directory for good: two files that locks are taken on.
const PERMANENT: [&str; 2] = ["numbers", "cm.lock"];

#[derive(Clone, Copy)]
struct Case {
    program: &'static str,
    name: &'static str,
    both: &'static [&'static str],
    server: &'static [&'static str],
    client: &'static [&'static str],
}

/// Each runs far longer than anybody waits here.
const CASES: &[Case] = &[
    perftest("ib_send_bw", "send", &["-D", "60"]),
    perftest("ib_send_bw", "send-both-ways", &["-b", "-D", "60"]),
    perftest("ib_send_bw", "send-events", &["-e", "-n", "5000000"]),
    perftest("ib_write_bw", "write", &["-D", "60"]),
    perftest("ib_write_bw", "write-cm", &["-R", "-D", "60"]),
    perftest("ib_read_bw", "read", &["-D", "60"]),
    perftest("ib_atomic_bw", "atomic", &["-D", "60"]),
    perftest("ib_send_lat", "send-lat", &["-n", "5000000"]),
    perftest(
        "ibv_rc_pingpong",
        "pingpong",
        &["-g", "0", "-n", "100000000"],
    ),
    perftest(
        "ibv_rc_pingpong",
        "pingpong-events",
        &["-g", "0", "-e", "-n", "100000000"],
    ),
    Case {
        program: "rping",
        name: "rping",
        both: &[],
        server: &["-s"],
        client: &["-c", "-a", "127.0.0.1"],
    },
];

const fn perftest(
    program: &'static str,
    name: &'static str,
    both: &'static [&'static str],
) -> Case {
    Case {
        program,
        name,
        both,
        server: &[],
        client: &["127.0.0.1"],
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Server,
    Client,
}

fn main() -> ExitCode {
    let rows: Vec<(Case, Victim)> = CASES
        .iter()
        .flat_map(|case| [(*case, Victim::Server), (*case, Victim::Client)])
        .collect();
    let kills = Kills::from_environment(rows.len());
    let hall = Arc::new(Hall::new());
    let trials: Vec<Trial> = rows
        .into_iter()
        .enumerate()
        .map(|(index, (case, victim))| {
            let hall = hall.clone();
            let mut random = kills.moments(index);
            trial(format!("kill/{}/{victim:?}", case.name), move || {
                let hall = hall.as_ref().as_ref().map_err(|error| {
                    suite::Problem::Failed(format!("no directory to meet in: {error}"))
                })?;
                kill_often(hall, &case, victim, kills.each, &mut random)
                    .inspect_err(|_| kills.say_seed())
            })
        })
        .collect();
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}

/// The runtime directory in which all pairs of the suite meet, so that what one leaves is in
/// the way of the next.
struct Hall {
    runtime: TempDir,
}

impl Hall {
    fn new() -> std::io::Result<Hall> {
        let runtime = tempfile::Builder::new().prefix("sluice-kill-").tempdir()?;
        Ok(Hall { runtime })
    }

    fn rendezvous(&self) -> PathBuf {
        self.runtime.path().join("sluice-verbs")
    }

    /// What lies in the rendezvous directory and in the folders inside.
    fn entries(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.rendezvous()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                let name = path.strip_prefix(self.rendezvous()).unwrap_or(&path);
                found.insert(name.display().to_string());
            }
        }
        for name in PERMANENT {
            found.remove(name);
        }
        found
    }

    /// Processes that were started with this directory and still are there.
    fn processes(&self) -> Vec<u32> {
        let wanted = format!("XDG_RUNTIME_DIR={}", self.runtime.path().display());
        let own = std::process::id();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != own)
            .filter(|pid| {
                fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
                    environment
                        .split(|byte| *byte == 0)
                        .any(|variable| variable == wanted.as_bytes())
                })
            })
            .collect()
    }
}

/// Names of shared memory files of the machine that are ours.
fn shared_memory() -> BTreeSet<String> {
    let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("sluice"))
        .collect()
}

/// A server on a port of its own, and the outputs of one pair.
struct Pair<'a> {
    hall: &'a Hall,
    case: &'a Case,
    sluice: PathBuf,
    program: PathBuf,
    outputs: TempDir,
    port: u16,
    started: u32,
}

impl<'a> Pair<'a> {
    fn new(hall: &'a Hall, case: &'a Case) -> Verdict<Pair<'a>> {
        let Some(program) = find_program(case.program) else {
            return skip(format!(
                "{} is not installed; scripts/setup test",
                case.program
            ));
        };
        Ok(Pair {
            hall,
            case,
            sluice: find_sluice()?,
            program,
            outputs: TempDir::new()?,
            port: free_port()?,
            started: 0,
        })
    }

    fn start(&mut self, role: &str, arguments: &[&[&str]]) -> Verdict<Job> {
        let mut command = command(&self.sluice);
        command
            .args(["verbs", "--"])
            .arg(&self.program)
            .args(without_clock(&self.program))
            .args(["-p", &self.port.to_string()])
            .args(arguments.iter().copied().flatten())
            .env_remove("LD_LIBRARY_PATH")
            .env("XDG_RUNTIME_DIR", self.hall.runtime.path());
        self.started += 1;
        let label = format!("{}-{role}", self.started);
        Job::start(command, self.outputs.path(), &label)
    }

    fn server(&mut self) -> Verdict<Job> {
        let (case, port) = (self.case, self.port);
        let rendezvous = self.hall.rendezvous();
        let mut server = self.start("server", &[case.both, case.server])?;
        server.await_ready(LIMIT, "listener", || {
            is_listening(port) || listens_by_cm(&rendezvous, port)
        })?;
        Ok(server)
    }

    fn client(&mut self) -> Verdict<Job> {
        self.start("client", &[self.case.both, self.case.client])
    }
}

/// A listener of librdmacm has a socket in the rendezvous directory whose name has the port.
fn listens_by_cm(rendezvous: &Path, port: u16) -> bool {
    let wanted = format!("-0106-{port:04x}-");
    fs::read_dir(rendezvous).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("cm-") && name.ends_with(".sock") && name.contains(&wanted)
        })
    })
}

/// Kills, looks, and lets two others meet, `times` times.
fn kill_often(
    hall: &Hall,
    case: &Case,
    victim: Victim,
    times: u64,
    random: &mut Random,
) -> Verdict {
    let shared_before = shared_memory();
    let mut slowest = Duration::ZERO;
    for turn in 0..times {
        let moment = Duration::from_micros(random.below(MOMENT_MAX_US));
        let context = |what: &str| {
            format!("turn {turn}, {victim:?} killed {moment:?} after the client's start: {what}")
        };
        let took = match victim {
            Victim::Server => kill_server(hall, case, moment),
            Victim::Client => kill_client(hall, case, moment),
        };
        slowest = slowest.max(took.map_err(|problem| match problem {
            suite::Problem::Failed(text) => suite::Problem::Failed(context(&text)),
            skipped => skipped,
        })?);
        meet(hall).map_err(|problem| match problem {
            suite::Problem::Failed(text) => {
                suite::Problem::Failed(context(&format!("the next pair: {text}")))
            }
            skipped => skipped,
        })?;
        let left = hall.entries();
        ensure(left.is_empty(), || {
            context(&format!("left in the rendezvous directory: {left:?}"))
        })?;
        let processes = hall.processes();
        ensure(processes.is_empty(), || {
            context(&format!("processes left: {processes:?}"))
        })?;
        let shared = shared_memory();
        ensure(shared == shared_before, || {
            context(&format!(
                "shared memory before and after: {shared_before:?}, {shared:?}"
            ))
        })?;
    }
    println!("{victim:?} killed {times} times: the slowest end after {slowest:?}");
    Ok(())
}

fn kill_server(hall: &Hall, case: &Case, moment: Duration) -> Verdict<Duration> {
    let mut pair = Pair::new(hall, case)?;
    let server = pair.server()?;
    let mut client = pair.client()?;
    thread::sleep(moment);
    server.signal(Signal::KILL)?;
    let death = Instant::now();
    // Reaped, so that it is over.
    drop(server);
    match end_of_survivor(&mut client)? {
        true => Ok(death.elapsed()),
        false => fail(format!(
            "the client did not end within {SURVIVOR_LIMIT:?}\n{}",
            client.describe()
        )),
    }
}

/// A client that dies before it has met the server is nothing that the server could hear of. It
/// goes on to wait, and must serve another client; that one dies too, later.
fn kill_client(hall: &Hall, case: &Case, moment: Duration) -> Verdict<Duration> {
    let mut pair = Pair::new(hall, case)?;
    let mut server = pair.server()?;
    let mut moment = moment;
    for number in 0..CLIENTS_MAX {
        let client = pair.client()?;
        let port = pair.port;
        if number > 0 {
            // A server that got no processor until now takes the one before, or this one.
            wait_until(
                LIMIT,
                || Ok(!is_listening(port) || server.poll()?.is_some()),
            )?;
        }
        thread::sleep(moment);
        client.signal(Signal::KILL)?;
        let death = Instant::now();
        drop(client);
        let listens = || is_listening(port);
        // Who still accepts has met nobody.
        let ended = wait_until(SURVIVOR_LIMIT, || Ok(listens() || server.poll()?.is_some()))?;
        if ended && end_of_survivor_or_listener(&mut server, port)? {
            return Ok(death.elapsed());
        }
        moment += Duration::from_micros(MOMENT_MAX_US);
    }
    fail(format!(
        "the server did not end within {SURVIVOR_LIMIT:?}\n{}",
        server.describe()
    ))
}

/// Whether it ended. A listener that has not accepted yet gets a moment to do so.
fn end_of_survivor_or_listener(server: &mut Job, port: u16) -> Verdict<bool> {
    if is_listening(port) && server.poll()?.is_none() {
        return Ok(false);
    }
    end_of_survivor(server)
}

/// Waits for the end of the survivor. However it ends, it must not be by a signal.
fn end_of_survivor(job: &mut Job) -> Verdict<bool> {
    if !wait_until(SURVIVOR_LIMIT, || Ok(job.poll()?.is_some()))? {
        return Ok(false);
    }
    match job.poll()?.and_then(|status| status.signal()) {
        Some(signal) => fail(format!(
            "the survivor was killed by signal {signal}\n{}",
            job.describe()
        )),
        None => Ok(true),
    }
}

/// Two that nobody kills. They meet by librdmacm, so they find whatever is left of names.
fn meet(hall: &Hall) -> Verdict {
    const PEACEFUL: Case = perftest("ib_send_bw", "peaceful", &["-R", "-n", "200"]);
    let mut pair = Pair::new(hall, &PEACEFUL)?;
    let server = pair.server()?;
    let client = pair.client()?.finish(LIMIT);
    if client.is_err() {
        println!("{}", server.describe());
    }
    client?.success()?;
    server.finish(LIMIT)?.success()?;
    Ok(())
}
