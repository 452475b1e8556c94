//! Who may not: daemons with another key, certificate or version, and users who claim what is
//! somebody else's. What is said again is of `crates/peering/tests/replay.rs`, keys of memory that
//! nobody was given are of suite `rdma`.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::JoinHandle;

use libtest_mimic::Trial;
use sluice_peering::authority::{create_authority, issue_certificate};
use sluice_peering::frame::Kind;
use sluice_peering::hello::Hello;
use sluice_peering::{VERSIONS, Versions};
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::find_program;
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};

use crate::hosts::Two;
use crate::matrix::complete;
use crate::programs::WAYS;
use crate::wire::Raw;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("wrong-key", wrong_key),
        trial("certificates", certificates),
        trial("wrong-certificate", wrong_certificate),
        trial("version/older", || version(Versions { first: 0, last: 0 })),
        trial("version/newer", || version(Versions { first: 7, last: 9 })),
        trial("claimed", claimed),
    ]
}

/// Daemons that do not know each other's key have nothing to do with one another.
fn wrong_key() -> Verdict {
    let two = WAYS[0].with_different_keys()?;
    stays_on_tcp(&two, [true; 2])
}

fn stays_on_tcp(two: &Two, accelerated: [bool; 2]) -> Verdict {
    complete(two, "thread", accelerated)?;
    let totals = two.totals()?;
    ensure(totals.lane_bytes() == 0, || {
        format!("{totals:?}\n{}", two.describe())
    })
}

/// Daemons whose certificates are of these authorities.
fn certified(authorities: [&str; 2]) -> Verdict<Two> {
    let mut two = WAYS[0].hosts()?;
    for (side, authority) in SIDES.into_iter().zip(authorities) {
        let (name, dir) = (side.name(), two.dir().join(authority));
        if !dir.exists() {
            fs::create_dir(&dir)?;
            create_authority(&dir).or_else(|error| fail(error.to_string()))?;
        }
        issue_certificate(&dir, name, 1).or_else(|error| fail(error.to_string()))?;
        let dir = dir.display();
        let text = format!(
            "[daemon]\nname = \"{name}\"\nlisten = [\"{}\"]\n\
             certificate = \"{dir}/{name}.pem\"\nprivate_key = \"{dir}/{name}.key\"\n\
             ca = \"{dir}/ca.pem\"\n[fabric]\ndevice = \"{}\"\n{}",
            two.control(side),
            WAYS[0].device,
            two.peer(side.other()),
        );
        two.write_config(side, &text)?;
        two.start(side)?;
    }
    Ok(two)
}

/// One authority makes daemons each other's peers.
fn certificates() -> Verdict {
    let two = certified(["authority"; 2])?;
    two.await_links()?;
    complete(&two, "thread", [true; 2])?;
    two.require_ring_bytes()
}

/// Two do not: both daemons say why, and programs use TCP.
fn wrong_certificate() -> Verdict {
    let two = certified(["authority", "forger"])?;
    for side in SIDES {
        two.await_log(side, "certificate")?;
    }
    stays_on_tcp(&two, [true; 2])
}

