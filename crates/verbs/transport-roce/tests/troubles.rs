//! What goes wrong: refusals, ends in the middle of something, memory that goes away, strangers.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{End, MTU, QKEY, connected, stray, until, world};
use sluice_verbs::{Gid, QpState, QpType, SendWr, UdDestination, WcStatus, WrOpcode, send_flags};

const AREA: usize = 1 << 20;
/// Several packets.
const LONG: usize = 10 * MTU;

fn status(status: WcStatus) -> u32 {
    status as u32
}

#[test]
fn who_finds_no_receive_tries_again() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, AREA);
    let sge = [a.sge(0, LONG)];
    let wr = End::request(WrOpcode::Send, 1, &sge, &b, 0);
    a.qp.post_send(&wr).unwrap();
    // Refused a few times.
    until("refusals", || {
        let _ = (a.cq.poll_one(), b.cq.poll_one());
        right.inbox.seen() > 40
    });
    b.post_recv(2, 0, LONG);
    assert_eq!(a.outcome(), (1, 0));
    assert_eq!(b.outcome(), (2, 0));
}

/// Nobody polls: the transport's own thread repeats, gives up, and says so.
#[test]
fn a_silent_peer_is_noticed_by_who_sleeps() {
    let (left, right) = world("");
    let channel = left.context.create_channel().unwrap();
    let a = left.end(QpType::Rc, AREA, Some(&channel));
    let b = right.end(QpType::Rc, AREA, None);
    a.connect_in_vain(&b);
    b.connect(&a);
    right.inbox.cut(true);
    a.cq.arm(false).unwrap();
    let sge = [a.sge(0, 8)];
    let wr = End::request(WrOpcode::Send, 1, &sge, &b, 0);
    a.qp.post_send(&wr).unwrap();
    channel.get_event().unwrap();
    a.cq.ack_events(1);
    assert_eq!(a.outcome(), (1, status(WcStatus::RetryExcErr)));
}

#[test]
fn sleepers_talk_over_a_bad_cable() {
    const TURNS: u64 = 100;
    let (left, right) = world("loss=3%,dup=3%,reorder=3%,seed=5");
    let channels = [&left, &right].map(|side| side.context.create_channel().unwrap());
    let a = left.end(QpType::Rc, 4096, Some(&channels[0]));
    let b = right.end(QpType::Rc, 4096, Some(&channels[1]));
    a.connect(&b);
    b.connect(&a);
    let wait = |end: &End, channel: &sluice_verbs::Channel, wanted: u64| {
        loop {
            end.cq.arm(false).unwrap();
            while let Some(wc) = end.cq.poll_one() {
                assert_eq!(wc.status, 0, "{wc:?}");
                if wc.wr_id == wanted {
                    return;
                }
            }
            channel.get_event().unwrap();
            end.cq.ack_events(1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..TURNS {
                a.post_recv(1 << 32 | turn, 2048, 8);
                a.memory.set_word(0, turn);
                let sge = [a.sge(0, 8)];
                let wr = End::request(WrOpcode::Send, turn, &sge, &b, 0);
                a.qp.post_send(&wr).unwrap();
                wait(&a, &channels[0], 1 << 32 | turn);
                assert_eq!(a.memory.word(2048), turn);
            }
        });
        scope.spawn(|| {
            b.post_recv(1 << 32, 0, 8);
            for turn in 0..TURNS {
                wait(&b, &channels[1], 1 << 32 | turn);
                b.memory.set_word(2048, b.memory.word(0));
                b.post_recv(1 << 32 | (turn + 1), 0, 8);
                let sge = [b.sge(2048, 8)];
                let wr = End::request(WrOpcode::Send, turn, &sge, &a, 0);
                b.qp.post_send(&wr).unwrap();
            }
        });
    });
}

/// Two packets of a long message have come, the rest is held back. `connect`: the sender's, which waits for an answer
/// meanwhile.
fn in_the_middle(
    connect: fn(&End, &End),
    act: impl FnOnce(&End, &End),
) -> (End, End, [common::Side; 2]) {
    let (left, right) = world("");
    let (a, b) = [&left, &right]
        .map(|side| side.end(QpType::Rc, AREA, None))
        .into();
    connect(&a, &b);
    b.connect(&a);
    right.inbox.allow(2);
    a.memory.fill(0, LONG, 1);
    b.post_recv(20, 0, LONG);
    b.post_recv(21, 0, LONG);
    for id in 10..13 {
        let sge = [a.sge(0, LONG)];
        let wr = End::request(WrOpcode::Send, id, &sge, &b, 0);
        a.qp.post_send(&wr).unwrap();
    }
    until("two packets", || {
        let _ = (a.cq.poll_one(), b.cq.poll_one());
        b.memory.byte(2 * MTU - 1) == common::pattern(2 * MTU - 1, 1)
    });
    act(&a, &b);
    (a, b, [left, right])
}

