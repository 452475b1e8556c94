//! CQs and their events, SRQs, windows, XRC, datagrams and groups, and who keeps whom alive.

mod loopback;

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use loopback::*;
use sluice_verbs::*;

fn readable(fd: i32) -> bool {
    sluice_sys::unix::wait_readable(fd, 0).unwrap()
}

fn send(wr_id: u64, flags: u32) -> SendWr<'static> {
    let mut wr = SendWr::new(WrOpcode::Send, wr_id);
    wr.flags = flags;
    wr
}

#[test]
fn one_event_for_one_arming() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, 0);
    wr.flags = send_flags::SIGNALED;
    a.post_send(&wr).unwrap();
    world.cq.arm(false).unwrap();
    assert_eq!(world.fabric.armed.count(), 1);
    assert!(!readable(world.channel.fd()), "only new completions count");
    a.post_send(&wr).unwrap();
    a.post_send(&wr).unwrap();
    assert_eq!(world.fabric.armed.count(), 0);
    assert_eq!(world.channel.get_event(), Ok(1));
    assert!(!readable(world.channel.fd()));
    world.cq.ack_events(1);
    world.cq.arm(false).unwrap();
    world.cq.arm(true).unwrap();
    a.post_send(&wr).unwrap();
    assert_eq!(world.channel.get_event(), Ok(1), "any stays any");
    world.cq.ack_events(1);
}

#[test]
fn a_solicited_arming_waits_for_solicited_or_failed() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    for id in 0..3 {
        b.post_recv(id, &[]).unwrap();
    }
    world.peer_cq.arm(true).unwrap();
    a.post_send(&send(0, 0)).unwrap();
    assert!(!readable(world.channel.fd()));
    a.post_send(&send(0, send_flags::SOLICITED)).unwrap();
    assert_eq!(world.channel.get_event(), Ok(2));
    world.peer_cq.arm(true).unwrap();
    set_state(&b, QpState::Err).unwrap();
    assert_eq!(world.channel.get_event(), Ok(2), "a flush is a failure");
    world.peer_cq.ack_events(2);
}

#[test]
fn a_blocked_program_is_woken() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    b.post_recv(0, &[]).unwrap();
    world.peer_cq.arm(false).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.channel.get_event());
        a.post_send(&send(0, 0)).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(2));
    });
    world.peer_cq.ack_events(1);
}

#[test]
fn destroying_a_cq_waits_for_acknowledgements_and_takes_its_events_along() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, 0);
    wr.flags = send_flags::SIGNALED;
    for _ in 0..2 {
        world.cq.arm(false).unwrap();
        a.post_send(&wr).unwrap();
    }
    assert_eq!(world.channel.get_event(), Ok(1));
    a.destroy().unwrap();
    b.destroy().unwrap();
    assert_eq!(world.channel.destroy(), Err(Error::Busy));
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| world.cq.destroy());
        while readable(world.channel.fd()) {
            std::thread::yield_now();
        }
        assert!(!ending.is_finished());
        world.cq.ack_events(1);
        ending.join().unwrap().unwrap();
    });
    world.peer_cq.destroy().unwrap();
    assert_eq!(world.channel.destroy(), Ok(()));
}

#[test]
fn an_asynchronous_event_holds_its_object() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    with_aftermath(|after| a.fail(Some(EventType::QpFatal), after));
    let event = world.context.get_async_event().unwrap();
    assert_eq!(event.event, EventType::QpFatal);
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| a.destroy());
        while world.fabric.qp(a.num()).is_some() {
            std::thread::yield_now();
        }
        assert!(!ending.is_finished());
        a.ack_async_event();
        ending.join().unwrap().unwrap();
    });
}

#[test]
fn the_first_message_in_rtr_is_an_event() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    set_state(&b, QpState::Reset).unwrap();
    to_state(&b, a.num(), QpState::Rtr);
    for _ in 0..2 {
        let mut wr = SendWr::new(WrOpcode::RdmaWrite, 0);
        wr.flags = send_flags::SIGNALED;
        a.post_send(&wr).unwrap();
        assert_eq!(one(&world.cq).status, 0);
    }
    let kinds: Vec<EventType> = events(&world.context)
        .iter()
        .map(|event| event.event)
        .collect();
    assert_eq!(kinds, [EventType::CommEst]);
    b.ack_async_event();
}

