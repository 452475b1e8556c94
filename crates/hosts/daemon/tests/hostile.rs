//! Whatever a client sends, sluiced stays, keeps no descriptor, and serves the others.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{
    Daemon, end_table, event_flag, hello, memory, next, parking, skip, tcp_pair, wait_for,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sluice_control::client::{Client, ReceiveError};
use sluice_control::message::{
    Announce, FromDaemon, MAGIC, MESSAGE_BYTES_MAX, Reason, Role, ToDaemon, VERSION,
};
use sluice_sys::memfd::{SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK};
use sluice_sys::unix::{send_with_fds, seqpacket_pair};

/// Bytes of memory that nobody needs, of which no page is there.
const LARGE: u64 = 1 << 30;

/// sluiced answers `reason` and closes the connection.
fn assert_turned_out(client: &Client, reason: Reason) {
    assert_eq!(next(client).0, FromDaemon::Refused { reason });
    wait_for("the end of the connection", || {
        matches!(client.receive(), Err(ReceiveError::Closed))
    });
}

fn announce(end: u32) -> ToDaemon {
    ToDaemon::Announce(Announce {
        end,
        generation: 1,
        role: Role::Connected,
    })
}

#[test]
fn garbage_of_any_kind_ends_only_its_own_connection() {
    let daemon = Daemon::start(&[]);
    let witness = daemon.program("witness");
    let before = daemon.open_files();
    let header = |kind: u16, body: Vec<u8>| {
        let mut message = Vec::new();
        let length = (8 + body.len()) as u16;
        for field in [MAGIC, VERSION, kind, length] {
            message.extend(field.to_le_bytes());
        }
        message.extend(body);
        message
    };
    let message = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..700),
        (0..9_u16, prop::collection::vec(any::<u8>(), 0..64))
            .prop_map(move |(kind, body)| header(kind, body)),
    ];
    let messages = prop::collection::vec((message, 0..5_usize), 1..20);
    let pipe = std::io::pipe().unwrap();
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&messages, |messages| {
            let client = daemon.connect();
            for (message, fds) in messages {
                // Kind 7 asks sluiced to end, which this user may.
                if message.len() == 8 && message[4] == 7 {
                    continue;
                }
                let fds = vec![pipe.0.as_raw_fd(); fds.min(4)];
                if send_with_fds(client.raw(), &message, &fds).is_err() {
                    break;
                }
            }
            drop(client);
            prop_assert!(daemon.ping().is_ok());
            Ok(())
        })
        .unwrap();
    witness.settle();
    wait_for("the close of all descriptors", || {
        daemon.open_files() <= before
    });
}

#[test]
fn another_version_is_told_so() {
    let daemon = Daemon::start(&[]);
    let client = daemon.connect();
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut message = hello("future").encode(&mut buffer).to_vec();
    message[2] = VERSION as u8 + 1;
    send_with_fds(client.raw(), &message, &[]).unwrap();
    assert_turned_out(&client, Reason::Version);
}

#[test]
fn a_hello_needs_exactly_its_three_memories() {
    let daemon = Daemon::start(&[]);
    let before = daemon.open_files();
    let all = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE;
    let null = std::fs::File::open("/dev/null").unwrap();
    let null = || sluice_sys::unix::Fd::from(std::os::fd::OwnedFd::from(null.try_clone().unwrap()));
    let sets = [
        vec![],
        vec![event_flag(), parking()],
        vec![event_flag(), parking(), end_table(), parking()],
        vec![null(), parking(), end_table()],
        vec![event_flag(), null(), end_table()],
        vec![event_flag(), parking(), null()],
        // The event flag could shrink under sluiced's mapping, or has no page.
        vec![memory(4096, SEAL_GROW), parking(), end_table()],
        vec![memory(4095, SEAL_SHRINK), parking(), end_table()],
        // Peers could write the parking table, or its owner shrink it, or it is too small.
        vec![
            event_flag(),
            memory(4096, SEAL_SHRINK | SEAL_GROW),
            end_table(),
        ],
        vec![
            event_flag(),
            memory(4096, SEAL_GROW | SEAL_FUTURE_WRITE),
            end_table(),
        ],
        vec![event_flag(), memory(64, all), end_table()],
        vec![event_flag(), parking(), memory(100, all)],
        // sluiced cannot write this event flag.
        vec![memory(4096, all), parking(), end_table()],
        // Much larger than any library has them: sluiced would give the pages back.
        vec![memory(LARGE, SEAL_SHRINK), parking(), end_table()],
        vec![event_flag(), memory(LARGE, all), end_table()],
        vec![event_flag(), parking(), memory(LARGE, all)],
    ];
    for (number, set) in sets.into_iter().enumerate() {
        let client = daemon.connect();
        let fds: Vec<i32> = set.iter().map(|fd| fd.raw()).collect();
        client.send(&hello("bad"), &fds).unwrap();
        println!("set {number}");
        assert_turned_out(&client, Reason::Descriptors);
    }
    wait_for("the close of all descriptors", || {
        daemon.open_files() <= before
    });
}

