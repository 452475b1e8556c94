//! Programs on a node that connect out by the gateway: a host of their own has no way there.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::programs::{files, require};
use sluice_tests::stream;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::lab::{At, Lab, client_address, outside};

/// The system's own, whatever else is in PATH.
const PYTHON: &str = "/usr/bin/python3";

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![trial("out/refused", refused), trial("out/curl", curl)];
    for family in [4, 6] {
        trials.push(trial(format!("out/stream/ipv{family}"), move || {
            records(family)
        }));
    }
    trials
}

/// Checked records with a server outside, to which the node has no route.
fn records(family: u8) -> Verdict {
    let lab = Lab::new()?;
    let binary = stream::compile_plain(lab.fleet.dir())?;
    lab.fleet.run_until_ring_bytes(|| {
        let mut server = lab.outside(&binary);
        let mut client = lab.published(At::NodeA, "gw", &binary);
        for end in [&mut server, &mut client] {
            stream::meet_at(end, client_address(family));
        }
        lab.check_records("thread", server, client, false)
    })
}

/// connect.py ADDRESS PORT: what the program sees, and what it gets.
const CONNECT: &str = "import socket, sys, errno
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)
try:
    s.connect((sys.argv[1], int(sys.argv[2])))
except OSError as e:
    print(errno.errorcode[e.errno])
    sys.exit(0)
print(s.getpeername()[0], s.getpeername()[1], s.getsockname()[0], s.getsockname()[1])
s.sendall(b'question')
print(s.recv(100).decode())
";

/// What CONNECT says on a node.
fn connect(lab: &Lab, at: At, to: SocketAddr) -> Verdict<String> {
    let mut command = lab.published(at, "gw", &require(PYTHON)?);
    command.args(["-c", CONNECT, &to.ip().to_string(), &to.port().to_string()]);
    lab.fleet.run_program(command, "connect")
}

/// The errors of destinations are connect's, and addresses are those outside.
fn refused() -> Verdict {
    let lab = Lab::new()?;
    let client: SocketAddr = (client_address(4), 7).into();
    let nowhere = (Ipv4Addr::new(192, 0, 2, 1), 7).into();
    let at_gateway = lab
        .host(At::Gateway)
        .inside(|| TcpListener::bind((outside(4), 0)))?;
    at_gateway.set_nonblocking(true)?;
    let own = at_gateway.local_addr()?;
    // Addresses that packets to them are not sent from.
    lab.host(At::Gateway).ip("addr add 10.45.0.9/24 dev out")?;
    lab.host(At::NodeA).ip("addr add 10.46.0.9/24 dev eth0")?;
    let second = lab
        .host(At::Gateway)
        .inside(|| TcpListener::bind("10.45.0.9:0"))?;
    second.set_nonblocking(true)?;
    let closed = SocketAddr::new(own.ip(), 9);
    for (at, to, expected) in [
        // Nobody listens there.
        (At::NodeA, client, "ECONNREFUSED"),
        // A network that the gateway does not let it reach, and the gateway itself.
        (At::NodeA, nowhere, "EACCES"),
        (At::NodeA, own, "EACCES"),
        (At::NodeA, closed, "EACCES"),
        (At::NodeA, second.local_addr()?, "EACCES"),
        // Its own link's and host's business.
        (At::NodeA, ([169, 254, 1, 1], 9).into(), "ENETUNREACH"),
        (At::NodeA, ([10, 46, 0, 9], 9).into(), "ECONNREFUSED"),
        // A node that may connect nowhere goes its own way, and has none.
        (At::NodeB, client, "ENETUNREACH"),
    ] {
        let said = connect(&lab, at, to)?;
        ensure(said.trim() == expected, || {
            format!("{at:?} to {to}: {said}")
        })?;
    }
    for listener in [&at_gateway, &second] {
        let came = listener.accept().map_err(|error| error.kind());
        ensure(matches!(came, Err(io::ErrorKind::WouldBlock)), || {
            format!("the gateway was connected to: {came:?}")
        })?;
    }
    check_addresses(&lab, 4)?;
    check_addresses(&lab, 6)
}

/// Each end sees the other as the gateway has connected them.
fn check_addresses(lab: &Lab, family: u8) -> Verdict {
    let at = SocketAddr::new(lab.host(At::Client).address(family), 0);
    let listener = lab.host(At::Client).inside(|| TcpListener::bind(at))?;
    let at = listener.local_addr()?;
    let served = thread::spawn(move || -> io::Result<SocketAddr> {
        let (mut stream, from) = listener.accept()?;
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        stream.write_all(b"answer")?;
        Ok(from)
    });
    let said = connect(lab, At::NodeA, at)?;
    let panicked = |_| io::Error::other("the server panicked");
    let from = served.join().map_err(panicked)??;
    let [peer, own] = [at, from].map(|it| format!("{} {}", it.ip(), it.port()));
    let expected = format!("{peer} {own}\nanswer\n");
    ensure(said == expected && from.ip() == outside(family), || {
        format!("{said:?} and not {expected:?}")
    })
}

/// A program that does not block.
fn curl() -> Verdict {
    let (curl, python) = (require("curl")?, require(PYTHON)?);
    let lab = Lab::new()?;
    let dir = lab.path("web");
    fs::create_dir_all(&dir)?;
    files::make(&dir.join("file"), 2_000_000)?;
    let port = lab.host(At::Client).free_port(Protocol::Tcp)?;
    let mut command = lab.outside(&python);
    command
        .args(["-m", "http.server", &port.to_string(), "--directory"])
        .arg(&dir);
    let mut server = lab.fleet.start_program(command, "http")?;
    let host = lab.host(At::Client);
    host.await_listener(&mut server, Protocol::Tcp, port, LIMIT)?;
    let got = lab.path("got");
    let mut command = lab.published(At::NodeA, "gw", &curl);
    command
        .args(["-sSf", "-w", "%{remote_ip}", "-o"])
        .arg(&got)
        .arg(format!("http://{}:{port}/file", client_address(4)));
    let said = lab.fleet.run_program(command, "curl")?;
    ensure(said == client_address(4).to_string(), || said)?;
    files::check_same(&dir.join("file"), &got)?;
    let _ = server.stop(LIMIT)?;
    Ok(())
}
