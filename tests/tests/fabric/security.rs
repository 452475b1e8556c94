//! Who may not: daemons with another key, certificate or version, and users who claim what is
//! somebody else's. What is said again is of `crates/hosts/peering/tests/replay.rs`, keys of memory that
//! nobody was given are of suite `rdma`; here is what becomes of streams when they are tried.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::JoinHandle;

use libtest_mimic::Trial;
use serde_json::Value;
use sluice_peering::authority::{create_authority, issue_certificate};
use sluice_peering::frame::Kind;
use sluice_peering::hello::Hello;
use sluice_peering::{VERSIONS, Versions};
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::injector::Direction;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::find_program;
use sluice_tests::random::Random;
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};
use sluice_wire::{Frame, Headers, Psn, Qpn};

use crate::attacks::{Seen, everything, under_attack};
use crate::hosts::{Two, Way};
use crate::matrix::{complete, complete_by_lanes};
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
        trial("forged-keys/roce-udp", || forged_keys(WAYS[0])),
        trial("forged-keys/roce", || forged_keys(WAYS[1])),
        trial("wrong-keys/roce-udp", || wrong_keys(WAYS[0])),
        trial("wrong-keys/roce", || wrong_keys(WAYS[1])),
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
    complete_by_lanes(&two)
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

/// From the right address to the right queue pair, or another one, with any number and any key.
fn guesses(seen: &Seen<'_>, random: &mut Random) -> Option<Vec<u8>> {
    if seen.frame.packet().headers().reth.is_none() {
        return everything(seen, random);
    }
    seen.with(|headers| {
        headers.bth.psn = Psn::new(random.next() as u32 & 0xff_ffff);
        if random.below(4) == 0 {
            headers.bth.destination = Qpn::new(random.next() as u32 & 0xff_ffff);
        }
        if let Some(reth) = &mut headers.reth {
            reth.rkey = random.next() as u32;
        }
    })
}

/// Strangers on the path send packets to the daemons' queue pairs, with keys and packet numbers that
/// they guess: every stream is what it was, and the daemons count what they did not take.
fn forged_keys(way: Way) -> Verdict {
    const DROPS: [&str; 3] = ["rx_unknown_qp", "rx_wrong_peer", "out_of_sequence"];
    let two = Way {
        faults: true,
        ..way
    }
    .set_up()?;
    let between = two.hosts.between()?;
    under_attack(between, guesses, || complete_by_lanes(&two))?;
    for side in SIDES {
        let counts = network_counts(&two, side)?;
        let losses = &two.peer_status(side)["link_losses"];
        println!("{}: {losses} links ended; {counts}", side.name());
        let is_counted = |name: &&str| counts[*name].as_u64().is_some_and(|count| count > 0);
        ensure(DROPS.iter().all(is_counted), || {
            format!("{}: {counts}", side.name())
        })?;
    }
    // And afterwards all is as before.
    two.await_links()?;
    complete(&two, "thread", [true; 2])
}

/// A peer writes where it may not: now and then a packet of its, right in everything else, has a key
/// that nobody was given. Nothing is written, the link ends, and with the next one every stream goes on.
fn wrong_keys(way: Way) -> Verdict {
    const EVERY: u64 = 16;
    /// Runs in which rings may be used in the other direction alone.
    const RUNS_MAX: u32 = 20;
    let two = Way {
        faults: true,
        ..way
    }
    .set_up()?;
    let mut count = 0;
    let lie = move |bytes: &[u8]| {
        let frame = Frame::parse(bytes).ok()?;
        let seen = Seen {
            bytes,
            frame,
            age: 0,
        };
        seen.frame.packet().headers().reth?;
        count += 1;
        let change = |headers: &mut Headers| {
            if let Some(reth) = &mut headers.reth {
                // Its secret part is in the upper bits.
                reth.rkey ^= 0x0100_0000 << (count / EVERY % 8);
            }
        };
        (count % EVERY == 1).then(|| seen.with(change)).flatten()
    };
    let injector = two.hosts.injector()?;
    injector.rewrite(Direction::LeftToRight, Box::new(lie));
    let mut refused = Value::Null;
    for _ in 0..RUNS_MAX {
        complete(&two, "thread", [true; 2])?;
        refused = network_counts(&two, Side::Right)?["refused_requests"].take();
        if refused.as_u64() > Some(0) {
            break;
        }
    }
    two.require_ring_bytes()?;
    let losses = two.peer_status(Side::Left)["link_losses"].take();
    println!("{refused} requests were refused, {losses} links ended");
    ensure(
        refused.as_u64().is_some_and(|count| count > 0) && losses.as_u64() >= Some(1),
        || two.describe(),
    )
}

/// What the daemon's own device has counted.
fn network_counts(two: &Two, side: Side) -> Verdict<Value> {
    let output = two.sluice(side, &["status", "--json"]).output()?;
    let mut all: Value = serde_json::from_slice(&output.stdout)
        .or_else(|error| fail(format!("{error}: {output:?}")))?;
    let daemon = two.daemon(side)?.id();
    let processes = all["verbs"]["processes"].as_array_mut();
    let found = processes
        .into_iter()
        .flatten()
        .find(|it| it["pid"] == daemon);
    match found {
        Some(process) => Ok(process["report"]["devices"][0]["counters"].take()),
        None => fail(format!(
            "the daemon is not among the verbs processes: {all}"
        )),
    }
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