#[test]
fn polling_takes_as_many_as_wished_and_asks_for_progress_when_empty() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let mut out = [MaybeUninit::uninit(); 4];
    assert_eq!(world.cq.poll(&mut out), 0);
    assert_eq!(world.fabric.progressed.load(Ordering::SeqCst), 1);
    for id in 0..6 {
        let mut wr = SendWr::new(WrOpcode::RdmaWrite, id);
        wr.flags = send_flags::SIGNALED;
        a.post_send(&wr).unwrap();
    }
    assert_eq!(world.cq.poll(&mut out), 4);
    assert_eq!(world.cq.poll(&mut []), 0);
    assert_eq!(world.cq.filled(), 2);
    assert_eq!(world.cq.poll(&mut out), 2);
    assert_eq!(world.fabric.progressed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_busy_poller_lets_the_transport_work_too() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    for id in 0..640 {
        let mut wr = SendWr::new(WrOpcode::RdmaWrite, id);
        wr.flags = send_flags::SIGNALED;
        a.post_send(&wr).unwrap();
        assert!(world.cq.poll_one().is_some());
    }
    assert_eq!(world.fabric.progressed.load(Ordering::SeqCst), 10);
}

#[test]
fn resizing_keeps_what_waits() {
    let world = world();
    let cq = world.context.create_cq(5, 0, None, 0).unwrap();
    assert_eq!(cq.entries(), 8);
    let a = world.pd.create_qp(&world.init(QpType::Rc, &cq)).unwrap();
    let (_, b) = world.pair(QpType::Rc);
    to_state(&a, b.num(), QpState::Rts);
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, 0);
    wr.flags = send_flags::SIGNALED;
    for id in 0..10 {
        wr.wr_id = id;
        a.post_send(&wr).unwrap();
        if id < 5 {
            assert_eq!(cq.poll_one().unwrap().wr_id, id);
        }
    }
    assert_eq!(cq.resize(4), Err(Error::BadValue));
    assert_eq!(cq.resize(0), Err(Error::BadCapability));
    cq.resize(100).unwrap();
    assert_eq!(cq.entries(), 128);
    cq.resize(5).unwrap();
    let ids: Vec<u64> = drain(&cq).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [5, 6, 7, 8, 9]);
}

/// Programs count on datagrams being gone the moment they were posted, as they are on devices.
#[test]
fn a_queue_does_not_shrink_below_the_datagrams_that_wait() {
    let world = world();
    let cq = world.context.create_cq(8, 0, None, 0).unwrap();
    let a = world.pd.create_qp(&world.init(QpType::Ud, &cq)).unwrap();
    to_state(&a, 0, QpState::Rts);
    world.fabric.qp(a.num()).unwrap().make_room(0);
    let ah = AhAttr {
        port_num: 1,
        ..AhAttr::default()
    };
    let mut wr = SendWr::new(WrOpcode::Send, 0);
    wr.flags = send_flags::SIGNALED;
    wr.ud = Some(UdDestination {
        ah: &ah,
        qpn: a.num(),
        qkey: 0,
    });
    for _ in 0..3 {
        a.post_send(&wr).unwrap();
    }
    // Larger is always possible, and nothing to wait for.
    cq.resize(16).unwrap();
    assert_eq!(cq.filled(), 0);
    assert_eq!(cq.resize(2), Err(Error::BadValue));
    assert_eq!(drain(&cq).len(), 3);
    cq.resize(2).unwrap();
    a.destroy().unwrap();
    cq.resize(1).unwrap();
}

