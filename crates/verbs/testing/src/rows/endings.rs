//! Many queue pairs, and ends of them.

use sluice_verbs::{QpState, QpType, WcStatus, WrOpcode};

use crate::end::until;
use crate::row::{Need, Row};
use crate::side::{Joined, Side};

const LEN: usize = 65_536;
const HALF: usize = LEN / 2;

pub const fn a_hundred_queue_pairs_share_the_way() -> Row {
    Row::new(&[], send_on_many, receive_on_many)
}

const MANY: usize = 100;
const EACH: u64 = 300;

fn send_on_many(side: &mut Side) {
    let immediate = Need::Immediate.is_met(&side.caps());
    let ends: Vec<Joined> = (0..MANY).map(|_| side.connected(QpType::Rc, LEN)).collect();
    for turn in 0..EACH {
        side.meet();
        for (index, end) in ends.iter().enumerate() {
            end.memory.set_word(0, turn << 32 | index as u64);
            let sge = [end.sge(0, if turn % 10 == 0 { 6000 } else { 8 })];
            let opcode = match turn % 3 == 0 && immediate {
                true => WrOpcode::RdmaWriteWithImm,
                false => WrOpcode::Send,
            };
            end.post(&end.request(opcode, turn, &sge, HALF));
        }
        for end in &ends {
            assert_eq!(end.good().wr_id, turn);
        }
    }
    side.meet();
}

fn receive_on_many(side: &mut Side) {
    let immediate = Need::Immediate.is_met(&side.caps());
    let ends: Vec<Joined> = (0..MANY).map(|_| side.connected(QpType::Rc, LEN)).collect();
    for turn in 0..EACH {
        for end in &ends {
            end.post_recv(turn, 0, 8192);
        }
        side.meet();
        for (index, end) in ends.iter().enumerate() {
            assert_eq!(end.good().wr_id, turn);
            let at = if turn % 3 == 0 && immediate { HALF } else { 0 };
            assert_eq!(end.memory.word(at), turn << 32 | index as u64);
        }
    }
    side.meet();
}

pub const fn a_queue_pair_goes_in_the_middle() -> Row {
    Row::new(&[], go_in_the_middle, lose_a_peer)
}

const ROUNDS: usize = 10;
const LONG: usize = 1 << 20;

/// Its requests are under way when it is destroyed, and their memory with it.
fn go_in_the_middle(side: &mut Side) {
    for round in 0..ROUNDS {
        let end = side.connected(QpType::Rc, LONG);
        let sge = [end.sge(0, LONG)];
        let opcodes = [WrOpcode::RdmaWrite, WrOpcode::RdmaRead, WrOpcode::Send];
        for (id, opcode) in opcodes.into_iter().enumerate() {
            end.post(&end.request(opcode, id as u64, &sge, 0));
        }
        if round % 2 == 0 {
            end.qp.destroy().unwrap();
            end.mr.destroy().unwrap();
            assert!(end.cq.poll_one().is_none(), "its completions went with it");
        }
        side.meet();
        side.meet();
        // The way is as it was.
        let other = side.connected(QpType::Rc, LEN);
        let sge = [other.sge(0, LEN)];
        other.done(&other.request(WrOpcode::RdmaWrite, 9, &sge, 0));
        if round % 2 == 1 {
            end.qp.destroy().unwrap();
        }
        side.meet();
    }
}

fn lose_a_peer(side: &mut Side) {
    for round in 0..ROUNDS {
        let end = side.connected(QpType::Rc, LONG);
        end.post_recv(1, 0, LONG);
        side.meet();
        if round % 2 == 1 {
            end.qp.destroy().unwrap();
            end.mr.destroy().unwrap();
        }
        side.meet();
        let _other = side.connected(QpType::Rc, LEN);
        side.meet();
        if round % 2 == 0 {
            end.qp.destroy().unwrap();
        }
    }
}

pub const fn a_peer_whose_queue_pair_is_gone_is_noticed() -> Row {
    Row::new(&[], write_to_nobody, be_nobody)
}