#[test]
fn an_error_in_the_middle_flushes_what_was_posted() {
    let flushed = status(WcStatus::WrFlushErr);
    let (a, b, sides) = in_the_middle(End::connect, |a, _| a.to_state(QpState::Err));
    sides[1].inbox.lose();
    for id in 10..13 {
        assert_eq!(a.outcome(), (id, flushed));
    }
    assert!(b.cq.poll_one().is_none());
    b.to_state(QpState::Err);
    assert_eq!(b.outcome(), (20, flushed));
    assert_eq!(b.outcome(), (21, flushed));

    let (a, b, sides) = in_the_middle(End::connect_in_vain, |_, b| b.to_state(QpState::Err));
    sides[1].inbox.allow(usize::MAX);
    assert_eq!(b.outcome(), (20, flushed));
    assert_eq!(b.outcome(), (21, flushed));
    assert_eq!(a.outcome(), (10, status(WcStatus::RetryExcErr)));
    assert_eq!(a.outcome(), (11, flushed));
}

#[test]
fn after_a_reset_in_the_middle_both_begin_anew() {
    let (a, b, sides) = in_the_middle(End::connect, |a, b| {
        a.to_state(QpState::Reset);
        b.to_state(QpState::Reset);
    });
    sides[1].inbox.allow(usize::MAX);
    let none = || a.cq.poll_one().is_none() && b.cq.poll_one().is_none();
    // Also when what was held back has come.
    assert!((0..100).all(|_| none()));
    a.connect(&b);
    b.connect(&a);
    b.post_recv(30, 4096, LONG);
    let sge = [a.sge(0, LONG)];
    assert_eq!(
        a.run(&End::request(WrOpcode::Send, 31, &sge, &b, 0)).status,
        0
    );
    assert_eq!(b.outcome(), (30, 0));
    b.memory.check(4096, LONG, 1);
}

#[test]
fn queue_pairs_go_in_the_middle() {
    let (a, b, sides) = in_the_middle(End::connect, |a, _| a.qp.destroy().unwrap());
    sides[1].inbox.lose();
    assert!(a.cq.poll_one().is_none() && b.cq.poll_one().is_none());
    // Nothing of it is held any more.
    a.mr.destroy().unwrap();
    let (c, d) = connected(&sides[0], &sides[1], QpType::Rc, AREA);
    let sge = [c.sge(0, LONG)];
    assert_eq!(
        c.run(&End::request(WrOpcode::RdmaWrite, 31, &sge, &d, 0))
            .status,
        0
    );

    let (a, b, sides) = in_the_middle(End::connect_in_vain, |_, b| b.qp.destroy().unwrap());
    sides[1].inbox.allow(usize::MAX);
    b.mr.destroy().unwrap();
    assert_eq!(a.outcome(), (10, status(WcStatus::RetryExcErr)));
    assert!(sides[1].transport.dropped().unknown_qp > 0);
}

/// A program may end its queue pair as soon as it has seen the last message. The sender of that
/// one must not be left without an answer.
#[test]
fn what_the_program_has_seen_come_is_answered_before_the_end() {
    for _ in 0..200 {
        let (left, right) = world("");
        let (a, b) = connected(&left, &right, QpType::Rc, 8192);
        b.post_recv(2, 0, 4096);
        let sge = [a.sge(0, 4096)];
        let wr = End::request(WrOpcode::Send, 1, &sge, &b, 0);
        a.qp.post_send(&wr).unwrap();
        assert_eq!(b.outcome(), (2, 0));
        b.qp.destroy().unwrap();
        assert_eq!(a.outcome(), (1, 0));
    }
}

