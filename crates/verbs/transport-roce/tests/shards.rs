//! Several shards: queue pairs on each, packets that come by the right one and by others.
#![allow(unsafe_code)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::cable::Steer;
use common::{End, MTU, QKEY, Side, connected, until, world_of_shards, world_of_three_with_shards};
use sluice_verbs::{
    Cq, Gid, QpCap, QpInit, QpState, QpType, SendWr, SrqAttr, SrqInit, UdDestination, WcStatus,
    WrOpcode, send_flags,
};

const AREA: usize = 1 << 18;
const HALF: usize = AREA / 2;
const EACH: [Steer; 3] = [Steer::Right, Steer::Wrong, Steer::First];
/// Numbers of shards that may meet.
const COUNTS: [[usize; 2]; 3] = [[2, 2], [3, 1], [2, 5]];
const BAD: &str = "loss=2%,dup=2%,reorder=2%,seed=11";

/// The shard of a queue pair, of so many.
fn shard(end: &End, count: usize) -> usize {
    end.qp.num() as usize % count
}

/// Connects two ends.
fn join(a: &End, b: &End) {
    a.connect(b);
    b.connect(a);
}

/// Connected pairs, of which each shard of each side has one at least. All of a side complete to
/// one queue.
fn pairs(sides: [&Side; 2], counts: [usize; 2]) -> Vec<(End, End)> {
    let cqs = sides.map(|side| side.context.create_cq(4096, 0, None, 0).unwrap());
    pairs_with(sides, counts, &cqs, QpType::Rc)
}

fn pairs_with(
    sides: [&Side; 2],
    counts: [usize; 2],
    cqs: &[Arc<Cq>; 2],
    kind: QpType,
) -> Vec<(End, End)> {
    let each = counts[0].max(counts[1]) * 2;
    let pairs: Vec<(End, End)> = (0..each)
        .map(|_| {
            let a = sides[0].end_with(kind, AREA, &cqs[0]);
            let b = sides[1].end_with(kind, AREA, &cqs[1]);
            join(&a, &b);
            (a, b)
        })
        .collect();
    for wanted in 0..counts[0] {
        assert!(pairs.iter().any(|(a, _)| shard(a, counts[0]) == wanted));
    }
    for wanted in 0..counts[1] {
        assert!(pairs.iter().any(|(_, b)| shard(b, counts[1]) == wanted));
    }
    pairs
}

#[test]
fn queue_pairs_of_all_shards_share_a_completion_queue() {
    for counts in COUNTS {
        for steer in EACH {
            let (left, right) = world_of_shards("", counts, steer);
            for (number, (a, b)) in pairs([&left, &right], counts).iter().enumerate() {
                let len = 10 * MTU + number;
                a.memory.fill(0, len, number as u8);
                b.post_recv(1, 0, len);
                let sge = [a.sge(0, len)];
                let wc = a.run(&End::request(WrOpcode::Send, 2, &sge, b, 0));
                assert_eq!((wc.status, wc.qp_num), (0, a.qp.num()));
                let wc = b.good();
                assert_eq!((wc.wr_id, wc.qp_num), (1, b.qp.num()));
                b.memory.check(0, len, number as u8);
                let back = [a.sge(HALF, len)];
                let wc = a.run(&End::request(WrOpcode::RdmaRead, 3, &back, b, 0));
                assert_eq!(wc.status, 0);
                a.memory.check(HALF, len, number as u8);
                for turn in 0..5 {
                    let result = [a.sge(HALF, 8)];
                    b.memory.set_word(0, turn);
                    let mut wr = End::request(WrOpcode::AtomicFetchAndAdd, turn, &result, b, 0);
                    wr.compare_add = 7;
                    assert_eq!(a.run(&wr).status, 0);
                    assert_eq!((a.memory.word(HALF), b.memory.word(0)), (turn, turn + 7));
                }
            }
            for side in [&left, &right] {
                assert_eq!(side.transport.dropped(), Default::default(), "{steer:?}");
            }
        }
    }
}

