//! Messages and the receives that they go to.

use std::sync::Arc;

use sluice_verbs::types::{EventType, srq_mask};
use sluice_verbs::{
    Element, QpInit, QpState, QpType, Srq, SrqAttr, SrqInit, WcOpcode, WcStatus, WrOpcode,
};

use crate::end::{init, until};
use crate::row::{Need, Row};
use crate::side::{Joined, Side, is_readable};

const LEN: usize = 65_536;
/// More than a packet.
const LONG: usize = 20_000;
const FLUSHED: u32 = WcStatus::WrFlushErr as u32;

pub const fn a_send_waits_for_its_receive() -> Row {
    Row::new(&[Need::RnrRetry], send_early, receive_late)
}

const EARLY: u64 = 20;

fn send_early(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    for id in 0..EARLY {
        end.memory.set_word(id as usize * 8, id);
        let sge = [end.sge(id as usize * 8, if id % 2 == 0 { 8 } else { LONG })];
        end.post(&end.request(WrOpcode::Send, id, &sge, 0));
    }
    for id in 0..EARLY {
        assert_eq!(end.good().wr_id, id);
        side.meet();
    }
}

/// One receive after the other, each when the one before it is used.
fn receive_late(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    for id in 0..EARLY {
        std::thread::sleep(std::time::Duration::from_millis(2));
        end.post_recv(id, 0, LONG);
        assert_eq!(end.good().wr_id, id);
        assert_eq!(end.memory.word(0), id);
        side.meet();
    }
}

pub const fn a_sender_runs_ahead_of_its_receiver() -> Row {
    Row::new(&[Need::RnrRetry, Need::Immediate], run_ahead, keep_up)
}

const MIXED: u64 = 2000;
const RING: u64 = 64;
const HALF: usize = 2 << 20;

/// Most messages find no receive when they first come. Operations of all lengths take turns.
fn run_ahead(side: &mut Side) {
    let end = side.connected(QpType::Rc, 2 * HALF);
    // The words differ from request to request: what arrives late would show.
    for turn in 0..MIXED {
        let at = (turn % 100) as usize * 8;
        end.memory.set_word(at, turn + 1);
        let (short, long) = ([end.sge(at, 8)], [end.sge(0, LONG)]);
        let opcode = match turn % 4 {
            0 | 2 => WrOpcode::Send,
            1 => WrOpcode::RdmaWrite,
            _ => WrOpcode::RdmaWriteWithImm,
        };
        let list = if turn % 50 == 6 {
            &long[..]
        } else {
            &short[..]
        };
        end.post(&end.request(opcode, turn, list, HALF));
        if turn % 100 == 99 {
            for expected in turn - 99..=turn {
                assert_eq!(end.good().wr_id, expected, "completions in posting order");
            }
        }
    }
    side.meet();
}

fn keep_up(side: &mut Side) {
    let end = side.connected(QpType::Rc, 2 * HALF);
    for id in 0..RING {
        end.post_recv(id, id as usize * LONG, LONG);
    }
    for (next, turn) in (0..MIXED).filter(|turn| turn % 4 != 1).enumerate() {
        let wc = end.good();
        assert_eq!(wc.wr_id, next as u64 % RING);
        if turn % 4 == 3 {
            // Its own bytes, and of the write before it, are there.
            assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm as u32);
            assert!(end.memory.word(HALF) > turn);
        } else if turn % 50 != 6 {
            assert_eq!(end.memory.word(wc.wr_id as usize * LONG), turn + 1);
        }
        end.post_recv(wc.wr_id, wc.wr_id as usize * LONG, LONG);
    }
    side.meet();
}

pub const fn a_send_without_a_receive_ends_after_its_retries() -> Row {
    Row::new(&[Need::RnrRetry], send_to_nobody, post_nothing)
}