#[test]
fn memory_of_a_receive_goes_between_two_packets() {
    // It does not wait for the rest of the message.
    let (a, b, sides) = in_the_middle(End::connect, |_, b| b.mr.destroy().unwrap());
    sides[1].inbox.allow(usize::MAX);
    assert_eq!(b.outcome(), (20, status(WcStatus::LocProtErr)));
    assert_eq!(b.outcome(), (21, status(WcStatus::WrFlushErr)));
    assert_eq!(a.outcome(), (10, status(WcStatus::RemOpErr)));
}

#[test]
fn memory_of_a_send_goes_while_it_waits() {
    // What has left once is repeated from there.
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, AREA);
    right.inbox.cut(true);
    b.post_recv(20, 0, LONG);
    let sge = [a.sge(0, LONG)];
    let wr = End::request(WrOpcode::Send, 10, &sge, &b, 0);
    a.qp.post_send(&wr).unwrap();
    a.mr.destroy().unwrap();
    right.inbox.cut(false);
    assert_eq!(a.outcome(), (10, status(WcStatus::LocProtErr)));
}

#[test]
fn memory_that_is_read_goes_between_two_packets() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, AREA);
    b.memory.fill(0, AREA, 3);
    let sge = [a.sge(0, AREA)];
    let wr = End::request(WrOpcode::RdmaRead, 10, &sge, &b, 0);
    left.inbox.allow(2);
    a.qp.post_send(&wr).unwrap();
    until("two packets", || {
        let _ = (a.cq.poll_one(), b.cq.poll_one());
        left.inbox.seen() > 2
    });
    b.mr.destroy().unwrap();
    left.inbox.allow(usize::MAX);
    // All had been sent, or the rest is refused.
    let (_, result) = a.outcome();
    assert!(
        [WcStatus::Success, WcStatus::RemAccessErr]
            .map(status)
            .contains(&result),
        "{result}"
    );
}

#[test]
fn threads_poll_while_another_posts() {
    const MESSAGES: u64 = 3000;
    let (left, right) = world("loss=1%,seed=3");
    let (a, b) = connected(&left, &right, QpType::Rc, AREA);
    let done = AtomicBool::new(false);
    let sent = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    while let Some(wc) = a.cq.poll_one() {
                        assert_eq!(wc.status, 0, "{wc:?}");
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::yield_now();
                }
            });
        }
        scope.spawn(|| {
            for id in 0..MESSAGES {
                let sge = [a.sge(0, 64)];
                let wr = End::request(WrOpcode::RdmaWrite, id, &sge, &b, 0);
                until("room", || {
                    let _ = b.cq.poll_one();
                    a.qp.post_send(&wr).is_ok()
                });
            }
        });
        until("all", || {
            let _ = b.cq.poll_one();
            sent.load(Ordering::Relaxed) == MESSAGES
        });
        done.store(true, Ordering::Relaxed);
    });
}

/// Somebody looks for packets, finds none, and never looks again; meanwhile another one posts and
/// leaves it to him to send. The pause lets the engine thread fall asleep.
#[test]
fn who_posts_while_another_looks_in_vain_is_not_forgotten() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, AREA);
    for round in 1..=200u64 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let posted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !posted.load(Ordering::Acquire) {
                    let _ = a.cq.poll_one();
                }
            });
            std::thread::sleep(std::time::Duration::from_micros(round));
            a.memory.set_word(0, round);
            let sge = [a.sge(0, 8)];
            let wr = End::request(WrOpcode::RdmaWrite, round, &sge, &b, 0);
            a.qp.post_send(&wr).unwrap();
            posted.store(true, Ordering::Release);
        });
        until("a word that nobody polls for", || b.memory.word(0) == round);
    }
}

/// Requests that come thick and fast are gathered, for a program that polls will send them. Here
/// it polls no more, and no timer of the protocol's wakes anybody.
#[test]
fn a_burst_leaves_though_nobody_polls() {
    const BURST: u64 = 20;
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Uc, AREA);
    for round in 1..=20u64 {
        let mut done = 0;
        until("what was sent to be done", || {
            done += u64::from(a.cq.poll_one().is_some());
            round == 1 || done == BURST
        });
        std::thread::sleep(std::time::Duration::from_millis(10));
        a.memory.set_word(0, round);
        for at in 0..BURST {
            let sge = [a.sge(0, 8)];
            let wr = End::request(WrOpcode::RdmaWrite, at, &sge, &b, 8 * at as usize);
            a.qp.post_send(&wr).unwrap();
        }
        let last = 8 * (BURST as usize - 1);
        until("the last of a burst", || b.memory.word(last) == round);
    }
}

