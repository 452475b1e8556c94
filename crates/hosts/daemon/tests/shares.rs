//! One user of several cannot take what is for all.

mod common;

use std::net::TcpStream;
use std::thread;

use common::{Daemon, Program, skip, tcp_pair};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use sluice_control::client::Client;
use sluice_control::message::{FromDaemon, Reason};

/// A connection to sluiced by another user: only this thread changes, and ends.
fn connect_as(daemon: &Daemon, uid: u32) -> Client {
    let connect = || {
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).unwrap();
        daemon.connect()
    };
    thread::scope(|scope| scope.spawn(connect).join().unwrap())
}

fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(test, "only root can be several users");
    }
    is_root
}

/// Announces both ends of a new connection.
fn announce(end: u32, a: &Program, b: &Program) -> (TcpStream, TcpStream) {
    let pair = tcp_pair("127.0.0.1:0");
    a.announce(end, &pair.0);
    a.settle();
    b.announce(end, &pair.1);
    pair
}

#[test]
fn lanes() {
    if !is_root("shares lanes") {
        return;
    }
    let daemon = Daemon::start(&[
        "--allow-all-users",
        "--max-lanes",
        "8",
        "--user-share",
        "50",
    ]);
    let greedy = [0, 1].map(|_| Program::introduce_as(connect_as(&daemon, 4321), "greedy"));
    let other = [0, 1].map(|_| Program::introduce_as(connect_as(&daemon, 4322), "other"));
    let mut open = Vec::new();
    for end in 0..4 {
        open.push(announce(end, &greedy[0], &greedy[1]));
        greedy[0].lane();
        greedy[1].lane();
    }
    open.push(announce(4, &greedy[0], &greedy[1]));
    greedy[0].settle();
    greedy[1].settle();
    assert_eq!(daemon.counter("lanes_refused_share"), 1);
    let status = daemon.status();
    let waiting = &status["processes"][0]["connections"];
    let reasons: Vec<_> = waiting
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["reason"])
        .collect();
    assert!(
        reasons
            .iter()
            .any(|r| r.as_str().unwrap().contains("share")),
        "{status}"
    );
    open.push(announce(0, &other[0], &other[1]));
    other[0].lane();
    other[1].lane();
    // What is free again can be taken again.
    greedy[0].release(0);
    greedy[1].release(0);
    open.push(announce(5, &greedy[0], &greedy[1]));
    greedy[0].lane();
    greedy[1].lane();
}

#[test]
fn programs() {
    if !is_root("shares programs") {
        return;
    }
    let scratch = common::Scratch::new();
    // sh(1) sets the limit of open files: 64 for sluiced, 16 for clients at 5 each.
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "ulimit -n 224; exec \"$@\"", "sh"])
        .arg(common::sluiced())
        .arg("--socket")
        .arg(scratch.socket())
        .args(["--allow-all-users", "--user-share", "50"]);
    let child = command.spawn().unwrap();
    let daemon = Daemon { child, scratch };
    common::wait_for("the start of sluiced", || daemon.ping().is_ok());
    let mut clients: Vec<Client> = (0..8).map(|_| connect_as(&daemon, 4321)).collect();
    let refused = connect_as(&daemon, 4321);
    let (answer, _) = common::next(&refused);
    assert_eq!(
        answer,
        FromDaemon::Refused {
            reason: Reason::Full
        }
    );
    let _other = Program::introduce_as(connect_as(&daemon, 4322), "other");
    // A place that is free again is the user's.
    clients.pop();
    common::wait_for("a free place", || {
        let client = connect_as(&daemon, 4321);
        client
            .send(&sluice_control::message::ToDaemon::Ping, &[])
            .is_ok()
            && matches!(common::next(&client).0, FromDaemon::Pong { .. })
    });
}

#[test]
fn a_daemon_of_one_user_has_no_shares() {
    let daemon = Daemon::start(&["--max-lanes", "4", "--user-share", "1"]);
    let [a, b] = [0, 1].map(|_| daemon.program("own"));
    let mut open = Vec::new();
    for end in 0..4 {
        open.push(announce(end, &a, &b));
        a.lane();
        b.lane();
    }
}
