//! Every operation of every kind of queue pair, over a cable that is good and one that is not.
#![allow(unsafe_code)]

mod common;

use common::{End, MTU, QKEY, Side, connected, world};
use sluice_verbs::{
    QpInit, QpType, SendWr, Sge, SrqAttr, SrqInit, UdDestination, WcOpcode, WcStatus, WrOpcode,
    send_flags, wc_flags,
};

const GOOD: &str = "";
const BAD: &str = "loss=4%,dup=4%,reorder=4%,corrupt=1%,seed=7";
const SIZES: [usize; 8] = [0, 1, 3, MTU - 1, MTU, MTU + 1, 10_000, 300_001];
const AREA: usize = 1 << 20;
const HALF: usize = AREA / 2;

fn reliable(faults: &str) {
    let (left, right) = world(faults);
    let (a, b) = connected(&left, &right, QpType::Rc, AREA);
    for (turn, len) in SIZES.into_iter().enumerate() {
        let seed = turn as u8 + 1;
        a.memory.fill(0, len, seed);
        let parts = [a.sge(0, len / 3), a.sge(len / 3, len - len / 3)];

        b.qp.post_recv(7, &[b.sge(0, len / 2), b.sge(len / 2, HALF - len / 2)])
            .unwrap();
        let wc = a.run(&End::request(WrOpcode::Send, 1, &parts, &b, 0));
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::Send as u32));
        let wc = b.good();
        assert_eq!((wc.wr_id, wc.byte_len), (7, len as u32));
        assert_eq!((wc.opcode, wc.qp_num), (WcOpcode::Recv as u32, b.qp.num()));
        b.memory.check(0, len, seed);

        let wc = a.run(&End::request(WrOpcode::RdmaWrite, 2, &parts, &b, HALF + 5));
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::RdmaWrite as u32));
        b.memory.check(HALF + 5, len, seed);

        let back = [a.sge(HALF, len / 4), a.sge(HALF + len / 4, len - len / 4)];
        let wc = a.run(&End::request(WrOpcode::RdmaRead, 3, &back, &b, HALF + 5));
        assert_eq!((wc.status, wc.byte_len), (0, len as u32));
        a.memory.check(HALF, len, seed);

        b.post_recv(8, 0, 0);
        let mut wr = End::request(WrOpcode::RdmaWriteWithImm, 4, &parts, &b, HALF + 9);
        wr.imm = 0x0a0b_0c0d;
        assert_eq!(a.run(&wr).status, 0);
        let wc = b.good();
        assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm as u32);
        assert_eq!((wc.imm, wc.byte_len), (0x0a0b_0c0d, len as u32));
        b.memory.check(HALF + 9, len, seed);
    }
    small_ones(&a, &b);
}

/// Immediate data, inline data, atomic operations.
fn small_ones(a: &End, b: &End) {
    b.post_recv(1, 0, 100);
    let inline = *b"inline data";
    let sge = [Sge {
        addr: inline.as_ptr() as u64,
        length: inline.len() as u32,
        lkey: 0,
    }];
    let mut wr = End::request(WrOpcode::SendWithImm, 9, &sge, b, 0);
    wr.flags |= send_flags::INLINE;
    wr.imm = 77;
    assert_eq!(a.run(&wr).status, 0);
    let wc = b.good();
    assert_eq!((wc.imm, wc.byte_len), (77, 11));
    assert_eq!(wc.wc_flags & wc_flags::WITH_IMM, wc_flags::WITH_IMM);
    assert_eq!((b.memory.byte(0), b.memory.byte(10)), (b'i', b'a'));

    // Each is done once, however often its packet comes.
    b.memory.set_word(64, 5);
    let result = [a.sge(128, 8)];
    for turn in 0..50 {
        let mut wr = End::request(WrOpcode::AtomicFetchAndAdd, turn, &result, b, 64);
        wr.compare_add = 3;
        assert_eq!(a.run(&wr).status, 0);
        assert_eq!(a.memory.word(128), 5 + 3 * turn);
    }
    let mut wr = End::request(WrOpcode::AtomicCmpAndSwp, 1, &result, b, 64);
    (wr.compare_add, wr.swap) = (155, 1);
    assert_eq!(a.run(&wr).status, 0);
    assert_eq!((a.memory.word(128), b.memory.word(64)), (155, 1));
    assert_eq!(a.run(&wr).status, 0);
    assert_eq!((a.memory.word(128), b.memory.word(64)), (1, 1));
}

