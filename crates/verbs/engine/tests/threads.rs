//! Several threads on the same objects: nothing lost, nothing doubled, nobody asleep for ever.

mod loopback;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use loopback::*;
use sluice_verbs::*;

fn signalled(wr_id: u64) -> SendWr<'static> {
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, wr_id);
    wr.flags = send_flags::SIGNALED;
    wr
}

#[test]
fn queue_pairs_share_a_completion_queue() {
    const EACH: u64 = 10_000;
    let world = world();
    let pairs: Vec<_> = (0..4).map(|_| world.pair(QpType::Rc)).collect();
    let mut seen: HashMap<u32, u64> = HashMap::new();
    std::thread::scope(|scope| {
        for (a, _) in &pairs {
            scope.spawn(move || {
                for id in 0..EACH {
                    while a.post_send(&signalled(id)) == Err(Error::QueueFull) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut got = 0;
        while got < 4 * EACH {
            let Some(wc) = world.cq.poll_one() else {
                std::thread::yield_now();
                continue;
            };
            let next = seen.entry(wc.qp_num).or_default();
            assert_eq!((wc.wr_id, wc.status), (*next, 0));
            *next += 1;
            got += 1;
        }
    });
    assert!(seen.values().all(|count| *count == EACH));
    assert_eq!(events(&world.context), []);
}

#[test]
fn one_who_sleeps_misses_nothing() {
    const MESSAGES: u64 = 3_000;
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    for id in 0..8 {
        b.post_recv(id, &[]).unwrap();
    }
    let given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0..MESSAGES {
                let mut wr = SendWr::new(WrOpcode::Send, id);
                wr.flags = send_flags::SIGNALED;
                while a.post_send(&wr).is_err() && !given_up.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                    while world.cq.poll_one().is_some() {}
                }
            }
        });
        let mut got = 0;
        while got < MESSAGES {
            world.peer_cq.arm(false).unwrap();
            let mut any = false;
            while let Some(wc) = world.peer_cq.poll_one() {
                assert_eq!(wc.status, 0);
                got += 1;
                any = true;
                b.post_recv(0, &[]).unwrap();
            }
            if any {
                continue;
            }
            let woken = sluice_sys::unix::wait_readable(world.channel.fd(), 30_000);
            if woken != Ok(true) {
                given_up.store(true, Ordering::Relaxed);
                panic!("asleep after {got} messages");
            }
            assert_eq!(world.channel.get_event(), Ok(2));
            world.peer_cq.ack_events(1);
        }
    });
    // At most one event is left over from the last arming.
    if sluice_sys::unix::wait_readable(world.channel.fd(), 0).unwrap() {
        world.channel.get_event().unwrap();
        world.peer_cq.ack_events(1);
    }
    b.destroy().unwrap();
    world.peer_cq.destroy().unwrap();
}

/// Every request that was accepted completes once, however the end comes about.
#[test]
fn an_end_in_the_middle_of_everything() {
    for round in 0..40 {
        let world = world();
        let cq = world.context.create_cq(4096, 0, None, 0).unwrap();
        let mut init = world.init(QpType::Rc, &cq);
        init.cap.max_send_wr = 1024;
        let a = world.pd.create_qp(&init).unwrap();
        let (_, b) = world.pair(QpType::Rc);
        to_state(&a, b.num(), QpState::Rts);
        let transport: Arc<LoopQp> = world.transport(&a);
        transport.hold.store(round % 2 == 0, Ordering::SeqCst);
        let (accepted, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for id in 0..500 {
                        let sent = a.post_send(&signalled(id)).is_ok();
                        let received = id < 8 && a.post_recv(id, &[]).is_ok();
                        let more = usize::from(sent) + usize::from(received);
                        accepted.fetch_add(more, Ordering::SeqCst);
                    }
                });
            }
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let some = transport.held.lock().unwrap().first().map(|(seq, _)| *seq);
                    match some {
                        Some(seq) => _ = transport.release(seq),
                        None => std::thread::yield_now(),
                    }
                }
            });
            scope.spawn(|| {
                while accepted.load(Ordering::SeqCst) < 50 {
                    std::thread::yield_now();
                }
                match round % 4 {
                    0 | 1 => set_state(&a, QpState::Err).unwrap(),
                    _ => with_aftermath(|after| a.fail(None, after)),
                }
                over.store(true, Ordering::SeqCst);
            });
        });
        let all = statuses(&cq);
        assert_eq!(all.len(), accepted.load(Ordering::SeqCst), "round {round}");
        assert_eq!(a.state(), QpState::Err);
        a.destroy().unwrap();
        cq.destroy().unwrap();
    }
}

#[test]
fn regions_come_and_go_under_transfers() {
    let world = world();
    let (_a, b) = world.pair(QpType::Rc);
    let key = std::sync::Mutex::new((0, 0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let (rkey, addr) = *key.lock().unwrap();
                let request = responder::RemoteRequest {
                    op: responder::RemoteOp::Write,
                    rkey,
                    addr,
                    len: 64,
                    srqn: 0,
                };
                if let Ok(memory) = b.check_remote(&request) {
                    // The region cannot be unmapped here: a fault would end the test.
                    for at in 0..memory.len() {
                        write_byte(memory.as_ptr().wrapping_add(at));
                    }
                }
            }
        });
        for _ in 0..2_000 {
            let (addr, len) = map_page();
            let mr = world.pd.reg_mr(addr, len, addr, ALL).unwrap();
            *key.lock().unwrap() = (mr.rkey(), addr);
            std::thread::yield_now();
            mr.destroy().unwrap();
            unmap_page(addr, len);
        }
        over.store(true, Ordering::SeqCst);
    });
}
