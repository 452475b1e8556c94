//! Completions: in order whatever the transport's order, flushed in order, fenced, drained.

mod loopback;

use std::sync::atomic::Ordering;

use loopback::*;
use proptest::prelude::*;
use sluice_verbs::*;

fn signalled(wr_id: u64) -> SendWr<'static> {
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, wr_id);
    wr.flags = send_flags::SIGNALED;
    wr
}

fn ok(ids: &[u64]) -> Vec<(u64, WcStatus)> {
    ids.iter().map(|id| (*id, WcStatus::Success)).collect()
}

#[test]
fn later_requests_wait_for_the_oldest() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.hold.store(true, Ordering::SeqCst);
    for id in 0..4 {
        a.post_send(&signalled(id)).unwrap();
    }
    assert!(transport.release(2) && transport.release(1));
    assert_eq!(statuses(&world.cq), []);
    assert!(transport.release(0));
    assert_eq!(statuses(&world.cq), ok(&[0, 1, 2]));
    with_aftermath(|after| a.complete_send(2, SendDone::ok(0), after));
    with_aftermath(|after| a.complete_send(77, SendDone::ok(0), after));
    assert_eq!(
        statuses(&world.cq),
        [],
        "unknown and finished numbers are ignored"
    );
    assert!(transport.release(3));
    assert_eq!(statuses(&world.cq), ok(&[3]));
}

#[test]
fn one_that_is_done_at_once_waits_too() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.hold.store(true, Ordering::SeqCst);
    a.post_send(&signalled(0)).unwrap();
    transport.hold.store(false, Ordering::SeqCst);
    a.post_send(&signalled(1)).unwrap();
    assert_eq!(statuses(&world.cq), []);
    transport.release(0);
    assert_eq!(statuses(&world.cq), ok(&[0, 1]));
}

#[test]
fn a_failure_flushes_what_is_behind_it_in_order() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    a.post_recv(100, &[]).unwrap();
    a.post_recv(101, &[]).unwrap();
    let transport = world.transport(&a);
    transport.hold.store(true, Ordering::SeqCst);
    for id in 0..5 {
        let mut wr = signalled(id);
        wr.flags = if id == 1 { send_flags::SIGNALED } else { 0 };
        a.post_send(&wr).unwrap();
    }
    // The third fails first; it becomes known when the ones before it are done.
    with_aftermath(|after| a.complete_send(2, SendDone::failed(WcStatus::RetryExcErr), after));
    assert_eq!(a.state(), QpState::Rts);
    transport.release(1);
    transport.release(0);
    assert_eq!(
        statuses(&world.cq),
        [
            (1, WcStatus::Success),
            (2, WcStatus::RetryExcErr),
            (3, WcStatus::WrFlushErr),
            (4, WcStatus::WrFlushErr),
            (100, WcStatus::WrFlushErr),
            (101, WcStatus::WrFlushErr),
        ]
    );
    assert_eq!(a.state(), QpState::Err);
    transport.release(3);
    assert_eq!(statuses(&world.cq), [], "too late");
    a.post_send(&signalled(5)).unwrap();
    a.post_recv(102, &[]).unwrap();
    assert_eq!(
        statuses(&world.cq),
        [(5, WcStatus::WrFlushErr), (102, WcStatus::WrFlushErr)]
    );
    assert_eq!(b.state(), QpState::Rts);
    assert_eq!(
        transport.states.lock().unwrap().last(),
        Some(&(QpState::Rts, QpState::Err))
    );
}

#[test]
fn a_failed_local_check_takes_its_turn() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.keep_order.store(true, Ordering::SeqCst);
    transport.hold.store(true, Ordering::SeqCst);
    a.post_send(&signalled(0)).unwrap();
    let bad = [Sge {
        addr: 0,
        length: 1,
        lkey: 1,
    }];
    let mut wr = signalled(1);
    wr.sges = &bad;
    a.post_send(&wr).unwrap();
    a.post_send(&signalled(2)).unwrap();
    assert_eq!(statuses(&world.cq), []);
    transport.release(0);
    assert_eq!(
        statuses(&world.cq),
        [
            (0, WcStatus::Success),
            (1, WcStatus::LocProtErr),
            (2, WcStatus::WrFlushErr)
        ]
    );
    assert_eq!(
        *transport.order.lock().unwrap(),
        [0],
        "nothing after it went out"
    );
}