#[test]
fn reliable_connections_carry_everything() {
    reliable(GOOD);
}

#[test]
fn reliable_connections_carry_everything_over_a_bad_cable() {
    reliable(BAD);
}

#[test]
fn many_messages_at_once_arrive_in_order_over_a_bad_cable() {
    const MESSAGES: u64 = 400;
    const BYTES: usize = 2500;
    let (left, right) = world(BAD);
    let (a, b) = connected(&left, &right, QpType::Rc, 64 * BYTES);
    let (mut posted, mut sent, mut ready, mut got) = (0, 0, 0, 0);
    while got < MESSAGES || sent < MESSAGES {
        while ready < MESSAGES && ready < got + 64 {
            b.post_recv(ready, (ready % 64) as usize * BYTES, BYTES);
            ready += 1;
        }
        while posted < MESSAGES && posted < sent + 32 {
            let at = (posted % 64) as usize * BYTES;
            a.memory.fill(at, BYTES, posted as u8);
            let sge = [a.sge(at, BYTES)];
            let wr = End::request(WrOpcode::Send, posted, &sge, &b, 0);
            a.qp.post_send(&wr).unwrap();
            posted += 1;
        }
        while let Some(wc) = a.cq.poll_one() {
            assert_eq!((wc.wr_id, wc.status), (sent, 0));
            sent += 1;
        }
        while let Some(wc) = b.cq.poll_one() {
            assert_eq!((wc.wr_id, wc.status), (got, 0));
            let at = (got % 64) as usize * BYTES;
            b.memory.check(at, BYTES, got as u8);
            got += 1;
        }
    }
}

#[test]
fn unreliable_connections_carry_sends_and_writes() {
    let (left, right) = world(GOOD);
    let (a, b) = connected(&left, &right, QpType::Uc, AREA);
    for (turn, len) in SIZES.into_iter().enumerate() {
        let seed = turn as u8 + 1;
        a.memory.fill(0, len, seed);
        let sge = [a.sge(0, len)];
        b.post_recv(7, 0, HALF);
        assert_eq!(
            a.run(&End::request(WrOpcode::Send, 1, &sge, &b, 0)).status,
            0
        );
        assert_eq!(b.good().byte_len, len as u32);
        b.memory.check(0, len, seed);
        b.post_recv(8, 0, 0);
        let mut wr = End::request(WrOpcode::RdmaWriteWithImm, 2, &sge, &b, HALF);
        wr.imm = 9;
        assert_eq!(a.run(&wr).status, 0);
        assert_eq!(b.good().imm, 9);
        b.memory.check(HALF, len, seed);
    }
}

#[test]
fn an_unreliable_connection_gives_whole_messages_or_none() {
    const MESSAGES: u64 = 300;
    const BYTES: usize = 3 * MTU + 5;
    const SLOT: usize = 4096;
    let (left, right) = world(BAD);
    let (a, b) = connected(&left, &right, QpType::Uc, AREA);
    for slot in 0..AREA / SLOT {
        b.post_recv(slot as u64, slot * SLOT, SLOT);
    }
    let mut got = 0u64;
    let mut last = None;
    for message in 0..MESSAGES {
        a.memory.fill(0, BYTES, message as u8);
        a.memory.set_word(0, message);
        let sge = [a.sge(0, BYTES)];
        let wr = End::request(WrOpcode::Send, message, &sge, &b, 0);
        assert_eq!(a.run(&wr).status, 0);
        // So that the next one finds a receive.
        common::until("the packets' reception", || right.inbox.is_empty());
        while let Some(wc) = b.cq.poll_one() {
            assert_eq!((wc.status, wc.byte_len), (0, BYTES as u32));
            let at = wc.wr_id as usize * SLOT;
            let number = b.memory.word(at);
            assert!(
                last < Some(number) && number <= message,
                "{number} after {last:?}"
            );
            last = Some(number);
            for byte in 8..BYTES {
                let wanted = common::pattern(byte, number as u8);
                assert_eq!(b.memory.byte(at + byte), wanted);
            }
            got += 1;
            b.post_recv(wc.wr_id, at, SLOT);
        }
    }
    assert!(got > MESSAGES / 3 && got < MESSAGES, "{got}");
}

