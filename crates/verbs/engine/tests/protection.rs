//! Each thing that must not work, tried: the status or errno that the specification names, and
//! no byte changed.

mod loopback;

use loopback::*;
use sluice_verbs::*;

/// The completion of a write that is wrong by what `spoil` does, on a fresh pair.
fn spoiled(
    opcode: WrOpcode,
    spoil: impl FnOnce(&mut World, &mut SendWr<'_>, &mut [Sge; 1]),
) -> (WcStatus, Vec<EventType>) {
    let mut world = world();
    world.memory.fill(9);
    let (a, b) = world.pair(QpType::Rc);
    let mut pieces = [world.memory.sge(0, 8)];
    let mut wr = SendWr::new(opcode, 1);
    wr.remote_addr = world.peer_memory.addr() + 8;
    wr.rkey = world.peer_memory.mr.rkey();
    spoil(&mut world, &mut wr, &mut pieces);
    wr.sges = &pieces;
    let before = (world.memory.bytes(), world.peer_memory.bytes());
    a.post_send(&wr).unwrap();
    let status = WcStatus::try_from(one(&world.cq).status).unwrap();
    assert_eq!(
        (world.memory.bytes(), world.peer_memory.bytes()),
        before,
        "{status:?}"
    );
    assert_eq!(a.state(), QpState::Err);
    let events = events(&world.context)
        .iter()
        .map(|event| event.event)
        .collect();
    let remote = matches!(status, WcStatus::RemAccessErr | WcStatus::RemInvReqErr);
    assert_eq!(b.state() == QpState::Err, remote);
    (status, events)
}

const REMOTE: [WrOpcode; 4] = [
    WrOpcode::RdmaWrite,
    WrOpcode::RdmaRead,
    WrOpcode::AtomicCmpAndSwp,
    WrOpcode::AtomicFetchAndAdd,
];

fn refused_for_access(spoil: impl Fn(&mut World, &mut SendWr<'_>)) {
    for opcode in REMOTE {
        let (status, events) = spoiled(opcode, |world, wr, _| spoil(world, wr));
        assert_eq!(status, WcStatus::RemAccessErr, "{opcode:?}");
        assert_eq!(events, [EventType::QpAccessErr], "{opcode:?}");
    }
}

#[test]
fn a_wrong_remote_key() {
    refused_for_access(|_, wr| wr.rkey ^= 1);
    refused_for_access(|_, wr| wr.rkey = 0);
    refused_for_access(|_, wr| wr.rkey ^= 0x4000_0000);
}

#[test]
fn the_key_of_a_destroyed_region() {
    refused_for_access(|world, _| world.peer_memory.mr.destroy().unwrap());
}

/// The keys of a region that is registered anew stay, and open what it is now and no more.
#[test]
fn a_key_from_before_a_reregistration() {
    // Other memory: what was inside is outside.
    refused_for_access(|world, _| {
        let elsewhere = world.peer_memory.addr() + 16;
        let mr = &world.peer_memory.mr;
        mr.rereg(rereg::TRANSLATION, None, elsewhere, 64, 0)
            .unwrap();
    });
    refused_for_access(|world, _| {
        let mr = &world.peer_memory.mr;
        mr.rereg(rereg::ACCESS, None, 0, 0, access::LOCAL_WRITE)
            .unwrap();
    });
    refused_for_access(|world, _| {
        let mr = &world.peer_memory.mr;
        mr.rereg(rereg::ACCESS, None, 0, 0, ALL).unwrap();
        mr.destroy().unwrap();
    });
}

#[test]
fn a_reregistration_keeps_the_keys() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let other = world.context.alloc_pd().unwrap();
    let memory = &world.peer_memory;
    let mr = &memory.mr;
    let keys = (mr.lkey(), mr.rkey());
    let pieces = [world.memory.sge(0, 8)];
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, 1);
    (wr.sges, wr.rkey) = (&pieces, keys.1);
    wr.flags = send_flags::SIGNALED;
    let mut written = |offset: u64| {
        wr.remote_addr = memory.addr() + offset;
        a.post_send(&wr).unwrap();
        one(&world.cq).status == WcStatus::Success as u32
    };
    mr.rereg(rereg::ACCESS, None, 0, 0, access::REMOTE_READ)
        .unwrap();
    mr.rereg(rereg::PD, Some(&other), 0, 0, 0).unwrap();
    mr.rereg(rereg::PD, Some(&world.pd), 0, 0, 0).unwrap();
    mr.rereg(rereg::TRANSLATION, None, memory.addr(), 64, 0)
        .unwrap();
    mr.rereg(rereg::ACCESS, None, 0, 0, ALL).unwrap();
    assert_eq!((mr.lkey(), mr.rkey()), keys);
    assert!(written(0) && written(56));
    // Longer again, by the same key.
    mr.rereg(rereg::TRANSLATION, None, memory.addr(), MEMORY as u64, 0)
        .unwrap();
    assert!(written(57) && written(MEMORY as u64 - 8));
    assert_eq!(other.destroy(), Ok(()), "nobody uses it any more");
}