#[test]
fn a_moderated_event_waits_for_company_or_for_its_time() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, 0);
    wr.flags = send_flags::SIGNALED;
    // The longest period, so that only the count can be the reason on any machine.
    world.cq.moderate(3, u16::MAX).unwrap();
    let start = std::time::Instant::now();
    world.cq.arm(false).unwrap();
    for _ in 0..2 {
        a.post_send(&wr).unwrap();
    }
    let waits = world.cq.is_armed();
    // On a machine that stood still for so long, its time may be over.
    assert!(waits || start.elapsed().as_micros() >= u128::from(u16::MAX));
    a.post_send(&wr).unwrap();
    assert!(!world.cq.is_armed() || !waits);
    assert_eq!(world.channel.get_event(), Ok(1));
    // Alone, it comes when the time is over: this waits for it.
    world.cq.moderate(1000, 100).unwrap();
    world.cq.arm(false).unwrap();
    a.post_send(&wr).unwrap();
    assert_eq!(world.channel.get_event(), Ok(1));
    // No period: at once.
    world.cq.moderate(1000, 0).unwrap();
    world.cq.arm(false).unwrap();
    a.post_send(&wr).unwrap();
    assert!(!world.cq.is_armed());
    assert_eq!(world.channel.get_event(), Ok(1));
    world.cq.ack_events(3);
}

#[test]
fn cqs_are_refused_beyond_the_limits() {
    let world = world();
    let create = |entries, vector| world.context.create_cq(entries, 0, None, vector).err();
    assert_eq!(create(0, 0), Some(Error::BadCapability));
    assert_eq!(create(device::CQES_MAX + 1, 0), Some(Error::BadCapability));
    assert_eq!(create(1, 1), Some(Error::BadValue));
}

fn srq(world: &World, max_wr: u32) -> Arc<Srq> {
    let attr = SrqAttr {
        max_wr,
        max_sge: 2,
        srq_limit: 0,
    };
    world
        .pd
        .create_srq(&SrqInit {
            attr,
            cookie: 55,
            ..SrqInit::default()
        })
        .unwrap()
}

#[test]
fn an_srq_serves_several_and_warns_below_its_limit() {
    let world = world();
    let srq = srq(&world, 4);
    let receivers: Vec<Arc<Qp>> = (0..2)
        .map(|_| {
            let mut init = world.init(QpType::Rc, &world.peer_cq);
            init.srq = Some(srq.clone());
            world.pd.create_qp(&init).unwrap()
        })
        .collect();
    let senders: Vec<Arc<Qp>> = receivers
        .iter()
        .map(|receiver| {
            let qp = world.qp(QpType::Rc);
            to_state(&qp, receiver.num(), QpState::Rts);
            to_state(receiver, qp.num(), QpState::Rts);
            qp
        })
        .collect();
    assert_eq!(receivers[0].post_recv(0, &[]), Err(Error::WrongObject));
    for id in 0..4 {
        srq.post_recv(id, &[]).unwrap();
    }
    assert_eq!(srq.post_recv(4, &[]), Err(Error::QueueFull));
    let limit = SrqAttr {
        srq_limit: 3,
        ..SrqAttr::default()
    };
    srq.modify(&limit, srq_mask::LIMIT).unwrap();
    senders[0].post_send(&send(0, 0)).unwrap();
    assert_eq!(events(&world.context), []);
    senders[1].post_send(&send(0, 0)).unwrap();
    let reached = AsyncEvent {
        event: EventType::SrqLimitReached,
        element: events::Element::Srq(55),
    };
    assert_eq!(events(&world.context), [reached]);
    assert_eq!(srq.query().srq_limit, 0, "an event disarms it");
    let got: Vec<(u64, u32)> = drain(&world.peer_cq)
        .iter()
        .map(|wc| (wc.wr_id, wc.qp_num))
        .collect();
    assert_eq!(got, [(0, receivers[0].num()), (1, receivers[1].num())]);
    for id in 4..6 {
        srq.post_recv(id, &[]).unwrap();
    }
    assert_eq!(srq.post_recv(6, &[]), Err(Error::QueueFull));
    // Four messages, and two more that wait for a receive.
    for _ in 0..6 {
        senders[0]
            .post_send(&send(9, send_flags::SIGNALED))
            .unwrap();
    }
    assert_eq!(drain(&world.cq).len(), 4);
    assert_eq!(drain(&world.peer_cq).len(), 4);
    srq.post_recv(7, &[]).unwrap();
    assert_eq!(one(&world.peer_cq).wr_id, 7);
    // Two at first, and the second of them once more.
    assert_eq!(receivers[0].counters().rnr, 3);
    // The end of a QP says so and leaves the SRQ alone.
    set_state(&receivers[1], QpState::Err).unwrap();
    let last = events(&world.context);
    assert_eq!(last[0].event, EventType::QpLastWqeReached);
    assert_eq!(srq.destroy(), Err(Error::Busy));
    receivers[1].ack_async_event();
    srq.ack_async_event();
    for qp in receivers.iter().chain(&senders) {
        qp.destroy().unwrap();
    }
    srq.destroy().unwrap();
}

