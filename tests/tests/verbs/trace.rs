//! `sluice verbs --trace`: what tshark makes of the files of real programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use sluice_tests::job::{command, find_program};
use sluice_tests::net::free_port;
use sluice_tests::suite::{Verdict, ensure, skip, trial};

use crate::stage::{LIMIT, Stage, WAYS};

/// What a file must have: opcodes, and how often each is there. (IBTA 9.2; decimal, as
/// tshark prints them.)
type Expected = &'static [(u8, usize)];

struct Case {
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    client: Expected,
    server: Expected,
    /// Of the client's file: a field, a value, and on how many packets it is.
    fields: &'static [(&'static str, &'static str, usize)],
}

const SEND_FIRST: u8 = 0x00;
const SEND_MIDDLE: u8 = 0x01;
const SEND_LAST: u8 = 0x02;
const WRITE_ONLY: u8 = 0x0a;
const READ_REQUEST: u8 = 0x0c;
const READ_FIRST: u8 = 0x0d;
const READ_MIDDLE: u8 = 0x0e;
const READ_LAST: u8 = 0x0f;
const ACKNOWLEDGE: u8 = 0x11;
const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
const COMPARE_SWAP: u8 = 0x13;
const FETCH_ADD: u8 = 0x14;
const UD_SEND_ONLY: u8 = 0x64;

const CASES: &[Case] = &[
    Case {
        name: "ib_send_bw",
        program: "ib_send_bw",
        arguments: &["-n", "50", "-s", "10000", "-m", "1024"],
        client: &[
            (SEND_FIRST, 50),
            (SEND_MIDDLE, 8 * 50),
            (SEND_LAST, 50),
            (ACKNOWLEDGE, 50),
        ],
        server: &[
            (SEND_FIRST, 50),
            (SEND_MIDDLE, 8 * 50),
            (SEND_LAST, 50),
            (ACKNOWLEDGE, 50),
        ],
        // 10,000 bytes are nine packets of 1024 and one of 784: no pad.
        fields: &[("infiniband.bth.padcnt", "0", 11 * 50)],
    },
    Case {
        name: "ib_write_lat",
        program: "ib_write_lat",
        arguments: &["-n", "50", "-s", "30"],
        client: &[(WRITE_ONLY, 50), (ACKNOWLEDGE, 50)],
        server: &[(WRITE_ONLY, 50), (ACKNOWLEDGE, 50)],
        fields: &[
            ("infiniband.reth.dmalen", "30", 50),
            ("infiniband.bth.padcnt", "2", 50),
        ],
    },
    Case {
        name: "ib_read_lat",
        program: "ib_read_lat",
        arguments: &["-n", "50", "-s", "4000", "-m", "1024"],
        client: &[
            (READ_REQUEST, 50),
            (READ_FIRST, 50),
            (READ_MIDDLE, 2 * 50),
            (READ_LAST, 50),
        ],
        // The server's processor has no part in it.
        server: &[],
        fields: &[("infiniband.reth.dmalen", "4000", 50)],
    },
    Case {
        name: "ib_atomic_lat/fetch-and-add",
        program: "ib_atomic_lat",
        arguments: &["-n", "50", "-A", "FETCH_AND_ADD"],
        client: &[(FETCH_ADD, 50), (ATOMIC_ACKNOWLEDGE, 50)],
        server: &[],
        fields: &[],
    },
    Case {
        name: "ib_atomic_lat/compare-and-swap",
        program: "ib_atomic_lat",
        arguments: &["-n", "50", "-A", "CMP_AND_SWAP"],
        client: &[(COMPARE_SWAP, 50), (ATOMIC_ACKNOWLEDGE, 50)],
        server: &[],
        fields: &[],
    },
    Case {
        name: "ib_send_lat/ud",
        program: "ib_send_lat",
        arguments: &["-c", "UD", "-n", "50", "-s", "1024"],
        // Each side sends and gets as many.
        client: &[(UD_SEND_ONLY, 100)],
        server: &[(UD_SEND_ONLY, 100)],
        fields: &[("infiniband.deth.q_key", "0x0000000011111111", 100)],
    },
    Case {
        name: "ib_send_lat/uc",
        program: "ib_send_lat",
        arguments: &["-c", "UC", "-n", "50", "-s", "64"],
        client: &[(0x24, 100)],
        server: &[(0x24, 100)],
        fields: &[],
    },
];

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = CASES
        .iter()
        .map(|case| trial(format!("trace/{}", case.name), || perftest(case)))
        .collect();
    trials.push(trial("trace/by-the-owner", by_the_owner));
    trials.push(trial("trace/rping", rping));
    trials.push(trial("trace/udaddy", udaddy));
    trials.push(trial("trace/children-have-files-of-their-own", children));
    trials.push(trial("trace/bad-file", bad_file));
    trials.push(trial("trace/no-traces", no_traces));
    trials
}

