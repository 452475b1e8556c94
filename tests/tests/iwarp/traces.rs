//! `sluice verbs --trace`: what tshark makes of a connection whose segments the kernel made.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use sluice_tests::job::{Job, command, find_program};
use sluice_tests::suite::{Verdict, ensure, skip, trial};
use sluice_tests::verbs::cm::{self, PortSpace, Stage as _};
use sluice_tests::verbs::link::{End, LIMIT, Link};
use sluice_tests::verbs::sluice_verbs;

use crate::way;

/// Turns of rping, each with a READ and a WRITE of so many bytes, which are of several segments.
const TURNS: usize = 5;
const BYTES: usize = 60_000;
/// Opcodes (RFC 5040 §4.3), as tshark prints them, and how often each is in a file: the initiator
/// begins with a WRITE of nothing, and a turn has four SENDs; the last two have nobody to answer.
const EXPECTED: [(&str, usize); 4] = [
    ("0x00", TURNS + 1),
    ("0x01", TURNS),
    ("0x02", TURNS),
    ("0x03", 4 * TURNS),
];

pub fn trials() -> Vec<Trial> {
    let case = |family: u8, crc: bool| {
        let name = format!(
            "trace/rping/ipv{family}/{}",
            if crc { "crc" } else { "plain" }
        );
        trial(name, move || rping(family, crc))
    };
    vec![case(4, false), case(6, false), case(4, true)]
}

/// rping at one end, with a trace.
fn start(link: &Link, end: End, (file, crc): (&Path, bool), arguments: &[&str]) -> Verdict<Job> {
    let options = ["--device", "iwarp", "--trace", &file.to_string_lossy()].map(str::to_owned);
    let mut command: Command = sluice_verbs("rping", arguments, &options)?;
    if crc {
        command.env("SLUICE_VERBS_CRC", "1");
    }
    link.host(end).place(&mut command);
    Job::start(command, link.hosts().path(), arguments[0])
}

fn rping(family: u8, crc: bool) -> Verdict {
    let Some(tshark) = find_program("tshark") else {
        return skip("tshark is not installed; scripts/setup test");
    };
    let mut link = Link::new(way(family, 0))?;
    let number = link.free_port()?;
    let address = link.hosts().right.address(family).to_string();
    let (port, turns, bytes) = (number.to_string(), TURNS.to_string(), BYTES.to_string());
    let common = [
        "-V", "-C", &turns, "-S", &bytes, "-p", &port, "-a", &address,
    ];
    let files = ["server.pcapng", "client.pcapng"].map(|name| link.hosts().path().join(name));
    let [at_server, at_client] = &files;
    let arguments = [&["-s"], &common[..]].concat();
    let mut server = start(&link, End::Right, (at_server, crc), &arguments)?;
    link.await_listener(&mut server, PortSpace::Tcp, number)?;
    let arguments = [&["-c"], &common[..]].concat();
    let client = start(&link, End::Left, (at_client, crc), &arguments)?;
    let client = cm::success(client.finish(LIMIT)?)?;
    let server = cm::success(server.finish(LIMIT)?)?;
    for (file, outcome) in files.iter().zip([server, client]) {
        // Who ends in the middle of closing may not see the end of the stream.
        let fewest = usize::from(!cm::ended_early(&outcome));
        check(&tshark, file, crc, fewest)?;
    }
    Ok(())
}

/// `fewest`: how many ends of the stream are in the file at least.
fn check(tshark: &Path, file: &Path, crc: bool, fewest: usize) -> Verdict {
    let mut command = command(tshark);
    command.arg("-n").arg("-r").arg(file);
    command.args(["-o", "tcp.check_checksum:TRUE"]);
    command.args(["-T", "fields", "-E", "separator=;"]);
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut opcodes: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut asked, mut answered, mut frames, mut sums, mut finished) = (0, 0, 0, 0, 0);
    for line in text.lines() {
        let fields: Vec<&str> = line.split(';').collect();
        let [
            opcode,
            malformed,
            analysis,
            checksum,
            key,
            reply,
            length,
            sum,
            flags,
        ] = fields[..]
        else {
            return ensure(false, || line.to_owned());
        };
        ensure(
            malformed.is_empty() && analysis.is_empty() && checksum == "1",
            || format!("{}: {line}", file.display()),
        )?;
        for opcode in opcode.split(',').filter(|opcode| !opcode.is_empty()) {
            *opcodes.entry(opcode).or_default() += 1;
        }
        asked += usize::from(!key.is_empty());
        answered += usize::from(!reply.is_empty());
        frames += length.split(',').filter(|one| !one.is_empty()).count();
        sums += sum.split(',').filter(|one| !one.is_empty()).count();
        finished += usize::from(flags == "1" || flags == "True");
    }
    let picture = || format!("{}: {opcodes:?}\n{text}", file.display());
    ensure((asked, answered) == (1, 1), picture)?;
    for (opcode, count) in EXPECTED {
        let is = opcodes.get(opcode).copied().unwrap_or_default();
        // rping's last two SENDs are sent, and may not be waited for.
        let fits = match opcode {
            "0x03" => (count - 2..=count).contains(&is),
            _ => is == count,
        };
        ensure(fits, picture)?;
    }
    // Each frame is found as one, with as many sums as there are where they count.
    ensure(frames == opcodes.values().sum::<usize>(), picture)?;
    ensure(!crc || sums == frames, picture)?;
    ensure((fewest..=2).contains(&finished), picture)
}

const FIELDS: [&str; 9] = [
    "iwarp_rdma.opcode",
    "_ws.malformed",
    "tcp.analysis.flags",
    "tcp.checksum.status",
    "iwarp_mpa.key.req",
    "iwarp_mpa.key.rep",
    "iwarp_mpa.ulpdulength",
    "iwarp_mpa.crc_check",
    "tcp.flags.fin",
];
