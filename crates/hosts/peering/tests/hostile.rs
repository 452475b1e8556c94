//! Strangers that mean no good, or do not know what they do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use sluice_peering::Why;
use sluice_peering::hello::Hello;
use sluice_peering::limits::{FAILURES_PER_ADDRESS_MAX, STRANGERS_MAX, STRANGERS_PER_ADDRESS_MAX};

mod common;

use common::wire::{Raw, connect_from};
use common::{DISCOVERY, HANDSHAKE, Lab, Node, address, idle, join, peer, run};

const NONE: &str = "authentication = 'none'\n";

fn alpha(lab: &Lab) -> (Node, SocketAddr) {
    let mut alpha = lab.node(
        "alpha",
        address(),
        &format!("{}{DISCOVERY}", lab.psk("key")),
    );
    let at = alpha.listens_at();
    (alpha, at)
}

/// One that can prove itself still gets its session.
fn is_still_served(lab: &Lab, alpha: &mut Node) {
    let std::net::IpAddr::V4(at) = alpha.listens_at().ip() else {
        panic!("IPv4");
    };
    let rest = format!("{}{}", lab.psk("key"), peer("alpha", at));
    let mut beta = lab.node("beta", address(), &rest);
    join((alpha, "alpha"), (&mut beta, "beta"));
}

fn is_closed(mut socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let mut bytes = [0; 256];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// More descriptors than most shells give.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn two_thousand_connections_leave_room_for_peers() {
    raise_descriptors();
    let lab = Lab::new();
    let (mut alpha, at) = alpha(&lab);
    let mut flood = Vec::new();
    // From one address, and from as many as there are.
    for n in 0..2_000_u32 {
        let many = Ipv4Addr::new(127, 99, (n >> 8) as u8, n as u8);
        let from = if n < 1_000 {
            Ipv4Addr::new(127, 98, 0, 1)
        } else {
            many
        };
        flood.push(connect_from(from, at).unwrap());
        if n % 50 == 0 {
            alpha.turn();
        }
    }
    run([&mut alpha], "all of them", |[alpha]| {
        alpha.get().counters().accepted == 2_000
    });
    let counters = alpha.get().counters();
    let crowded = 2_000 - STRANGERS_MAX as u64;
    assert_eq!(counters.crowded, crowded, "{counters:?}");
    let open = flood.iter_mut().filter(|socket| !is_closed(socket)).count();
    assert_eq!(open, STRANGERS_MAX);
    is_still_served(&lab, &mut alpha);
    // Time ends those that say nothing.
    alpha.wait(HANDSHAKE);
    run([&mut alpha], "the end of all", |_| {
        flood.iter().all(is_closed)
    });
    assert_eq!(
        alpha
            .downs()
            .iter()
            .filter(|why| **why == Why::Crowded)
            .count(),
        0
    );
    let before = descriptors();
    drop(flood);
    assert!(descriptors() < before);
}

#[test]
fn a_flood_from_one_address_takes_few_places() {
    let lab = Lab::new();
    let (mut alpha, at) = alpha(&lab);
    let from = Ipv4Addr::new(127, 98, 0, 2);
    let flood: Vec<_> = (0..100).map(|_| connect_from(from, at).unwrap()).collect();
    run([&mut alpha], "all of them", |[alpha]| {
        alpha.get().counters().accepted == 100
    });
    let open = flood.iter().filter(|socket| !is_closed(socket)).count();
    assert_eq!(open, STRANGERS_PER_ADDRESS_MAX);
    is_still_served(&lab, &mut alpha);
}

