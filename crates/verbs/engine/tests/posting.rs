//! What post_send and post_recv refuse at once, and how the queues fill and empty.

mod loopback;

use loopback::*;
use sluice_verbs::*;

fn write<'a>(world: &World, pieces: &'a [Sge], wr_id: u64) -> SendWr<'a> {
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, wr_id);
    wr.sges = pieces;
    wr.remote_addr = world.peer_memory.addr();
    wr.rkey = world.peer_memory.mr.rkey();
    wr.flags = send_flags::SIGNALED;
    wr
}

#[test]
fn a_write_moves_bytes_and_completes() {
    let mut world = world();
    world.memory.fill(7);
    let (a, _b) = world.pair(QpType::Rc);
    let pieces = [
        world.memory.sge(0, 3),
        world.memory.sge(8, 0),
        world.memory.sge(8, 5),
    ];
    a.post_send(&write(&world, &pieces, 11)).unwrap();
    let wc = one(&world.cq);
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (11, 0, a.num()));
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RdmaWrite as u32, 8));
    assert_eq!(
        world.peer_memory.bytes()[..10],
        [7, 7, 7, 7, 7, 7, 7, 7, 0, 0]
    );
}

#[test]
fn every_opcode_completes_with_its_own_completion() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    for facts in &opcode::TABLE {
        if facts.local {
            continue;
        }
        if facts.takes_receive {
            b.post_recv(1, &[world.peer_memory.sge(64, 64)]).unwrap();
        }
        let pieces = [world.memory.sge(0, 8)];
        let mut wr = write(&world, &pieces, 2);
        wr.opcode = facts.opcode;
        let mw = facts.invalidates.then(|| bound_window(&world, &b));
        if let Some(mw) = &mw {
            wr.imm = mw.rkey();
        }
        a.post_send(&wr).unwrap();
        let wc = one(&world.cq);
        assert_eq!(
            (wc.status, wc.opcode),
            (0, facts.completion as u32),
            "{}",
            facts.name
        );
        match facts.receive {
            None => assert_eq!(drain(&world.peer_cq), []),
            Some(opcode) => {
                let wc = one(&world.peer_cq);
                assert_eq!((wc.status, wc.opcode), (0, opcode as u32), "{}", facts.name);
                assert_eq!(wc.wc_flags & wc_flags::WITH_IMM != 0, facts.immediate);
                assert_eq!(wc.wc_flags & wc_flags::WITH_INV != 0, facts.invalidates);
            }
        }
    }
}

/// A type 2 window that `qp` has bound to the peer's memory.
fn bound_window(world: &World, qp: &Qp) -> std::sync::Arc<Mw> {
    let mw = world.pd.alloc_mw(MwType::Type2).unwrap();
    let mut wr = SendWr::new(WrOpcode::BindMw, 0);
    wr.bind = Some(MwBind {
        mw: &mw,
        rkey: mw.next_rkey(),
        mr: Some(&world.peer_memory.mr),
        addr: world.peer_memory.addr(),
        length: 64,
        access: access::REMOTE_WRITE,
    });
    qp.post_send(&wr).unwrap();
    mw
}

#[test]
fn opcodes_of_other_types_are_refused() {
    let world = world();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend] {
        let mut init = world.init(qp_type, &world.cq);
        if qp_type == QpType::XrcSend {
            init.recv_cq = None;
        }
        let qp = world.pd.create_qp(&init).unwrap();
        to_state(&qp, 0x999, QpState::Rts);
        for facts in &opcode::TABLE {
            let has = facts.types & opcode::type_bit(qp_type) != 0;
            let mut wr = SendWr::new(facts.opcode, 0);
            wr.flags = if facts.may_inline {
                send_flags::INLINE
            } else {
                0
            };
            if !has {
                assert_eq!(qp.post_send(&wr), Err(Error::BadOpcode), "{}", facts.name);
            } else if !facts.may_inline {
                wr.flags = send_flags::INLINE;
                assert_eq!(qp.post_send(&wr), Err(Error::BadOpcode), "{}", facts.name);
            }
        }
    }
}

/// A flag that nobody knows asks for something that would not be done. Checksums are among them.
#[test]
fn unknown_flags_are_refused() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, 0);
    wr.flags = send_flags::FENCE | send_flags::SIGNALED | send_flags::SOLICITED;
    assert_eq!(a.post_send(&wr), Ok(()));
    one(&world.cq);
    for unknown in (4..32).map(|bit| 1 << bit) {
        wr.flags = unknown;
        assert_eq!(a.post_send(&wr), Err(Error::BadOpcode), "{unknown:#x}");
        assert_eq!(a.sender().check(&wr, 0), Err(Error::BadOpcode));
    }
    assert_eq!(Error::BadOpcode.errno().0, libc::EINVAL);
    let mw = world.pd.alloc_mw(MwType::Type2).unwrap();
    for bit in 0..32 {
        let mut wr = SendWr::new(WrOpcode::BindMw, 1);
        wr.bind = Some(MwBind {
            mw: &mw,
            rkey: mw.rkey(),
            mr: None,
            addr: 0,
            length: 0,
            access: 1 << bit,
        });
        let known = access::REMOTE_ANY | access::LOCAL_WRITE | access::MW_BIND | access::ZERO_BASED;
        let expected = match (known | access::OPTIONAL) >> bit & 1 {
            1 => Ok(()),
            _ => Err(Error::BadRegion),
        };
        assert_eq!(a.post_send(&wr), expected, "bit {bit}");
    }
}

