//! Clients that are slow, silent, or many: they harm themselves.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt;

use common::{Daemon, children_of, state_of, tcp_pair, wait_for};
use sluice_control::client::Client;

/// Where figures are served. A socket that is bound there and no more keeps the kernel from giving the port to others,
/// until this process ends; sluiced may listen there.
fn free_port() -> u16 {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
    let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&held, true).unwrap();
    bind(&held, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = SocketAddr::try_from(getsockname(&held).unwrap()).unwrap();
    std::mem::forget(held);
    address.port()
}

fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn scrapers_that_are_slow_or_silent_keep_nobody_waiting() {
    let port = free_port().to_string();
    let daemon = Daemon::start(&["--metrics", &port]);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().unwrap()));
    assert!(scrape(address).starts_with("HTTP/1.1 200 "));
    wait_for("the end of a scrape", || daemon.open_files() > 0);
    let before = daemon.open_files();
    // Nothing; half a request; a request whose answer is never read; a header without an end.
    let mut others = Vec::new();
    for number in 0..400 {
        let mut stream = TcpStream::connect(address).unwrap();
        // Who is turned out is told by an error, here and there.
        let _ = match number % 4 {
            0 => Ok(()),
            1 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHos"),
            2 => stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n"),
            _ => stream.write_all(&[b'A'; 64 * 1024]),
        };
        others.push(stream);
        if number % 50 == 0 {
            assert!(scrape(address).starts_with("HTTP/1.1 200 "));
        }
    }
    assert!(daemon.open_files() < before + 100, "they are bounded");
    assert!(scrape(address).starts_with("HTTP/1.1 200 "));
    assert!(daemon.ping().is_ok());
    drop(others);
    wait_for("the close of all descriptors", || {
        daemon.open_files() <= before
    });
}

/// Connections to the control socket of which nothing is heard.
#[test]
fn ten_thousand_connections_leave_room_for_those_that_speak() {
    let daemon = Daemon::start(&[]);
    let (before, witness) = (daemon.open_files(), daemon.program("witness"));
    let mut kept = Vec::new();
    let mut refused = 0;
    for _ in 0..10_000 {
        // As many as this test may have open, oldest first to go.
        if kept.len() == 500 {
            kept.remove(0);
        }
        match Client::connect(daemon.scratch.socket().as_os_str().as_bytes()) {
            Ok(socket) => kept.push(socket),
            Err(_) => refused += 1,
        }
    }
    assert!(refused < 10_000, "some were accepted");
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    witness.announce(0, &connected);
    witness.announce(1, &accepted);
    witness.lane();
    witness.lane();
    drop(kept);
    wait_for("the close of all descriptors", || {
        // Those of the witness, and no more.
        daemon.open_files() <= before + 8
    });
    assert!(daemon.ping().is_ok());
}

/// A program that stands still, as one in a frozen cgroup does, with all that it may send unread.
#[test]
fn a_program_that_stands_still_stops_nobody() {
    let daemon = Daemon::start(&[]);
    let frozen = daemon.program("frozen");
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for number in 0..200 {
        let (connected, accepted) = tcp_pair("127.0.0.1:0");
        frozen.announce(number, &connected);
        theirs.push(connected);
        ours.push(accepted);
    }
    // It reads none of the lanes that it is told of; its socket fills.
    let witness = daemon.program("witness");
    for (number, socket) in ours.iter().enumerate() {
        witness.announce(number as u32, socket);
        witness.lane();
    }
    assert_eq!(daemon.counter("matches"), 200);
    // What they have announced goes with them.
    drop((frozen, theirs, witness, ours));
    wait_for("the end of all connections", || {
        daemon.status()["ends_announced"] == 0
    });
}

/// sluiced has a copy of each client's socket, for which epoll(7) goes on reporting the end. Whoever reads for it kept a
/// processor busy until that was closed, too, and so kept it from sluiced.
#[test]
fn clients_that_have_ended_cost_nothing_until_sluiced_hears_of_it() {
    let daemon = Daemon::start(&[]);
    let program = daemon.program("program");
    let readers = children_of(daemon.child.id());
    assert!(!readers.is_empty());
    daemon.signal(libc::SIGSTOP);
    wait_for("the stop", || {
        state_of(daemon.child.id()).as_deref() == Some("T")
    });
    drop(program);
    for reader in readers {
        let mut asleep = 0;
        wait_for("sleep", || {
            let sleeps = state_of(reader).as_deref() == Some("S");
            asleep = if sleeps { asleep + 1 } else { 0 };
            asleep == 50
        });
    }
    daemon.signal(libc::SIGCONT);
    wait_for("the end of the program", || {
        daemon.status()["processes"].as_array().unwrap().is_empty()
    });
}