/// N5: who connects and goes without end keeps nobody else from being heard.
#[test]
fn connections_without_end_leave_others_their_turn() {
    let daemon = Daemon::start(&[]);
    let witness = daemon.program("witness");
    let stop = AtomicBool::new(false);
    let connected = AtomicUsize::new(0);
    let path = daemon.socket();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // While too many wait to be accepted it is refused.
                    let client = Client::connect(path.as_os_str().as_bytes());
                    connected.fetch_add(usize::from(client.is_ok()), Ordering::Relaxed);
                }
            });
        }
        wait_for("connections", || connected.load(Ordering::Relaxed) > 2000);
        for _ in 0..100 {
            witness.settle();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn messages_at_the_wrong_time_end_the_connection() {
    let daemon = Daemon::start(&[]);
    let (connected, _accepted) = tcp_pair("127.0.0.1:0");
    for message in [
        announce(0),
        ToDaemon::Release {
            end: 0,
            generation: 0,
        },
        ToDaemon::Introduce,
    ] {
        let client = daemon.connect();
        client.send(&message, &[connected.as_raw_fd()]).unwrap();
        assert_turned_out(&client, Reason::Protocol);
    }
    let program = daemon.program("twice");
    program.client.send(&hello("twice"), &[]).unwrap();
    assert_turned_out(&program.client, Reason::Protocol);
}

#[test]
fn what_is_no_established_connection_is_not_announced() {
    let daemon = Daemon::start(&[]);
    let program = daemon.program("liar");
    let before = daemon.open_files();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(listener.local_addr().unwrap()).unwrap();
    let unix = seqpacket_pair().unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    connected.shutdown(std::net::Shutdown::Both).unwrap();
    let wrong = [
        vec![],
        vec![listener.as_raw_fd()],
        vec![udp.as_raw_fd()],
        vec![unix.0.raw()],
        vec![file.as_raw_fd()],
        vec![connected.as_raw_fd()],
        vec![accepted.as_raw_fd(), accepted.as_raw_fd()],
    ];
    for (end, fds) in wrong.iter().enumerate() {
        program.client.send(&announce(end as u32), fds).unwrap();
    }
    program.settle();
    assert_eq!(daemon.counter("announcements_rejected"), 7);
    assert_eq!(daemon.status()["ends_announced"], 0);
    wait_for("the close of all descriptors", || {
        daemon.open_files() <= before
    });
}

#[test]
fn an_introduction_needs_a_connected_packet_socket() {
    let daemon = Daemon::start(&[]);
    let (connected, _accepted) = tcp_pair("127.0.0.1:0");
    let stream = std::os::unix::net::UnixStream::pair().unwrap();
    let alone = sluice_sys::unix::seqpacket().unwrap();
    for fd in [connected.as_raw_fd(), stream.0.as_raw_fd()] {
        let program = daemon.program("parent");
        program.client.send(&ToDaemon::Introduce, &[fd]).unwrap();
        assert_turned_out(&program.client, Reason::Descriptors);
    }
    // One that is not connected is noticed as soon as it is read.
    let program = daemon.program("parent");
    let before = daemon.open_files();
    program
        .client
        .send(&ToDaemon::Introduce, &[alone.raw()])
        .unwrap();
    wait_for("the close of the socket", || daemon.open_files() <= before);
    // The same socket as one's own connection, with its own number, is a second client that
    // steals the first one's messages: its own trouble.
    let raw = program.client.raw();
    program.client.send(&ToDaemon::Introduce, &[raw]).unwrap();
    drop(program);
    assert!(daemon.ping().is_ok());
}

#[test]
fn who_was_introduced_has_no_power_of_whoever_made_its_socket() {
    let daemon = Daemon::start(&[]);
    for message in [ToDaemon::Shutdown, ToDaemon::Status] {
        let program = daemon.program("master");
        // Both ends have this user's credentials, who may do this by a connection of his own.
        let (ours, theirs) = seqpacket_pair().unwrap();
        let introduce = ToDaemon::Introduce;
        program.client.send(&introduce, &[theirs.raw()]).unwrap();
        drop(theirs);
        let worker = Client::from_socket(ours);
        worker.send(&message, &[]).unwrap();
        assert_turned_out(&worker, Reason::User);
    }
    assert!(daemon.ping().is_ok());
}

/// A worker of root's that has given root up has the connection that it made before.
#[test]
fn who_has_given_root_up_has_no_power_of_it_by_an_earlier_connection() {
    if !rustix::process::geteuid().is_root() {
        return skip("given up", "only root can become another user");
    }
    let daemon = Daemon::start(&["--allow-all-users"]);
    let root = daemon.program("of root's");
    let clients = [(); 2].map(|()| daemon.connect());
    thread::scope(|scope| {
        scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(4321);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            clients[0].send(&ToDaemon::Shutdown, &[]).unwrap();
            assert_turned_out(&clients[0], Reason::User);
            clients[1].send(&ToDaemon::Status, &[]).unwrap();
        });
    });
    let (answer, mut received) = next(&clients[1]);
    let FromDaemon::Report { bytes } = answer else {
        panic!("{answer:?}");
    };
    let mut document = vec![0; bytes as usize];
    let memory = received.take_fd(0).unwrap();
    sluice_sys::memfd::read_at(memory.raw(), &mut document, 0).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(document["processes"].as_array().unwrap().len(), 0);
    // Who has not has all of it.
    assert_eq!(daemon.status()["processes"].as_array().unwrap().len(), 1);
    drop(root);
}

