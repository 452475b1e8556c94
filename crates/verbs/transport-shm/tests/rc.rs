//! Reliable connections between two processes: every operation by every way to memory.

mod common;

use std::time::Duration;

use common::{End, Way, World, pair, pair_every_way, until};
use sluice_verbs::{
    QpState, QpType, SendWr, Sge, WcOpcode, WcStatus, WrOpcode, send_flags, wc_flags,
};

const SIZES: [usize; 9] = [1, 8, 63, 64, 1000, 4096, 4097, 70_000, 1 << 20];
const AREA: usize = 4 << 20;
const HALF: usize = AREA / 2;

fn rc(world: &mut World) -> End {
    world.connected(QpType::Rc, AREA)
}

fn write_and_read(world: &mut World) {
    let end = rc(world);
    for (turn, len) in SIZES.into_iter().enumerate() {
        let seed = turn as u8 + 1;
        end.memory.fill(0, len, seed);
        let sge = [end.sge(0, len / 2), end.sge(len / 2, len - len / 2)];
        let wc = end.run(&end.request(WrOpcode::RdmaWrite, 1, &sge, 5));
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::RdmaWrite as u32));
        let sge = [
            end.sge(HALF, len / 2),
            end.sge(HALF + len / 2, len - len / 2),
        ];
        let wc = end.run(&end.request(WrOpcode::RdmaRead, 2, &sge, 5));
        assert_eq!((wc.status, wc.byte_len), (0, len as u32));
        end.memory.check(HALF, len, seed);
        let words = world.swap([len as u64, u64::from(seed), 0, 0]);
        assert_eq!(words[0], 1);
        world.meet();
    }
}

/// Never calls into the library while the peer works.
fn look_at_writes(world: &mut World) {
    let end = rc(world);
    for (turn, len) in SIZES.into_iter().enumerate() {
        let words = world.swap([1, 0, 0, 0]);
        assert_eq!(words, [len as u64, turn as u64 + 1, 0, 0]);
        end.memory.check(5, len, turn as u8 + 1);
        world.meet();
    }
}

#[test]
fn writes_and_reads_arrive_without_the_responder() {
    pair_every_way(
        "writes_and_reads_arrive_without_the_responder",
        write_and_read,
        look_at_writes,
    );
}

fn send_all(world: &mut World) {
    let end = rc(world);
    for (turn, len) in SIZES.into_iter().enumerate() {
        end.memory.fill(0, len, turn as u8);
        let sge = [end.sge(0, len / 2), end.sge(len / 2, len - len / 2)];
        let wc = end.run(&end.request(WrOpcode::Send, turn as u64, &sge, 0));
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::Send as u32));
    }
    let mut wr = end.request(WrOpcode::SendWithImm, 77, &[], 0);
    wr.imm = 0x0102_0304;
    assert_eq!(end.run(&wr).status, 0);
    end.memory.fill(0, 100, 9);
    let sge = [end.sge(0, 100)];
    let mut wr = end.request(WrOpcode::RdmaWriteWithImm, 78, &sge, HALF);
    wr.imm = 0x0a0b_0c0d;
    assert_eq!(end.run(&wr).status, 0);
    let inline = *b"inline data";
    let sge = [Sge {
        addr: inline.as_ptr() as u64,
        length: inline.len() as u32,
        lkey: 0,
    }];
    let mut wr = end.request(WrOpcode::Send, 79, &sge, 0);
    wr.flags |= send_flags::INLINE;
    assert_eq!(end.run(&wr).status, 0);
    world.meet();
}