#[test]
fn receives_that_end_with_their_queue_pair_leave_room_in_the_srq() {
    let world = world();
    let srq = srq(&world, 2);
    let mut init = world.init(QpType::Rc, &world.peer_cq);
    init.srq = Some(srq.clone());
    let b = world.pd.create_qp(&init).unwrap();
    let a = world.qp(QpType::Rc);
    to_state(&a, b.num(), QpState::Rts);
    to_state(&b, a.num(), QpState::Rts);
    for id in 0..2 {
        srq.post_recv(id, &[]).unwrap();
        a.post_send(&send(id, 0)).unwrap();
    }
    assert_eq!(srq.post_recv(2, &[]), Err(Error::QueueFull));
    b.destroy().unwrap();
    assert_eq!(drain(&world.peer_cq), []);
    for id in 0..2 {
        srq.post_recv(id, &[]).unwrap();
    }
}

#[test]
fn an_srq_can_grow_and_shrink() {
    let world = world();
    let srq = srq(&world, 4);
    for id in 0..3 {
        srq.post_recv(id, &[]).unwrap();
    }
    let with = |max_wr| SrqAttr {
        max_wr,
        ..SrqAttr::default()
    };
    assert_eq!(srq.modify(&with(2), srq_mask::MAX_WR), Err(Error::BadValue));
    srq.modify(&with(100), srq_mask::MAX_WR).unwrap();
    assert_eq!(srq.query().max_wr, 100);
    for id in 3..100 {
        srq.post_recv(id, &[]).unwrap();
    }
    assert_eq!(srq.post_recv(100, &[]), Err(Error::QueueFull));
    assert_eq!(
        srq.modify(&with(0), srq_mask::MAX_WR),
        Err(Error::BadCapability)
    );
    assert_eq!(srq.modify(&with(0), 0), Err(Error::BadMask));
    let three = [world.memory.sge(0, 1); 3];
    assert_eq!(srq.post_recv(0, &three), Err(Error::TooManySges));
}

fn bind<'a>(world: &'a World, mw: &'a Arc<Mw>, length: u64) -> SendWr<'a> {
    let mut wr = SendWr::new(WrOpcode::BindMw, 1);
    wr.flags = send_flags::SIGNALED;
    wr.bind = Some(MwBind {
        mw,
        rkey: mw.next_rkey(),
        mr: Some(&world.peer_memory.mr),
        addr: world.peer_memory.addr() + 64,
        length,
        access: access::REMOTE_WRITE,
    });
    wr
}

fn may_write(qp: &Qp, rkey: u32, addr: u64, len: u64) -> bool {
    let request = responder::RemoteRequest {
        op: responder::RemoteOp::Write,
        rkey,
        addr,
        len,
        srqn: 0,
    };
    qp.check_remote(&request).is_ok()
}

#[test]
fn a_type_1_window_opens_its_part_for_the_domain() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    let mw = world.pd.alloc_mw(MwType::Type1).unwrap();
    let unbound = mw.rkey();
    let at = world.peer_memory.addr() + 64;
    assert!(!may_write(&a, unbound, at, 1));
    b.post_send(&bind(&world, &mw, 32)).unwrap();
    assert_eq!(one(&world.peer_cq).opcode, WcOpcode::BindMw as u32);
    let first = mw.rkey();
    assert_ne!(first, unbound);
    assert!(may_write(&a, first, at, 32) && may_write(&b, first, at, 32));
    assert!(!may_write(&a, first, at, 33) && !may_write(&a, first, at - 1, 1));
    assert_eq!(world.peer_memory.mr.destroy(), Err(Error::Busy));
    b.post_send(&bind(&world, &mw, 8)).unwrap();
    assert!(!may_write(&a, first, at, 8) && may_write(&a, mw.rkey(), at, 8));
    b.post_send(&bind(&world, &mw, 0)).unwrap();
    assert!(!may_write(&a, mw.rkey(), at, 1));
    b.post_send(&bind(&world, &mw, 8)).unwrap();
    let last = mw.rkey();
    mw.destroy().unwrap();
    assert!(!may_write(&a, last, at, 1));
    world.peer_memory.mr.destroy().unwrap();
}