#[test]
fn unreliable_types_stop_sending_and_go_on() {
    let world = world();
    for qp_type in [QpType::Uc, QpType::Ud] {
        let (a, _b) = world.pair(qp_type);
        a.post_recv(100, &[]).unwrap();
        let bad = [Sge {
            addr: 0,
            length: 1,
            lkey: 1,
        }];
        let ah = AhAttr::default();
        let mut wr = SendWr::new(WrOpcode::Send, 1);
        wr.ud = Some(UdDestination {
            ah: &ah,
            qpn: 0x999,
            qkey: 0,
        });
        let mut broken = wr;
        broken.sges = &bad;
        a.post_send(&broken).unwrap();
        assert_eq!(a.state(), QpState::Sqe);
        a.post_send(&wr).unwrap();
        assert_eq!(
            statuses(&world.cq),
            [(1, WcStatus::LocProtErr), (1, WcStatus::WrFlushErr)]
        );
        set_state(&a, QpState::Rts).unwrap();
        wr.flags = send_flags::SIGNALED;
        a.post_send(&wr).unwrap();
        assert_eq!(statuses(&world.cq), ok(&[1]), "receives were never flushed");
        a.destroy().unwrap();
    }
}

#[test]
fn a_fence_waits_for_reads_and_atomics_only() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.keep_order.store(true, Ordering::SeqCst);
    transport.hold.store(true, Ordering::SeqCst);
    let mut read = signalled(0);
    read.opcode = WrOpcode::RdmaRead;
    let mut fenced = signalled(2);
    fenced.flags |= send_flags::FENCE;
    a.post_send(&signalled(0)).unwrap();
    a.post_send(&fenced).unwrap();
    assert_eq!(
        *transport.order.lock().unwrap(),
        [0, 1],
        "a write holds nothing up"
    );
    a.post_send(&read).unwrap();
    a.post_send(&fenced).unwrap();
    a.post_send(&signalled(3)).unwrap();
    assert_eq!(*transport.order.lock().unwrap(), [0, 1, 2]);
    transport.release(2);
    assert_eq!(*transport.order.lock().unwrap(), [0, 1, 2, 3, 4]);
    for seq in [4, 3, 1, 0] {
        transport.release(seq);
    }
    assert_eq!(drain(&world.cq).len(), 5);
    // Held, it waits for the last of several.
    a.post_send(&read).unwrap();
    a.post_send(&read).unwrap();
    a.post_send(&fenced).unwrap();
    transport.release(5);
    assert_eq!(transport.order.lock().unwrap().last(), Some(&6));
    transport.release(6);
    assert_eq!(transport.order.lock().unwrap().last(), Some(&7));
}

#[test]
fn a_transport_without_room_gets_them_again_in_order() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.keep_order.store(true, Ordering::SeqCst);
    transport.make_room(2);
    for id in 0..6 {
        a.post_send(&signalled(id)).unwrap();
    }
    assert_eq!(statuses(&world.cq), ok(&[0, 1]));
    transport.make_room(1);
    assert_eq!(statuses(&world.cq), ok(&[2]));
    transport.make_room(-1);
    assert_eq!(statuses(&world.cq), ok(&[3, 4, 5]));
    assert_eq!(*transport.order.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn draining_ends_with_an_event() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.hold.store(true, Ordering::SeqCst);
    a.post_send(&signalled(0)).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Sqd as u32,
        en_sqd_async_notify: 1,
        ..QpAttr::default()
    };
    a.modify(&attr, qp_mask::STATE | qp_mask::EN_SQD_ASYNC_NOTIFY)
        .unwrap();
    assert_eq!((a.query().sq_draining, a.state()), (1, QpState::Sqd));
    a.post_send(&signalled(1)).unwrap();
    assert_eq!(events(&world.context), []);
    transport.release(0);
    assert_eq!(
        events(&world.context),
        [AsyncEvent {
            event: EventType::SqDrained,
            element: events::Element::Qp(77)
        }]
    );
    assert_eq!(a.query().sq_draining, 0);
    assert_eq!(statuses(&world.cq), ok(&[0]));
    transport.hold.store(false, Ordering::SeqCst);
    set_state(&a, QpState::Rts).unwrap();
    assert_eq!(statuses(&world.cq), ok(&[1]));
    a.ack_async_event();
    a.destroy().unwrap();
}

