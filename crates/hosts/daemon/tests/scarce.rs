//! What runs out: descriptors, room for the log, memory for lanes.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use common::{
    Daemon, Scratch, children_of, end_table, event_flag, hello, parking, sluiced, state_of,
    tcp_pair, wait_for,
};
use rustix::process::{Pid, Signal, kill_process};
use sluice_control::client::{Client, ClientError};
use sluice_control::message::{FromDaemon, Reason};
use sluice_lab::cgroup::Cgroup;
use sluice_lab::verdict::made;

/// A sluiced in a shell's limits (`ulimit` options).
fn limited(limits: &str, arguments: &[&str]) -> Daemon {
    limited_in(Scratch::new(), limits, arguments)
}

fn limited_in(scratch: Scratch, limits: &str, arguments: &[&str]) -> Daemon {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit {limits}; exec \"$@\""), "sh"]);
    shell.arg(sluiced()).arg("--socket").arg(scratch.socket());
    // Standard error is as full as everything else.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    shell.stdin(Stdio::null()).stderr(full);
    let child = shell.args(arguments).spawn().unwrap();
    let daemon = Daemon { child, scratch };
    wait_for("the start of sluiced", || daemon.ping().is_ok());
    daemon
}

#[test]
fn without_descriptors_it_sleeps_and_serves_those_it_has() {
    let daemon = limited("-n 256", &[]);
    let witness = daemon.program("witness");
    let before = daemon.open_files();
    let path = daemon.scratch.socket();
    let others: Vec<_> = (0..600)
        .filter_map(|_| Client::connect(path.as_os_str().as_bytes()).ok())
        .collect();
    wait_for("the limit", || daemon.open_files() > before);
    // Nobody more can be accepted, and yet it does not ask again and again.
    let mut asleep = 0;
    wait_for("sleep", || {
        asleep = if state_of(daemon.child.id()).as_deref() == Some("S") {
            asleep + 1
        } else {
            0
        };
        asleep == 50
    });
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    witness.announce(0, &connected);
    witness.announce(1, &accepted);
    drop(others);
    // Who comes now is behind all those that were not accepted yet.
    wait_for("the end of the queue", || daemon.ping().is_ok());
    wait_for("the close of all descriptors", || {
        daemon.open_files() <= before + 8
    });
    // There is room again.
    let again = daemon.program("again");
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    again.announce(0, &connected);
    again.announce(1, &accepted);
    again.lane();
    again.lane();
    assert!(daemon.ping().is_ok());
}

#[test]
fn a_full_disk_takes_the_log_and_nothing_else() {
    let daemon = limited("-c 0", &["--log-file", "/dev/full", "--log", "trace"]);
    let program = daemon.program("program");
    for number in 0..20 {
        let (connected, accepted) = tcp_pair("127.0.0.1:0");
        program.announce(2 * number, &connected);
        program.announce(2 * number + 1, &accepted);
        program.lane();
        program.lane();
    }
    assert_eq!(daemon.counter("matches"), 20);
}

/// `RLIMIT_FSIZE` bounds memory files, too: a lane cannot be made. And the log, on whatever it is.
#[test]
fn a_limit_of_file_sizes_keeps_connections_on_tcp_and_ends_nothing() {
    let scratch = Scratch::new();
    let log = scratch.0.join("log");
    fs::write(&log, vec![b' '; 64 << 10]).unwrap();
    let options = ["--log", "trace", "--log-file", log.to_str().unwrap()];
    let daemon = limited_in(scratch, "-f 64", &options);
    let program = daemon.program("program");
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    program.announce(0, &connected);
    program.announce(1, &accepted);
    wait_for("the refusal", || daemon.counter("lanes_refused_memory") > 0);
    assert_eq!(daemon.status()["lanes"]["in_use"], 0);
    assert_eq!(fs::metadata(&log).unwrap().len(), 64 << 10);
    assert!(daemon.ping().is_ok());
}

#[test]
fn who_only_asks_is_answered_where_there_is_no_room_for_programs() {
    let mut daemon = limited("-n 128", &[]);
    // Five descriptors for each, of half of those that are not sluiced's own.
    let programs: Vec<_> = (0..6).map(|_| daemon.program("one of many")).collect();
    let next = daemon.connect();
    let tables = [event_flag(), parking(), end_table()];
    let descriptors = tables.each_ref().map(sluice_sys::unix::Fd::raw);
    next.send(&hello("one too many"), &descriptors).unwrap();
    let refused = FromDaemon::Refused {
        reason: Reason::Full,
    };
    assert_eq!(common::next(&next).0, refused);
    let document = daemon.status();
    assert_eq!(document["counters"]["clients_refused"], 1, "{document}");
    let path = daemon.socket();
    sluice_control::client::shutdown(&path, common::PATIENCE).unwrap();
    assert!(daemon.wait().success());
    drop(programs);
}

#[test]
fn a_limit_of_few_descriptors_is_refused_at_the_start() {
    let scratch = Scratch::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 127; exec \"$@\"", "sh"]);
    shell.arg(sluiced()).arg("--socket").arg(scratch.socket());
    let said = shell.output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{text}");
    assert!(text.contains("127 files here and needs 128"), "{text}");
    assert!(!scratch.socket().exists());
}

/// Each `sluice run` in a container at its limit of processes took ten seconds: the daemon waited until it could start
/// the process that reads what programs say.
#[test]
fn who_comes_when_no_process_can_be_started_is_told_so_at_once() {
    let group = Cgroup::with_processes("receiver", 1);
    let Some(group) = made("no_process_can_be_started", group) else {
        return;
    };
    let daemon = Daemon::start(&[]);
    assert!(daemon.ping().is_ok());
    fs::write(group.processes(), daemon.child.id().to_string()).unwrap();
    for receiver in children_of(daemon.child.id()) {
        let pid = Pid::from_raw(receiver.cast_signed()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
    wait_for("the refusal", || {
        // The death of the process may be seen behind the question, which it then takes along.
        let full = Reason::Full;
        matches!(daemon.ping(), Err(ClientError::Refused(reason)) if reason == full)
    });
    group.free_processes().expect("lifted");
    wait_for("another process", || daemon.ping().is_ok());
}