/// Acknowledgements wait for the answer, and yet are first. Programs that sleep on one channel for
/// both count on that.
#[test]
fn an_acknowledgement_that_waited_is_in_front_of_the_answer() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, AREA);
    for _ in 0..200 {
        a.post_recv(1, 0, 8);
        b.post_recv(2, 0, 8);
        let sge = [a.sge(8, 8)];
        let wr = End::request(WrOpcode::Send, 3, &sge, &b, 0);
        a.qp.post_send(&wr).unwrap();
        assert_eq!(b.good().wr_id, 2);
        let sge = [b.sge(8, 8)];
        let wr = End::request(WrOpcode::Send, 4, &sge, &a, 0);
        b.qp.post_send(&wr).unwrap();
        assert_eq!(a.good().wr_id, 3);
        assert_eq!(a.good().wr_id, 1);
        assert_eq!(b.good().wr_id, 4);
    }
}

#[test]
fn packets_of_strangers_are_counted_and_no_more() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, AREA);
    b.post_recv(1, 0, 8);
    // In a block of its own process, and in one that nobody has.
    for qpn in [b.qp.num() ^ 0xff, b.qp.num() ^ 0xff_0000] {
        right.inbox.put(stray(&a.gid, &b.gid, qpn));
    }
    // From an address that is not the peer's.
    let stranger = Gid([0xfd; 16]);
    right.inbox.put(stray(&stranger, &b.gid, b.qp.num()));
    until("three counts", || {
        let _ = b.cq.poll_one();
        let dropped = right.transport.dropped();
        (dropped.unknown_qp, dropped.not_taken) == (2, 1)
    });
    assert_eq!(b.qp.state(), QpState::Rts);
}

/// Joining a group takes the ports, and a datagram to a group the list of members.
#[test]
fn groups_change_while_their_datagrams_come() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Ud, AREA);
    let group = Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                while b.cq.poll_one().is_some() {}
                let _ = b.qp.post_recv(1, &[b.sge(0, 2048)]);
            }
        });
        scope.spawn(|| {
            let attr = End::ah_attr(&group);
            let sge = [a.sge(0, 64)];
            while !done.load(Ordering::Relaxed) {
                let wr = SendWr {
                    flags: send_flags::SIGNALED,
                    sges: &sge,
                    ud: Some(UdDestination {
                        ah: &attr,
                        qpn: 0xff_ffff,
                        qkey: QKEY,
                    }),
                    ..SendWr::new(WrOpcode::Send, 1)
                };
                let _ = a.qp.post_send(&wr);
                while a.cq.poll_one().is_some() {}
            }
        });
        for _ in 0..3000 {
            b.qp.attach_multicast(&group, 0).unwrap();
            b.qp.detach_multicast(&group, 0).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    // And they do arrive.
    b.to_state(QpState::Reset);
    while b.cq.poll_one().is_some() {}
    b.connect(&a);
    b.qp.attach_multicast(&group, 0).unwrap();
    b.post_recv(5, 0, 2048);
    let attr = End::ah_attr(&group);
    let sge = [a.sge(0, 64)];
    let wr = SendWr {
        flags: send_flags::SIGNALED,
        sges: &sge,
        ud: Some(UdDestination {
            ah: &attr,
            qpn: 0xff_ffff,
            qkey: QKEY,
        }),
        ..SendWr::new(WrOpcode::Send, 1)
    };
    assert_eq!(a.run(&wr).status, 0);
    assert_eq!(b.outcome(), (5, 0));
}

#[test]
fn a_child_of_fork_has_none_of_the_ports() {
    let (left, _right) = world("");
    let descriptor = left.inbox.descriptor();
    // SAFETY: the child makes system calls only, which a fork of a process with threads may.
    let has = unsafe {
        assert!(libc::fcntl(descriptor, libc::F_GETFD) >= 0);
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(libc::fcntl(descriptor, libc::F_GETFD) >= 0));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status)
    };
    assert_eq!(has, 0);
    // This process still has it.
    let (a, b) = connected(&left, &_right, QpType::Rc, 4096);
    let sge = [a.sge(0, 8)];
    let wr = End::request(WrOpcode::RdmaWrite, 1, &sge, &b, 0);
    assert_eq!(a.run(&wr).status, 0);
}