fn receive_all(world: &mut World) {
    let end = rc(world);
    for (turn, len) in SIZES.into_iter().enumerate() {
        // Late on purpose: the sender meets an empty queue.
        std::thread::sleep(Duration::from_millis(2));
        end.qp
            .post_recv(turn as u64, &[end.sge(0, 50), end.sge(50, AREA - 50)])
            .unwrap();
        let wc = end.good();
        assert_eq!((wc.wr_id, wc.byte_len), (turn as u64, len as u32));
        assert_eq!(wc.opcode, WcOpcode::Recv as u32);
        end.memory.check(0, len, turn as u8);
    }
    end.post_recv(1, 0, 0);
    let wc = end.good();
    assert_eq!((wc.imm, wc.wc_flags), (0x0102_0304, wc_flags::WITH_IMM));
    end.post_recv(2, 0, 0);
    let wc = end.good();
    assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm as u32);
    assert_eq!((wc.imm, wc.byte_len), (0x0a0b_0c0d, 100));
    end.memory.check(HALF, 100, 9);
    end.post_recv(3, 8, 100);
    assert_eq!(end.good().byte_len, 11);
    assert_eq!(end.memory.byte(8), b'i');
    world.meet();
}

#[test]
fn sends_of_every_kind_arrive() {
    pair_every_way("sends_of_every_kind_arrive", send_all, receive_all);
}

const ADDS: u64 = 5000;

fn add(world: &mut World) {
    let end = rc(world);
    let sge = [end.sge(64, 8)];
    for turn in 0..ADDS {
        let mut wr = end.request(WrOpcode::AtomicFetchAndAdd, turn, &sge, 0);
        wr.compare_add = 1;
        assert_eq!(end.run(&wr).status, 0);
    }
    let mut wr = end.request(WrOpcode::AtomicCmpAndSwp, 1, &sge, 8);
    wr.compare_add = 5;
    wr.swap = 6;
    assert_eq!(end.run(&wr).status, 0);
    assert_eq!(end.memory.word(64), 5);
    assert_eq!(end.run(&wr).status, 0);
    assert_eq!(end.memory.word(64), 6, "the second finds the first's value");
    world.meet();
    world.meet();
}

