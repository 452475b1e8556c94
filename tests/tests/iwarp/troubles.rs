//! Bad paths, which TCP mends; peers that vanish; strangers that send what they like.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_protocol::iwarp::{Wishes, request};
use sluice_tests::hosts::injector::Direction;
use sluice_tests::hosts::paths::{self, Path};
use sluice_tests::job::Job;
use sluice_tests::random::Random;
use sluice_tests::suite::{self, Verdict, ensure, trial};
use sluice_tests::verbs::cm::{self, PortSpace, Stage as _};
use sluice_tests::verbs::link::{End, LIMIT, Link, packets_sent};
use sluice_wire::iwarp::Startup;

use crate::way;

/// Repetitions of TCP wait for 200 ms and more.
const PATHS: [Path; 3] = [
    paths::LOSS_1_OF_100.of_tcp(),
    paths::DUPLICATION.of_tcp(),
    paths::REORDERING.of_tcp(),
];
/// Packets of a host that mean that its program does what it is for.
const FLOWING: u64 = 500;
const DIRECTIONS: [Direction; 2] = [Direction::LeftToRight, Direction::RightToLeft];
/// Connections of strangers.
const STRANGERS: u64 = 120;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (number, path) in PATHS.into_iter().enumerate() {
        let name = format!("paths/{}", path.name);
        trials.push(trial(name, move || on_a_path(path, number)));
    }
    trials.push(trial("cut/for-a-second".to_owned(), cut));
    for (name, program, options) in [
        (
            "killed/server-of-writes",
            "ib_write_bw",
            &["-R", "-D", "120"],
        ),
        ("killed/server-of-sends", "ib_send_bw", &["-R", "-D", "120"]),
        ("killed/server-of-reads", "ib_read_bw", &["-R", "-D", "120"]),
    ] {
        trials.push(trial(name.to_owned(), move || killed(program, options)));
    }
    trials.push(trial("stranger/any-bytes".to_owned(), strangers));
    trials
}

/// Bytes are checked by the programs; each path has the long messages, and the short ones.
fn on_a_path(path: Path, number: usize) -> Verdict {
    let family = if number.is_multiple_of(2) { 4 } else { 6 };
    let mut link = Link::with_injector(way(family, number))?;
    path.begin(link.injector()?);
    let result = cm::named("rping/large")
        .run(&mut link, &["-C", "20"])
        .and_then(|()| cm::named("ucmatose/ten").run(&mut link, &["-C", "20"]))
        .and_then(|()| cm::named("rstream/verify").run(&mut link, &["-C", "10", "-I", "3"]));
    path.end(link.injector()?, result)
}

/// A server, its client, and how many packets the client's host had sent before that.
fn meet(link: &mut Link, program: &str, options: &[&str]) -> Verdict<(Job, Job, u64)> {
    let number = link.free_port()?;
    let port = number.to_string();
    let arguments = [options, &["-p", &port]].concat();
    let mut server = link.start(End::Right, program, &arguments)?;
    link.await_listener(&mut server, PortSpace::Tcp, number)?;
    let address = link.hosts().right.v4().to_string();
    let before = packets_sent(&link.hosts().left)?;
    let arguments = [&arguments[..], &[&address]].concat();
    let client = link.start(End::Left, program, &arguments)?;
    Ok((server, client, before))
}

/// Waits until the client's bytes flow.
fn await_flow(link: &Link, client: &mut Job, before: u64) -> Verdict {
    let host = &link.hosts().left;
    client.await_ready(LIMIT, "packets", || {
        packets_sent(host).is_ok_and(|now| now > before + FLOWING)
    })
}

/// Nothing that takes less than TCP's patience is seen.
fn cut() -> Verdict {
    let mut link = Link::with_injector(way(4, 0))?;
    // A client may be through before somebody sees that it has begun.
    suite::until(|| {
        let (server, mut client, before) = meet(&mut link, "ib_write_bw", &["-R", "-D", "4"])?;
        let begun = await_flow(&link, &mut client, before);
        let injector = link.injector()?;
        injector.forget_counts();
        injector.while_cut(|| std::thread::sleep(Duration::from_secs(1)));
        let counts = DIRECTIONS.map(|way| injector.counts(way));
        client.finish(LIMIT)?.success()?;
        server.finish(LIMIT)?.success()?;
        let is_cut = counts.iter().any(|counts| counts.cut > 0);
        Ok(begun.and_then(|()| ensure(is_cut, || format!("nothing was cut: {counts:?}"))))
    })
}