#[test]
fn a_close_that_lingers_does_not_stop_sluiced() {
    let daemon = Daemon::start(&[]);
    let program = daemon.program("lingering");
    // Bytes that nobody takes and a close that waits for them.
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    connected.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &connected, &[0; 65536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&connected, Some(Duration::from_secs(600))).unwrap();
    // While sluiced is stopped, the program closes its own descriptor, so that the copy in the
    // message is the last one. It would wait itself, should it not be.
    daemon.stop();
    program.announce(0, &connected);
    drop(connected);
    daemon.go_on();
    program.settle();
    // The bytes are still there: nobody has waited for them or thrown them away.
    let mut byte = [0];
    std::io::Read::read_exact(&mut &accepted, &mut byte).unwrap();
}

#[test]
fn a_flood_of_announcements_stays_bounded() {
    let daemon = Daemon::start(&[]);
    let program = daemon.program("flood");
    let before = daemon.open_files();
    let pairs: Vec<_> = (0..20).map(|_| tcp_pair("127.0.0.1:0")).collect();
    for number in 0..20_000_u32 {
        let socket = &pairs[number as usize % pairs.len()].0;
        wait_for("room for a message", || {
            program
                .client
                .send(&announce(number), &[socket.as_raw_fd()])
                .is_ok()
        });
    }
    program.settle();
    // Each socket is known once, by its last number.
    assert_eq!(daemon.status()["ends_announced"], 20);
    wait_for("the close of all descriptors", || {
        daemon.open_files() <= before
    });
}
