//! The bad path does what it is told, to RoCE frames only, and says truly what it did.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::net::sockopt;
use sluice_tests::hosts::capture::Capture;
use sluice_tests::hosts::faults::{Counts, Faults};
use sluice_tests::hosts::injector::Direction::{LeftToRight, RightToLeft};
use sluice_tests::hosts::{Host, Pair, Settings};
use sluice_tests::job::wait_until;
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::hosts::{exchange, introduce, socket};

const LIMIT: Duration = Duration::from_secs(90);
const ROCE_PORT: u16 = 4791;
const FRAMES: u32 = 10_000;
/// Payload of each: its number, and something to corrupt.
const PAYLOAD_BYTES: usize = 60;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("faults/none", none),
        trial("faults/loss", loss),
        trial("faults/loss-is-the-same-again", same_again),
        trial("faults/duplication", duplication),
        trial("faults/reordering", reordering),
        trial("faults/corruption", || corruption(4, false)),
        trial("faults/corruption-ipv6", || corruption(6, false)),
        trial("faults/corruption-repaired", || corruption(4, true)),
        trial("faults/corruption-ipv6-repaired", || corruption(6, true)),
        trial("faults/marking", || marking(4)),
        trial("faults/marking-ipv6", || marking(6)),
        trial("faults/directions-are-apart", directions),
        trial("faults/other-ports-untouched", others),
        trial("faults/cut", cut),
        trial("faults/delay", delay),
    ]
}

fn pair() -> Verdict<Pair> {
    let pair = Pair::new(Settings {
        faults: true,
        ..Settings::default()
    })?;
    introduce(&pair)?;
    exchange(&pair, 4, 1)?;
    exchange(&pair, 6, 1)?;
    Ok(pair)
}

