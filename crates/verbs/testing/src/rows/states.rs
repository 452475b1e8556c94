//! States of queue pairs: errors, draining, beginning anew.

use sluice_verbs::types::EventType;
use sluice_verbs::{Element, QpAttr, QpState, QpType, WcStatus, WrOpcode, qp_mask};

use crate::end::until;
use crate::row::{Need, Row};
use crate::side::{Joined, Side};

const LEN: usize = 65_536;
const FLUSHED: u32 = WcStatus::WrFlushErr as u32;
const COOKIE: u64 = 79;

pub const fn an_error_flushes_what_was_posted() -> Row {
    Row::new(&[Need::RnrRetry], break_off, break_off_too)
}

/// What waits for receives that never come.
fn break_off(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    end.post_recv(10, 0, 64);
    end.post_recv(11, 0, 64);
    let sge = [end.sge(0, 20_000)];
    for id in 0..5 {
        let opcode = [WrOpcode::Send, WrOpcode::RdmaRead][id as usize % 2];
        end.post(&end.request(opcode, id, &sge, 0));
    }
    end.to_state(QpState::Err);
    let mut outcomes: Vec<_> = (0..7).map(|_| end.outcome()).collect();
    // Each queue in its order; between them there is none.
    outcomes.sort_by_key(|(id, _)| *id >= 10);
    let wanted = [0, 1, 2, 3, 4, 10, 11].map(|id| (id, FLUSHED));
    assert_eq!(outcomes, wanted);
    // What comes later is flushed at once.
    end.post(&end.request(WrOpcode::Send, 20, &sge, 0));
    assert_eq!(end.outcome(), (20, FLUSHED));
    end.post_recv(21, 0, 64);
    assert_eq!(end.outcome(), (21, FLUSHED));
    // The memory is the program's own again.
    end.mr.destroy().unwrap();
    side.meet();
    side.meet();
}

fn break_off_too(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    side.meet();
    end.to_state(QpState::Err);
    end.post_recv(1, 0, 64);
    assert_eq!(end.outcome(), (1, FLUSHED));
    side.meet();
}

pub const fn bad_memory_of_its_own_ends_a_connection() -> Row {
    Row::new(&[], send_from_bad_memory, be_written_to)
}

fn send_from_bad_memory(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let good = [end.sge(0, 64)];
    let mut bad = good;
    bad[0].addr += LEN as u64 - 63;
    end.memory.set_word(0, 5);
    end.post(&end.request(WrOpcode::RdmaWrite, 1, &good, 0));
    end.post(&end.request(WrOpcode::RdmaWrite, 2, &bad, 64));
    let _ = end
        .qp
        .post_send(&end.request(WrOpcode::RdmaWrite, 3, &good, 64));
    assert_eq!(end.outcome(), (1, 0));
    assert_eq!(end.outcome(), (2, WcStatus::LocProtErr as u32));
    assert_eq!(end.outcome(), (3, FLUSHED));
    assert_eq!(end.qp.state(), QpState::Err);
    side.meet();
}

fn be_written_to(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    side.meet();
    if end.completes_when_sent {
        // Nothing that could be asked for would come back.
        until("the first to arrive", || end.memory.word(0) == 5);
    }
    assert_eq!((end.memory.word(0), end.memory.word(64)), (5, 0));
}

pub const fn an_unreliable_queue_recovers_from_an_error() -> Row {
    Row::new(&[Need::Uc], recover, hear_the_rest)
}

/// Bad memory stops the send queue only, until the program has it go on.
fn recover(side: &mut Side) {
    let end = side.connected(QpType::Uc, LEN);
    end.post_recv(10, 0, 64);
    let good = [end.sge(0, 64)];
    let mut bad = good;
    bad[0].lkey ^= 0x100;
    end.post(&end.request(WrOpcode::Send, 1, &bad, 0));
    assert_eq!(end.outcome(), (1, WcStatus::LocProtErr as u32));
    assert_eq!(end.qp.state(), QpState::Sqe);
    end.post(&end.request(WrOpcode::Send, 2, &good, 0));
    assert_eq!(end.outcome(), (2, FLUSHED));
    // Receives are none of its business.
    side.meet();
    assert_eq!(end.good().wr_id, 10);
    end.to_state(QpState::Rts);
    end.memory.set_word(0, 6);
    end.done(&end.request(WrOpcode::Send, 3, &good, 0));
    side.meet();
}

fn hear_the_rest(side: &mut Side) {
    let end = side.connected(QpType::Uc, LEN);
    end.post_recv(1, 64, 64);
    side.meet();
    let sge = [end.sge(0, 64)];
    end.done(&end.request(WrOpcode::Send, 1, &sge, 0));
    assert_eq!(end.good().wr_id, 1);
    assert_eq!(end.memory.word(64), 6, "of the third");
    side.meet();
}

pub const fn a_peer_in_error_answers_nothing() -> Row {
    Row::new(&[], ask_in_vain, be_in_error)
}

fn ask_in_vain(side: &mut Side) {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaRead] {
        let end = side.connected_in_vain(LEN);
        side.meet();
        let sge = [end.sge(0, 64)];
        end.post(&end.request(opcode, 1, &sge, 0));
        // It may hear of the peer's end first.
        let gone = [WcStatus::RetryExcErr, WcStatus::WrFlushErr].map(|status| status as u32);
        let (_, status) = end.outcome();
        let sent = end.completes_when_sent && opcode != WrOpcode::RdmaRead && status == 0;
        assert!(sent || gone.contains(&status), "{opcode:?}: {status}");
        until("the error state", || end.qp.state() == QpState::Err);
        side.meet();
    }
}