#[test]
fn a_reregistration_that_fails_changes_nothing_or_says_so() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    let request = responder::RemoteRequest {
        op: responder::RemoteOp::Write,
        rkey: world.peer_memory.mr.rkey(),
        addr: world.peer_memory.addr(),
        len: 8,
        srqn: 0,
    };
    let mr = &world.peer_memory.mr;
    let before = mr.info();
    let rereg = |flags, addr, len, access| mr.rereg(flags, None, addr, len, access);
    let (trans, acc) = (rereg::TRANSLATION, rereg::ACCESS);
    for (flags, addr, len, access, error) in [
        (0, 0, 0, 0, Error::BadValue),
        (1 << 3, 0, 0, 0, Error::BadValue),
        (trans, 4096, 8, 0, Error::BadAddress),
        (trans, before.host, 0, 0, Error::BadRegion),
        (acc, 0, 0, access::REMOTE_WRITE, Error::BadRegion),
        (acc, 0, 0, 1 << 19, Error::BadRegion),
        (rereg::PD, 0, 0, 0, Error::WrongObject),
    ] {
        assert_eq!(rereg(flags, addr, len, access), Err(error), "{flags:#x}");
        assert_eq!(mr.info(), before);
        assert!(b.check_remote(&request).is_ok());
    }
    let refuse = |keys| {
        let left = &world.fabric.refuse_keys;
        left.store(keys, std::sync::atomic::Ordering::SeqCst);
    };
    refuse(1);
    let read_only = access::LOCAL_WRITE | access::REMOTE_READ;
    assert_eq!(rereg(acc, 0, 0, read_only), Err(Error::NoResources));
    assert_eq!((mr.info(), mr.is_open()), (before, true));
    assert!(b.check_remote(&request).is_ok());
    // What it was cannot be had back either.
    refuse(2);
    assert_eq!(rereg(acc, 0, 0, read_only), Err(Error::NoResources));
    assert!(!mr.is_open());
    assert!(b.check_remote(&request).is_err());
    assert_eq!(rereg(acc, 0, 0, ALL), Err(Error::WrongObject));
    mr.destroy().unwrap();
    drop(a);
}

#[test]
fn out_of_bounds_by_one_byte() {
    let end = MEMORY as u64;
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        for offset in [u64::MAX, end - 7] {
            let (status, _) = spoiled(opcode, |world, wr, _| {
                wr.remote_addr = world.peer_memory.addr().wrapping_add(offset);
            });
            assert_eq!(status, WcStatus::RemAccessErr, "{opcode:?} at {offset}");
        }
    }
}

#[test]
fn a_missing_right_of_the_region() {
    for (opcode, missing) in REMOTE.iter().zip([
        access::REMOTE_WRITE,
        access::REMOTE_READ,
        access::REMOTE_ATOMIC,
        access::REMOTE_ATOMIC,
    ]) {
        let (status, _) = spoiled(*opcode, |world, wr, _| {
            let mr = &world.peer_memory.mr;
            mr.rereg(rereg::ACCESS, None, 0, 0, ALL & !missing).unwrap();
            wr.rkey = mr.rkey();
        });
        assert_eq!(status, WcStatus::RemAccessErr, "{opcode:?}");
    }
}

#[test]
fn a_missing_right_of_the_queue_pair() {
    for (opcode, missing) in REMOTE.iter().zip([
        access::REMOTE_WRITE,
        access::REMOTE_READ,
        access::REMOTE_ATOMIC,
        access::REMOTE_ATOMIC,
    ]) {
        let world = world();
        let (a, b) = world.pair(QpType::Rc);
        let attr = QpAttr {
            qp_access_flags: access::REMOTE_ANY & !missing,
            ..QpAttr::default()
        };
        b.modify(&attr, qp_mask::ACCESS_FLAGS).unwrap();
        let pieces = [world.memory.sge(0, 8)];
        let mut wr = SendWr::new(*opcode, 1);
        wr.sges = &pieces;
        wr.remote_addr = world.peer_memory.addr();
        wr.rkey = world.peer_memory.mr.rkey();
        a.post_send(&wr).unwrap();
        assert_eq!(
            one(&world.cq).status,
            WcStatus::RemInvReqErr as u32,
            "{opcode:?}"
        );
        assert_eq!(events(&world.context)[0].event, EventType::QpReqErr);
        assert_eq!(b.counters().refused, 1);
    }
}