/// Adds by the processor at the same time.
fn be_added_to(world: &mut World) {
    let mut end = world.end(QpType::Rc, AREA, None);
    end.memory.set_word(8, 5);
    world.introduce(&mut end);
    end.to_ready();
    world.meet();
    let word = end.memory.start.cast::<u64>();
    for _ in 0..ADDS {
        #[allow(unsafe_code)]
        // SAFETY: an aligned word of the test's memory that is used as an atomic only.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(word) }
            .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
    world.meet();
    assert_eq!(end.memory.word(0), 2 * ADDS);
    assert_eq!(end.memory.word(8), 6);
    world.meet();
}

#[test]
fn atomics_are_atomic_against_the_owner() {
    pair_every_way("atomics_are_atomic_against_the_owner", add, be_added_to);
}

const ROUNDS: usize = 20;
const FOLLOWING: usize = 30;

/// Each READ sees what the WRITE and the atomic in front of it left, although all are posted at once.
fn read_what_was_added(world: &mut World) {
    let end = rc(world);
    for round in 0..ROUNDS {
        let base = (round * 1000) as u64;
        end.memory.set_word(0, base);
        for turn in 0..FOLLOWING {
            let at = 64 + turn * 24;
            let (first, old, new) = ([end.sge(0, 8)], [end.sge(at, 8)], [end.sge(at + 8, 8)]);
            let id = (turn * 3) as u64;
            if turn == 0 {
                let write = end.request(WrOpcode::RdmaWrite, id, &first, 0);
                end.qp.post_send(&write).unwrap();
            }
            let mut add = end.request(WrOpcode::AtomicFetchAndAdd, id + 1, &old, 0);
            add.compare_add = 1;
            end.qp.post_send(&add).unwrap();
            let read = end.request(WrOpcode::RdmaRead, id + 2, &new, 0);
            end.qp.post_send(&read).unwrap();
        }
        for _ in 0..=2 * FOLLOWING {
            end.good();
        }
        for turn in 0..FOLLOWING {
            let (at, old) = (64 + turn * 24, base + turn as u64);
            assert_eq!(
                (end.memory.word(at), end.memory.word(at + 8)),
                (old, old + 1)
            );
        }
    }
    world.meet();
}

fn be_read(world: &mut World) {
    let _end = rc(world);
    world.meet();
}

#[test]
fn reads_and_atomics_that_follow_each_other_keep_their_order() {
    pair_every_way(
        "reads_and_atomics_that_follow_each_other_keep_their_order",
        read_what_was_added,
        be_read,
    );
}

fn mixed_order(world: &mut World) {
    let end = rc(world);
    // The words differ from request to request: what arrives late would show.
    for turn in 0..2000u64 {
        let at = (turn % 100) as usize * 8;
        end.memory.set_word(at, turn + 1);
        let sge = [end.sge(at, 8)];
        let big = [end.sge(0, 20_000)];
        let opcode = match turn % 4 {
            0 | 2 => WrOpcode::Send,
            1 => WrOpcode::RdmaWrite,
            _ => WrOpcode::RdmaWriteWithImm,
        };
        let list = if turn % 50 == 6 { &big[..] } else { &sge[..] };
        end.qp
            .post_send(&end.request(opcode, turn, list, HALF))
            .unwrap();
        if turn % 100 == 99 {
            for expected in turn - 99..=turn {
                assert_eq!(end.good().wr_id, expected, "completions in posting order");
            }
        }
    }
    world.meet();
}

fn mixed_order_target(world: &mut World) {
    let end = rc(world);
    for id in 0..64 {
        end.post_recv(id, (id as usize) * 20_000, 20_000);
    }
    for (next, turn) in (0..2000u64).filter(|turn| turn % 4 != 1).enumerate() {
        let wc = end.good();
        assert_eq!(wc.wr_id, next as u64 % 64);
        if turn % 4 == 3 {
            // Its own bytes, and of the write before it, are there.
            assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm as u32);
            assert!(end.memory.word(HALF) > turn);
        } else if turn % 50 != 6 {
            assert_eq!(end.memory.word(wc.wr_id as usize * 20_000), turn + 1);
        }
        end.post_recv(wc.wr_id, (wc.wr_id as usize) * 20_000, 20_000);
    }
    world.meet();
}

#[test]
fn different_operations_keep_their_order() {
    pair_every_way(
        "different_operations_keep_their_order",
        mixed_order,
        mixed_order_target,
    );
}

fn refused(end: &End, wr: &SendWr<'_>, status: WcStatus) {
    assert_eq!(end.run(wr).status, status as u32);
    until("the error state", || end.qp.state() == QpState::Err);
}

fn try_what_is_forbidden(world: &mut World) {
    for case in 0..6 {
        let end = world.connected(QpType::Rc, 8192);
        let sge = [end.sge(0, 64)];
        end.memory.fill(0, 64, 1);
        let good = end.request(WrOpcode::RdmaWrite, 1, &sge, 0);
        let mut bad = good;
        match case {
            0 => bad.rkey ^= 0x100,
            1 => bad.remote_addr += 8192 - 63,
            2 => bad.remote_addr -= 1,
            3 => {
                // The key of a region that the peer has destroyed.
                world.meet();
                world.meet();
            }
            4 => bad.rkey ^= 1,
            _ => bad.opcode = WrOpcode::RdmaRead,
        }
        if case == 5 {
            bad.rkey = end.mr.rkey();
        }
        refused(&end, &bad, WcStatus::RemAccessErr);
        world.meet();
        world.meet();
    }
}

fn be_unharmed(world: &mut World) {
    for case in 0..6 {
        let end = world.connected(QpType::Rc, 8192);
        if case == 3 {
            world.meet();
            end.mr.destroy().unwrap();
            world.meet();
        }
        world.meet();
        until("the refusal", || end.qp.state() == QpState::Err);
        for at in 0..8192 {
            assert_eq!(end.memory.byte(at), 0, "case {case} wrote byte {at}");
        }
        world.meet();
    }
}