fn be_in_error(side: &mut Side) {
    for _ in 0..3 {
        let end = side.connected(QpType::Rc, LEN);
        end.post_recv(1, 0, 64);
        end.to_state(QpState::Err);
        assert_eq!(end.outcome(), (1, FLUSHED));
        side.meet();
        side.meet();
        assert!(end.cq.poll_one().is_none());
        assert_eq!(end.memory.word(0), 0);
    }
}

pub const fn a_drained_queue_holds_what_is_posted() -> Row {
    Row::new(&[Need::RnrRetry], drain, let_it_drain)
}

fn drain(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    end.qp.set_cookie(COOKIE);
    end.memory.set_word(0, 5);
    let sge = [end.sge(0, 8)];
    // So that the way is open, and the SEND under way when the draining begins.
    end.done(&end.request(WrOpcode::RdmaWrite, 0, &sge, 16));
    end.post(&end.request(WrOpcode::Send, 1, &sge, 0));
    let attr = QpAttr {
        qp_state: QpState::Sqd as u32,
        en_sqd_async_notify: 1,
        ..QpAttr::default()
    };
    let mask = qp_mask::STATE | qp_mask::EN_SQD_ASYNC_NOTIFY;
    end.qp.modify(&attr, mask).unwrap();
    end.post(&end.request(WrOpcode::RdmaWrite, 2, &sge, 8));
    assert_eq!(end.qp.query().sq_draining, 1);
    side.meet();
    assert_eq!(end.good().wr_id, 1);
    let told = side.event();
    assert_eq!(told.event, EventType::SqDrained);
    assert_eq!(told.element, Element::Qp(COOKIE));
    end.qp.ack_async_event();
    assert_eq!(end.qp.query().sq_draining, 0);
    side.meet();
    side.meet();
    end.to_state(QpState::Rts);
    assert_eq!(end.good().wr_id, 2);
    side.meet();
}

fn let_it_drain(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    side.meet();
    end.post_recv(1, 0, 8);
    assert_eq!(end.good().wr_id, 1);
    side.meet();
    assert_eq!(end.memory.word(8), 0, "posted behind the draining");
    side.meet();
    side.meet();
    assert_eq!(end.memory.word(8), 5);
}

pub const fn after_a_reset_both_begin_anew() -> Row {
    Row::new(&[], begin_anew, begin_anew)
}

pub const fn a_reset_in_the_middle_leaves_nothing_behind() -> Row {
    Row::new(&[], leave_in_the_middle, hear_the_new_only)
}

const LONG: usize = 300_000;
const MESSAGES: u64 = 8;
const ROUNDS: u64 = 20;

/// Messages are under way when the queue pair is reset, and the same one begins anew.
fn leave_in_the_middle(side: &mut Side) {
    let mut end = side.connected(QpType::Rc, LONG);
    for round in 0..ROUNDS {
        side.meet();
        let sge = [end.sge(0, LONG)];
        for id in 0..MESSAGES {
            end.post(&end.request(WrOpcode::Send, id, &sge, 0));
        }
        connect_anew(side, &mut end);
        side.meet();
        end.memory.set_word(0, round);
        let sge = [end.sge(0, 8)];
        end.done(&end.request(WrOpcode::Send, 9, &sge, 0));
        side.meet();
        connect_anew(side, &mut end);
    }
}

/// To RESET, and to another peer's first packet number.
fn connect_anew(side: &mut Side, end: &mut Joined) {
    end.to_state(QpState::Reset);
    assert!(end.cq.poll_one().is_none());
    end.end.psn = (end.psn + 0x10_0000) & 0xff_ffff;
    side.introduce(end);
    end.to_ready();
    side.meet();
}

fn hear_the_new_only(side: &mut Side) {
    let mut end = side.connected(QpType::Rc, LONG);
    for round in 0..ROUNDS {
        for id in 0..MESSAGES {
            end.post_recv(id, 0, LONG);
        }
        side.meet();
        connect_anew(side, &mut end);
        end.post_recv(100, 0, LONG);
        side.meet();
        let wc = end.good();
        assert_eq!((wc.wr_id, wc.byte_len), (100, 8));
        assert_eq!(end.memory.word(0), round);
        side.meet();
        connect_anew(side, &mut end);
    }
}

const CYCLES: u64 = 20;

/// The same queue pairs, connected again and again, from other packet numbers each time.
fn begin_anew(side: &mut Side) {
    let mut end = side.connected(QpType::Rc, LEN);
    for cycle in 0..CYCLES {
        end.post_recv(100 + cycle, 0, 30_000);
        end.post_recv(200 + cycle, 0, 30_000);
        side.meet();
        end.memory.set_word(40_000, cycle);
        let sge = [end.sge(40_000, 20_000)];
        end.post(&end.request(WrOpcode::Send, cycle, &sge, 0));
        let mut seen = [end.good().wr_id, end.good().wr_id];
        seen.sort_unstable();
        assert_eq!(seen, [cycle, 100 + cycle]);
        assert_eq!(end.memory.word(0), cycle);
        side.meet();
        // One receive is left, and its completion goes with the queue.
        end.to_state(QpState::Err);
        until("the flushed receive", || end.cq.filled() == 1);
        connect_anew(side, &mut end);
    }
}