#[test]
fn a_full_completion_queue_is_an_error_of_both() {
    let world = world();
    let cq = world.context.create_cq(4, 5, None, 0).unwrap();
    let a = world.pd.create_qp(&world.init(QpType::Rc, &cq)).unwrap();
    let (_, b) = world.pair(QpType::Rc);
    to_state(&a, b.num(), QpState::Rts);
    for id in 0..5 {
        a.post_send(&signalled(id)).unwrap();
    }
    let kinds: Vec<EventType> = events(&world.context)
        .iter()
        .map(|event| event.event)
        .collect();
    assert_eq!(kinds, [EventType::CqErr, EventType::QpFatal]);
    assert_eq!(a.state(), QpState::Err);
    assert_eq!(statuses(&cq), ok(&[0, 1, 2, 3]), "what was there stays");
}

#[test]
fn reset_forgets_everything() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    a.post_recv(99, &[]).unwrap();
    b.post_send(&SendWr::new(WrOpcode::Send, 0)).unwrap();
    assert_eq!(one(&world.cq).wr_id, 99);
    for id in 0..16 {
        a.post_send(&signalled(id)).unwrap();
    }
    for id in 0..3 {
        assert_eq!(world.cq.poll_one().unwrap().wr_id, id);
    }
    for id in 0..16 {
        a.post_recv(id, &[]).unwrap();
    }
    set_state(&a, QpState::Reset).unwrap();
    assert_eq!(statuses(&world.cq), []);
    assert_eq!(
        a.query(),
        QpAttr {
            cap: a.cap(),
            ..QpAttr::default()
        }
    );
    to_state(&a, b.num(), QpState::Rts);
    for id in 0..16 {
        a.post_send(&signalled(id)).unwrap();
        a.post_recv(id, &[]).unwrap();
    }
    assert_eq!(a.post_send(&signalled(16)), Err(Error::QueueFull));
    assert_eq!(a.post_recv(16, &[]), Err(Error::QueueFull));
    assert_eq!(drain(&world.cq).len(), 16);
}