#[test]
fn a_type_2_window_is_its_queue_pairs_until_it_is_invalidated() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    let mw = world.pd.alloc_mw(MwType::Type2).unwrap();
    b.post_send(&bind(&world, &mw, 32)).unwrap();
    let (key, at) = (mw.rkey(), world.peer_memory.addr() + 64);
    assert!(may_write(&b, key, at, 32));
    assert!(!may_write(&a, key, at, 1), "another QP of the same domain");
    let mut invalidate = SendWr::new(WrOpcode::LocalInv, 2);
    invalidate.flags = send_flags::SIGNALED;
    invalidate.imm = key;
    b.post_send(&invalidate).unwrap();
    assert!(!may_write(&b, key, at, 1));
    drain(&world.peer_cq);
    // Bound again, and then reset with its QP.
    b.post_send(&bind(&world, &mw, 32)).unwrap();
    assert!(may_write(&b, mw.rkey(), at, 32));
    b.post_send(&bind(&world, &mw, 32)).unwrap();
    assert_eq!(
        statuses(&world.peer_cq),
        [(1, WcStatus::Success), (1, WcStatus::MwBindErr)]
    );
    set_state(&b, QpState::Reset).unwrap();
    to_state(&b, a.num(), QpState::Rts);
    assert!(!may_write(&b, mw.rkey(), at, 1));
    world.peer_memory.mr.destroy().unwrap();
}