#[test]
fn what_is_forbidden_is_refused_and_writes_nothing() {
    pair_every_way(
        "what_is_forbidden_is_refused_and_writes_nothing",
        try_what_is_forbidden,
        be_unharmed,
    );
}

fn send_to_nobody(world: &mut World) {
    // Few tries: RNR_RETRY 2.
    let mut end = world.end(QpType::Rc, 4096, None);
    world.introduce(&mut end);
    end.to_init();
    end.to_rtr();
    end.to_rts(14, 2);
    world.meet();
    let sge = [end.sge(0, 64)];
    refused(
        &end,
        &end.request(WrOpcode::Send, 1, &sge, 0),
        WcStatus::RnrRetryExcErr,
    );
    world.meet();
}

fn post_nothing(world: &mut World) {
    let _end = rc(world);
    world.meet();
}

#[test]
fn a_send_without_a_receive_ends_after_its_retries() {
    pair(
        "a_send_without_a_receive_ends_after_its_retries",
        Way::Shared,
        send_to_nobody,
        post_nothing,
    );
}

fn send_too_early(world: &mut World) {
    let mut end = world.end(QpType::Rc, 4096, None);
    world.introduce(&mut end);
    end.to_ready();
    let sge = [end.sge(0, 64)];
    for opcode in [WrOpcode::Send, WrOpcode::RdmaWrite] {
        end.qp.post_send(&end.request(opcode, 1, &sge, 0)).unwrap();
    }
    assert!(end.cq.poll_one().is_none());
    world.meet();
    assert_eq!(end.good().wr_id, 1);
    end.good();
    world.meet();
}

fn be_ready_late(world: &mut World) {
    let mut end = world.end(QpType::Rc, 4096, None);
    world.introduce(&mut end);
    world.meet();
    end.to_init();
    end.post_recv(9, 0, 64);
    end.to_rtr();
    assert_eq!(end.good().wr_id, 9);
    world.meet();
}

#[test]
fn a_peer_that_is_ready_late_gets_everything() {
    pair(
        "a_peer_that_is_ready_late_gets_everything",
        Way::Shared,
        send_too_early,
        be_ready_late,
    );
}

const MANY: usize = 100;
const EACH: u64 = 300;

fn send_on_many(world: &mut World) {
    let ends: Vec<End> = (0..MANY)
        .map(|_| world.connected(QpType::Rc, 65_536))
        .collect();
    for turn in 0..EACH {
        for (index, end) in ends.iter().enumerate() {
            end.memory.set_word(0, turn << 32 | index as u64);
            let sge = [end.sge(0, if turn % 10 == 0 { 6000 } else { 8 })];
            let opcode = if turn % 3 == 0 {
                WrOpcode::RdmaWriteWithImm
            } else {
                WrOpcode::Send
            };
            end.qp
                .post_send(&end.request(opcode, turn, &sge, 32_768))
                .unwrap();
        }
        for end in &ends {
            assert_eq!(end.good().wr_id, turn);
        }
    }
    world.meet();
}

fn receive_on_many(world: &mut World) {
    let ends: Vec<End> = (0..MANY)
        .map(|_| world.connected(QpType::Rc, 65_536))
        .collect();
    for end in &ends {
        end.post_recv(0, 0, 8192);
    }
    for turn in 0..EACH {
        for (index, end) in ends.iter().enumerate() {
            assert_eq!(end.good().wr_id, turn);
            let at = if turn % 3 == 0 { 32_768 } else { 0 };
            assert_eq!(end.memory.word(at), turn << 32 | index as u64);
            end.post_recv(turn + 1, 0, 8192);
        }
    }
    world.meet();
}

#[test]
fn a_hundred_queue_pairs_share_a_link() {
    pair(
        "a_hundred_queue_pairs_share_a_link",
        Way::Shared,
        send_on_many,
        receive_on_many,
    );
}