#[test]
fn states_decide_about_posting() {
    let world = world();
    let wr = SendWr::new(WrOpcode::RdmaWrite, 0);
    let qp = world.qp(QpType::Rc);
    assert_eq!(qp.post_send(&wr), Err(Error::WrongState));
    assert_eq!(qp.post_recv(0, &[]), Err(Error::WrongState));
    to_state(&qp, 0x999, QpState::Init);
    assert_eq!(qp.post_send(&wr), Err(Error::WrongState));
    assert_eq!(qp.post_recv(0, &[]), Ok(()));
    let (a, _b) = world.pair(QpType::Rc);
    set_state(&a, QpState::Reset).unwrap();
    to_state(&a, 0x999, QpState::Rtr);
    assert_eq!(a.post_send(&wr), Err(Error::WrongState));
    assert_eq!(a.post_recv(0, &[]), Ok(()));
    assert_eq!(Error::WrongState.errno().0, libc::EINVAL);
}

#[test]
fn pieces_inline_bytes_and_length_have_limits() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    let five = [world.memory.sge(0, 1); 5];
    assert_eq!(a.post_send(&write(&world, &five[..4], 0)), Ok(()));
    assert_eq!(
        a.post_send(&write(&world, &five, 0)),
        Err(Error::TooManySges)
    );
    assert_eq!(b.post_recv(0, &five), Err(Error::TooManySges));
    for (length, result) in [(64, Ok(())), (65, Err(Error::InlineTooLong))] {
        let pieces = [world.memory.sge(0, length)];
        let mut wr = write(&world, &pieces, 0);
        wr.flags |= send_flags::INLINE;
        assert_eq!(a.post_send(&wr), result);
    }
    let huge = [world.memory.sge(0, (1 << 30) + 1)];
    assert_eq!(
        a.post_send(&write(&world, &huge, 0)),
        Err(Error::MessageTooLong)
    );
    // Together 2^32, and one more than that.
    for last in [1 << 30, (1 << 30) + 1] {
        let sizes = [1 << 30, 1 << 30, 1 << 30, last];
        let pieces = sizes.map(|length| world.memory.sge(0, length));
        assert_eq!(
            a.post_send(&write(&world, &pieces, 0)),
            Err(Error::MessageTooLong)
        );
    }
    let together = [32, 33].map(|length| world.memory.sge(0, length));
    let mut wr = write(&world, &together, 0);
    wr.flags |= send_flags::INLINE;
    assert_eq!(a.post_send(&wr), Err(Error::InlineTooLong));
    assert_eq!(
        drain(&world.cq).len(),
        2,
        "refused requests leave no completion"
    );
}

#[test]
fn inline_data_needs_no_key_and_may_change_at_once() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.make_room(0);
    let mut value = 0x0102_0304_0506_0708u64;
    let pieces = [Sge {
        addr: &raw const value as u64,
        length: 8,
        lkey: 0xdead,
    }];
    let mut wr = write(&world, &pieces, 1);
    wr.flags |= send_flags::INLINE;
    a.post_send(&wr).unwrap();
    value = 0;
    assert_eq!(value, 0);
    transport.make_room(-1);
    assert_eq!(one(&world.cq).status, 0);
    assert_eq!(
        world.peer_memory.bytes()[..8],
        0x0102_0304_0506_0708u64.to_ne_bytes()
    );
}

#[test]
fn the_send_queue_has_room_again_after_a_poll() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let wr = write(&world, &[], 0);
    for _ in 0..16 {
        a.post_send(&wr).unwrap();
    }
    assert_eq!(a.post_send(&wr), Err(Error::QueueFull));
    assert_eq!(Error::QueueFull.errno().0, libc::ENOMEM);
    assert!(world.cq.poll_one().is_some());
    assert_eq!(a.post_send(&wr), Ok(()));
    assert_eq!(a.post_send(&wr), Err(Error::QueueFull));
}

