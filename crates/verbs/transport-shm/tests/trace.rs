//! What the tap tells a trace, between two processes: refusals, retries, and WRITEs that the
//! responder's processor has no part in.
#![allow(unsafe_code)]

mod common;

use std::os::unix::process::parent_id;
use std::path::PathBuf;

use common::{Way, World, pair, until};
use sluice_verbs::{QpState, QpType, WcStatus, WrOpcode};
use sluice_wire::extended::{NakCode, RnrTimer, Syndrome};
use sluice_wire::{Frame, Psn};

const IMMEDIATE: [u8; 4] = [0xca, 0xfe, 0xba, 0xbe];

/// The file of a role. `test` is the process that both have as their parent.
fn file(test: u32, name: &str, role: &str) -> PathBuf {
    std::env::temp_dir().join(format!("slv-trace-{test}-{name}-{role}.pcap"))
}

fn trace_to(name: &str, role: &str) {
    let path = file(parent_id(), name, role);
    let _ = std::fs::remove_file(&path);
    // SAFETY: nothing of this process reads the environment but through the standard library,
    // which has a lock for it.
    unsafe { std::env::set_var("SLUICE_VERBS_TRACE_FILE", path) };
}

/// What was in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    opcode: u8,
    psn: Psn,
    syndrome: Option<Syndrome>,
    bytes: usize,
}

/// The packets of a classic file, each checked with its ICRC.
fn seen(name: &str, role: &str) -> Vec<Seen> {
    let path = file(std::process::id(), name, role);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut rest = &bytes[24..];
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let frame = Frame::parse(&rest[16..16 + len]).unwrap();
        let headers = frame.packet().headers();
        if let Some(immediate) = headers.immediate {
            assert_eq!(immediate.0, IMMEDIATE);
        }
        packets.push(Seen {
            opcode: headers.bth.opcode.byte(),
            psn: headers.bth.psn,
            syndrome: headers.aeth.map(|aeth| aeth.syndrome),
            bytes: frame.packet().payload().len(),
        });
        rest = &rest[16 + len..];
    }
    packets
}

fn kinds(packets: &[Seen]) -> Vec<(u8, Option<Syndrome>)> {
    let kind = |packet: &Seen| (packet.opcode, packet.syndrome);
    packets.iter().map(kind).collect()
}

/// Whether this is the test, and not one of its two processes.
fn is_test() -> bool {
    std::env::var_os("SLV_ROLE").is_none()
}

const SEND_ONLY: u8 = 0x04;
const WRITE_ONLY: u8 = 0x0a;
const ACKNOWLEDGE: u8 = 0x11;

fn send_to_nobody(world: &mut World) {
    trace_to("rnr", "first");
    let mut end = world.end(QpType::Rc, 4096, None);
    world.introduce(&mut end);
    end.to_init();
    end.to_rtr();
    end.send_with(14, 3, 2);
    world.meet();
    let sge = [end.sge(0, 64)];
    let status = end.run(&end.request(WrOpcode::Send, 1, &sge, 0)).status;
    assert_eq!(status, WcStatus::RnrRetryExcErr as u32);
    world.meet();
}

fn post_nothing(world: &mut World) {
    trace_to("rnr", "second");
    let mut end = world.end(QpType::Rc, 4096, None);
    world.introduce(&mut end);
    end.to_ready();
    world.meet();
    world.meet();
}

#[test]
fn each_try_and_each_refusal_is_there() {
    let name = "each_try_and_each_refusal_is_there";
    pair(name, Way::Shared, send_to_nobody, post_nothing);
    if !is_test() {
        return;
    }
    // The timer that the tests set at the responder is code 1.
    let later = (ACKNOWLEDGE, Some(Syndrome::RnrNak(RnrTimer::from_code(1))));
    let send = (SEND_ONLY, None);
    let first = seen("rnr", "first");
    assert_eq!(kinds(&first), [send, later, send, later, send, later]);
    // All of one number.
    assert!(first.iter().all(|packet| packet.psn == first[0].psn));
    let second = seen("rnr", "second");
    assert_eq!(kinds(&second), [later; 3]);
    assert_eq!(second[0].psn, first[0].psn);
}

fn write_with_a_wrong_key(world: &mut World) {
    trace_to("nak", "first");
    let end = world.connected(QpType::Rc, 8192);
    let sge = [end.sge(0, 64)];
    end.run(&end.request(WrOpcode::RdmaWrite, 1, &sge, 0));
    let mut bad = end.request(WrOpcode::RdmaWrite, 2, &sge, 0);
    bad.rkey ^= 0x100;
    assert_eq!(end.run(&bad).status, WcStatus::RemAccessErr as u32);
    world.meet();
}

fn refuse(world: &mut World) {
    trace_to("nak", "second");
    let end = world.connected(QpType::Rc, 8192);
    until("the refusal", || end.qp.state() == QpState::Err);
    world.meet();
}

#[test]
fn a_refusal_is_in_both_files() {
    let name = "a_refusal_is_in_both_files";
    pair(name, Way::Shared, write_with_a_wrong_key, refuse);
    if !is_test() {
        return;
    }
    let write = (WRITE_ONLY, None);
    let good = (ACKNOWLEDGE, Some(Syndrome::Ack(None)));
    let nak = (ACKNOWLEDGE, Some(Syndrome::Nak(NakCode::RemoteAccess)));
    let first = seen("nak", "first");
    assert_eq!(kinds(&first), [write, good, write, nak]);
    assert_eq!(first[3].psn, first[2].psn);
    // The first WRITE needed no processor there.
    assert_eq!(kinds(&seen("nak", "second")), [nak]);
}

/// Bytes of the messages: one packet, and several of the MTU that the tests have, 4096.
const LENGTHS: [usize; 2] = [100, 10_000];

fn write_with_immediate(world: &mut World) {
    trace_to("imm", "first");
    let end = world.connected(QpType::Rc, 16_384);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let sge = [end.sge(0, len)];
        let mut wr = end.request(WrOpcode::RdmaWriteWithImm, n as u64, &sge, 0);
        wr.imm = u32::from_ne_bytes(IMMEDIATE);
        end.run(&wr);
    }
    world.meet();
}

fn take_immediate(world: &mut World) {
    trace_to("imm", "second");
    let mut end = world.end(QpType::Rc, 16_384, None);
    world.introduce(&mut end);
    end.to_init();
    for n in 0..LENGTHS.len() as u64 {
        end.post_recv(n, 0, 0);
    }
    end.to_rtr();
    end.send_with(14, 3, 7);
    world.meet();
    for n in 0..LENGTHS.len() as u64 {
        assert_eq!(end.good().wr_id, n);
    }
    world.meet();
}

/// The data goes past the responder and the immediate data does not: it has both in its file.
#[test]
fn both_files_have_a_write_with_immediate_data() {
    let name = "both_files_have_a_write_with_immediate_data";
    pair(name, Way::Shared, write_with_immediate, take_immediate);
    if !is_test() {
        return;
    }
    let first = seen("imm", "first");
    let opcodes: Vec<u8> = first.iter().map(|packet| packet.opcode).collect();
    assert_eq!(opcodes, [0x0b, ACKNOWLEDGE, 0x06, 0x07, 0x09, ACKNOWLEDGE]);
    let bytes: Vec<usize> = first.iter().map(|packet| packet.bytes).collect();
    assert_eq!(bytes, [100, 0, 4096, 4096, 10_000 - 8192, 0]);
    assert_eq!(first[5].psn, first[4].psn);
    assert_eq!(first, seen("imm", "second"));
}
