//! modify_qp and query_qp: the ways of every type, and the values.

mod loopback;

use loopback::*;
use sluice_verbs::*;

type Spoil = fn(&mut QpAttr);

#[test]
fn every_type_goes_its_way() {
    let world = world();
    let xrcd = world.context.open_xrcd(None, true, false).unwrap();
    for qp_type in QpType::ALL {
        let qp = match qp_type {
            QpType::XrcRecv => {
                let mut init = QpInit::new(*qp_type);
                init.xrcd = Some(xrcd.clone());
                world.context.create_xrc_recv(&init).unwrap()
            }
            QpType::XrcSend => {
                let mut init = world.init(*qp_type, &world.cq);
                init.recv_cq = None;
                world.pd.create_qp(&init).unwrap()
            }
            _ => world.qp(*qp_type),
        };
        for (state, mask) in masks(*qp_type) {
            let attr = QpAttr {
                qp_state: state as u32,
                ..attr_for(0x999)
            };
            // Each attribute that the transition needs, left out.
            for bit in 1..32 {
                if mask & 1 << bit != 0 {
                    let refused = qp.modify(&attr, mask & !(1 << bit));
                    assert_eq!(refused, Err(Error::BadMask), "{qp_type:?} {state:?} {bit}");
                }
            }
            assert_eq!(
                qp.modify(&attr, mask | qp_mask::CAP),
                Err(Error::NotSupported)
            );
            qp.modify(&attr, mask).unwrap();
            assert_eq!(qp.state(), state);
            assert_eq!(qp.query().qp_state, state as u32);
        }
        set_state(&qp, QpState::Sqd).unwrap();
        set_state(&qp, QpState::Rts).unwrap();
        set_state(&qp, QpState::Err).unwrap();
        set_state(&qp, QpState::Err).unwrap();
        assert_eq!(set_state(&qp, QpState::Rts), Err(Error::BadTransition));
        set_state(&qp, QpState::Reset).unwrap();
        assert_eq!(set_state(&qp, QpState::Rtr), Err(Error::BadTransition));
        qp.destroy().unwrap();
    }
}

/// Programs allow what their devices may not have, as rdma-core's own tests do.
#[test]
fn a_peer_may_be_allowed_to_flush() {
    let world = world();
    let qp = world.qp(QpType::Rc);
    let (state, mask) = masks(QpType::Rc)[0];
    let attr = QpAttr {
        qp_state: state as u32,
        qp_access_flags: access::REMOTE_WRITE | access::FLUSH,
        ..attr_for(0x999)
    };
    qp.modify(&attr, mask).unwrap();
    let refused = QpAttr {
        qp_access_flags: 1 << 10,
        ..attr
    };
    assert_eq!(qp.modify(&refused, mask), Err(Error::BadValue));
}

#[test]
fn attributes_are_kept() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    let attr = a.query();
    assert_eq!(
        (attr.dest_qp_num, attr.path_mtu, attr.timeout),
        (b.num(), 3, 14)
    );
    assert_eq!(
        (attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer),
        (7, 7, 12)
    );
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 4));
    assert_eq!(attr.qp_access_flags, access::REMOTE_ANY);
    assert_eq!((attr.cap, attr.ah_attr.dlid, attr.port_num), (CAP, 1, 1));
    assert_eq!(
        attr.qkey, 0,
        "a value that the mask does not name is not taken"
    );
}

#[test]
fn packet_numbers_are_cut_to_their_24_bits() {
    let world = world();
    let qp = world.qp(QpType::Ud);
    for (state, mask) in masks(QpType::Ud) {
        let attr = QpAttr {
            qp_state: state as u32,
            sq_psn: 0xff12_3456,
            ..attr_for(0)
        };
        qp.modify(&attr, mask).unwrap();
    }
    assert_eq!(qp.query().sq_psn, 0x12_3456);
}