/// A packet's fields, those of the list below.
type Packet = BTreeMap<&'static str, String>;

const FIELDS: &[&str] = &[
    "_ws.malformed",
    "ip.src",
    "udp.dstport",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.bth.padcnt",
    "infiniband.bth.a",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.deth.q_key",
    "infiniband.aeth.msn",
    "infiniband.invariant.crc",
    "infiniband.mad.attributeid",
    "infiniband.mad.transactionid",
    "infiniband.cm.req.serviceid.dport",
    "infiniband.cm.req.ip_cm.sip4",
    "infiniband.cm.req.ip_cm.dip4",
    "infiniband.cm.req.localqpn",
];

/// What tshark takes payloads for, by the looks of them.
const GUESSES: &[&str] = &[
    "drbd",
    "fcoib",
    "infiniband.eoib",
    "infiniband_sdp",
    "iser",
    "lnet",
    "nvme-rdma",
    "rpcordma",
    "smb_direct",
    "smc",
];

fn dissect(file: &Path) -> Verdict<Vec<Packet>> {
    let Some(tshark) = find_program("tshark") else {
        return skip("tshark is not installed; scripts/setup test");
    };
    let mut command = command(&tshark);
    command.arg("-n").arg("-r").arg(file).args(["-T", "fields"]);
    // It tries these on payloads; those of the programs here are random, and none of them.
    for guess in GUESSES {
        command.args(["--disable-protocol", guess]);
    }
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure(output.status.success(), || {
        String::from_utf8_lossy(&output.stderr).into_owned()
    })?;
    let packets = text.lines().map(|line| {
        let values = line.split('\t').map(str::to_owned);
        FIELDS.iter().copied().zip(values).collect()
    });
    Ok(packets.collect())
}

/// Whether a packet is what the format allows. The dissector of InfiniBand itself takes payloads
/// for Ethertypes when their third and fourth bytes are zero, and that guess cannot be forbidden.
fn is_whole(packet: &Packet) -> bool {
    let malformed = &packet["_ws.malformed"];
    packet["udp.dstport"] == "4791"
        && (malformed.is_empty() || malformed.contains("Malformed Packet: Ethertype"))
}

/// The file's frames.
fn frames(file: &Path) -> Verdict<Vec<Vec<u8>>> {
    const ENHANCED_PACKET: u32 = 6;
    let bytes = fs::read(file)?;
    let word = |at: usize| -> u32 {
        let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        word.map_or(0, u32::from_le_bytes)
    };
    let mut frames = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let total = word(at + 4) as usize;
        let whole = total >= 12 && word(at + total - 4) as usize == total;
        ensure(whole, || format!("no block at {at} of {}", file.display()))?;
        if word(at) == ENHANCED_PACKET {
            let len = word(at + 20) as usize;
            frames.push(bytes[at + 28..at + 28 + len].to_vec());
        }
        at += total;
    }
    Ok(frames)
}

/// The ICRC by its definition (IBTA annex A17.3): is that of the frame right? The programs here
/// use IPv4 or IPv6 without tags.
fn has_valid_icrc(frame: &[u8]) -> bool {
    let Some((body, sent)) = frame.split_last_chunk::<4>() else {
        return false;
    };
    let mut bytes = body[14..].to_vec();
    let (udp, masked): (usize, &[usize]) = match bytes[0] >> 4 {
        4 => (20, &[1, 8, 10, 11]),
        _ => (40, &[1, 2, 3, 7]),
    };
    if udp == 40 {
        bytes[0] |= 0x0f;
    }
    for at in masked.iter().copied().chain([udp + 6, udp + 7, udp + 12]) {
        bytes[at] = 0xff;
    }
    let mut crc = u32::MAX;
    for byte in [0xff; 8].iter().chain(&bytes) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    (!crc).to_le_bytes() == *sent
}

