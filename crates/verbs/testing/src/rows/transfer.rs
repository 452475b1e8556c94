//! Operations on reliable connections: what arrives, where, and how it is told.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_verbs::{QpType, Sge, WcOpcode, WrOpcode, send_flags, wc_flags};

use super::{AREA, HALF, sizes};
use crate::memory::Memory;
use crate::row::{Need, Row};
use crate::side::{Joined, Side};

fn rc(side: &mut Side) -> Joined {
    side.connected(QpType::Rc, AREA)
}

/// A piece of memory in two.
fn halves(end: &Joined, at: usize, len: usize) -> [Sge; 2] {
    [end.sge(at, len / 3), end.sge(at + len / 3, len - len / 3)]
}

pub const fn writes_and_reads_arrive() -> Row {
    Row::new(&[], write_and_read, look_at_writes)
}

fn write_and_read(side: &mut Side) {
    let end = rc(side);
    for (turn, len) in sizes(side.mtu()).into_iter().enumerate() {
        let seed = turn as u8 + 1;
        end.memory.fill(0, len, seed);
        let wc = end.run(&end.request(WrOpcode::RdmaWrite, 1, &halves(&end, 0, len), 5));
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::RdmaWrite as u32));
        let wc = end.run(&end.request(WrOpcode::RdmaRead, 2, &halves(&end, HALF, len), 5));
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::RdmaRead as u32));
        assert_eq!((wc.byte_len, wc.qp_num), (len as u32, end.qp.num()));
        end.memory.check(HALF, len, seed);
        side.swap([len as u64, u64::from(seed), 0, 0]);
        side.meet();
    }
}

/// Never calls into the library while the peer works.
fn look_at_writes(side: &mut Side) {
    let end = rc(side);
    for _ in sizes(side.mtu()) {
        let words = side.swap([0; 4]);
        let (len, seed) = (words[0] as usize, words[1] as u8);
        end.memory.check(5, len, seed);
        assert_eq!(end.memory.byte(4), 0, "in front of the place");
        side.meet();
    }
    assert!(end.cq.poll_one().is_none(), "nobody tells the responder");
}

pub const fn sends_arrive() -> Row {
    Row::new(&[], send_all, receive_all)
}

fn send_all(side: &mut Side) {
    let end = rc(side);
    for (turn, len) in sizes(side.mtu()).into_iter().enumerate() {
        end.memory.fill(0, len, turn as u8);
        side.meet();
        let wc = end.run(&end.request(WrOpcode::Send, turn as u64, &halves(&end, 0, len), 0));
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::Send as u32));
        side.meet();
    }
}

fn receive_all(side: &mut Side) {
    let end = rc(side);
    for (turn, len) in sizes(side.mtu()).into_iter().enumerate() {
        let pieces = [end.sge(1, 50), end.sge(51, 0), end.sge(51, AREA - 51)];
        end.qp.post_recv(turn as u64, &pieces).unwrap();
        side.meet();
        let wc = end.good();
        assert_eq!((wc.wr_id, wc.byte_len), (turn as u64, len as u32));
        assert_eq!((wc.opcode, wc.wc_flags), (WcOpcode::Recv as u32, 0));
        assert_eq!(wc.qp_num, end.qp.num());
        end.memory.check(1, len, turn as u8);
        side.meet();
    }
    assert!(end.cq.poll_one().is_none());
}

pub const fn immediate_data_arrives() -> Row {
    Row::new(&[Need::Immediate], send_numbers, receive_numbers)
}

fn send_numbers(side: &mut Side) {
    let end = rc(side);
    for (turn, len) in sizes(side.mtu()).into_iter().enumerate() {
        end.memory.fill(0, len, turn as u8);
        let sges = halves(&end, 0, len);
        for opcode in [WrOpcode::SendWithImm, WrOpcode::RdmaWriteWithImm] {
            side.meet();
            let mut wr = end.request(opcode, 9, &sges, HALF);
            wr.imm = 0x0102_0300 + turn as u32;
            end.done(&wr);
        }
        side.meet();
    }
}

