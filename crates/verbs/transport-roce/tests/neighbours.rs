//! Two processes behind one address: what comes to the wrong one goes on to the right one.

mod common;

use std::time::{Duration, Instant};

use common::{End, QKEY, connected, until, world_of_three};
use sluice_verbs::{AhAttr, QpType, SendWr, Sge, Transport as _, UdDestination, WrOpcode};

const AREA: usize = 1 << 20;
/// Packets that nobody has taken in.
const WAITING: u64 = 200;

#[test]
fn connections_of_both_processes_work_at_the_same_time() {
    let [left, right, other] = world_of_three();
    let (a, b) = connected(&left, &right, QpType::Rc, AREA);
    let (c, d) = connected(&left, &other, QpType::Rc, AREA);
    // Blocks of numbers tell them apart.
    assert_ne!(b.qp.num() >> 8, d.qp.num() >> 8);
    for turn in 0..20u8 {
        for (from, to) in [(&a, &b), (&c, &d)] {
            let len = 100 + 3000 * usize::from(turn);
            from.memory.fill(0, len, turn);
            to.post_recv(1, 0, len);
            let sge = [from.sge(0, len)];
            let wc = from.run(&End::request(WrOpcode::Send, 2, &sge, to, 0));
            assert_eq!(wc.status, 0);
            assert_eq!(to.outcome(), (1, 0));
            to.memory.check(0, len, turn);
            let back = [from.sge(AREA / 2, len)];
            let wc = from.run(&End::request(WrOpcode::RdmaRead, 3, &back, to, 0));
            assert_eq!(wc.status, 0);
            from.memory.check(AREA / 2, len, turn);
        }
    }
    assert_eq!(right.transport.dropped().unknown_qp, 0);
}

/// The program in the wrong process polls all the time, and holds its shard for most of it.
#[test]
fn a_program_that_polls_passes_on_and_takes_what_is_passed_on() {
    let [left, right, other] = world_of_three();
    let (c, d) = connected(&left, &other, QpType::Rc, AREA);
    let b = right.end(QpType::Rc, AREA, None);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for end in [&b, &d] {
            let done = &done;
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(end.cq.poll_one().is_none());
                }
            });
        }
        for turn in 0..100 {
            let sge = [c.sge(0, 3000)];
            let wc = c.run(&End::request(WrOpcode::RdmaWrite, turn, &sge, &d, 0));
            assert_eq!((wc.wr_id, wc.status), (turn, 0));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn datagrams_have_their_sender_also_when_they_are_passed_on() {
    let [left, right, other] = world_of_three();
    let (a, b) = connected(&left, &other, QpType::Ud, AREA);
    b.post_recv(5, 0, 2048);
    a.memory.fill(0, 64, 9);
    let ah = End::ah_attr(&b.gid);
    let sge = [a.sge(0, 64)];
    let wr = datagram(&sge, &ah, &b, b.qp.num());
    assert_eq!(a.run(&wr).status, 0);
    let wc = b.good();
    assert_eq!((wc.byte_len, wc.src_qp), (104, a.qp.num()));
    b.memory.check(40, 64, 9);
    for at in 0..16 {
        assert_eq!(b.memory.byte(8 + at), a.gid.0[at]);
    }
    // The owner ends: his numbers are nobody's.
    let qpn = b.qp.num();
    b.qp.destroy().unwrap();
    let wr = datagram(&sge, &ah, &b, qpn);
    assert_eq!(a.run(&wr).status, 0);
    until("the count", || other.transport.dropped().unknown_qp == 1);
    assert_eq!(right.transport.dropped().unknown_qp, 0);
}

/// To a queue pair at the host of `peer`.
fn datagram<'a>(sge: &'a [Sge], ah: &'a AhAttr, peer: &End, qpn: u32) -> SendWr<'a> {
    let mut wr = End::request(WrOpcode::Send, 1, sge, peer, 0);
    wr.ud = Some(UdDestination {
        ah,
        qpn,
        qkey: QKEY,
    });
    wr
}

/// A process ends while packets for its neighbour wait in its sockets. Catches: a process that
/// closes them without a look.
#[test]
fn what_waits_for_a_neighbour_is_handed_on_at_the_end() {
    let [left, right, other] = world_of_three();
    let (a, b) = connected(&left, &other, QpType::Ud, AREA);
    let ah = End::ah_attr(&b.gid);
    let sge = [a.sge(0, 64)];
    let wr = datagram(&sge, &ah, &b, b.qp.num());
    let comes = |number: u64| {
        b.post_recv(number, 0, 2048);
        assert_eq!(a.run(&wr).status, 0);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            if let Some(wc) = b.cq.poll_one() {
                assert_eq!((wc.wr_id, wc.status), (number, 0));
                return true;
            }
            std::thread::yield_now();
        }
        false
    };
    b.post_recv(0, 0, 2048);
    assert_eq!(a.run(&wr).status, 0);
    assert_eq!(b.good().wr_id, 0, "the engine passes on");
    right.transport.stop_engines();
    // The thread ends when it gets a processor, and may pass on some until then.
    let waits = (1..100).find(|number| !comes(*number));
    let mut sent = waits.expect("an end of the engine");
    // More than are taken in at once.
    for _ in 0..WAITING {
        sent += 1;
        b.post_recv(sent, 0, 2048);
        assert_eq!(a.run(&wr).status, 0);
    }
    // Who holds a shard for ever when a process ends is not waited for: the thread has let go of it.
    until("a shard that nobody is at", || {
        !right.transport.report().is_partial
    });
    right.transport.leave();
    for number in sent - WAITING..=sent {
        assert_eq!(b.good().wr_id, number);
    }
}