fn payload(number: u32) -> [u8; PAYLOAD_BYTES] {
    let mut bytes = [0xa5; PAYLOAD_BYTES];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    // The byte that nobody protects, and one behind it, tell a corrupted number from a right one.
    bytes[8..12].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// What a stream of numbered datagrams became.
struct Stream {
    /// How many frames came with the mark of congestion.
    marked: u64,
    /// Payloads that came, in order.
    came: Vec<Vec<u8>>,
    counts: Counts,
}

impl Stream {
    /// The numbers of those that came, where nothing was corrupted.
    fn numbers(&self) -> Verdict<Vec<u32>> {
        let mut numbers = Vec::new();
        for bytes in &self.came {
            let Some(&head) = bytes.first_chunk() else {
                return fail("a short datagram");
            };
            let number = u32::from_be_bytes(head);
            ensure(bytes[..] == payload(number), || {
                format!("a datagram was changed: {bytes:?}")
            })?;
            numbers.push(number);
        }
        Ok(numbers)
    }
}

/// Sends the numbered datagrams from left to right with the faults.
fn stream(pair: &Pair, family: u8, port: u16, faults: Faults) -> Verdict<Stream> {
    let injector = pair.injector()?;
    injector.set(LeftToRight, faults);
    let from = socket(&pair.left, family, 0)?;
    let to = socket(&pair.right, family, port)?;
    // ECN-capable, as RoCE is: ECT(0).
    if family == 4 {
        sockopt::set_ip_tos(&from, 2).map_err(io::Error::from)?;
    } else {
        sockopt::set_ipv6_tclass(&from, 2).map_err(io::Error::from)?;
    }
    let headers = if family == 4 {
        14 + 20 + 8
    } else {
        14 + 40 + 8
    };
    // The datagrams, by length: nothing else on this link has it.
    let long = headers + PAYLOAD_BYTES;
    let is_datagram = |frame: &&Vec<u8>| frame.len() == long;
    let before = injector.counts(LeftToRight);
    let file = pair.path().join("stream");
    let capture = Capture::start(pair.right.namespace(), "eth0", &file)?;
    for number in 0..FRAMES {
        from.send_to(&payload(number), to.local_addr()?)?;
    }
    let mut counts = Counts::default();
    let done = wait_until(LIMIT, || {
        counts = since(injector.counts(LeftToRight), before);
        let due = u64::from(FRAMES) - counts.lost + counts.duplicated;
        let came = capture.look(|frames| frames.iter().filter(is_datagram).count() as u64);
        Ok(counts.seen + counts.others >= FRAMES.into() && came >= due)
    })?;
    let frames = capture.finish()?;
    // The kernel looks at a datagram's checksum when somebody reads it.
    to.set_nonblocking(true)?;
    while to.recv(&mut [0; PAYLOAD_BYTES]).is_ok() {}
    ensure(done, || format!("the stream did not end: {counts:?}"))?;
    injector.check()?;
    injector.set(LeftToRight, Faults::NONE);
    let datagrams = || frames.iter().filter(is_datagram);
    let congested = |frame: &&Vec<u8>| {
        let bits = if family == 4 { 0x03 } else { 0x30 };
        frame[15] & bits == bits
    };
    Ok(Stream {
        marked: datagrams().filter(congested).count() as u64,
        came: datagrams().map(|frame| frame[headers..].to_vec()).collect(),
        counts,
    })
}

fn since(now: Counts, before: Counts) -> Counts {
    Counts {
        seen: now.seen - before.seen,
        lost: now.lost - before.lost,
        duplicated: now.duplicated - before.duplicated,
        held: now.held - before.held,
        corrupted: now.corrupted - before.corrupted,
        marked: now.marked - before.marked,
        cut: now.cut - before.cut,
        others: now.others - before.others,
        others_lost: now.others_lost - before.others_lost,
        carried: now.carried - before.carried,
        overflowed: now.overflowed - before.overflowed,
        overruns: now.overruns - before.overruns,
    }
}

/// Within five standard deviations.
fn ensure_near(what: &str, count: u64, probability: f64) -> Verdict {
    let expected = f64::from(FRAMES) * probability;
    let deviation = (expected * (1.0 - probability)).sqrt();
    ensure((count as f64 - expected).abs() <= 5.0 * deviation, || {
        format!("{what}: {count} frames of {FRAMES}, expected about {expected}")
    })
}

fn in_order() -> Vec<u32> {
    (0..FRAMES).collect()
}

fn none() -> Verdict {
    let stream = stream(&pair()?, 4, ROCE_PORT, Faults::NONE)?;
    ensure(stream.numbers()? == in_order(), || {
        format!("{} frames came", stream.came.len())
    })?;
    ensure(stream.counts.seen == u64::from(FRAMES), || {
        format!("{:?}", stream.counts)
    })
}

const LOSSY: Faults = Faults {
    seed: 3,
    loss: 0.1,
    ..Faults::NONE
};

fn loss() -> Verdict {
    let stream = stream(&pair()?, 6, ROCE_PORT, LOSSY)?;
    let numbers = stream.numbers()?;
    ensure(numbers.is_sorted_by(|left, right| left < right), || {
        "the order changed".into()
    })?;
    let missing = FRAMES as usize - numbers.len();
    ensure(missing as u64 == stream.counts.lost, || {
        format!("{missing} are missing: {:?}", stream.counts)
    })?;
    ensure_near("lost", stream.counts.lost, LOSSY.loss)
}

fn same_again() -> Verdict {
    let first = stream(&pair()?, 4, ROCE_PORT, LOSSY)?.numbers()?;
    let pair = pair()?;
    let again = stream(&pair, 4, ROCE_PORT, LOSSY)?.numbers()?;
    ensure(first == again, || "the same seed, other frames".into())?;
    let third = stream(&pair, 4, ROCE_PORT, LOSSY)?.numbers()?;
    ensure(first == third, || "set again, other frames".into())?;
    let seed = LOSSY.seed + 1;
    let other = stream(&pair, 4, ROCE_PORT, Faults { seed, ..LOSSY })?.numbers()?;
    ensure(first != other, || "another seed, the same frames".into())
}

fn duplication() -> Verdict {
    let faults = Faults {
        seed: 4,
        duplication: 0.05,
        ..Faults::NONE
    };
    let stream = stream(&pair()?, 4, ROCE_PORT, faults)?;
    let mut times = BTreeMap::new();
    for number in stream.numbers()? {
        *times.entry(number).or_insert(0) += 1;
    }
    let twice = times.values().filter(|&&times| times == 2).count() as u64;
    ensure(
        times.len() == FRAMES as usize
            && times.values().all(|&times| times <= 2)
            && twice == stream.counts.duplicated,
        || format!("{} came, {twice} twice: {:?}", times.len(), stream.counts),
    )?;
    ensure_near("twice", twice, faults.duplication)
}

fn reordering() -> Verdict {
    let faults = Faults {
        seed: 5,
        reordering: 0.02,
        reorder_depth: 4,
        ..Faults::NONE
    };
    let stream = stream(&pair()?, 4, ROCE_PORT, faults)?;
    let numbers = stream.numbers()?;
    let all: BTreeSet<u32> = numbers.iter().copied().collect();
    ensure(
        numbers.len() == FRAMES as usize && all.len() == numbers.len(),
        || format!("{} came, {} different", numbers.len(), all.len()),
    )?;
    let late = numbers
        .windows(2)
        .filter(|two| matches!(two, [before, after] if after < before))
        .count() as u64;
    // Two neighbours that are both held can keep their order.
    ensure(late > 0 && late <= stream.counts.held, || {
        format!("{late} came after a later one: {:?}", stream.counts)
    })?;
    ensure_near("held", stream.counts.held, faults.reordering)
}

fn corruption(family: u8, repair: bool) -> Verdict {
    let faults = Faults {
        seed: 6,
        corruption: 0.05,
        repair_checksum: repair,
        ..Faults::NONE
    };
    let pair = pair()?;
    let before = checksum_errors(&pair.right, family)?;
    let stream = stream(&pair, family, ROCE_PORT, faults)?;
    let found = checksum_errors(&pair.right, family)? - before;
    ensure(stream.came.len() == FRAMES as usize, || {
        format!("{} came", stream.came.len())
    })?;
    let mut changed = 0;
    for (number, bytes) in (0..).zip(&stream.came) {
        let bits: u32 = payload(number)
            .iter()
            .zip(bytes)
            .map(|(sent, came)| (sent ^ came).count_ones())
            .sum();
        ensure(bits <= 1, || format!("{bits} bits were turned"))?;
        changed += u64::from(bits);
    }
    ensure(changed == stream.counts.corrupted, || {
        format!("{changed} were changed: {:?}", stream.counts)
    })?;
    ensure_near("corrupted", changed, faults.corruption)?;
    // The kernel's own opinion of those that found room in the socket's buffer.
    ensure(found <= changed && (found == 0) == repair, || {
        format!("the kernel found {found} wrong UDP checksums of {changed}, repaired: {repair}")
    })
}

fn marking(family: u8) -> Verdict {
    let faults = Faults {
        seed: 8,
        marking: 0.05,
        ..Faults::NONE
    };
    let stream = stream(&pair()?, family, ROCE_PORT, faults)?;
    ensure(stream.numbers()? == in_order(), || {
        "marking lost or changed datagrams".into()
    })?;
    ensure(stream.marked == stream.counts.marked, || {
        format!("{} came marked: {:?}", stream.marked, stream.counts)
    })?;
    ensure_near("marked", stream.marked, faults.marking)
}

/// Datagrams with a wrong UDP checksum that the host's kernel got.
fn checksum_errors(host: &Host, family: u8) -> Verdict<u64> {
    let table = if family == 4 { "snmp" } else { "snmp6" };
    let path = format!("/proc/thread-self/net/{table}");
    let text = host.inside(|| fs::read_to_string(path))?;
    let value = if family == 4 {
        let mut rows = text
            .lines()
            .filter_map(|line| line.strip_prefix("Udp: "))
            .map(str::split_whitespace);
        let (names, values) = (rows.next(), rows.next());
        let mut columns = names
            .into_iter()
            .flatten()
            .zip(values.into_iter().flatten());
        columns.find_map(|(name, value)| (name == "InCsumErrors").then_some(value))
    } else {
        text.lines()
            .find_map(|line| line.strip_prefix("Udp6InCsumErrors"))
            .map(str::trim)
    };
    match value.and_then(|value| value.parse().ok()) {
        Some(value) => Ok(value),
        None => fail(format!("no InCsumErrors in {text}")),
    }
}

fn directions() -> Verdict {
    let pair = pair()?;
    let injector = pair.injector()?;
    injector.set(
        RightToLeft,
        Faults {
            loss: 1.0,
            ..Faults::NONE
        },
    );
    let stream = stream(&pair, 4, ROCE_PORT, Faults::NONE)?;
    ensure(stream.numbers()? == in_order(), || {
        "the other direction's faults were felt".into()
    })?;
    let back = (
        socket(&pair.right, 4, 0)?,
        socket(&pair.left, 4, ROCE_PORT)?,
    );
    back.0.send_to(b"lost", back.1.local_addr()?)?;
    let lost = wait_until(LIMIT, || Ok(injector.counts(RightToLeft).lost == 1))?;
    ensure(lost, || format!("{:?}", injector.counts(RightToLeft)))
}

fn others() -> Verdict {
    let hostile = Faults {
        loss: 1.0,
        corruption: 1.0,
        ..Faults::NONE
    };
    let pair = pair()?;
    let stream = stream(&pair, 4, ROCE_PORT - 1, hostile)?;
    ensure(stream.numbers()? == in_order(), || {
        "frames to another port were touched".into()
    })?;
    ensure(stream.counts.seen == 0, || format!("{:?}", stream.counts))
}

fn cut() -> Verdict {
    let pair = pair()?;
    let injector = pair.injector()?;
    // Nothing else comes from there: what is cut is what was sent to be.
    pair.left.write_setting("ipv6/conf/all/disable_ipv6", "1")?;
    exchange(&pair, 4, 1)?;
    let (from, to) = (socket(&pair.left, 4, 0)?, socket(&pair.right, 4, 0)?);
    let address = to.local_addr()?;
    injector.while_cut(|| -> Verdict {
        from.send_to(b"cut", address)?;
        let seen = wait_until(LIMIT, || Ok(injector.counts(LeftToRight).cut > 0))?;
        ensure(seen, || "the frame did not come to the cut".into())
    })?;
    from.send_to(b"whole", address)?;
    ensure(receive(&to)? == b"whole", || "it was not cut".into())?;
    injector.check()
}

fn delay() -> Verdict {
    const DELAY: Duration = Duration::from_millis(50);
    let pair = pair()?;
    let injector = pair.injector()?;
    let (from, to) = (
        socket(&pair.left, 4, 0)?,
        socket(&pair.right, 4, ROCE_PORT)?,
    );
    let address = to.local_addr()?;
    injector.delay(LeftToRight, DELAY);
    let sent = Instant::now();
    from.send_to(b"1", address)?;
    ensure(receive(&to)? == b"1", || "another datagram".into())?;
    let took = sent.elapsed();
    ensure(took >= DELAY, || format!("it came after {took:?}"))?;
    // A shorter delay lets nobody overtake.
    from.send_to(b"2", address)?;
    let on_its_way = wait_until(LIMIT, || Ok(injector.counts(LeftToRight).seen == 2))?;
    ensure(on_its_way, || "the datagram was not seen".into())?;
    injector.delay(LeftToRight, Duration::ZERO);
    from.send_to(b"3", address)?;
    let came = (receive(&to)?, receive(&to)?);
    ensure(came == (b"2".to_vec(), b"3".to_vec()), || {
        format!("{came:?}")
    })
}

fn receive(socket: &UdpSocket) -> Verdict<Vec<u8>> {
    let mut bytes = [0; 100];
    let count = socket.recv(&mut bytes)?;
    Ok(bytes[..count].to_vec())
}
