//! Programs with real connections find each other through a real sluiced.

mod common;

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::{Daemon, Program, next, tcp_pair, wait_for};
use sluice_control::message::{FromDaemon, ToDaemon};
use sluice_sys::memfd;
use sluice_sys::tcp;

/// Both programs get the same lane in the same memory.
fn assert_joined(a: &Program, b: &Program, sockets: (&TcpStream, &TcpStream)) {
    let (lane_a, mut with_a) = a.lane();
    let (lane_b, mut with_b) = b.lane();
    assert_eq!((lane_a.chunk, lane_a.lane), (lane_b.chunk, lane_b.lane));
    // A program has one side in all the lanes that it shares with another.
    let sides = if a.id < b.id { (0, 1) } else { (1, 0) };
    assert_eq!((lane_a.side, lane_b.side), sides);
    assert_eq!((lane_a.peer, lane_b.peer), (b.id, a.id));
    assert_eq!(lane_a.peer_pid, std::process::id());
    assert_eq!(lane_a.cookie, tcp::cookie(sockets.0.as_raw_fd()).unwrap());
    assert_eq!(lane_b.cookie, tcp::cookie(sockets.1.as_raw_fd()).unwrap());
    if lane_a.has_chunk_fd {
        let (chunk_a, chunk_b) = (with_a.take_fd(0).unwrap(), with_b.take_fd(0).unwrap());
        memfd::write_at(chunk_a.raw(), b"shared", 0).unwrap();
        let mut seen = [0; 6];
        memfd::read_at(chunk_b.raw(), &mut seen, 0).unwrap();
        assert_eq!(&seen, b"shared");
    }
    a.wait_for_ring();
    b.wait_for_ring();
}

#[test]
fn two_programs_get_one_lane_over_ipv4_and_ipv6() {
    let daemon = Daemon::start(&[]);
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (client, server) = (daemon.program("client"), daemon.program("server"));
        let (connected, accepted) = tcp_pair(address);
        client.announce(4, &connected);
        client.settle();
        server.announce(5, &accepted);
        assert_joined(&client, &server, (&connected, &accepted));
    }
    assert_eq!(daemon.counter("matches"), 2);
}

#[test]
fn an_ipv4_client_of_an_ipv6_listener_is_matched() {
    let daemon = Daemon::start(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connected = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    server.announce(0, &accepted);
    server.settle();
    client.announce(0, &connected);
    assert_joined(&server, &client, (&accepted, &connected));
}

#[test]
fn chunk_and_parking_come_once_for_a_pair_of_programs() {
    let daemon = Daemon::start(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let mut kept = Vec::new();
    let mut places = std::collections::HashSet::new();
    for end in 0..20 {
        let (connected, accepted) = tcp_pair("127.0.0.1:0");
        client.announce(end, &connected);
        client.settle();
        server.announce(end, &accepted);
        for program in [&client, &server] {
            let (lane, _) = program.lane();
            // The first chunk has 16 lanes.
            assert_eq!(lane.has_chunk_fd, end == 0 || end == 16, "{lane:?}");
            assert_eq!(lane.has_parking_fd, end == 0, "{lane:?}");
            assert_eq!(lane.end, end);
            places.insert((lane.chunk, lane.lane));
        }
        kept.push((connected, accepted));
    }
    assert_eq!(places.len(), 20);
}

#[test]
fn a_program_connected_to_itself_gets_both_ends() {
    let daemon = Daemon::start(&[]);
    let program = daemon.program("selfish");
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    program.announce(0, &connected);
    program.announce(1, &accepted);
    let (first, _) = program.lane();
    let (second, _) = program.lane();
    assert_eq!((first.end, second.end), (0, 1));
    assert_eq!((first.side, second.side), (0, 1));
    assert_eq!((first.has_chunk_fd, second.has_chunk_fd), (true, false));
    assert_eq!(
        (first.has_parking_fd, second.has_parking_fd),
        (false, false)
    );
    assert_eq!((first.peer, second.peer), (program.id, program.id));
}

#[test]
fn sluiced_keeps_no_connection_open() {
    let daemon = Daemon::start(&[]);
    let program = daemon.program("short");
    let (connected, mut accepted) = tcp_pair("127.0.0.1:0");
    program.announce(0, &connected);
    program.settle();
    drop(connected);
    let mut rest = Vec::new();
    accepted.set_read_timeout(Some(common::PATIENCE)).unwrap();
    assert_eq!(accepted.read_to_end(&mut rest).unwrap(), 0);
}

#[test]
fn a_stale_end_gives_way_to_a_new_connection_with_its_addresses() {
    let daemon = Daemon::start(&[]);
    let (old, new, server) = (
        daemon.program("old"),
        daemon.program("new"),
        daemon.program("server"),
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connected = loop {
        let connected = TcpStream::connect(address).unwrap();
        let port = connected.local_addr().unwrap().port();
        let (accepted, _) = listener.accept().unwrap();
        old.announce(0, &connected);
        old.settle();
        // The end is closed behind sluiced's back, by a reset, so that the port is free at once.
        set_reset_on_close(&connected);
        drop(connected);
        drop(accepted);
        // Somebody else may have it already.
        if let Some(connected) = connect_from(port, address) {
            break connected;
        }
    };
    let (accepted, _) = listener.accept().unwrap();
    // The server is announced first and meets the stale end, whose socket is gone.
    server.announce(0, &accepted);
    server.settle();
    server.assert_quiet();
    old.settle();
    old.assert_quiet();
    assert_eq!(daemon.counter("ends_gone"), 1);
    // The right end comes.
    new.announce(0, &connected);
    assert_joined(&server, &new, (&accepted, &connected));
    assert_eq!(daemon.status()["lanes"]["in_use"], 1);
}

/// SO_LINGER with zero seconds.
fn set_reset_on_close(socket: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO)).unwrap();
}

/// Connects from this very port, unless somebody has it.
fn connect_from(port: u16, to: std::net::SocketAddr) -> Option<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    match bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], port))) {
        Err(rustix::io::Errno::ADDRINUSE) => return None,
        bound => bound.unwrap(),
    }
    connect(&socket, &to).unwrap();
    Some(TcpStream::from(socket))
}

