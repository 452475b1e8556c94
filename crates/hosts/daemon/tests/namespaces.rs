//! Connections between network namespaces, also between several with one address plan.
//!
//! These tests make namespaces of their own, joined by veth, and need root.

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;

use common::{Daemon, Program, wait_for};
use sluice_lab::link::Settings;
use sluice_lab::pair::{End, Pair, SIDES};
use sluice_lab::verdict::{Verdict, made};

const LEFT: [&str; 2] = ["10.99.0.1", "fd99::1"];
const RIGHT: [&str; 2] = ["10.99.0.2", "fd99::2"];

/// Two namespaces with a cable between them, removed at the end of the test.
struct Cable {
    pair: Pair,
}

impl Cable {
    /// Skips where this user or machine cannot make them.
    fn new() -> Verdict<Cable> {
        let end = |[v4, v6]: [&str; 2]| End {
            device: "cable",
            v4: v4.parse().unwrap(),
            v6: v6.parse().unwrap(),
            mac: None,
            link_local: None,
        };
        let pair = Pair::with([end(LEFT), end(RIGHT)], Settings::default())?;
        Ok(Cable { pair })
    }

    /// Runs `work` inside the left (0) or right (1) namespace.
    fn inside<T: Send>(&self, side: usize, work: impl FnOnce() -> T + Send) -> T {
        self.pair.host(SIDES[side]).inside(|| Ok(work())).unwrap()
    }

    /// A connection from the left, port `from`, to the right, port `to`.
    fn connection(&self, family: usize, from: u16, to: u16) -> (TcpStream, TcpStream) {
        let address = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
        let (left, right) = (address(LEFT[family], from), address(RIGHT[family], to));
        let listener = self.inside(1, || TcpListener::bind(right).unwrap());
        let connected = self.inside(0, || connect(left, right));
        let (accepted, _) = listener.accept().unwrap();
        (connected, accepted)
    }
}

fn connect(from: SocketAddr, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let family = if from.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket(family, SocketType::STREAM, None).unwrap();
    bind(&socket, &from).unwrap();
    // Right after the cable is plugged in, packets can get lost.
    wait_for("the connection", || connect(&socket, &to).is_ok());
    TcpStream::from(socket)
}

/// Cables, or the reason to skip.
fn cables<const N: usize>(test: &str) -> Option<[Cable; N]> {
    let cables: Verdict<Vec<Cable>> = (0..N).map(|_| Cable::new()).collect();
    made(test, cables)?.try_into().ok()
}

fn assert_joined(a: &Program, b: &Program) {
    let (lane_a, lane_b) = (a.lane().0, b.lane().0);
    assert_eq!((lane_a.chunk, lane_a.lane), (lane_b.chunk, lane_b.lane));
    assert_eq!((lane_a.peer, lane_b.peer), (b.id, a.id));
}

#[test]
fn two_namespaces_share_a_lane() {
    let Some([cable]) = cables("two_namespaces_share_a_lane") else {
        return;
    };
    let daemon = Daemon::start(&[]);
    for family in [0, 1] {
        let (client, server) = (daemon.program("client"), daemon.program("server"));
        let (connected, accepted) = cable.connection(family, 4000, 5000);
        client.announce(0, &connected);
        client.settle();
        server.announce(0, &accepted);
        assert_joined(&client, &server);
    }
    assert_eq!(daemon.counter("matches_across_namespaces"), 2);
}

/// The kernel finds sockets that are bound to a device by what comes in there alone.
#[test]
fn sockets_that_are_bound_to_a_device_share_a_lane() {
    let Some([cable]) = cables("sockets_that_are_bound_to_a_device_share_a_lane") else {
        return;
    };
    let daemon = Daemon::start(&[]);
    for family in [0, 1] {
        for bound in 0..2 {
            let (client, server) = (daemon.program("client"), daemon.program("server"));
            let (connected, accepted) = cable.connection(family, 4000 + bound, 5000 + bound);
            let fd = [connected.as_raw_fd(), accepted.as_raw_fd()][usize::from(bound)];
            let device = *b"cable\0";
            let (level, name) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
            sluice_sys::unix::set_option(fd, level, name, &device).unwrap();
            client.announce(0, &connected);
            client.settle();
            server.announce(0, &accepted);
            assert_joined(&client, &server);
        }
    }
}