#[test]
fn wrong_bindings_fail_in_their_turn() {
    let wrong: [fn(&World, &mut MwBind<'_>); 6] = [
        |_, bind| bind.rkey ^= 0x100,
        |_, bind| bind.length = MEMORY as u64 - 63,
        |_, bind| bind.addr -= 65,
        |world, bind| {
            let mr = &world.peer_memory.mr;
            mr.rereg(rereg::ACCESS, None, 0, 0, ALL & !access::MW_BIND)
                .unwrap();
            let _ = bind;
        },
        |world, _| {
            let mr = &world.peer_memory.mr;
            mr.rereg(rereg::ACCESS, None, 0, 0, access::MW_BIND)
                .unwrap();
        },
        |world, _| {
            let other = world.context.alloc_pd().unwrap();
            let mr = &world.peer_memory.mr;
            mr.rereg(rereg::PD, Some(&other), 0, 0, 0).unwrap();
        },
    ];
    for (number, spoil) in wrong.iter().enumerate() {
        let world = world();
        let (_a, b) = world.pair(QpType::Rc);
        let mw = world.pd.alloc_mw(MwType::Type2).unwrap();
        let mut wr = bind(&world, &mw, 32);
        let mut what = wr.bind.unwrap();
        spoil(&world, &mut what);
        wr.bind = Some(what);
        b.post_send(&wr).unwrap();
        assert_eq!(
            statuses(&world.peer_cq),
            [(1, WcStatus::MwBindErr)],
            "{number}"
        );
        assert_eq!(world.peer_memory.mr.destroy(), Ok(()), "nothing is bound");
    }
}

#[test]
fn xrc_messages_find_the_srq_that_they_name() {
    let mut world = world();
    world.memory.fill(4);
    let inode = Some((1, 2));
    assert_eq!(
        world.context.open_xrcd(inode, false, false).err(),
        Some(Error::NotFound)
    );
    let xrcd = world.context.open_xrcd(inode, true, true).unwrap();
    assert_eq!(
        world.context.open_xrcd(inode, true, true).err(),
        Some(Error::BadValue)
    );
    let again = world.context.open_xrcd(inode, false, false).unwrap();
    assert_eq!(again.id(), xrcd.id());
    let attr = SrqAttr {
        max_wr: 4,
        max_sge: 1,
        srq_limit: 0,
    };
    let srq = world
        .pd
        .create_srq(&SrqInit {
            attr,
            xrcd: Some(xrcd.clone()),
            cq: Some(world.peer_cq.clone()),
            cookie: 0,
        })
        .unwrap();
    let mut init = QpInit::new(QpType::XrcRecv);
    init.xrcd = Some(xrcd.clone());
    let target = world.context.create_xrc_recv(&init).unwrap();
    let mut init = world.init(QpType::XrcSend, &world.cq);
    init.recv_cq = None;
    let sender = world.pd.create_qp(&init).unwrap();
    to_state(&sender, target.num(), QpState::Rts);
    to_state(&target, sender.num(), QpState::Rtr);
    srq.post_recv(3, &[world.peer_memory.sge(0, 8)]).unwrap();
    let pieces = [world.memory.sge(0, 8)];
    let mut wr = SendWr::new(WrOpcode::Send, 1);
    wr.flags = send_flags::SIGNALED;
    wr.sges = &pieces;
    wr.xrc_srqn = srq.num();
    sender.post_send(&wr).unwrap();
    assert_eq!(statuses(&world.cq), [(1, WcStatus::Success)]);
    let wc = one(&world.peer_cq);
    assert_eq!((wc.wr_id, wc.qp_num, wc.byte_len), (3, target.num(), 8));
    assert_eq!(world.peer_memory.bytes()[..9], [4, 4, 4, 4, 4, 4, 4, 4, 0]);
    // RDMA goes by the domain of the SRQ.
    wr.opcode = WrOpcode::RdmaWrite;
    wr.remote_addr = world.peer_memory.addr() + 8;
    wr.rkey = world.peer_memory.mr.rkey();
    sender.post_send(&wr).unwrap();
    assert_eq!(statuses(&world.cq), [(1, WcStatus::Success)]);
    wr.xrc_srqn ^= 0x4000;
    sender.post_send(&wr).unwrap();
    assert_eq!(statuses(&world.cq), [(1, WcStatus::RemInvReqErr)]);
    assert!(world.context.open_qp(&xrcd, target.num()).is_ok());
    assert_eq!(
        world.context.open_qp(&xrcd, 0x55).err(),
        Some(Error::NotFound)
    );
    assert_eq!(xrcd.destroy(), Ok(()), "one of two openings");
    assert_eq!(again.destroy(), Err(Error::Busy));
    for event in events(&world.context) {
        assert!(matches!(
            event.event,
            EventType::CommEst | EventType::QpReqErr
        ));
        target.ack_async_event();
    }
    target.destroy().unwrap();
    assert!(world.context.open_qp(&xrcd, target.num()).is_err());
    srq.destroy().unwrap();
    assert_eq!(again.destroy(), Ok(()));
    assert_eq!(
        world.context.open_xrcd(inode, false, false).err(),
        Some(Error::NotFound)
    );
}

#[test]
fn datagrams_and_groups() {
    let world = world();
    let (a, b) = world.pair(QpType::Ud);
    let attr = AhAttr {
        port_num: 1,
        ..AhAttr::default()
    };
    let ah = world.pd.create_ah(&attr).unwrap();
    let pieces = [world.memory.sge(0, 8)];
    let mut wr = SendWr::new(WrOpcode::SendWithImm, 1);
    wr.sges = &pieces;
    wr.flags = send_flags::SIGNALED;
    assert_eq!(a.post_send(&wr), Err(Error::WrongObject), "no destination");
    let to = UdDestination {
        ah: ah.attr(),
        qpn: b.num(),
        qkey: 0x1111,
    };
    let post = |to: UdDestination<'_>| {
        a.post_send(&SendWr { ud: Some(to), ..wr }).unwrap();
        assert_eq!(statuses(&world.cq), [(1, WcStatus::Success)]);
    };
    let room = [world.peer_memory.sge(0, 48)];
    post(to);
    assert_eq!(statuses(&world.peer_cq), [], "no receive: dropped");
    b.post_recv(6, &room).unwrap();
    post(UdDestination { qkey: 0x2222, ..to });
    assert_eq!(statuses(&world.peer_cq), [], "another key: dropped");
    post(UdDestination {
        qkey: 1 << 31,
        ..to
    });
    let wc = one(&world.peer_cq);
    assert_eq!((wc.wr_id, wc.byte_len, wc.src_qp), (6, 48, a.num()));
    assert_eq!(wc.wc_flags, wc_flags::GRH | wc_flags::WITH_IMM);

    let group = Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(
        b.attach_multicast(&Gid([0xfe; 16]), 0),
        Err(Error::BadValue)
    );
    assert_eq!(b.detach_multicast(&group, 0), Err(Error::NotFound));
    b.attach_multicast(&group, 0).unwrap();
    b.attach_multicast(&group, 0).unwrap();
    b.post_recv(7, &room).unwrap();
    let mut all = *ah.attr();
    all.grh.dgid = group;
    post(UdDestination {
        ah: &all,
        qpn: 0xff_ffff,
        qkey: 0x1111,
    });
    assert_eq!(one(&world.peer_cq).wr_id, 7);
    assert_eq!(b.destroy(), Err(Error::Busy));
    b.detach_multicast(&group, 0).unwrap();
    b.destroy().unwrap();
    let (c, _) = world.pair(QpType::Rc);
    assert_eq!(c.attach_multicast(&group, 0), Err(Error::BadValue));
    let bad = AhAttr {
        port_num: 2,
        ..attr
    };
    assert!(world.pd.create_ah(&bad).is_err());
}