/// The survivor hears of it at once, by the kernel of the dead, and ends by itself.
fn killed(program: &str, options: &[&str]) -> Verdict {
    let mut link = Link::new(way(4, 0))?;
    let (server, mut client, before) = meet(&mut link, program, options)?;
    await_flow(&link, &mut client, before)?;
    server.signal(Signal::KILL)?;
    drop(server);
    let outcome = client.finish(LIMIT)?;
    ensure(outcome.status.signal().is_none(), || outcome.describe())?;
    // What is left of the dead is in nobody's way.
    cm::named("ucmatose/ten").run(&mut link, &[])
}

/// A server that serves whoever comes is sent anything: before the start, in place of it, and behind
/// it. Those connections break, and whoever speaks the protocol is served.
fn strangers() -> Verdict {
    let mut link = Link::new(way(4, 0))?;
    let number = link.free_port()?;
    let port = number.to_string();
    let arguments = ["-s", "-P", "-V", "-p", &port];
    let mut server = link.start(End::Right, "rping", &arguments)?;
    link.await_listener(&mut server, PortSpace::Tcp, number)?;
    let to = SocketAddr::new(link.hosts().right.v4().into(), number);
    let mut random = Random::new(7);
    let thrown = link.hosts().left.inside(|| {
        (0..STRANGERS).try_for_each(|number| match stranger(to, number, &mut random) {
            // Reset, or closed, before everything was said.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Err(error),
            _ => Ok(()),
        })
    });
    ensure(thrown.is_ok(), || {
        format!("{thrown:?}\n{}", server.describe())
    })?;
    ensure(server.poll()?.is_none(), || server.describe())?;
    let address = link.hosts().right.v4().to_string();
    let arguments = ["-c", "-V", "-C", "100", "-p", &port, "-a", &address];
    let client = link.start(End::Left, "rping", &arguments)?;
    cm::success(client.finish(LIMIT)?)?;
    ensure(server.poll()?.is_none(), || server.describe())?;
    server.stop(LIMIT)?;
    Ok(())
}

fn stranger(to: SocketAddr, number: u64, random: &mut Random) -> std::io::Result<()> {
    let mut tcp = TcpStream::connect(to)?;
    tcp.set_read_timeout(Some(Duration::from_millis(200)))?;
    let noise = |random: &mut Random, bytes: u64| -> Vec<u8> {
        (0..bytes).map(|_| random.below(256) as u8).collect()
    };
    let wishes = Wishes {
        crc: number.is_multiple_of(2),
        ird: 4,
        ird_max: 4,
        ord: 4,
        peer_to_peer: number.is_multiple_of(5),
        long_frames: true,
    };
    let mut start = vec![0; Startup::BYTES_MAX];
    let used = request(&wishes, b"hello")
        .emit(&mut start)
        .map_err(|error| std::io::Error::other(format!("{error:?}")))?;
    start.truncate(used);
    match number % 6 {
        // Nothing at all, and gone.
        0 => {}
        // No request.
        1 => tcp.write_all(&noise(random, 600))?,
        // A piece of one, and the end.
        2 => tcp.write_all(&start[..used / 2])?,
        // One that says another length of its private data than there is.
        3 => {
            start[19] = 0xff;
            tcp.write_all(&start)?;
        }
        // A right one, with anything behind it at once.
        4 => {
            start.extend(noise(random, 3000));
            tcp.write_all(&start)?;
        }
        // A right one, and anything behind the answer, by pieces.
        _ => {
            tcp.write_all(&start)?;
            let mut answer = [0; 1024];
            let _ = tcp.read(&mut answer)?;
            for _ in 0..8 {
                let bytes = 1 + random.below(300);
                tcp.write_all(&noise(random, bytes))?;
            }
        }
    }
    let _ = tcp.shutdown(Shutdown::Write);
    // Until it is over, or the server has had its chance.
    let mut rest = [0; 4096];
    while tcp.read(&mut rest)? > 0 {}
    Ok(())
}