#[test]
fn inside_one_namespace_that_is_not_sluiceds() {
    let Some([cable]) = cables("inside_one_namespace_that_is_not_sluiceds") else {
        return;
    };
    let daemon = Daemon::start(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let (connected, accepted) = cable.inside(0, || common::tcp_pair("10.99.0.1:0"));
    client.announce(0, &connected);
    client.settle();
    server.announce(0, &accepted);
    assert_joined(&client, &server);
    assert_eq!(daemon.counter("matches_across_namespaces"), 0);
}

#[test]
fn one_address_plan_twice_is_not_mixed_up() {
    let Some([one, two]) = cables("one_address_plan_twice_is_not_mixed_up") else {
        return;
    };
    let daemon = Daemon::start(&[]);
    let name = |name: &str| daemon.program(name);
    let (client_1, server_1) = (name("client 1"), name("server 1"));
    let (client_2, server_2) = (name("client 2"), name("server 2"));
    // The same four numbers, and the same bytes so far: none.
    let (connected_1, accepted_1) = one.connection(0, 4000, 5000);
    let (connected_2, accepted_2) = two.connection(0, 4000, 5000);
    client_1.announce(0, &connected_1);
    client_1.settle();
    server_2.announce(0, &accepted_2);
    server_2.settle();
    client_1.assert_quiet();
    assert_eq!(daemon.counter("mirrors_refuted"), 1);
    client_2.announce(0, &connected_2);
    assert_joined(&server_2, &client_2);
    server_1.announce(0, &accepted_1);
    assert_joined(&client_1, &server_1);
}

#[test]
fn a_peer_elsewhere_with_the_mirrored_addresses_is_no_peer() {
    let test = "a_peer_elsewhere_with_the_mirrored_addresses_is_no_peer";
    let Some([one, two]) = cables(test) else {
        return;
    };
    // The true other ends never come.
    let daemon = Daemon::start(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let (connected, _accepted) = one.connection(1, 4000, 5000);
    let (_connected, accepted) = two.connection(1, 4000, 5000);
    client.announce(0, &connected);
    client.settle();
    server.announce(0, &accepted);
    server.settle();
    client.assert_quiet();
    assert_eq!(daemon.counter("matches"), 0);
}

#[test]
fn a_transfer_that_never_pauses_is_recognised() {
    let Some([cable]) = cables("a_transfer_that_never_pauses_is_recognised") else {
        return;
    };
    let daemon = Daemon::start(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let (mut connected, mut accepted) = cable.connection(0, 4000, 5000);
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let (mut writer, mut reader) = (
            connected.try_clone().unwrap(),
            accepted.try_clone().unwrap(),
        );
        let stop = &stop;
        scope.spawn(move || {
            use std::io::Write;
            while !stop.load(Ordering::Relaxed) && writer.write_all(&[1; 65536]).is_ok() {}
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        scope.spawn(move || std::io::copy(&mut reader, &mut std::io::sink()).unwrap());
        // The transfer ends whatever happens here.
        let finally = Finally(|| stop.store(true, Ordering::Relaxed));
        client.announce(0, &connected);
        client.settle();
        server.announce(0, &accepted);
        assert_joined(&client, &server);
        drop(finally);
    });
    let _ = (&mut connected, &mut accepted);
}

/// Runs its closure when dropped, by a panic too.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn without_privileges_connections_across_namespaces_stay_on_tcp() {
    let test = "without_privileges_connections_across_namespaces_stay_on_tcp";
    let Some([cable]) = cables(test) else {
        return;
    };
    let daemon = of_nobody(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let (connected, accepted) = cable.connection(0, 4000, 5000);
    client.announce(0, &connected);
    client.settle();
    server.announce(0, &accepted);
    server.settle();
    client.assert_quiet();
    assert_eq!(daemon.counter("mirrors_unproven"), 1);
    let status = daemon.status().to_string();
    assert!(status.contains("nothing proves the connection"), "{status}");
}

/// The daemon of another user, without privileges, with a directory of its own.
fn of_nobody(arguments: &[&str]) -> Daemon {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let scratch = common::Scratch::new();
    std::os::unix::fs::chown(&scratch.0, Some(NOBODY), Some(NOBODY)).unwrap();
    let program = scratch.0.join("sluiced");
    std::fs::copy(env!("CARGO_BIN_EXE_sluiced"), &program).unwrap();
    let mut command = Command::new(&program);
    command
        .arg("--socket")
        .arg(scratch.socket())
        .args(arguments);
    command.uid(NOBODY).gid(NOBODY);
    let child = common::execute_copy(|| command.spawn());
    let daemon = Daemon { child, scratch };
    wait_for("the start of sluiced", || daemon.ping().is_ok());
    daemon
}

#[test]
fn without_privileges_one_user_is_believed_in_a_namespace_and_several_are_not() {
    if !rustix::process::geteuid().is_root() {
        let test = "without_privileges_one_user_is_believed_in_a_namespace_and_several_are_not";
        return common::skip(test, "it takes root");
    }
    for (arguments, is_believed) in [(&[][..], true), (&["--allow-all-users"][..], false)] {
        let daemon = of_nobody(arguments);
        let (client, server) = (daemon.program("client"), daemon.program("server"));
        let (connected, accepted) = common::tcp_pair("127.0.0.1:0");
        client.announce(0, &connected);
        client.settle();
        server.announce(0, &accepted);
        let status = if is_believed {
            assert_joined(&client, &server);
            daemon.status()
        } else {
            server.settle();
            client.settle();
            daemon.status()
        };
        assert_eq!(status["counters"]["matches"], u64::from(is_believed));
        assert_eq!(status["no_lanes"].is_string(), !is_believed, "{status}");
        let is_shown = status.to_string().contains("nothing proves the connection");
        assert_eq!(is_shown, !is_believed, "{status}");
    }
}