#[test]
fn a_domain_lives_while_it_is_used() {
    let world = world();
    let pd = world.context.alloc_pd().unwrap();
    let memory = Memory::new(&pd, ALL);
    assert_eq!(pd.destroy(), Err(Error::Busy));
    assert_eq!(Error::Busy.errno().0, libc::EBUSY);
    memory.mr.destroy().unwrap();
    assert_eq!(pd.destroy(), Ok(()));
    let mw = pd.alloc_mw(MwType::Type1).unwrap();
    let ah = pd.create_ah(&AhAttr {
        port_num: 1,
        ..AhAttr::default()
    });
    let ah = ah.unwrap();
    assert_eq!(pd.destroy(), Err(Error::Busy));
    mw.destroy().unwrap();
    ah.destroy().unwrap();
    assert_eq!(pd.destroy(), Ok(()));
}

#[test]
fn what_a_device_says_of_itself() {
    let world = world();
    let device = &world.device;
    assert_eq!(device.name(), "sluice0");
    let port = device.port_attr(1).unwrap();
    assert_eq!(
        (port.state, port.link_layer, port.active_mtu),
        (4, 2, MTU_4096)
    );
    assert_eq!(device.port_attr(2).err(), Some(Error::NotFound));
    assert_eq!(device.pkey(1, 0), Ok(0xffff));
    assert!(device.pkey(1, 1).is_err());
    let first = device.gid(1, 0).unwrap();
    assert_eq!(
        (&first.gid.0[..8], first.gid_type),
        (&[0xfe, 0x80, 0, 0, 0, 0, 0, 0][..], 2)
    );
    assert_eq!(first.gid.0[8..], device.guid().to_ne_bytes());
    assert!(device.gid(1, port.gid_tbl_len as u32).is_err());
    let loopback = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
    assert!(device.gid_index(&loopback).is_some());
    assert!(!world.context.refresh_gids());
    assert_eq!(
        Device::new("sluice0", Arc::new(Loopback(Arc::default()))).guid(),
        device.guid()
    );
}

#[test]
fn no_receive_is_an_error_for_the_impatient() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    a.post_send(&send(1, send_flags::SIGNALED)).unwrap();
    assert_eq!(statuses(&world.cq), [], "rnr_retry 7 waits");
    b.post_recv(2, &[]).unwrap();
    assert_eq!(statuses(&world.cq), [(1, WcStatus::Success)]);
    let (a, _b) = world.pair(QpType::Rc);
    set_state(&a, QpState::Reset).unwrap();
    for (state, mask) in masks(QpType::Rc) {
        let attr = QpAttr {
            qp_state: state as u32,
            rnr_retry: 0,
            ..attr_for(b.num())
        };
        a.modify(&attr, mask).unwrap();
    }
    a.post_send(&send(3, 0)).unwrap();
    assert_eq!(statuses(&world.cq), [(3, WcStatus::RnrRetryExcErr)]);
}
