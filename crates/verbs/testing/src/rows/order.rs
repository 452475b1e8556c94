//! Order: of messages, of completions, and of what they see.

use sluice_verbs::{QpType, WcOpcode, WrOpcode, send_flags};

use super::{AREA, HALF};
use crate::row::{Need, Row};
use crate::side::{Joined, Side};

const BATCHES: u64 = 20;
const BATCH: u64 = 100;
const LONG: usize = 20_000;

pub const fn different_operations_keep_their_order() -> Row {
    Row::new(&[], mix, be_mixed)
}

fn operation(turn: u64, immediate: bool) -> WrOpcode {
    match turn % 4 {
        0 | 2 => WrOpcode::Send,
        3 if immediate => WrOpcode::RdmaWriteWithImm,
        _ => WrOpcode::RdmaWrite,
    }
}

/// The words differ from request to request: what arrives late would show.
fn mix(side: &mut Side) {
    let immediate = Need::Immediate.is_met(&side.caps());
    let end = side.connected(QpType::Rc, AREA);
    for batch in 0..BATCHES {
        side.meet();
        for turn in batch * BATCH..(batch + 1) * BATCH {
            let at = (turn % BATCH) as usize * 8;
            end.memory.set_word(at, turn + 1);
            let sge = [end.sge(at, 8)];
            let long = [end.sge(0, LONG)];
            let list = if turn % 50 == 6 { &long[..] } else { &sge[..] };
            end.post(&end.request(operation(turn, immediate), turn, list, HALF));
        }
        for expected in batch * BATCH..(batch + 1) * BATCH {
            assert_eq!(end.good().wr_id, expected, "completions in posting order");
        }
    }
    side.meet();
}

fn be_mixed(side: &mut Side) {
    let immediate = Need::Immediate.is_met(&side.caps());
    let end = side.connected(QpType::Rc, AREA);
    for batch in 0..BATCHES {
        let turns = batch * BATCH..(batch + 1) * BATCH;
        let taking: Vec<u64> = turns
            .filter(|turn| operation(*turn, immediate) != WrOpcode::RdmaWrite)
            .collect();
        for id in 0..taking.len() {
            end.post_recv(id as u64, id * LONG, LONG);
        }
        side.meet();
        for (next, turn) in taking.into_iter().enumerate() {
            let wc = end.good();
            assert_eq!(wc.wr_id, next as u64);
            // What was written in front of it is there.
            let mut before = (0..=turn).rev();
            let written = before.find(|turn| operation(*turn, immediate) != WrOpcode::Send);
            assert!(written.is_none_or(|written| end.memory.word(HALF) > written));
            if operation(turn, immediate) == WrOpcode::RdmaWriteWithImm {
                assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm as u32);
            } else if turn % 50 != 6 {
                assert_eq!(end.memory.word(next * LONG), turn + 1);
            }
        }
    }
    side.meet();
}

pub const fn reads_and_atomics_that_follow_each_other_keep_their_order() -> Row {
    Row::new(&[Need::Atomics], read_what_was_added, be_read)
}

const ROUNDS: usize = 20;
const FOLLOWING: usize = 30;

fn read_what_was_added(side: &mut Side) {
    let end = side.connected(QpType::Rc, AREA);
    // What follows a READ may overtake it (IBTA table 79); what follows an atomic may not.
    read_and_add_in_turns(&end, send_flags::FENCE);
    side.meet();
}

/// Each READ sees what the WRITE and the atomic in front of it left, and nothing of what is behind it,
/// although all are posted at once. `fence`: [`send_flags::FENCE`] on the atomics, or 0 where nothing
/// overtakes a READ anyway. The end has a few pages of memory, and its peer does nothing.
pub fn read_and_add_in_turns(end: &Joined, fence: u32) {
    for round in 0..ROUNDS {
        let base = (round * 1000) as u64;
        end.memory.set_word(0, base);
        for turn in 0..FOLLOWING {
            let at = 64 + turn * 24;
            let (first, old, new) = ([end.sge(0, 8)], [end.sge(at, 8)], [end.sge(at + 8, 8)]);
            let id = (turn * 3) as u64;
            if turn == 0 {
                end.post(&end.request(WrOpcode::RdmaWrite, id, &first, 0));
            }
            let mut add = end.request(WrOpcode::AtomicFetchAndAdd, id + 1, &old, 0);
            add.compare_add = 1;
            add.flags |= fence;
            end.post(&add);
            end.post(&end.request(WrOpcode::RdmaRead, id + 2, &new, 0));
        }
        for _ in 0..=2 * FOLLOWING {
            end.good();
        }
        for turn in 0..FOLLOWING {
            let (at, old) = (64 + turn * 24, base + turn as u64);
            let found = (end.memory.word(at), end.memory.word(at + 8));
            assert_eq!(found, (old, old + 1));
        }
    }
}

fn be_read(side: &mut Side) {
    let _end = side.connected(QpType::Rc, AREA);
    side.meet();
}

pub const fn a_fence_waits_for_what_is_read() -> Row {
    Row::new(&[], send_back_what_is_read, get_it_back)
}

const LENGTHS: [usize; 6] = [8, 64, 1000, 5000, 20_000, 300_000];
const REPEATS: usize = 20;

/// Posts a READ and, behind a fence, a SEND of the same memory.
fn send_back_what_is_read(side: &mut Side) {
    let end = side.connected(QpType::Rc, AREA);
    for len in LENGTHS {
        for repeat in 0..REPEATS {
            side.meet();
            let sge = [end.sge(HALF, len)];
            end.post(&end.request(WrOpcode::RdmaRead, 1, &sge, repeat));
            let mut wr = end.request(WrOpcode::Send, 2, &sge, 0);
            wr.flags |= send_flags::FENCE;
            end.post(&wr);
            assert_eq!((end.good().wr_id, end.good().wr_id), (1, 2));
        }
    }
    side.meet();
}

fn get_it_back(side: &mut Side) {
    let end = side.connected(QpType::Rc, AREA);
    for len in LENGTHS {
        for repeat in 0..REPEATS {
            let seed = (len + repeat) as u8;
            end.memory.fill(repeat, len, seed);
            end.post_recv(3, HALF, len);
            side.meet();
            assert_eq!(end.good().byte_len, len as u32);
            end.memory.check(HALF, len, seed);
        }
    }
    side.meet();
}

pub const fn unsignalled_requests_give_their_room_back() -> Row {
    Row::new(&[], write_unsignalled, count_words)
}

const QUIET: u64 = 200;
const TIMES: u64 = 10;

/// More requests than the queue has room for, and a completion only now and then.
fn write_unsignalled(side: &mut Side) {
    let end = side.connected(QpType::Rc, 8192);
    for time in 0..TIMES {
        for turn in 0..QUIET {
            let at = turn as usize * 8;
            end.memory.set_word(at, time * QUIET + turn);
            let sge = [end.sge(at, 8)];
            let mut wr = end.request(WrOpcode::RdmaWrite, turn, &sge, at);
            if turn + 1 < QUIET {
                wr.flags = 0;
            }
            end.post(&wr);
        }
        assert_eq!(end.good().wr_id, QUIET - 1, "of the last only");
        assert!(end.cq.poll_one().is_none());
        end.arrive();
        side.meet();
        side.meet();
    }
}

fn count_words(side: &mut Side) {
    let end = side.connected(QpType::Rc, 8192);
    for time in 0..TIMES {
        side.meet();
        for turn in 0..QUIET {
            assert_eq!(end.memory.word(turn as usize * 8), time * QUIET + turn);
        }
        side.meet();
    }
}