#[test]
fn a_signalled_completion_gives_back_the_unsignalled_before_it() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let mut quiet = write(&world, &[], 0);
    quiet.flags = 0;
    for _ in 0..15 {
        a.post_send(&quiet).unwrap();
    }
    a.post_send(&write(&world, &[], 9)).unwrap();
    assert_eq!(a.post_send(&quiet), Err(Error::QueueFull));
    assert_eq!(one(&world.cq).wr_id, 9);
    for _ in 0..16 {
        a.post_send(&quiet).unwrap();
    }
    // Nothing of these will ever be polled: the queue stays full, as with hardware.
    assert_eq!(a.post_send(&quiet), Err(Error::QueueFull));
    assert_eq!(drain(&world.cq), []);
}

#[test]
fn sq_sig_all_signals_everything() {
    let world = world();
    let mut init = world.init(QpType::Rc, &world.cq);
    init.sq_sig_all = true;
    let a = world.pd.create_qp(&init).unwrap();
    let (_, b) = world.pair(QpType::Rc);
    to_state(&a, b.num(), QpState::Rts);
    let mut quiet = write(&world, &[], 5);
    quiet.flags = 0;
    a.post_send(&quiet).unwrap();
    assert_eq!(one(&world.cq).wr_id, 5);
}

#[test]
fn the_receive_queue_fills_and_empties() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    for wr_id in 0..16 {
        b.post_recv(wr_id, &[]).unwrap();
    }
    assert_eq!(b.post_recv(16, &[]), Err(Error::QueueFull));
    let send = SendWr::new(WrOpcode::Send, 0);
    a.post_send(&send).unwrap();
    assert_eq!(
        b.post_recv(16, &[]),
        Err(Error::QueueFull),
        "not polled yet"
    );
    assert_eq!(one(&world.peer_cq).wr_id, 0);
    assert_eq!(b.post_recv(16, &[]), Ok(()));
}

#[test]
fn several_requests_under_one_lock() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    {
        let mut sender = a.sender();
        for wr_id in 0..3 {
            sender.post(&write(&world, &[], wr_id)).unwrap();
        }
    }
    let ids: Vec<u64> = drain(&world.cq).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2]);
}

#[test]
fn a_batch_is_checked_before_any_of_it_is_posted() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    for wr_id in 0..14 {
        a.post_send(&write(&world, &[], wr_id)).unwrap();
    }
    drain(&world.cq);
    for wr_id in 14..28 {
        a.post_send(&write(&world, &[], wr_id)).unwrap();
    }
    let wr = write(&world, &[], 99);
    let mut strange = wr;
    strange.opcode = WrOpcode::BindMw;
    {
        let mut sender = a.sender();
        assert_eq!(sender.check(&wr, 0), Ok(()));
        assert_eq!(sender.check(&wr, 1), Ok(()));
        assert_eq!(sender.check(&wr, 2), Err(Error::QueueFull));
        assert!(sender.check(&strange, 0).is_err(), "no window");
        sender.post(&wr).unwrap();
        assert_eq!(sender.check(&wr, 0), Ok(()));
        assert_eq!(sender.check(&wr, 1), Err(Error::QueueFull));
    }
    let ids: Vec<u64> = drain(&world.cq).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (14..28).chain([99]).collect::<Vec<u64>>());
}

#[test]
fn regions_with_other_addresses_are_translated() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let mut words = vec![0x55u8; 4096];
    let iova = 0x7000_0000_0000;
    let addr = words.as_mut_ptr() as u64;
    let mr = world.pd.reg_mr(addr, 4096, iova, ALL).unwrap();
    let pieces = [Sge {
        addr: iova + 100,
        length: 4,
        lkey: mr.lkey(),
    }];
    for hold in [false, true] {
        let transport = world.transport(&a);
        transport
            .hold
            .store(hold, std::sync::atomic::Ordering::SeqCst);
        let mut wr = write(&world, &pieces, 0);
        wr.remote_addr += 16 * u64::from(hold);
        a.post_send(&wr).unwrap();
        if hold {
            assert!(transport.release(1));
        }
        assert_eq!(one(&world.cq).status, 0);
    }
    assert_eq!(
        world.peer_memory.bytes()[..20],
        [
            0x55, 0x55, 0x55, 0x55, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x55, 0x55, 0x55, 0x55
        ]
    );
    // Offered a second time, it is not translated a second time.
    let transport = world.transport(&a);
    transport
        .hold
        .store(false, std::sync::atomic::Ordering::SeqCst);
    transport.make_room(0);
    let mut wr = write(&world, &pieces, 0);
    wr.remote_addr += 32;
    a.post_send(&wr).unwrap();
    a.post_send(&wr).unwrap();
    transport.make_room(0);
    transport.make_room(-1);
    assert_eq!(statuses(&world.cq), [(0, WcStatus::Success); 2]);
    assert_eq!(
        world.peer_memory.bytes()[32..37],
        [0x55, 0x55, 0x55, 0x55, 0]
    );
}