fn receive_numbers(side: &mut Side) {
    let end = rc(side);
    for (turn, len) in sizes(side.mtu()).into_iter().enumerate() {
        let told = (len as u32, 0x0102_0300 + turn as u32, wc_flags::WITH_IMM);
        end.post_recv(1, 0, HALF);
        side.meet();
        let wc = end.good();
        assert_eq!(wc.opcode, WcOpcode::Recv as u32);
        assert_eq!((wc.byte_len, wc.imm, wc.wc_flags), told);
        end.memory.check(0, len, turn as u8);
        // A WRITE takes a receive without touching its memory.
        end.memory.fill(0, 64, 99);
        end.post_recv(2, 0, 64);
        side.meet();
        let wc = end.good();
        assert_eq!((wc.wr_id, wc.opcode), (2, WcOpcode::RecvRdmaWithImm as u32));
        assert_eq!((wc.byte_len, wc.imm, wc.wc_flags), told);
        end.memory.check(HALF, len, turn as u8);
        end.memory.check(0, 64, 99);
        side.meet();
    }
}

pub const fn inline_data_arrives() -> Row {
    Row::new(&[], send_inline, receive_inline)
}

/// What was inline may change as soon as it is posted.
fn send_inline(side: &mut Side) {
    let end = rc(side);
    let scratch = Memory::new(64);
    for (turn, len) in [0_usize, 1, 11, 64].into_iter().enumerate() {
        for opcode in [WrOpcode::Send, WrOpcode::RdmaWrite] {
            scratch.fill(0, 64, turn as u8);
            let piece = |at: usize, length: usize| Sge {
                addr: scratch.start as u64 + at as u64,
                length: length as u32,
                lkey: 0,
            };
            let sges = [piece(0, len / 2), piece(len / 2, len - len / 2)];
            let mut wr = end.request(opcode, 1, &sges, HALF);
            wr.flags |= send_flags::INLINE;
            side.meet();
            end.post(&wr);
            scratch.fill(0, 64, 0xff);
            end.good();
            end.arrive();
            side.meet();
        }
    }
}

fn receive_inline(side: &mut Side) {
    let end = rc(side);
    for (turn, len) in [0_usize, 1, 11, 64].into_iter().enumerate() {
        end.post_recv(1, 8, 100);
        side.meet();
        assert_eq!(end.good().byte_len, len as u32);
        end.memory.check(8, len, turn as u8);
        side.meet();
        side.meet();
        side.meet();
        end.memory.check(HALF, len, turn as u8);
    }
}

pub const fn atomics_are_atomic() -> Row {
    Row::new(&[Need::Atomics], add, be_added_to)
}

const ADDS: u64 = 600;
/// `IBV_ATOMIC_GLOB`: atomic against the processor too.
const GLOBAL: u32 = 2;

fn add(side: &mut Side) {
    let end = rc(side);
    let sge = [end.sge(64, 8)];
    let mut last = None;
    for turn in 0..ADDS {
        let mut wr = end.request(WrOpcode::AtomicFetchAndAdd, turn, &sge, 0);
        wr.compare_add = 1;
        let wc = end.run(&wr);
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::FetchAdd as u32));
        assert_eq!(wc.byte_len, 8);
        let old = Some(end.memory.word(64));
        assert!(last < old, "{old:?} after {last:?}");
        last = old;
    }
    let mut wr = end.request(WrOpcode::AtomicCmpAndSwp, 1, &sge, 8);
    (wr.compare_add, wr.swap) = (5, 6);
    for found in [5, 6] {
        let wc = end.run(&wr);
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::CompSwap as u32));
        assert_eq!(end.memory.word(64), found);
    }
    side.meet();
    side.meet();
}

/// Adds by the processor at the same time, where the device claims that it bears that.
fn be_added_to(side: &mut Side) {
    let end = side.end(QpType::Rc, AREA, None);
    end.memory.set_word(8, 5);
    let end = side.connect(end);
    let word = end.memory.atomic(0);
    let own = if side.caps().atomic_cap == GLOBAL {
        ADDS
    } else {
        0
    };
    for _ in 0..own {
        AtomicU64::fetch_add(word, 1, Ordering::SeqCst);
    }
    side.meet();
    assert_eq!(end.memory.word(0), ADDS + own);
    assert_eq!(end.memory.word(8), 6);
    side.meet();
}