/// Everything that holds for any trace. Its packets.
fn check(file: &Path) -> Verdict<Vec<Packet>> {
    let packets = dissect(file)?;
    for packet in &packets {
        ensure(is_whole(packet), || {
            format!("{}: {packet:?}", file.display())
        })?;
    }
    let frames = frames(file)?;
    ensure(frames.len() == packets.len(), || "lost packets".to_owned())?;
    for frame in &frames {
        ensure(has_valid_icrc(frame), || {
            format!("{}: wrong ICRC in {frame:02x?}", file.display())
        })?;
    }
    Ok(packets)
}

fn opcode(packet: &Packet) -> u8 {
    packet["infiniband.bth.opcode"].parse().unwrap_or(u8::MAX)
}

fn check_opcodes(file: &Path, packets: &[Packet], expected: Expected) -> Verdict {
    let mut found = BTreeMap::new();
    for packet in packets {
        *found.entry(opcode(packet)).or_insert(0) += 1;
    }
    let expected: BTreeMap<u8, usize> = expected.iter().copied().collect();
    ensure(found == expected, || {
        format!("{}: {found:?}, not {expected:?}", file.display())
    })
}

/// Requests to one queue pair count their packets without a gap, from anywhere, modulo 2²⁴.
/// READs take the numbers of their answers.
fn check_numbers(packets: &[Packet]) -> Verdict {
    let mut next: BTreeMap<&str, u32> = BTreeMap::new();
    for packet in packets {
        let opcode = opcode(packet);
        let is_response = (READ_FIRST..=ATOMIC_ACKNOWLEDGE).contains(&(opcode & 0x1f));
        if is_response {
            continue;
        }
        let psn: u32 = packet["infiniband.bth.psn"].parse().unwrap_or(u32::MAX);
        let taken = match packet["infiniband.reth.dmalen"].parse::<u32>() {
            Ok(len) if opcode == READ_REQUEST => len.div_ceil(1024),
            _ => 1,
        };
        let expected = next.entry(&packet["infiniband.bth.destqp"]).or_insert(psn);
        ensure(*expected == psn, || {
            format!("{expected} expected: {packet:?}")
        })?;
        *expected = psn.wrapping_add(taken) & 0xff_ffff;
    }
    Ok(())
}

/// Both files number the datagrams alike.
fn check_same_numbers(at_client: &[Packet], at_server: &[Packet]) -> Verdict {
    let numbers = |packets: &[Packet]| {
        let each = packets.iter().map(|packet| {
            let number = &packet["infiniband.bth.psn"];
            (packet["infiniband.bth.destqp"].clone(), number.clone())
        });
        each.collect::<BTreeSet<_>>()
    };
    let (at_client, at_server) = (numbers(at_client), numbers(at_server));
    ensure(at_client == at_server, || {
        format!("{at_client:?}, but {at_server:?}")
    })
}

/// The trace that a process of these tests writes.
fn traced(stage: &Stage, name: &str) -> (PathBuf, [String; 2]) {
    let file = stage.folder().join(name);
    let options = ["--trace".to_owned(), file.display().to_string()];
    (file, options)
}

fn perftest(case: &Case) -> Verdict {
    let mut stage = Stage::new()?;
    let (server, server_options) = traced(&stage, "server.pcapng");
    let (client, client_options) = traced(&stage, "client.pcapng");
    let arguments = [&["-F"], case.arguments].concat();
    stage.pair_with(case.program, &arguments, &server_options, &client_options)?;
    for (file, expected) in [(&server, case.server), (&client, case.client)] {
        let packets = check(file)?;
        check_opcodes(file, &packets, expected)?;
        check_numbers(&packets)?;
    }
    let packets = dissect(&client)?;
    if case.client == case.server
        && case
            .client
            .iter()
            .all(|(opcode, _)| *opcode == UD_SEND_ONLY)
    {
        check_same_numbers(&packets, &dissect(&server)?)?;
    }
    for (field, value, count) in case.fields {
        let found = packets
            .iter()
            .filter(|packet| packet[field] == *value)
            .count();
        ensure(found == *count, || {
            format!("{field} is {value} on {found} packets, not {count}")
        })?;
    }
    Ok(())
}