#[test]
fn garbage_and_silence_end_at_once_or_in_time() {
    let lab = Lab::new();
    let (mut alpha, at) = alpha(&lab);
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 4096],
        &[0xff; 70_000],
        // A TLS record of more bytes than there can be.
        &[22, 3, 1, 0xff, 0xff, 1, 0, 0, 0],
        // A handshake message of 16 MiB, in a record of 4 bytes.
        &[22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff],
    ];
    for (n, bytes) in garbage.iter().enumerate() {
        let mut socket = TcpStream::connect(at).unwrap();
        // It may be closed before all of it is written.
        socket.set_nonblocking(true).unwrap();
        let _ = socket.write(bytes);
        run([&mut alpha], "a close", |_| is_closed(&socket));
        assert_eq!(alpha.get().counters().failed, n as u64 + 1);
    }
    // One byte at a time, for ever.
    let mut slow = TcpStream::connect(at).unwrap();
    let silent = TcpStream::connect(at).unwrap();
    for byte in [22, 3, 1, 1, 0, 1] {
        slow.write_all(&[byte]).unwrap();
        alpha.wait(HANDSHAKE / 10);
        idle([&mut alpha], 3);
        assert!(!is_closed(&slow) && !is_closed(&silent));
    }
    alpha.wait(HANDSHAKE / 2);
    run([&mut alpha], "closes", |_| {
        is_closed(&slow) && is_closed(&silent)
    });
    is_still_served(&lab, &mut alpha);
    assert_eq!(alpha.ups(), 1);
}

#[test]
fn frames_that_do_not_belong_end_the_connection() {
    let lab = Lab::new();
    let mut alpha = lab.node("alpha", address(), &format!("{NONE}{DISCOVERY}"));
    let at = alpha.listens_at();
    let hello = Hello {
        versions: sluice_peering::VERSIONS,
        proof: [0; 32],
        instance: [1; 16],
        name: "mallory".into(),
        software: String::new(),
    };
    let hello = frame(1, &hello.encode());
    let cases: Vec<Vec<Vec<u8>>> = vec![
        // Before any hello: a message, an unknown kind, one that is too long, nonsense.
        vec![frame(8, b"message")],
        vec![vec![200, 0, 0, 0]],
        vec![vec![8, 1, 0, 1]],
        vec![vec![1, 0xff, 0xff, 0xff]],
        vec![vec![0; 100]],
        vec![frame(1, b"")],
        vec![frame(1, &[0; 200])],
        // After it: another hello, a message instead of what is wanted, two wishes.
        vec![hello.clone(), hello.clone()],
        vec![hello.clone(), frame(8, b"message")],
        vec![hello.clone(), frame(4, b"")],
        vec![hello.clone(), frame(2, b"x")],
        // As a session: greetings, a message that is too long.
        vec![hello.clone(), frame(2, b""), hello.clone()],
        vec![hello.clone(), frame(2, b""), vec![8, 1, 0, 1]],
        vec![hello.clone(), frame(2, b""), vec![9, 0, 0, 1]],
    ];
    let sessions = 3;
    let count = cases.len();
    for (n, case) in cases.into_iter().enumerate() {
        let mallory = thread::spawn(move || {
            let mut raw = Raw::connect(at, "sluice-peering-none");
            let _ = raw.send(&case.concat());
            // Ends when alpha ends it.
            while raw.frame().is_some() {}
        });
        run([&mut alpha], "the end", |_| mallory.is_finished());
        mallory.join().unwrap();
        idle([&mut alpha], 2);
        assert_eq!(alpha.get().status(), [], "{n}");
        // Whoever failed so often waits.
        alpha.wait(Duration::from_secs(5));
    }
    assert_eq!(alpha.ups(), sessions);
    assert_eq!(alpha.downs().len(), sessions);
    assert!(alpha.messages().is_empty());
    assert_eq!(alpha.get().counters().failed as usize, count - sessions);
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 0, (body.len() >> 8) as u8, body.len() as u8], body].concat()
}

#[test]
fn who_fails_again_and_again_is_closed_without_a_word() {
    let lab = Lab::new();
    let (mut alpha, at) = alpha(&lab);
    let mut attempts = 0;
    // One is forgotten each second, so a slow machine needs more of them.
    while alpha.get().counters().crowded == 0 {
        let mut socket = TcpStream::connect(at).unwrap();
        let _ = socket.write(b"GET / HTTP/1.1\r\n\r\n");
        run([&mut alpha], "a close", |_| is_closed(&socket));
        attempts += 1;
        assert!(attempts < 1_000, "{:?}", alpha.get().counters());
    }
    let failed = alpha.get().counters().failed;
    assert!(failed >= u64::from(FAILURES_PER_ADDRESS_MAX), "{failed}");
    alpha.wait(Duration::from_secs(60));
    is_still_served(&lab, &mut alpha);
}
