//! Two hosts, daemons with the options that a test wants, and what asks for their figures.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use sluice_tests::fleet::{Fleet, LIMIT};
use sluice_tests::hosts::{Pair, SIDES, Settings, Side};
use sluice_tests::job::wait_until;
use sluice_tests::stream::{self, Transfer};
use sluice_tests::suite::{Verdict, fail};

/// Where figures are served, in each host's own network namespace.
pub const METRICS_PORT: u16 = 9797;

/// What daemons have as `[fabric] device` unless the device matters.
pub const DEVICE: &str = "roce-udp";

pub type Two = Fleet<Pair>;

/// Without daemons, which will have these `options`.
pub fn set_up(options: &[&str]) -> Verdict<Two> {
    Fleet::new(Pair::new(Settings::default())?, 4, options)
}

/// With both daemons, which have found each other.
pub fn started(options: &[&str]) -> Verdict<Two> {
    let mut two = set_up(options)?;
    two.start_both(DEVICE)?;
    Ok(two)
}

/// Checked records both ways between accelerated programs: a client on the left and a server on the
/// right.
pub fn exchange(two: &Two, records: u32) -> Verdict {
    let sockets = [Side::Left, Side::Right].map(|side| two.socket(side));
    exchange_by([&sockets[0], &sockets[1]], two, records)
}

/// The same until `has_moved` holds of both hosts. On a busy machine one exchange may be over before there
/// is a lane, and daemons say what they knew a moment ago.
pub fn exchange_until(two: &Two, mut has_moved: impl FnMut(Side) -> bool) -> Verdict<bool> {
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        exchange(two, 3000)?;
        if wait_until(LIMIT / 10, || Ok(SIDES.into_iter().all(&mut has_moved)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The same with daemons that have other sockets.
pub fn exchange_by(sockets: [&Path; 2], two: &Two, records: u32) -> Verdict {
    let binary = stream::compile_plain(two.dir())?;
    let command = |side: Side| {
        let mut command = two.program(side, true, &binary);
        command.env("SLUICE_SOCKET", sockets[side as usize]);
        command
    };
    let transfer = Transfer {
        server: "thread",
        connections: 2,
        records,
    };
    let ends = transfer.start(command(Side::Right), command(Side::Left), two.dir(), LIMIT)?;
    ends.check_complete(LIMIT)
}

/// Sends bytes to the figures' port of a host; what comes back.
pub fn ask(two: &Two, side: Side, request: &[u8]) -> Verdict<String> {
    let answer = two.host(side).inside(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", METRICS_PORT))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(request)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })?;
    Ok(answer)
}

/// The figures of a host.
pub fn scrape(two: &Two, side: Side, accept: &str) -> Verdict<String> {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
    let answer = ask(two, side, request.as_bytes())?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => fail(format!("no figures: {answer}")),
    }
}