/// How requests end that have no peer any more.
fn is_the_end(status: u32) -> bool {
    [WcStatus::RetryExcErr, WcStatus::WrFlushErr]
        .map(|status| status as u32)
        .contains(&status)
}

/// What is posted first ends with an error; what is behind it is flushed.
fn expect_the_end(end: &Joined) {
    let sge = [end.sge(0, 64)];
    end.post_recv(3, 0, 64);
    end.post(&end.request(WrOpcode::RdmaWrite, 1, &sge, 0));
    // It may know already.
    let _ = end
        .qp
        .post_send(&end.request(WrOpcode::RdmaRead, 2, &sge, 0));
    let mut ended = [false; 4];
    until("all to end", || {
        let (id, status) = end.outcome();
        let sent = end.completes_when_sent && id == 1 && status == 0;
        assert!(sent || is_the_end(status), "{id}: {status}");
        ended[id as usize] = true;
        ended[1..] == [true; 3]
    });
}

fn write_to_nobody(side: &mut Side) {
    let end = side.connected_in_vain(LEN);
    let other = side.connected(QpType::Rc, LEN);
    side.meet();
    side.meet();
    expect_the_end(&end);
    let sge = [other.sge(0, LEN)];
    other.done(&other.request(WrOpcode::RdmaWrite, 9, &sge, 0));
    side.meet();
}

fn be_nobody(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let _other = side.connected(QpType::Rc, LEN);
    side.meet();
    end.qp.destroy().unwrap();
    side.meet();
    side.meet();
}

pub const fn a_peer_that_goes_away_is_noticed() -> Row {
    Row::new(&[], outlive, go_away)
}

/// Writes as long as somebody is there.
fn outlive(side: &mut Side) {
    let end = side.connected_in_vain(LEN);
    let sge = [end.sge(0, 64)];
    end.done(&end.request(WrOpcode::RdmaWrite, 1, &sge, 0));
    side.meet();
    end.post_recv(3, 0, 64);
    until("the end to be noticed", || {
        if end.qp.state() == QpState::Rts {
            let _ = end
                .qp
                .post_send(&end.request(WrOpcode::RdmaWrite, 1, &sge, 0));
        }
        let (id, status) = end.outcome();
        // One that comes while the queue pair is being taken apart may be refused.
        let refused = status == WcStatus::RemInvReqErr as u32;
        assert!(
            status == 0 || refused || is_the_end(status),
            "{id}: {status}"
        );
        // Its receive is flushed when it breaks.
        id == 3
    });
    assert_eq!(end.qp.state(), QpState::Err);
}

pub const fn a_peer_that_goes_away_ends_what_waits_for_it() -> Row {
    Row::new(&[Need::RnrRetry], wait_in_vain, go_without_a_word)
}

/// Nothing more is posted: the transport notices by itself.
fn wait_in_vain(side: &mut Side) {
    for _ in ENDS {
        let end = side.connected_in_vain(LEN);
        let sge = [end.sge(0, 64)];
        end.post(&end.request(WrOpcode::Send, 1, &sge, 0));
        end.post(&end.request(WrOpcode::RdmaRead, 2, &sge, 0));
        side.meet();
        for wanted in 1..=2 {
            let (id, status) = end.outcome();
            assert!(id == wanted && is_the_end(status), "{id}: {status}");
        }
        assert_eq!(end.qp.state(), QpState::Err);
    }
}

/// The queue pair breaks, or goes from this state.
const ENDS: [QpState; 3] = [QpState::Err, QpState::Reset, QpState::Rts];

fn go_without_a_word(side: &mut Side) {
    for to in ENDS {
        let end = side.connected(QpType::Rc, LEN);
        side.meet();
        if to != QpState::Rts {
            end.to_state(to);
        }
        if to != QpState::Err {
            end.qp.destroy().unwrap();
        }
    }
}

/// The program ends, and its device with it.
fn go_away(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    side.meet();
    end.qp.destroy().unwrap();
}