/// What speaks as a daemon of other versions on the right host.
struct Other {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Other {
    fn new(two: &Two, versions: Versions) -> Verdict<Other> {
        let at = two.control(Side::Right);
        let listener = two.host(Side::Right).inside(|| TcpListener::bind(at))?;
        let accepts = listener.try_clone()?;
        let mut hello = Hello {
            versions,
            proof: [0; 32],
            instance: [1; 16],
            name: Side::Right.name().to_owned(),
            software: "another sluiced".to_owned(),
        }
        .encode();
        // What follows the versions may be anything in another version.
        hello.truncate(4);
        let thread = std::thread::spawn(move || {
            while let Ok((socket, _)) = accepts.accept() {
                let mut raw = Raw::serve(socket, "sluice-peering-none");
                // It may be gone at any moment.
                if raw.frame().is_some() && raw.send_frame(Kind::Hello as u8, &hello).is_ok() {
                    raw.frame();
                }
            }
        });
        Ok(Other {
            listener,
            thread: Some(thread),
        })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Wakes who accepts.
        let _ = rustix::net::shutdown(self.listener.as_fd(), rustix::net::Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A daemon of another version is told from one that is broken, and programs use TCP.
fn version(theirs: Versions) -> Verdict {
    let mut two = WAYS[0].hosts()?;
    let _other = Other::new(&two, theirs)?;
    let name = Side::Left.name();
    let text = format!(
        "[daemon]\nname = \"{name}\"\nlisten = [\"{}\"]\nauthentication = \"none\"\n\
         [fabric]\ndevice = \"{}\"\n{}",
        two.control(Side::Left),
        WAYS[0].device,
        two.peer(Side::Right),
    );
    two.write_config(Side::Left, &text)?;
    two.start(Side::Left)?;
    let said = format!("speaks version {theirs}, this one {VERSIONS}: update the older");
    two.await_log(Side::Left, &said)?;
    stays_on_tcp(&two, [true, false])
}

/// Answers each byte by its own one, for one connection.
const SERVER: &str = "
import socket, sys
at, answer = (sys.argv[1], int(sys.argv[2])), sys.argv[3].encode()
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(at)
listener.listen()
print('listens', flush=True)
one, _ = listener.accept()
while one.recv(1):
    one.send(answer)
";

/// Says bytes from one address to another, and gets the right answers.
const CLIENT: &str = "
import socket, sys, time
at, port, wanted, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), int(sys.argv[4])
to = sys.argv[5], port
one = socket.socket()
one.bind((at, port + 1))
while True:
    try:
        one.connect(to)
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
for number in range(rounds):
    one.send(b'?')
    answer = one.recv(1)
    assert answer == wanted, answer
    print('round', number, flush=True)
    time.sleep(0.02)
";

/// A user makes namespaces of his own, in which he may have any address, and in them a connection
/// with the addresses and ports of somebody else's. His end is not taken for that one's.
fn claimed() -> Verdict {
    const PORT: u16 = 5300;
    const ROUNDS: &str = "200";
    let python = Path::new("/usr/bin/python3");
    let Some(unshare) = find_program("unshare").filter(|_| python.exists()) else {
        return skip("python3 or unshare (util-linux) is not installed");
    };
    let two = WAYS[0].set_up()?;
    let port = PORT.to_string();
    let [left, right] = SIDES.map(|side| two.address(side).to_string());
    let mut server = two.program(Side::Right, true, python);
    server.args(["-c", SERVER, &right, &port, "S"]);
    let server = two.start_program(server, "server")?;
    let claim = format!(
        "ip link set lo up && ip addr add {left}/32 dev lo && ip addr add {right}/32 dev lo &&
        {{ \"$1\" -c \"$2\" {right} {port} F & }} &&
        exec \"$4\" run -- \"$1\" -c \"$3\" {left} {port} F {ROUNDS} {right}"
    );
    let mut thief = two.sluice(Side::Left, &[]);
    let sluice = thief.get_program().to_owned();
    thief = {
        let mut command = two.host(Side::Left).command(unshare);
        command.envs(
            thief
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        command
    };
    thief.args([
        "--user",
        "--map-root-user",
        "--net",
        "sh",
        "-c",
        &claim,
        "sh",
    ]);
    thief.arg(python).args([SERVER, CLIENT]).arg(sluice);
    let thief = two.start_program(thief, "thief")?;
    let mut client = two.program(Side::Left, false, python);
    client.args(["-c", CLIENT, &left, &port, "S", ROUNDS, &right]);
    let client = two.start_program(client, "client")?;
    for job in [client, thief] {
        job.finish(LIMIT)?.success()?;
    }
    server.finish(LIMIT)?.success()?;
    let totals = two.totals()?;
    ensure(totals.lane_bytes() == 0, || {
        format!("{totals:?}\n{}", two.describe())
    })
}