/// A datagram's way from one end to another.
fn address(side: &Side, peer: &End) -> std::sync::Arc<sluice_verbs::Ah> {
    side.pd.create_ah(&End::ah_attr(&peer.gid)).unwrap()
}

#[test]
fn an_address_handle_without_a_global_route_is_refused() {
    let (left, right) = world(GOOD);
    let (_, b) = connected(&left, &right, QpType::Ud, AREA);
    let local = sluice_verbs::AhAttr {
        is_global: 0,
        dlid: 1,
        ..End::ah_attr(&b.gid)
    };
    let refused = left.pd.create_ah(&local).map(drop);
    assert_eq!(refused, Err(sluice_verbs::Error::BadValue));
}

#[test]
fn datagrams_arrive_with_their_header() {
    let (left, right) = world(GOOD);
    let (a, b) = connected(&left, &right, QpType::Ud, AREA);
    let ah = address(&left, &b);
    for (turn, len) in [0, 1, 2, 3, 64, MTU].into_iter().enumerate() {
        a.memory.fill(0, len, turn as u8);
        b.post_recv(5, 0, 4096);
        let sge = [a.sge(0, len)];
        let mut wr = End::request(WrOpcode::SendWithImm, 1, &sge, &b, 0);
        wr.imm = 3;
        wr.ud = Some(UdDestination {
            ah: ah.attr(),
            qpn: b.qp.num(),
            qkey: QKEY,
        });
        assert_eq!(a.run(&wr).status, 0);
        let wc = b.good();
        assert_eq!((wc.byte_len, wc.src_qp), (len as u32 + 40, a.qp.num()));
        assert_eq!(wc.wc_flags, wc_flags::GRH | wc_flags::WITH_IMM);
        b.memory.check(40, len, turn as u8);
        // Version 6, hop limit, and the two addresses.
        assert_eq!((b.memory.byte(0) >> 4, b.memory.byte(7)), (6, 7));
        for at in 0..16 {
            assert_eq!(b.memory.byte(8 + at), a.gid.0[at]);
            assert_eq!(b.memory.byte(24 + at), b.gid.0[at]);
        }
        // With a wrong key it is dropped.
        wr.ud = Some(UdDestination {
            ah: ah.attr(),
            qpn: b.qp.num(),
            qkey: QKEY + 1,
        });
        assert_eq!(a.run(&wr).status, 0);
        assert!(b.cq.poll_one().is_none());
    }
}

#[test]
fn extended_connections_name_a_shared_receive_queue() {
    for faults in [GOOD, BAD] {
        let (left, right) = world(faults);
        let a = left.end(QpType::XrcSend, AREA, None);
        let cq = right.context.create_cq(64, 0, None, 0).unwrap();
        let domain = right.context.open_xrcd(None, true, false).unwrap();
        let target = right.context.create_xrc_recv(&QpInit {
            xrcd: Some(domain.clone()),
            ..QpInit::new(QpType::XrcRecv)
        });
        let b = right.of(target.unwrap(), AREA, &cq);
        let srq = right
            .pd
            .create_srq(&SrqInit {
                attr: SrqAttr {
                    max_wr: 16,
                    max_sge: 1,
                    srq_limit: 0,
                },
                xrcd: Some(domain),
                cq: Some(cq.clone()),
                cookie: 0,
            })
            .unwrap();
        a.connect(&b);
        b.to_init();
        b.to_rtr(&a);
        srq.post_recv(4, &[b.sge(HALF, 50_000)]).unwrap();
        a.memory.fill(0, 50_000, 1);
        let sge = [a.sge(0, 50_000)];
        for opcode in [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaRead] {
            let wr = SendWr {
                xrc_srqn: srq.num(),
                ..End::request(opcode, 1, &sge, &b, 0)
            };
            assert_eq!(a.run(&wr).status, WcStatus::Success as u32, "{opcode:?}");
        }
        let wc = b.good();
        assert_eq!((wc.wr_id, wc.byte_len), (4, 50_000));
        b.memory.check(0, 50_000, 1);
        b.memory.check(HALF, 50_000, 1);
        a.memory.check(0, 50_000, 1);
    }
}