/// READs that the owner's thread carries out are in both files.
fn by_the_owner() -> Verdict {
    let mut stage = Stage::new()?;
    let [.., (_, by_the_owner)] = WAYS;
    stage.set(by_the_owner);
    let (server, server_options) = traced(&stage, "server.pcapng");
    let (client, client_options) = traced(&stage, "client.pcapng");
    let arguments = ["-F", "-n", "20", "-s", "4000", "-m", "1024"];
    stage.pair_with("ib_read_lat", &arguments, &server_options, &client_options)?;
    let expected = &[
        (READ_REQUEST, 20),
        (READ_FIRST, 20),
        (READ_MIDDLE, 2 * 20),
        (READ_LAST, 20),
    ];
    let mut numbers = Vec::new();
    for file in [&server, &client] {
        let packets = check(file)?;
        check_opcodes(file, &packets, expected)?;
        let psns = packets
            .iter()
            .map(|packet| packet["infiniband.bth.psn"].clone());
        numbers.push(psns.collect::<Vec<_>>());
    }
    // Nothing went past the owner: the two files have the same packets.
    ensure(numbers[0] == numbers[1], || format!("{numbers:?}"))
}

fn rping() -> Verdict {
    let mut stage = Stage::new()?;
    let port = free_port()?.to_string();
    let (server, server_options) = traced(&stage, "server.pcapng");
    let (client, client_options) = traced(&stage, "client.pcapng");
    let mut job = stage.start_with(
        "rping",
        &["-s", "-v", "-V", "-C", "10", "-p", &port],
        &server_options,
    )?;
    let arguments = ["-c", "-V", "-C", "10", "-a", "127.0.0.1", "-p", &port];
    stage.until_success("rping", &arguments, &client_options, &mut job)?;
    job.finish(LIMIT)?.success()?;
    // Each round: the client's two SENDs and the server's two, a READ and a WRITE by the server.
    let sends = |packets: &[Packet]| packets.iter().filter(|p| opcode(p) == 0x04).count();
    let count = |packets: &[Packet], wanted: u8| {
        let of = packets.iter().filter(|packet| opcode(packet) == wanted);
        of.count()
    };
    let (at_server, at_client) = (check(&server)?, check(&client)?);
    ensure(sends(&at_server) >= 40 && sends(&at_client) >= 40, || {
        format!("{} and {} SENDs", sends(&at_server), sends(&at_client))
    })?;
    ensure(
        count(&at_server, READ_REQUEST) == 10 && count(&at_server, WRITE_ONLY) == 10,
        || format!("{at_server:?}"),
    )?;
    check_conversation(&at_client, &port)?;
    check_conversation(&at_server, &port)?;
    // The client's first request may overtake its RTU on the way to the server (IBTA 12.9.7.2,
    // communication established), but not the RTU's own writing.
    let first_data = at_client.iter().position(|packet| attribute(packet) == 0);
    ensure(first_data == Some(3), || {
        format!("the client's first data are packet {first_data:?}")
    })?;
    let transactions = [&at_client, &at_server].map(|packets| {
        let of = packets.iter().filter(|packet| attribute(packet) == REQ);
        of.map(|packet| packet["infiniband.mad.transactionid"].clone())
            .collect::<Vec<_>>()
    });
    ensure(transactions[0] == transactions[1], || {
        format!("{transactions:?}")
    })?;
    let loopback = |packet: &Packet| packet["ip.src"] == "127.0.0.1";
    ensure(at_server.iter().chain(&at_client).all(loopback), || {
        "GIDs are not the addresses that the programs used".to_owned()
    })
}

/// The attribute of a management datagram (IBTA 16.7); 0 for what is none.
fn attribute(packet: &Packet) -> u16 {
    let text = &packet["infiniband.mad.attributeid"];
    let digits = text.strip_prefix("0x").unwrap_or_default();
    u16::from_str_radix(digits, 16).unwrap_or(0)
}

const REQ: u16 = 0x10;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