#[test]
fn values_out_of_range_change_nothing() {
    use qp_mask as m;
    let bad: [(u32, Spoil); 12] = [
        (m::PKEY_INDEX, |attr| attr.pkey_index = 1),
        (m::PORT, |attr| attr.port_num = 2),
        (m::PORT, |attr| attr.port_num = 0),
        (m::ACCESS_FLAGS, |attr| attr.qp_access_flags = 1 << 18),
        (m::PATH_MTU, |attr| attr.path_mtu = 0),
        (m::PATH_MTU, |attr| attr.path_mtu = 6),
        (m::DEST_QPN, |attr| attr.dest_qp_num = 1 << 24),
        (m::MIN_RNR_TIMER, |attr| attr.min_rnr_timer = 32),
        (m::MAX_DEST_RD_ATOMIC, |attr| {
            attr.max_dest_rd_atomic = DEPTH_MAX + 1
        }),
        (m::AV, |attr| attr.ah_attr.port_num = 3),
        (m::AV, |attr| {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = Gid([1; 16]);
            attr.ah_attr.grh.sgid_index = 255;
        }),
        (m::AV, |attr| attr.ah_attr.is_global = 1),
    ];
    let world = world();
    for (number, (bit, spoil)) in bad.iter().enumerate() {
        let qp = world.qp(QpType::Rc);
        let mut tried = false;
        for (state, mask) in &masks(QpType::Rc)[..2] {
            let good = QpAttr {
                qp_state: *state as u32,
                ..attr_for(0x999)
            };
            if mask & bit != 0 {
                let mut attr = good;
                spoil(&mut attr);
                let before = qp.query();
                let error = qp.modify(&attr, *mask).unwrap_err();
                assert_eq!(error.errno().0, libc::EINVAL, "{number}");
                assert_eq!(qp.query(), before);
                tried = true;
            }
            qp.modify(&good, *mask).unwrap();
        }
        assert!(tried, "{number}");
    }
    for spoil in [
        (|attr| attr.timeout = 32) as Spoil,
        |attr| attr.retry_cnt = 8,
        |attr| attr.rnr_retry = 8,
        |attr| attr.max_rd_atomic = DEPTH_MAX + 1,
    ] {
        let qp = world.qp(QpType::Rc);
        to_state(&qp, 0x999, QpState::Rtr);
        let mut attr = QpAttr {
            qp_state: QpState::Rts as u32,
            ..attr_for(0x999)
        };
        spoil(&mut attr);
        assert_eq!(
            qp.modify(&attr, masks(QpType::Rc)[2].1),
            Err(Error::BadValue)
        );
    }
}

#[test]
fn the_current_state_must_be_right() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let mut attr = QpAttr {
        qp_state: QpState::Rts as u32,
        cur_qp_state: QpState::Sqd as u32,
        ..QpAttr::default()
    };
    let mask = qp_mask::STATE | qp_mask::CUR_STATE;
    assert_eq!(a.modify(&attr, mask), Err(Error::WrongState));
    attr.cur_qp_state = QpState::Rts as u32;
    assert_eq!(a.modify(&attr, mask), Ok(()));
    attr.qp_state = 7;
    assert_eq!(a.modify(&attr, mask), Err(Error::BadValue));
}

#[test]
fn other_paths_and_rates_are_not_supported() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let attr = QpAttr::default();
    for bit in [qp_mask::ALT_PATH, qp_mask::RATE_LIMIT] {
        assert_eq!(a.modify(&attr, bit), Err(Error::NotSupported));
    }
    assert_eq!(a.modify(&attr, qp_mask::PATH_MIG_STATE), Ok(()), "MIGRATED");
    assert_eq!(Error::NotSupported.errno().0, libc::EOPNOTSUPP);
}

#[test]
fn a_transport_may_refuse() {
    let world = world();
    let qp = world.qp(QpType::Rc);
    world
        .fabric
        .refuse_transition
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let (state, mask) = masks(QpType::Rc)[0];
    let attr = QpAttr {
        qp_state: state as u32,
        ..attr_for(0)
    };
    assert_eq!(qp.modify(&attr, mask), Err(Error::NoResources));
    assert_eq!(qp.state(), QpState::Reset);
    assert_eq!(qp.modify(&attr, mask), Ok(()));
}

#[test]
fn capabilities_have_limits() {
    let world = world();
    let spoil: [fn(&mut QpCap); 5] = [
        |cap| cap.max_send_wr = device::QUEUE_MAX + 1,
        |cap| cap.max_recv_wr = device::QUEUE_MAX + 1,
        |cap| cap.max_send_sge = responder::MAX_SGE as u32 + 1,
        |cap| cap.max_recv_sge = responder::MAX_SGE as u32 + 1,
        |cap| cap.max_inline_data = INLINE_MAX + 1,
    ];
    for spoil in spoil {
        let mut init = world.init(QpType::Rc, &world.cq);
        spoil(&mut init.cap);
        assert_eq!(world.pd.create_qp(&init).err(), Some(Error::BadCapability));
    }
    let attr = world.device.attr();
    assert_eq!(attr.max_qp_wr as u32, device::QUEUE_MAX);
    assert_eq!(attr.max_sge as usize, responder::MAX_SGE);
}

#[test]
fn each_type_needs_its_objects() {
    let world = world();
    let mut init = world.init(QpType::Rc, &world.cq);
    init.recv_cq = None;
    assert_eq!(world.pd.create_qp(&init).err(), Some(Error::WrongObject));
    let mut init = world.init(QpType::Rc, &world.cq);
    init.send_cq = None;
    assert_eq!(world.pd.create_qp(&init).err(), Some(Error::WrongObject));
    let other = world.device.open().unwrap();
    let cq = other.create_cq(1, 0, None, 0).unwrap();
    let init = world.init(QpType::Rc, &cq);
    assert_eq!(world.pd.create_qp(&init).err(), Some(Error::WrongObject));
    let init = QpInit::new(QpType::XrcRecv);
    assert_eq!(
        world.context.create_xrc_recv(&init).err(),
        Some(Error::WrongObject)
    );
}