fn send_to_nobody(side: &mut Side) {
    for rnr_retry in [0, 2] {
        let mut end = side.end(QpType::Rc, LEN, None);
        side.introduce(&mut end);
        end.to_init();
        end.to_rtr();
        end.to_rts(rnr_retry);
        side.meet();
        let sge = [end.sge(0, 64)];
        end.post(&end.request(WrOpcode::Send, 1, &sge, 0));
        end.post(&end.request(WrOpcode::RdmaWrite, 2, &sge, 0));
        assert_eq!(end.outcome(), (1, WcStatus::RnrRetryExcErr as u32));
        assert_eq!(end.outcome(), (2, FLUSHED));
        assert_eq!(end.qp.state(), QpState::Err);
        side.meet();
    }
}

fn post_nothing(side: &mut Side) {
    for _ in 0..2 {
        let end = side.connected(QpType::Rc, LEN);
        side.meet();
        assert_eq!(end.memory.word(0), 0, "nothing is done behind a failure");
    }
}

pub const fn a_peer_that_is_ready_late_gets_everything() -> Row {
    Row::new(&[], send_too_early, be_ready_late)
}

fn send_too_early(side: &mut Side) {
    let mut end = side.end(QpType::Rc, LEN, None);
    side.introduce(&mut end);
    end.to_ready();
    let sge = [end.sge(0, LONG)];
    end.post(&end.request(WrOpcode::Send, 1, &sge, 0));
    end.post(&end.request(WrOpcode::RdmaWrite, 2, &sge, 0));
    assert!(end.completes_when_sent || end.cq.poll_one().is_none());
    side.meet();
    assert_eq!((end.good().wr_id, end.good().wr_id), (1, 2));
    side.meet();
}

fn be_ready_late(side: &mut Side) {
    let mut end = side.end(QpType::Rc, LEN, None);
    side.introduce(&mut end);
    end.to_init();
    end.post_recv(9, 0, LONG);
    side.meet();
    end.to_rtr();
    assert_eq!(end.good().wr_id, 9);
    side.meet();
}

pub const fn a_message_longer_than_the_receive_ends_the_connection() -> Row {
    Row::new(&[], send_too_much, take_too_little)
}

const TOO_LONG: [(usize, usize); 3] = [(64, 63), (64, 0), (LONG, LONG - 1)];

fn send_too_much(side: &mut Side) {
    for (len, _) in TOO_LONG {
        let end = side.connected(QpType::Rc, LEN);
        side.meet();
        let sge = [end.sge(0, len)];
        let send = end.request(WrOpcode::Send, 1, &sge, 0);
        end.is_refused(&send, &[WcStatus::RemInvReqErr]);
        side.meet();
    }
}

fn take_too_little(side: &mut Side) {
    for (_, room) in TOO_LONG {
        let end = side.connected(QpType::Rc, LEN);
        end.post_recv(1, 0, room);
        end.post_recv(2, 0, room);
        side.meet();
        assert_eq!(end.outcome(), (1, WcStatus::LocLenErr as u32));
        assert_eq!(end.outcome(), (2, FLUSHED));
        assert_eq!(end.qp.state(), QpState::Err);
        side.meet();
    }
}

pub const fn a_receive_with_bad_memory_ends_the_connection() -> Row {
    Row::new(&[], send_to_bad_memory, take_to_bad_memory)
}

fn send_to_bad_memory(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    side.meet();
    let sge = [end.sge(0, 64)];
    let send = end.request(WrOpcode::Send, 1, &sge, 0);
    end.is_refused(&send, &[WcStatus::RemOpErr]);
    side.meet();
}

fn take_to_bad_memory(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    end.post_recv(1, 0, 64);
    end.mr.destroy().unwrap();
    side.meet();
    assert_eq!(end.outcome(), (1, WcStatus::LocProtErr as u32));
    side.meet();
}

/// A shared receive queue with so many receives of 64 bytes.
pub(super) fn srq(side: &Side, max_wr: u32) -> Arc<Srq> {
    let init = SrqInit {
        attr: SrqAttr {
            max_wr,
            max_sge: 1,
            srq_limit: 0,
        },
        ..SrqInit::default()
    };
    side.pd.create_srq(&init).unwrap()
}