#[test]
fn a_region_of_another_domain() {
    refused_for_access(|world, wr| {
        let other = world.context.alloc_pd().unwrap();
        let mr = &world.peer_memory.mr;
        mr.rereg(rereg::PD, Some(&other), 0, 0, 0).unwrap();
        wr.rkey = mr.rkey();
    });
}

#[test]
fn unaligned_atomics() {
    for opcode in [WrOpcode::AtomicCmpAndSwp, WrOpcode::AtomicFetchAndAdd] {
        for offset in 1..8 {
            let (status, events) = spoiled(opcode, |_, wr, _| wr.remote_addr += offset);
            assert_eq!(status, WcStatus::RemInvReqErr);
            assert_eq!(events, [EventType::QpReqErr]);
        }
    }
}

#[test]
fn bad_local_memory() {
    let bad: [fn(&World, &mut Sge); 7] = [
        |_, sge| sge.lkey ^= 1,
        |_, sge| sge.lkey = 0,
        |world, _| world.memory.mr.destroy().unwrap(),
        |_, sge| sge.addr -= 1,
        |_, sge| sge.addr += MEMORY as u64 - 7,
        |world, sge| {
            let other = world.context.alloc_pd().unwrap();
            world
                .memory
                .mr
                .rereg(rereg::PD, Some(&other), 0, 0, 0)
                .unwrap();
            sge.lkey = world.memory.mr.lkey();
        },
        |world, sge| {
            let mw = world.pd.alloc_mw(MwType::Type1).unwrap();
            sge.lkey = mw.rkey();
        },
    ];
    for opcode in [WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        for (number, spoil) in bad.iter().enumerate() {
            let (status, events) = spoiled(opcode, |world, _, pieces| spoil(world, &mut pieces[0]));
            assert_eq!(status, WcStatus::LocProtErr, "{opcode:?} {number}");
            assert_eq!(events, []);
        }
    }
}

#[test]
fn read_only_memory_takes_no_answers() {
    for opcode in [WrOpcode::RdmaRead, WrOpcode::AtomicFetchAndAdd] {
        let (status, _) = spoiled(opcode, |world, _, pieces| {
            let mr = &world.memory.mr;
            mr.rereg(rereg::ACCESS, None, 0, 0, access::REMOTE_READ)
                .unwrap();
            pieces[0].lkey = mr.lkey();
        });
        assert_eq!(status, WcStatus::LocProtErr);
    }
}

#[test]
fn an_atomic_with_other_than_eight_bytes() {
    for length in [0, 4, 7, 9, 16] {
        let (status, _) = spoiled(WrOpcode::AtomicFetchAndAdd, |_, _, pieces| {
            pieces[0].length = length;
        });
        assert_eq!(status, WcStatus::LocLenErr, "{length}");
    }
}

#[test]
fn a_message_longer_than_the_receive() {
    let mut world = world();
    world.memory.fill(3);
    let (a, b) = world.pair(QpType::Rc);
    b.post_recv(
        1,
        &[world.peer_memory.sge(0, 4), world.peer_memory.sge(4, 3)],
    )
    .unwrap();
    b.post_recv(2, &[]).unwrap();
    let pieces = [world.memory.sge(0, 8)];
    let mut wr = SendWr::new(WrOpcode::Send, 5);
    wr.sges = &pieces;
    a.post_send(&wr).unwrap();
    assert_eq!(statuses(&world.cq), [(5, WcStatus::RemInvReqErr)]);
    assert_eq!(
        statuses(&world.peer_cq),
        [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]
    );
    assert!(world.peer_memory.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_receive_with_bad_memory() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    let mut sge = world.peer_memory.sge(0, 8);
    sge.lkey ^= 0x100;
    b.post_recv(1, &[world.peer_memory.sge(0, 8), sge]).unwrap();
    a.post_send(&SendWr::new(WrOpcode::Send, 5)).unwrap();
    assert_eq!(statuses(&world.cq), [(5, WcStatus::RemOpErr)]);
    assert_eq!(statuses(&world.peer_cq), [(1, WcStatus::LocProtErr)]);
    assert_eq!(b.state(), QpState::Err);
    // Nothing is pinned any more: this would wait for ever.
    world.peer_memory.mr.destroy().unwrap();
}

#[test]
fn guessed_keys() {
    let world = world();
    let (_a, b) = world.pair(QpType::Rc);
    let real = world.peer_memory.mr.rkey();
    let mut request = responder::RemoteRequest {
        op: responder::RemoteOp::Read,
        rkey: real,
        addr: world.peer_memory.addr(),
        len: 1,
        srqn: 0,
    };
    assert!(b.check_remote(&request).is_ok());
    let mut open = 0;
    for guess in 0..1u32 << 20 {
        // Every place of the table once, with all low bytes around the real one's place.
        request.rkey = (real & 0xff) | (guess << 8);
        open += u32::from(request.rkey != real && b.check_remote(&request).is_ok());
    }
    assert!(
        open <= 1,
        "only the other region's own key may be among them: {open}"
    );
}

#[test]
fn nothing_of_zero_length_is_looked_up() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, 1);
    wr.flags = send_flags::SIGNALED;
    wr.rkey = 0x1234_5678;
    a.post_send(&wr).unwrap();
    assert_eq!(statuses(&world.cq), [(1, WcStatus::Success)]);
}