#[test]
fn destroying_takes_only_its_own_completions_along() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    let (c, _d) = world.pair(QpType::Rc);
    for id in 0..3 {
        a.post_send(&signalled(id)).unwrap();
        c.post_send(&signalled(10 + id)).unwrap();
    }
    assert_eq!(world.cq.destroy(), Err(Error::Busy));
    a.destroy().unwrap();
    a.destroy().unwrap();
    assert_eq!(statuses(&world.cq), ok(&[10, 11, 12]));
    assert_eq!(a.post_send(&signalled(0)), Err(Error::WrongState));
    c.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn a_break_during_a_transition_comes_after_it() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let attr = QpAttr::default();
                    let _ = a.modify(&attr, qp_mask::ACCESS_FLAGS);
                }
            });
        }
        scope.spawn(|| with_aftermath(|after| a.fail(Some(EventType::QpFatal), after)));
    });
    assert_eq!(a.state(), QpState::Err);
    assert_eq!(events(&world.context).len(), 1);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Post {
        signalled: bool,
        read: bool,
        fence: bool,
    },
    /// Of those that the transport keeps back.
    Release(usize),
    Fail(usize),
    Room(i64),
    Poll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(signalled, read, fence)| Step::Post { signalled, read, fence }),
        6 => any::<usize>().prop_map(Step::Release),
        1 => any::<usize>().prop_map(Step::Fail),
        2 => (-1..3i64).prop_map(Step::Room),
        3 => Just(Step::Poll),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever the order in which the transport completes: completions come in the order of
    /// posting, every signalled one exactly once, after the first failure only flushes, and
    /// requests are handed over in order.
    #[test]
    fn completions_are_in_order(steps in steps()) {
        let world = world();
        let (a, _b) = world.pair(QpType::Rc);
        let transport = world.transport(&a);
        transport.hold.store(true, Ordering::SeqCst);
        transport.keep_order.store(true, Ordering::SeqCst);
        let (mut posted, mut got) = (Vec::new(), Vec::new());
        let mut failed = false;
        for step in steps {
            match step {
                Step::Post { signalled, read, fence } => {
                    let mut wr = SendWr::new(WrOpcode::RdmaWrite, posted.len() as u64);
                    if read {
                        wr.opcode = WrOpcode::RdmaRead;
                    }
                    wr.flags |= if signalled { send_flags::SIGNALED } else { 0 };
                    wr.flags |= if fence { send_flags::FENCE } else { 0 };
                    if a.post_send(&wr).is_ok() {
                        posted.push(signalled);
                    }
                }
                Step::Release(which) | Step::Fail(which) => {
                    let held: Vec<u64> =
                        transport.held.lock().unwrap().iter().map(|(seq, _)| *seq).collect();
                    if held.is_empty() {
                        continue;
                    }
                    let seq = held[which % held.len()];
                    if matches!(step, Step::Fail(_)) {
                        with_aftermath(|after| a.complete_send(seq, SendDone::failed(WcStatus::RetryExcErr), after));
                        transport.held.lock().unwrap().retain(|(of, _)| *of != seq);
                        failed = true;
                    } else {
                        transport.release(seq);
                    }
                }
                Step::Room(requests) => transport.make_room(requests),
                Step::Poll => got.extend(statuses(&world.cq)),
            }
        }
        // The rest, newest first.
        transport.make_room(-1);
        for _ in 0..posted.len() {
            let newest = transport.held.lock().unwrap().iter().map(|(seq, _)| *seq).max();
            if let Some(seq) = newest {
                transport.release(seq);
            }
        }
        got.extend(statuses(&world.cq));
        prop_assert!(got.windows(2).all(|pair| pair[0].0 < pair[1].0), "{got:?}");
        let first_bad = got.iter().position(|(_, status)| *status != WcStatus::Success);
        prop_assert_eq!(first_bad.is_some(), failed);
        let good = &got[..first_bad.unwrap_or(got.len())];
        prop_assert!(good.iter().all(|(id, _)| posted[*id as usize]));
        let limit = first_bad.map_or(posted.len() as u64, |at| got[at].0);
        let expected = (0..limit).filter(|id| posted[*id as usize]).count();
        prop_assert_eq!(good.len(), expected);
        if let Some(at) = first_bad {
            prop_assert!(got[at + 1..].iter().all(|(_, status)| *status == WcStatus::WrFlushErr));
            prop_assert_eq!(got.len() - at, posted.len() - got[at].0 as usize);
        }
        let order = transport.order.lock().unwrap();
        prop_assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", order);
    }
}

#[test]
fn nothing_succeeds_behind_a_failure_that_is_still_being_handled() {
    let world = world();
    let (a, _b) = world.pair(QpType::Ud);
    let transport = world.transport(&a);
    transport.hold.store(true, Ordering::SeqCst);
    let ah = AhAttr::default();
    for id in 0..3 {
        let mut wr = SendWr::new(WrOpcode::Send, id);
        wr.flags = send_flags::SIGNALED;
        wr.ud = Some(UdDestination {
            ah: &ah,
            qpn: 0x999,
            qkey: 0,
        });
        a.post_send(&wr).unwrap();
    }
    // While the state changes, the transport still completes another one.
    let other = a.clone();
    *transport.on_modify.lock().unwrap() = Some(Box::new(move || {
        with_aftermath(|after| other.complete_send(1, SendDone::ok(0), after));
    }));
    with_aftermath(|after| a.complete_send(0, SendDone::failed(WcStatus::LocQpOpErr), after));
    assert_eq!(
        statuses(&world.cq),
        [
            (0, WcStatus::LocQpOpErr),
            (1, WcStatus::WrFlushErr),
            (2, WcStatus::WrFlushErr)
        ]
    );
}

#[test]
fn a_failure_while_draining_stops_an_unreliable_queue() {
    let world = world();
    let (a, _b) = world.pair(QpType::Uc);
    let transport = world.transport(&a);
    transport.hold.store(true, Ordering::SeqCst);
    a.post_send(&signalled(0)).unwrap();
    set_state(&a, QpState::Sqd).unwrap();
    with_aftermath(|after| a.complete_send(0, SendDone::failed(WcStatus::LocQpOpErr), after));
    assert_eq!(a.state(), QpState::Sqe);
}