/// A connection is agreed on before its queue pairs talk, and ended after that.
fn check_conversation(packets: &[Packet], port: &str) -> Verdict {
    let steps: Vec<u16> = packets.iter().map(attribute).collect();
    let talk = steps.iter().filter(|step| **step != 0).copied();
    let talk: Vec<u16> = talk.collect();
    ensure(
        talk.starts_with(&[REQ, REP, RTU, DREQ]) && steps.starts_with(&talk[..2]),
        || format!("{steps:x?}"),
    )?;
    let req = &packets[0];
    let port = port
        .parse()
        .map_or_else(|_| port.to_owned(), |port: u16| format!("0x{port:04x}"));
    let fields = [
        ("infiniband.cm.req.serviceid.dport", port),
        ("infiniband.cm.req.ip_cm.sip4", "127.0.0.1".to_owned()),
        ("infiniband.cm.req.ip_cm.dip4", "127.0.0.1".to_owned()),
        ("infiniband.bth.destqp", "0x000001".to_owned()),
        ("infiniband.deth.q_key", "0x0000000080010000".to_owned()),
    ];
    for (field, value) in fields {
        ensure(req[field] == value, || {
            format!("{field} is not {value}: {req:?}")
        })?;
    }
    // The queue pair that was named is the one that gets messages.
    let qpn = &req["infiniband.cm.req.localqpn"];
    let is_used = packets
        .iter()
        .any(|packet| attribute(packet) == 0 && packet["infiniband.bth.destqp"] == *qpn);
    ensure(is_used, || format!("nobody sends to {qpn}"))
}

/// A datagram service is asked for its queue pair.
fn udaddy() -> Verdict {
    let mut stage = Stage::new()?;
    // Its port is always the same; in a directory of their own the two meet nobody else.
    let directory = stage.folder().display().to_string();
    stage.set(Box::leak(Box::new([(
        "XDG_RUNTIME_DIR",
        &*directory.leak(),
    )])));
    let (server, server_options) = traced(&stage, "server.pcapng");
    let (client, client_options) = traced(&stage, "client.pcapng");
    let mut job = stage.start_with("udaddy", &[], &server_options)?;
    let arguments = ["-s", "127.0.0.1"];
    stage.until_success("udaddy", &arguments, &client_options, &mut job)?;
    job.finish(LIMIT)?.success()?;
    for file in [&server, &client] {
        let packets = check(file)?;
        let steps: Vec<u16> = packets.iter().map(attribute).collect();
        ensure(
            steps.starts_with(&[SIDR_REQ, SIDR_REP]) && steps.len() > 2,
            || format!("{}: {steps:x?}", file.display()),
        )?;
    }
    Ok(())
}

/// Two processes of one command: the second has a file of its own.
fn children() -> Verdict {
    let mut stage = Stage::new()?;
    let (file, options) = traced(&stage, "both.pcapng");
    let port = free_port()?.to_string();
    let script = format!(
        "ib_send_lat -F -n 10 -p {port} & \
         for try in 1 2 3 4 5 6 7 8 9 10; do \
           sleep 0.5; ib_send_lat -F -n 10 -p {port} 127.0.0.1 && break; done; wait"
    );
    if find_program("ib_send_lat").is_none() {
        return skip("ib_send_lat is not installed; scripts/setup test");
    }
    let job = stage.start_with("sh", &["-c", &script], &options)?;
    job.finish(LIMIT)?.success()?;
    let mut files = Vec::new();
    for entry in fs::read_dir(stage.folder())? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "pcapng")
        {
            files.push(path);
        }
    }
    ensure(files.len() >= 2 && files.contains(&file), || {
        format!("{files:?}")
    })?;
    let mut full = 0;
    for file in &files {
        full += usize::from(check(file)?.len() == 40);
    }
    ensure(full == 2, || {
        format!("{full} of {files:?} have all packets")
    })
}

fn bad_file() -> Verdict {
    let mut stage = Stage::new()?;
    let options = ["--trace".to_owned(), "/nowhere/x.pcapng".to_owned()];
    let outcome = stage.start_with("true", &[], &options)?.finish(LIMIT)?;
    ensure(outcome.status.code() == Some(125), || outcome.describe())?;
    ensure(outcome.describe().contains("/nowhere/x.pcapng"), || {
        outcome.describe()
    })
}

/// A device that makes no trace.
fn no_traces() -> Verdict {
    let mut stage = Stage::new()?;
    let device = "window:/nowhere/window";
    let options = ["--device", device, "--trace", "/nowhere/x.pcapng"].map(str::to_owned);
    let outcome = stage.start_with("true", &[], &options)?.finish(LIMIT)?;
    ensure(outcome.status.code() == Some(125), || outcome.describe())?;
    ensure(outcome.describe().contains("no traces"), || {
        outcome.describe()
    })?;
    Ok(())
}