#[test]
fn threads_with_queues_of_their_own_do_not_disturb_each_other() {
    const MESSAGES: u64 = 300;
    for steer in EACH {
        let counts = [2, 3];
        let (left, right) = world_of_shards(BAD, counts, steer);
        // Here and not in the threads, so that the numbers of each thread's are one after the other.
        let all: Vec<_> = (0..3).map(|_| pairs([&left, &right], counts)).collect();
        std::thread::scope(|scope| {
            for (thread, own) in (0u8..).zip(&all) {
                scope.spawn(move || {
                    for (a, b) in own.iter().take(2) {
                        let (mut posted, mut done, mut ready, mut got) = (0, 0, 0, 0);
                        while done < MESSAGES || got < MESSAGES {
                            while ready < MESSAGES && ready < got + 16 {
                                b.post_recv(ready, 4096 * (ready % 16) as usize, 2500);
                                ready += 1;
                            }
                            while posted < MESSAGES && posted < done.min(got) + 16 {
                                let at = 4096 * (posted % 16) as usize;
                                a.memory.fill(at, 2500, posted as u8 ^ thread);
                                let sge = [a.sge(at, 2500)];
                                let wr = End::request(WrOpcode::Send, posted, &sge, b, 0);
                                a.qp.post_send(&wr).unwrap();
                                posted += 1;
                            }
                            while let Some(wc) = a.cq.poll_one() {
                                assert_eq!((wc.wr_id, wc.status), (done, 0));
                                done += 1;
                            }
                            while let Some(wc) = b.cq.poll_one() {
                                assert_eq!((wc.wr_id, wc.status), (got, 0));
                                let at = 4096 * (got % 16) as usize;
                                b.memory.check(at, 2500, got as u8 ^ thread);
                                got += 1;
                            }
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
    }
}

/// Both ends wait for events, and the packets come by the ports of shards that nobody asked.
#[test]
fn who_sleeps_is_woken_whatever_shard_a_packet_comes_by() {
    const TURNS: u64 = 40;
    for steer in EACH {
        let counts = [2, 2];
        let (left, right) = world_of_shards("", counts, steer);
        let channels = [&left, &right].map(|side| side.context.create_channel().unwrap());
        let cqs = [(&left, &channels[0]), (&right, &channels[1])]
            .map(|(side, channel)| side.context.create_cq(64, 0, Some(channel), 0).unwrap());
        for (a, b) in &pairs_with([&left, &right], counts, &cqs, QpType::Rc) {
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
            let side = |own: &End, peer: &End, channel: &sluice_verbs::Channel, first: bool| {
                for turn in 0..TURNS {
                    own.post_recv(1 << 32 | turn, HALF, 8);
                    let sge = [own.sge(0, 8)];
                    let wr = End::request(WrOpcode::Send, turn, &sge, peer, 0);
                    if first {
                        own.qp.post_send(&wr).unwrap();
                    }
                    wait(own, channel, 1 << 32 | turn);
                    if !first {
                        own.qp.post_send(&wr).unwrap();
                    }
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| side(a, b, &channels[0], true));
                scope.spawn(|| side(b, a, &channels[1], false));
            });
        }
    }
}

/// The program on the other side never calls: the engine threads write its memory and answer.
#[test]
fn shards_that_nobody_polls_answer() {
    for steer in EACH {
        let counts = [1, 3];
        let (left, right) = world_of_shards("", counts, steer);
        let pairs = pairs([&left, &right], counts);
        for turn in 1..=20 {
            for (number, (a, b)) in pairs.iter().enumerate() {
                let value = turn << 8 | number as u64;
                a.memory.set_word(0, value);
                let sge = [a.sge(0, 8)];
                let wc = a.run(&End::request(WrOpcode::RdmaWrite, value, &sge, b, 0));
                assert_eq!((wc.wr_id, wc.status), (value, 0));
                assert_eq!(b.memory.word(0), value);
            }
        }
    }
}

#[test]
fn a_shared_receive_queue_serves_queue_pairs_of_all_shards() {
    const MESSAGES: u64 = 60;
    let counts = [2, 3];
    for steer in EACH {
        let (left, right) = world_of_shards(BAD, counts, steer);
        let cq = right.context.create_cq(1024, 0, None, 0).unwrap();
        let srq = right
            .pd
            .create_srq(&SrqInit {
                attr: SrqAttr {
                    max_wr: 64,
                    max_sge: 1,
                    srq_limit: 0,
                },
                xrcd: None,
                cq: None,
                cookie: 0,
            })
            .unwrap();
        let ends: Vec<(End, End)> = (0..6)
            .map(|_| {
                let a = left.end(QpType::Rc, 4096, None);
                let init = QpInit {
                    send_cq: Some(cq.clone()),
                    recv_cq: Some(cq.clone()),
                    srq: Some(srq.clone()),
                    cap: QpCap {
                        max_send_wr: 16,
                        max_send_sge: 1,
                        ..QpCap::default()
                    },
                    ..QpInit::new(QpType::Rc)
                };
                let b = right.of(right.pd.create_qp(&init).unwrap(), 64 << 10, &cq);
                join(&a, &b);
                (a, b)
            })
            .collect();
        let pool = &ends[0].1;
        for slot in 0..32 {
            let place = [pool.sge(slot * 1024, 1024)];
            srq.post_recv(slot as u64, &place).unwrap();
        }
        let (left_to_send, total) = (AtomicU64::new(6), 6 * MESSAGES);
        std::thread::scope(|scope| {
            for (a, b) in &ends {
                let left_to_send = &left_to_send;
                scope.spawn(move || {
                    for message in 0..MESSAGES {
                        a.memory.set_word(0, message);
                        let sge = [a.sge(0, 8)];
                        let wr = End::request(WrOpcode::Send, message, &sge, b, 0);
                        assert_eq!(a.run(&wr).status, 0);
                    }
                    left_to_send.fetch_sub(1, Ordering::Relaxed);
                });
            }
            let mut next = std::collections::HashMap::new();
            let mut got = 0;
            until("all messages", || {
                while let Some(wc) = cq.poll_one() {
                    assert_eq!(wc.status, 0, "{wc:?}");
                    let at = wc.wr_id as usize * 1024;
                    let wanted = next.entry(wc.qp_num).or_insert(0);
                    assert_eq!(pool.memory.word(at), *wanted);
                    *wanted += 1;
                    got += 1;
                    srq.post_recv(wc.wr_id, &[pool.sge(at, 1024)]).unwrap();
                }
                got == total && left_to_send.load(Ordering::Relaxed) == 0
            });
            assert_eq!(next.len(), 6);
        });
    }
}

/// An extended target has no completion queue of its own: who polls that of the shared receive
/// queue looks at its shard.
#[test]
fn extended_targets_of_all_shards_complete_to_the_shared_queue() {
    let (left, right) = world_of_shards("", [2, 3], Steer::Wrong);
    let cq = right.context.create_cq(64, 0, None, 0).unwrap();
    let domain = right.context.open_xrcd(None, true, false).unwrap();
    let srq = right
        .pd
        .create_srq(&SrqInit {
            attr: SrqAttr {
                max_wr: 16,
                max_sge: 1,
                srq_limit: 0,
            },
            xrcd: Some(domain.clone()),
            cq: Some(cq.clone()),
            cookie: 0,
        })
        .unwrap();
    for number in 0..6u8 {
        let a = left.end(QpType::XrcSend, AREA, None);
        let target = right.context.create_xrc_recv(&QpInit {
            xrcd: Some(domain.clone()),
            ..QpInit::new(QpType::XrcRecv)
        });
        let b = right.of(target.unwrap(), AREA, &cq);
        a.connect(&b);
        b.to_init();
        b.to_rtr(&a);
        srq.post_recv(4, &[b.sge(HALF, 5000)]).unwrap();
        a.memory.fill(0, 5000, number);
        let sge = [a.sge(0, 5000)];
        let wr = SendWr {
            xrc_srqn: srq.num(),
            ..End::request(WrOpcode::Send, 1, &sge, &b, 0)
        };
        assert_eq!(a.run(&wr).status, WcStatus::Success as u32);
        assert_eq!(b.good().byte_len, 5000);
        b.memory.check(HALF, 5000, number);
    }
}

#[test]
fn members_of_a_group_are_on_all_shards() {
    let counts = [2, 3];
    let (left, right) = world_of_shards("", counts, Steer::Right);
    let group = Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x78]);
    let ends = pairs_with(
        [&left, &right],
        counts,
        &[&left, &right].map(|side| side.context.create_cq(64, 0, None, 0).unwrap()),
        QpType::Ud,
    );
    for (_, b) in &ends {
        b.qp.attach_multicast(&group, 0).unwrap();
    }
    let attr = End::ah_attr(&group);
    for turn in 0..10 {
        for (_, b) in &ends {
            b.post_recv(u64::from(b.qp.num()), 0, 2048);
        }
        // From each shard in turn.
        let a = &ends[turn % ends.len()].0;
        a.memory.fill(0, 64, turn as u8);
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
        let mut got: Vec<u64> = ends.iter().map(|(_, b)| b.good().wr_id).collect();
        got.sort_unstable();
        let mut wanted: Vec<u64> = ends.iter().map(|(_, b)| b.qp.num().into()).collect();
        wanted.sort_unstable();
        assert_eq!(got, wanted);
        for (_, b) in &ends {
            b.memory.check(40, 64, turn as u8);
        }
    }
}

/// One shard's thread is away, with the shard's lock: the others do not wait for it, what is handed
/// over to it is bounded, and it goes on where it was.
#[test]
fn a_shard_that_is_stuck_holds_up_no_other() {
    let counts = [1, 2];
    let (left, right) = world_of_shards("", counts, Steer::First);
    let pairs = pairs([&left, &right], counts);
    let on = |wanted| {
        pairs
            .iter()
            .find(move |(_, b)| shard(b, 2) == wanted)
            .unwrap()
    };
    let ((a, b), (c, d)) = (on(0), on(1));
    right.inboxes[1].keep(true);
    until("somebody who is stuck", || right.inboxes[1].has_stuck());
    let sge = [c.sge(0, 8)];
    c.memory.set_word(0, 1);
    c.qp.post_send(&End::request(WrOpcode::RdmaWrite, 1 << 32, &sge, d, 0))
        .unwrap();
    for turn in 0..100 {
        a.memory.set_word(0, turn);
        let sge = [a.sge(0, 8)];
        a.qp.post_send(&End::request(WrOpcode::RdmaWrite, turn, &sge, b, 0))
            .unwrap();
        assert_eq!(a.outcome(), (turn, 0));
        assert_eq!(b.memory.word(0), turn);
    }
    // A flood for the shard that does not take it.
    let mut frame = common::stray(&c.gid, &d.gid, d.qp.num());
    frame.path.source = "fd00::1".parse().unwrap();
    let crowded = || right.transport.dropped().crowded;
    until("a crowd", || {
        for _ in 0..1000 {
            right.inboxes[0].put(frame.clone());
        }
        until("room on the cable", || right.inboxes[0].is_empty());
        crowded() > 0
    });
    assert_eq!(d.memory.word(0), 0);
    right.inboxes[1].keep(false);
    assert_eq!(c.outcome(), (1 << 32, 0));
    assert_eq!(d.memory.word(0), 1);
    assert!(right.transport.dropped().not_taken > 0);
}

#[test]
fn what_was_seen_come_by_another_shard_is_answered_before_the_end() {
    for _ in 0..50 {
        for steer in EACH {
            let (left, right) = world_of_shards("", [2, 2], steer);
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
}

/// Queue pairs come and go while packets for them are handed over.
#[test]
fn queue_pairs_end_while_their_packets_change_shards() {
    let counts = [2, 2];
    let (left, right) = world_of_shards("", counts, Steer::Wrong);
    // Work on throughout.
    let pairs = pairs([&left, &right], counts);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !done.load(Ordering::Relaxed) {
                for (a, b) in &pairs {
                    turn += 1;
                    let sge = [a.sge(0, 3000)];
                    let wc = a.run(&End::request(WrOpcode::RdmaWrite, turn, &sge, b, 0));
                    assert_eq!(wc.status, 0);
                }
            }
        });
        for turn in 0..100 {
            let (a, b) = connected(&left, &right, QpType::Rc, 64 << 10);
            let sge = [a.sge(0, 64 << 10)];
            for id in 0..4 {
                let wr = End::request(WrOpcode::RdmaWrite, id, &sge, &b, 0);
                a.qp.post_send(&wr).unwrap();
            }
            if turn % 2 == 0 {
                b.qp.destroy().unwrap();
            }
            a.qp.destroy().unwrap();
            assert!(a.cq.poll_one().is_none());
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn processes_with_other_numbers_of_shards_share_an_address() {
    for counts in [[1, 2, 1], [2, 1, 3], [2, 3, 2]] {
        for steer in EACH {
            let [left, right, other] = world_of_three_with_shards(counts, steer);
            for number in 0..4u8 {
                let (a, b) = connected(&left, &right, QpType::Rc, AREA);
                let (c, d) = connected(&left, &other, QpType::Rc, AREA);
                for (from, to) in [(&a, &b), (&c, &d)] {
                    from.memory.fill(0, 5000, number);
                    to.post_recv(1, 0, 5000);
                    let sge = [from.sge(0, 5000)];
                    let wc = from.run(&End::request(WrOpcode::Send, 2, &sge, to, 0));
                    assert_eq!(wc.status, 0);
                    assert_eq!(to.outcome(), (1, 0));
                    to.memory.check(0, 5000, number);
                }
            }
            assert_eq!(right.transport.dropped().unknown_qp, 0);
            assert_eq!(other.transport.dropped().unknown_qp, 0);
        }
    }
}

#[test]
fn a_child_of_fork_has_no_ports_of_any_shard() {
    let (left, right) = world_of_shards("", [3, 2], Steer::Right);
    let descriptors: Vec<i32> = left
        .inboxes
        .iter()
        .map(|inbox| inbox.descriptor())
        .collect();
    let held = || {
        let each = descriptors.iter();
        // SAFETY: fcntl takes integers.
        each.filter(|fd| unsafe { libc::fcntl(**fd, libc::F_GETFD) } >= 0)
            .count()
    };
    assert_eq!(held(), 3);
    // SAFETY: the child makes system calls only, which a fork of a process with threads may.
    let in_child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(held() as i32);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status)
    };
    assert_eq!((in_child, held()), (0, 3));
    for (a, b) in &pairs([&left, &right], [3, 2]) {
        let sge = [a.sge(0, 8)];
        let wr = End::request(WrOpcode::RdmaWrite, 1, &sge, b, 0);
        assert_eq!(a.run(&wr).status, 0);
        assert_eq!(a.qp.state(), QpState::Rts);
    }
}
