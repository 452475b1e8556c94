//! Completion queues: full ones, events, several threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluice_verbs::types::EventType;
use sluice_verbs::{QpState, QpType, WrOpcode, send_flags};

use crate::end::until;
use crate::row::Row;
use crate::side::{Joined, Side, is_readable, sleep};

const LEN: usize = 65_536;

pub const fn a_full_completion_queue_breaks_its_queue_pair_only() -> Row {
    Row::new(&[], overrun, be_written_to)
}

fn overrun(side: &mut Side) {
    let cq = side.context.create_cq(2, 0, None, 0).unwrap();
    let end = side.end_with(QpType::Rc, LEN, &cq);
    let end = side.connect(end);
    let other = side.connected(QpType::Rc, LEN);
    let sge = [end.sge(0, 8)];
    for id in 0..50 {
        let wr = end.request(WrOpcode::RdmaWrite, id, &sge, 0);
        if end.qp.post_send(&wr).is_err() {
            break;
        }
    }
    until("the end", || {
        let _ = other.cq.poll_one();
        end.qp.state() == QpState::Err
    });
    let told = [side.event().event, side.event().event];
    assert!(told.contains(&EventType::CqErr), "{told:?}");
    assert!(told.contains(&EventType::QpFatal), "{told:?}");
    cq.ack_async_event();
    end.qp.ack_async_event();
    let sge = [other.sge(0, 10_000)];
    other.done(&other.request(WrOpcode::RdmaWrite, 31, &sge, 0));
    side.meet();
}

fn be_written_to(side: &mut Side) {
    let _end = side.connected(QpType::Rc, LEN);
    let _other = side.connected(QpType::Rc, LEN);
    side.meet();
}

pub const fn those_who_sleep_miss_nothing() -> Row {
    Row::new(
        &[],
        |side| take_turns(side, true),
        |side| take_turns(side, false),
    )
}

const TURNS: u64 = 300;
/// Of a receive's number.
const RECEIVE: u64 = 1 << 32;

/// Each sleeps until the other's word comes, and sends it back.
fn take_turns(side: &mut Side, begins: bool) {
    let channel = side.context.create_channel().unwrap();
    let end = side.end(QpType::Rc, 4096, Some(&channel));
    let end = side.connect(end);
    let sleep_until = |wanted: u64| {
        loop {
            end.cq.arm(false).unwrap();
            while let Some(wc) = end.cq.poll_one() {
                assert_eq!(wc.status, 0, "{wc:?}");
                if wc.wr_id == wanted {
                    return;
                }
            }
            sleep(&channel);
            end.cq.ack_events(1);
        }
    };
    end.post_recv(RECEIVE, 0, 8);
    side.meet();
    let send = |turn: u64| {
        end.memory.set_word(2048, turn);
        let sge = [end.sge(2048, 8)];
        end.post(&end.request(WrOpcode::Send, turn, &sge, 0));
    };
    for turn in 0..TURNS {
        if begins {
            send(turn);
        }
        sleep_until(RECEIVE | turn);
        assert_eq!(end.memory.word(0), turn);
        end.post_recv(RECEIVE | (turn + 1), 0, 8);
        if !begins {
            send(turn);
        }
    }
    side.meet();
}

pub const fn a_solicited_event_is_for_solicited_messages() -> Row {
    Row::new(&[], send_solicited, sleep_for_solicited)
}

fn send_solicited(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let sge = [end.sge(0, 8)];
    for flags in [0, send_flags::SOLICITED] {
        side.meet();
        let mut wr = end.request(WrOpcode::Send, 1, &sge, 0);
        wr.flags |= flags;
        end.done(&wr);
    }
    side.meet();
}

fn sleep_for_solicited(side: &mut Side) {
    let channel = side.context.create_channel().unwrap();
    let end = side.end(QpType::Rc, LEN, Some(&channel));
    let end = side.connect(end);
    end.post_recv(1, 0, 8);
    end.post_recv(2, 0, 8);
    end.cq.arm(true).unwrap();
    side.meet();
    until("the first message", || end.cq.filled() == 1);
    assert!(!is_readable(channel.fd()), "nobody asked for the first");
    assert!(end.cq.is_armed());
    side.meet();
    sleep(&channel);
    end.cq.ack_events(1);
    assert_eq!((end.good().wr_id, end.good().wr_id), (1, 2));
    side.meet();
}

pub const fn threads_post_and_poll_at_once() -> Row {
    Row::new(&[], many_threads, is_written_to)
}

const MESSAGES: u64 = 2000;
const THREADS: u64 = 2;

/// Two threads post to one queue pair, and two others poll. A fifth has a queue pair of its own and
/// is not disturbed.
fn many_threads(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let beside = side.connected(QpType::Rc, LEN);
    let over = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    while let Some(wc) = end.cq.poll_one() {
                        assert_eq!(wc.status, 0, "{wc:?}");
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::yield_now();
                }
            });
        }
        for thread in 0..THREADS {
            let end = &end;
            end.memory.set_word((8 + thread * 8) as usize, thread + 1);
            scope.spawn(move || post_all(end, thread));
        }
        for id in 0..MESSAGES / 10 {
            let sge = [beside.sge(0, 64)];
            beside.done(&beside.request(WrOpcode::RdmaWrite, id, &sge, 0));
        }
        until("all", || sent.load(Ordering::Relaxed) == THREADS * MESSAGES);
        over.store(true, Ordering::Relaxed);
    });
    side.meet();
    side.meet();
}

/// Writes the thread's word again and again.
fn post_all(end: &Joined, thread: u64) {
    let at = (8 + thread * 8) as usize;
    let sge = [end.sge(at, 8)];
    for id in 0..MESSAGES {
        let wr = end.request(WrOpcode::RdmaWrite, id, &sge, at);
        until("room", || end.qp.post_send(&wr).is_ok());
    }
}

fn is_written_to(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let _beside = side.connected(QpType::Rc, LEN);
    side.meet();
    for thread in 0..THREADS {
        assert_eq!(end.memory.word((8 + thread * 8) as usize), thread + 1);
    }
    side.meet();
}