/// Connected ends that take their receives from one queue and complete to one.
pub(super) fn sharing(side: &mut Side, srq: &Arc<Srq>, count: usize) -> Vec<Joined> {
    let cq = side.cq(None);
    let ends = (0..count).map(|_| {
        let init = QpInit {
            srq: Some(srq.clone()),
            ..init(QpType::Rc, &cq)
        };
        let end = side.around(side.pd.create_qp(&init).unwrap(), 8192, &cq);
        side.connect(end)
    });
    ends.collect()
}

pub const fn a_shared_receive_queue_serves_all() -> Row {
    Row::new(&[], send_to_a_shared_queue, serve_all)
}

const SHARING: usize = 4;
const TURNS: u64 = 25;

fn send_to_a_shared_queue(side: &mut Side) {
    let ends: Vec<Joined> = (0..SHARING)
        .map(|_| side.connected(QpType::Rc, 8192))
        .collect();
    for turn in 0..TURNS {
        side.meet();
        for (index, end) in ends.iter().enumerate() {
            end.memory.set_word(0, turn << 8 | index as u64);
            let sge = [end.sge(0, 8)];
            end.post(&end.request(WrOpcode::Send, turn, &sge, 0));
        }
        for end in &ends {
            assert_eq!(end.good().wr_id, turn);
        }
    }
    side.meet();
}

fn serve_all(side: &mut Side) {
    let srq = srq(side, 16);
    let ends = sharing(side, &srq, SHARING);
    for turn in 0..TURNS {
        for id in 0..SHARING {
            srq.post_recv(id as u64, &[ends[0].sge(id * 64, 64)])
                .unwrap();
        }
        side.meet();
        let mut seen = [false; SHARING];
        for _ in 0..SHARING {
            let wc = ends[0].good();
            let index = ends.iter().position(|end| end.qp.num() == wc.qp_num);
            let index = index.expect("one of them");
            let word = ends[0].memory.word(wc.wr_id as usize * 64);
            assert_eq!(word, turn << 8 | index as u64);
            assert!(!std::mem::replace(&mut seen[index], true));
        }
    }
    side.meet();
}

pub const fn a_shared_receive_queue_warns_below_its_limit() -> Row {
    Row::new(&[], send_to_the_limit, be_warned)
}

const LIMIT: u32 = 4;
const RECEIVES: u64 = 8;
const COOKIE: u64 = 78;

fn send_to_the_limit(side: &mut Side) {
    let end = side.connected(QpType::Rc, 8192);
    let sge = [end.sge(0, 8)];
    side.meet();
    for id in 0..RECEIVES - u64::from(LIMIT) {
        end.done(&end.request(WrOpcode::Send, id, &sge, 0));
    }
    side.meet();
    side.meet();
    end.done(&end.request(WrOpcode::Send, 1, &sge, 0));
    side.meet();
}

fn be_warned(side: &mut Side) {
    let srq = srq(side, 16);
    srq.set_cookie(COOKIE);
    let end = sharing(side, &srq, 1).remove(0);
    for id in 0..RECEIVES {
        srq.post_recv(id, &[end.sge(0, 64)]).unwrap();
    }
    let attr = SrqAttr {
        srq_limit: LIMIT,
        ..srq.query()
    };
    srq.modify(&attr, srq_mask::LIMIT).unwrap();
    side.meet();
    for id in 0..RECEIVES - u64::from(LIMIT) {
        assert_eq!(end.good().wr_id, id);
    }
    side.meet();
    assert!(
        !is_readable(side.context.async_fd()),
        "as many as the limit"
    );
    side.meet();
    end.good();
    let told = side.event();
    assert_eq!(told.event, EventType::SrqLimitReached);
    assert_eq!(told.element, Element::Srq(COOKIE));
    srq.ack_async_event();
    assert_eq!(srq.query().srq_limit, 0, "it warns once");
    until("the last message", || end.cq.filled() == 0);
    side.meet();
}