#[test]
fn registrations_that_are_refused() {
    let world = world();
    let addr = world.memory.addr();
    let reg = |addr, len, access| world.pd.reg_mr(addr, len, addr, access).err();
    assert_eq!(reg(addr, 8, access::REMOTE_WRITE), Some(Error::BadRegion));
    assert_eq!(reg(addr, 8, access::REMOTE_ATOMIC), Some(Error::BadRegion));
    assert_eq!(reg(addr, 8, 1 << 19), Some(Error::BadRegion));
    // A region of no bytes exists, as in device memory, and peers have no business with it.
    assert_eq!(reg(addr, 0, access::LOCAL_WRITE), None);
    let remote = access::LOCAL_WRITE | access::REMOTE_WRITE;
    assert_eq!(reg(addr, 0, remote), Some(Error::BadRegion));
    assert_eq!(reg(u64::MAX, 2, 0), Some(Error::BadRegion));
    assert_eq!(reg(4096, 8, 0), Some(Error::BadAddress), "not mapped");
    let constant: &'static [u8] = include_bytes!("protection.rs");
    let at = constant.as_ptr() as u64;
    assert_eq!(
        reg(at, 8, access::LOCAL_WRITE),
        Some(Error::BadAddress),
        "not writable"
    );
    assert_eq!(reg(at, 8, access::REMOTE_READ), None);
    let on_demand = access::ON_DEMAND;
    assert_eq!(reg(addr, 8, on_demand | access::LOCAL_WRITE), None);
    assert_eq!(reg(4096, 8, on_demand), Some(Error::BadAddress));
    assert_eq!(
        reg(at, 8, on_demand | access::LOCAL_WRITE),
        Some(Error::BadAddress),
        "not writable"
    );
    assert_eq!(Error::BadAddress.errno().0, libc::EFAULT);
}

#[test]
fn peers_learn_of_keys_with_remote_rights_only() {
    let world = world();
    let known = |key| {
        world
            .fabric
            .keys
            .lock()
            .unwrap()
            .iter()
            .any(|info| info.key == key)
    };
    let local = Memory::new(&world.pd, access::LOCAL_WRITE);
    assert!(!known(local.mr.rkey()));
    let key = world.peer_memory.mr.rkey();
    assert!(known(key));
    world.peer_memory.mr.destroy().unwrap();
    assert!(!known(key));
}

#[test]
fn deregistration_waits_for_the_transfer_under_way() {
    waits_for_the_transfer(|mr| mr.destroy());
}

#[test]
fn reregistration_waits_for_the_transfer_under_way() {
    waits_for_the_transfer(|mr| mr.rereg(rereg::ACCESS, None, 0, 0, access::LOCAL_WRITE));
}

fn waits_for_the_transfer(close: impl FnOnce(&Mr) -> Result<()> + Send) {
    let world = world();
    let (_a, b) = world.pair(QpType::Rc);
    let request = responder::RemoteRequest {
        op: responder::RemoteOp::Write,
        rkey: world.peer_memory.mr.rkey(),
        addr: world.peer_memory.addr(),
        len: 8,
        srqn: 0,
    };
    let memory = b.check_remote(&request).unwrap();
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| close(&world.peer_memory.mr));
        while b.check_remote(&request).is_ok() {
            std::thread::yield_now();
        }
        assert!(!ending.is_finished());
        drop(memory);
        ending.join().unwrap().unwrap();
    });
}