#[test]
fn the_death_of_a_program_is_told_and_its_heir_gets_a_new_lane() {
    let daemon = Daemon::start(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    client.announce(0, &connected);
    client.settle();
    server.announce(0, &accepted);
    let (before, _) = server.lane();
    let dead = client.id;
    drop(client);
    let (message, _) = next(&server.client);
    assert_eq!(message, FromDaemon::PeerGone { peer: dead });
    server.wait_for_ring();
    assert_eq!(daemon.status()["lanes"]["in_use"], 1);
    // Another program, for example after exec, has the same socket.
    let heir = daemon.program("heir");
    heir.announce(9, &connected);
    let (after, _) = server.lane();
    assert_eq!((after.peer, after.end), (heir.id, before.end));
    assert_ne!(after.chunk, before.chunk);
    server.release(0);
    drop(heir);
    wait_for("the release of all lanes", || {
        daemon.status()["lanes"]["in_use"] == 0
    });
}

#[test]
fn a_full_table_leaves_connections_on_tcp_until_a_lane_is_released() {
    let daemon = Daemon::start(&["--max-lanes", "1"]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let pairs: Vec<_> = (0..3).map(|_| tcp_pair("127.0.0.1:0")).collect();
    let announce = |n: u32| {
        client.announce(n, &pairs[n as usize].0);
        client.settle();
        server.announce(n, &pairs[n as usize].1);
    };
    announce(0);
    client.lane();
    server.lane();
    announce(1);
    server.settle();
    client.assert_quiet();
    assert_eq!(daemon.counter("lanes_refused_full"), 1);
    let reasons = daemon.status().to_string();
    assert!(reasons.contains("all lanes are in use"), "{reasons}");
    client.release(0);
    server.release(0);
    announce(2);
    assert_eq!((client.lane().0.end, server.lane().0.end), (2, 2));
}

#[test]
fn a_forked_child_is_introduced_over_its_parents_connection() {
    let daemon = Daemon::start(&[]);
    let parent = daemon.program("parent");
    let (ours, theirs) = sluice_sys::unix::seqpacket_pair().unwrap();
    let introduce = ToDaemon::Introduce;
    parent.client.send(&introduce, &[theirs.raw()]).unwrap();
    drop(theirs);
    let child = sluice_control::client::Client::from_socket(ours);
    let child = Program::introduce_as(child, "child");
    assert_ne!(child.id, parent.id);
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    parent.announce(0, &connected);
    parent.settle();
    child.announce(0, &accepted);
    assert_joined(&parent, &child, (&connected, &accepted));
    // Each dies for itself.
    drop(parent);
    let (message, _) = next(&child.client);
    assert!(matches!(message, FromDaemon::PeerGone { .. }));
    child.settle();
}

#[test]
fn a_program_that_never_reads_loses_lanes_and_stops_nobody() {
    let daemon = Daemon::start(&[]);
    let (deaf, server) = (daemon.program("deaf"), daemon.program("server"));
    // Its queue is filled with answers that it does not take.
    while daemon.counter("lanes_refused_unread") == 0 {
        for _ in 0..100 {
            let ping = ToDaemon::Ping;
            if deaf.client.send(&ping, &[]).is_err() {
                break;
            }
        }
        let (connected, accepted) = tcp_pair("127.0.0.1:0");
        deaf.announce_soon(&connected);
        wait_for("the announcement", || {
            !daemon.counter("announcements").is_multiple_of(2)
        });
        server.announce(0, &accepted);
        wait_for("the announcement", || {
            daemon.counter("announcements").is_multiple_of(2)
        });
    }
    let reasons = daemon.status().to_string();
    assert!(reasons.contains("has not read"), "{reasons}");
    // Everybody else is served.
    let (a, b) = (daemon.program("a"), daemon.program("b"));
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    a.announce(0, &connected);
    a.settle();
    b.announce(0, &accepted);
    assert_joined(&a, &b, (&connected, &accepted));
}

impl Program {
    /// Announces end 0, as soon as sluiced has read enough of what was sent before.
    fn announce_soon(&self, socket: &TcpStream) {
        use sluice_control::message::{Announce, Role, ToDaemon};
        let announce = ToDaemon::Announce(Announce {
            end: 0,
            generation: 1,
            role: Role::Connected,
        });
        wait_for("room for a message", || {
            self.client.send(&announce, &[socket.as_raw_fd()]).is_ok()
        });
    }
}

#[test]
fn an_end_is_bypassed_when_nobody_has_announced_the_other() {
    let daemon = Daemon::start(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let ask = |end, generation| {
        let message = ToDaemon::AskPeer { end, generation };
        client.client.send(&message, &[]).unwrap();
    };
    let (alone, _far) = tcp_pair("127.0.0.1:0");
    client.announce(0, &alone);
    // Of a life that is over, and of an end that nobody knows: no answer.
    ask(0, 7);
    ask(9, 1);
    ask(0, 1);
    let (answer, _) = next(&client.client);
    let (end, generation) = (0, 1);
    assert_eq!(answer, FromDaemon::NoPeer { end, generation });
    ask(0, 1);
    client.settle();
    assert_eq!(daemon.counter("ends_settled"), 1);
    assert_eq!(daemon.status()["ends_announced"], 0);
    // Whatever the other end has sent before counts, read or not, and one with a lane never
    // is bypassed. Who reads for sluiced is waited for, but not for longer than a second.
    let mut settled = 1;
    let _pair = (1..20)
        .find_map(|end| {
            let (connected, accepted) = tcp_pair("127.0.0.1:0");
            let begun = Instant::now();
            client.announce(end, &connected);
            server.announce(end, &accepted);
            ask(end, 1);
            match next(&client.client).0 {
                FromDaemon::Lane(lane) => {
                    assert_eq!(lane.end, end);
                    Some((connected, accepted))
                }
                FromDaemon::NoPeer { .. } if begun.elapsed() >= Duration::from_secs(1) => {
                    settled += 1;
                    None
                }
                other => panic!("{other:?}"),
            }
        })
        .expect("it stood still each time");
    client.settle();
    wait_for("a quiet moment", || daemon.counter("matches") == 1);
    client.assert_quiet();
    assert_eq!(daemon.counter("ends_settled"), settled);
}

/// One turn reads 64 messages of a program. A server with 500 connections announces them at once, and its clients ask
/// about the last ones before those are read.
#[test]
fn an_end_is_not_bypassed_whose_other_end_is_announced_behind_many() {
    let daemon = Daemon::start(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let others = [daemon.program("one more"), daemon.program("another")];
    let (unrelated, _far) = tcp_pair("127.0.0.1:0");
    for end in 0..20 {
        let (connected, accepted) = tcp_pair("127.0.0.1:0");
        client.announce(end, &connected);
        client.settle();
        daemon.stop();
        let ask = ToDaemon::AskPeer { end, generation: 1 };
        client.client.send(&ask, &[]).unwrap();
        // Some 280 fit a socket.
        for program in others.iter().chain([&server]) {
            (1000..1240).for_each(|many| program.announce(many, &unrelated));
        }
        server.announce(end, &accepted);
        let begun = Instant::now();
        daemon.go_on();
        match next(&client.client).0 {
            FromDaemon::Lane(lane) => {
                assert_eq!(lane.end, end);
                return;
            }
            // Who reads for sluiced is waited for, but not for longer than a second.
            FromDaemon::NoPeer { .. } if begun.elapsed() >= Duration::from_secs(1) => {}
            other => panic!("{other:?}"),
        }
        for program in others.iter().chain([&server]) {
            program.settle();
        }
    }
    panic!("it stood still each time");
}
