//! Files of `sluice verbs --trace`, as tshark reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::job::{command, find_program};
use crate::suite::{Verdict, ensure, skip};

/// What a file must have: opcodes, and how often each is there. (IBTA 9.2; decimal, as
/// tshark prints them.)
pub type Expected = &'static [(u8, usize)];

/// A program of perftest, and what its two files have.
pub struct Case {
    pub name: &'static str,
    pub program: &'static str,
    pub arguments: &'static [&'static str],
    pub client: Expected,
    /// Where programs of one host use each other's memory themselves.
    pub server: Expected,
    /// Where each end carries out what the other asks for, if that is another number: both files.
    pub both: Option<Expected>,
    /// Of the client's file: a field, a value, and on how many packets it is.
    pub fields: &'static [(&'static str, &'static str, usize)],
}

pub const SEND_FIRST: u8 = 0x00;
pub const SEND_MIDDLE: u8 = 0x01;
pub const SEND_LAST: u8 = 0x02;
pub const WRITE_ONLY: u8 = 0x0a;
pub const READ_REQUEST: u8 = 0x0c;
pub const READ_FIRST: u8 = 0x0d;
pub const READ_MIDDLE: u8 = 0x0e;
pub const READ_LAST: u8 = 0x0f;
pub const ACKNOWLEDGE: u8 = 0x11;
pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
pub const COMPARE_SWAP: u8 = 0x13;
pub const FETCH_ADD: u8 = 0x14;
pub const UD_SEND_ONLY: u8 = 0x64;

pub const CASES: &[Case] = &[
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
        both: None,
        fields: &[("infiniband.bth.padcnt", "0", 11 * 50)],
    },
    Case {
        name: "ib_write_lat",
        program: "ib_write_lat",
        arguments: &["-n", "50", "-s", "30"],
        client: &[(WRITE_ONLY, 50), (ACKNOWLEDGE, 50)],
        server: &[(WRITE_ONLY, 50), (ACKNOWLEDGE, 50)],
        both: Some(&[(WRITE_ONLY, 100), (ACKNOWLEDGE, 100)]),
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
        both: None,
        fields: &[("infiniband.reth.dmalen", "4000", 50)],
    },
    Case {
        name: "ib_atomic_lat/fetch-and-add",
        program: "ib_atomic_lat",
        arguments: &["-n", "50", "-A", "FETCH_AND_ADD"],
        client: &[(FETCH_ADD, 50), (ATOMIC_ACKNOWLEDGE, 50)],
        server: &[],
        both: None,
        fields: &[],
    },
    Case {
        name: "ib_atomic_lat/compare-and-swap",
        program: "ib_atomic_lat",
        arguments: &["-n", "50", "-A", "CMP_AND_SWAP"],
        client: &[(COMPARE_SWAP, 50), (ATOMIC_ACKNOWLEDGE, 50)],
        server: &[],
        both: None,
        fields: &[],
    },
    Case {
        name: "ib_send_lat/ud",
        program: "ib_send_lat",
        arguments: &["-c", "UD", "-n", "50", "-s", "1024"],
        // Each side sends and gets as many.
        client: &[(UD_SEND_ONLY, 100)],
        server: &[(UD_SEND_ONLY, 100)],
        both: None,
        fields: &[("infiniband.deth.q_key", "0x0000000011111111", 100)],
    },
    Case {
        name: "ib_send_lat/uc",
        program: "ib_send_lat",
        arguments: &["-c", "UC", "-n", "50", "-s", "64"],
        client: &[(0x24, 100)],
        server: &[(0x24, 100)],
        both: None,
        fields: &[],
    },
];

/// A packet's fields, those of the list below.
pub type Packet = BTreeMap<&'static str, String>;

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

/// All packets of a file.
pub fn dissect(file: &Path) -> Verdict<Vec<Packet>> {
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
pub fn check(file: &Path) -> Verdict<Vec<Packet>> {
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

/// That of the base transport header.
pub fn opcode(packet: &Packet) -> u8 {
    packet["infiniband.bth.opcode"].parse().unwrap_or(u8::MAX)
}

/// Fails unless each is there as often as it must be.
pub fn check_opcodes(file: &Path, packets: &[Packet], expected: Expected) -> Verdict {
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
pub fn check_numbers(packets: &[Packet]) -> Verdict {
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
pub fn check_same_numbers(at_client: &[Packet], at_server: &[Packet]) -> Verdict {
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

impl Case {
    /// Fails unless both files are what they must be: the client's and the server's.
    pub fn check(&self, files: [&Path; 2], expected: [Expected; 2]) -> Verdict {
        let [client_file, server_file] = files;
        let [client, server] = expected;
        for (file, expected) in [(server_file, server), (client_file, client)] {
            let packets = check(file)?;
            check_opcodes(file, &packets, expected)?;
            check_numbers(&packets)?;
        }
        let packets = dissect(client_file)?;
        let is_datagram = |(opcode, _): &(u8, usize)| *opcode == UD_SEND_ONLY;
        if client == server && client.iter().all(is_datagram) {
            check_same_numbers(&packets, &dissect(server_file)?)?;
        }
        let fields = if client == self.client {
            self.fields
        } else {
            &[]
        };
        for (field, value, count) in fields {
            let has = |packet: &&Packet| packet[field] == *value;
            let found = packets.iter().filter(has).count();
            ensure(found == *count, || {
                format!("{field} is {value} on {found} packets, not {count}")
            })?;
        }
        Ok(())
    }
}
