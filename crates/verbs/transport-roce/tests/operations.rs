//! What the conformance suite does not ask of every transport: packets that are lost in the middle of
//! messages, and what datagrams carry in front.

mod common;

use common::{End, MTU, QKEY, Side, connected, world};
use sluice_verbs::{QpType, UdDestination, WrOpcode, wc_flags};

const GOOD: &str = "";
const BAD: &str = "loss=4%,dup=4%,reorder=4%,corrupt=1%,seed=7";
const AREA: usize = 1 << 20;

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
        // The kind of packet, as mlx5 says it: IPv6 and UDP.
        assert_eq!(wc.sl, 0x9);
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
