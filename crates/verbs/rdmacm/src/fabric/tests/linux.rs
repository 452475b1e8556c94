//! Messages as Linux's `cm.c` and `cma.c` make them, byte for byte at the offsets of IBTA's
//! tables, and what is said to what comes twice, late or out of turn.

use std::time::Duration;

use super::super::connection::State;
use super::*;

/// What a kernel with `rdma_rxe` at 192.0.2.1 sends for `rdma_connect` to 192.0.2.2 port 7471:
/// CM header, then REQ (IBTA table 106).
fn req_of_linux() -> Mad {
    let mut mad = [0; MAD_BYTES];
    // Base version 1, class 7, class version 2, method Send; attribute 0x10.
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    // The kernel's transaction: agent number, then the connection's name.
    mad[8..16].copy_from_slice(&[0, 0, 0, 5, 0x71, 0xe2, 0x8a, 0x0c]);
    mad[16..18].copy_from_slice(&REQ.to_be_bytes());
    let mut put =
        |at: usize, bytes: &[u8]| mad[24 + at..24 + at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0x71, 0xe2, 0x8a, 0x0c]); // local communication ID
    put(8, &[0, 0, 0, 0, 1, 6, 0x1d, 0x2f]); // service ID: RDMA_PS_TCP, 7471
    put(16, &[0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]); // CA GUID
    put(32, &[0, 0, 0x11, 16]); // QPN, responder resources
    put(36, &[0, 0, 0, 8]); // initiator depth
    put(40, &[0, 0, 0, 20 << 3]); // remote CM response timeout 20, RC
    put(44, &[0xab, 0xcd, 0xef, 20 << 3 | 7]); // starting PSN, local timeout 20, retries 7
    put(48, &[0xff, 0xff, 3 << 4 | 7, 15 << 4]); // P_Key, MTU 1024, RNR retries 7, CM retries 15
    put(52, &[0xff, 0xff, 0xff, 0xff]); // permissive LIDs: the hop limit is above 1
    put(56, &gid(1).0);
    put(72, &gid(2).0);
    put(88, &[0x12, 0x34, 0x50, 3]); // flow label, rate
    put(92, &[0x68, 64, 0, 17 << 3]); // traffic class, hop limit, not subnet local, ACK timeout
    put(140, &[0, 0x40, 0x9c, 0x40]); // IP CM version 0, IPv4, port 40000
    put(156, &[192, 0, 2, 1]);
    put(172, &[192, 0, 2, 2]);
    put(176, b"hello");
    mad
}

/// RTU, DREQ and DREP of that kernel: two names, and for DREQ a queue pair.
fn short_of_linux(attribute: u16, transaction: u64, remote: u32, qpn: u32) -> Mad {
    let mut mad = [0; MAD_BYTES];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[8..16].copy_from_slice(&transaction.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[24..28].copy_from_slice(&[0x71, 0xe2, 0x8a, 0x0c]);
    mad[28..32].copy_from_slice(&remote.to_be_bytes());
    mad[32..36].copy_from_slice(&(qpn << 8).to_be_bytes());
    mad
}

fn field<const N: usize>(mad: &Mad, at: usize) -> [u8; N] {
    *mad[24 + at..].first_chunk().unwrap()
}

#[test]
fn a_connection_that_linux_asks_for() {
    let Pair { now, mut two, .. } = Pair::new();
    let req = req_of_linux();
    let incoming = two.received(now, &path(1, 2), &req, false).unwrap();
    let Message::Request(asked) = &incoming.message else {
        panic!("{incoming:?}");
    };
    assert_eq!(
        (asked.port_space, asked.qp_type, asked.mtu, asked.tos),
        (TCP, 2, 3, 0x68)
    );
    assert_eq!(
        (asked.source, asked.destination),
        (address(1, 40_000), address(2, 7471))
    );
    let peers = ConnParams {
        qp_num: 0x11,
        psn: 0xab_cdef,
        responder_resources: 16,
        initiator_depth: 8,
        retry_count: 7,
        rnr_retry_count: 7,
        gid: gid(1).0,
        ..ConnParams::default()
    };
    assert_eq!(asked.params, peers);
    // All of its room: 92 bytes less 36.
    assert_eq!(asked.private.as_slice().len(), 56);
    assert_eq!(asked.private.as_slice()[..6], *b"hello\0");

    let id = two.admit(&incoming, 2).unwrap();
    assert_eq!(two.ack_timeout(id), Some(17));
    two.command(now, id, &reply(0x99));
    let rep = sent(&mut two);
    // IBTA table 110.
    assert_eq!(rep[..4], [1, 7, 2, 3]);
    assert_eq!(rep[8..16], req[8..16], "the transaction of the request");
    assert_eq!(attribute(&rep), REP);
    assert_eq!(field(&rep, 0), id.to_be_bytes());
    assert_eq!(field(&rep, 4), [0x71, 0xe2, 0x8a, 0x0c]);
    assert_eq!(field(&rep, 12), [0, 0, 0x99, 0]);
    assert_eq!(field(&rep, 20), [0x11, 0x22, 0x33, 0]);
    assert_eq!(field(&rep, 24), [4, 3, 1, 6 << 5]);
    assert_eq!(field(&rep, 28), 0x2222_u64.to_be_bytes());
    assert_eq!(field(&rep, 36), *b"welcome");

    let from_linux = |attribute, qpn| short_of_linux(attribute, 5, id, qpn);
    let rtu = from_linux(RTU, 0);
    assert!(two.received(now, &path(1, 2), &rtu, false).is_none());
    assert_eq!(event(&mut two), Happening::Message(Message::ReadyToUse));
    // A DREQ for another queue pair is somebody's mistake.
    let wrong = from_linux(DREQ, 0x98);
    assert!(two.received(now, &path(1, 2), &wrong, false).is_none());
    assert!(drain(&mut two).events.is_empty());
    let dreq = short_of_linux(DREQ, 0x1234, id, 0x99);
    for round in 0..3 {
        assert!(two.received(now, &path(1, 2), &dreq, false).is_none());
        let out = drain(&mut two);
        assert_eq!(out.events.len(), usize::from(round == 0));
        let drep = out.sent[0].1;
        assert_eq!(attribute(&drep), DREP);
        assert_eq!(drep[8..16], dreq[8..16]);
        assert_eq!(field(&drep, 0), id.to_be_bytes());
        assert_eq!(field(&drep, 4), [0x71, 0xe2, 0x8a, 0x0c]);
    }
    // After TIMEWAIT as well, though nobody knows the connection any more.
    two.release(now, id);
    two.tick(now + Duration::from_secs(20));
    assert_eq!(two.len(), 0);
    assert!(two.received(now, &path(1, 2), &dreq, false).is_none());
    let drep = sent(&mut two);
    assert_eq!(
        (attribute(&drep), field(&drep, 0)),
        (DREP, id.to_be_bytes())
    );
}

#[test]
fn a_request_has_the_fields_that_linux_has() {
    let Pair { now, mut one, .. } = Pair::new();
    let id = one.open(1, path(1, 2)).unwrap();
    one.command(now, id, &request(0x11));
    let req = sent(&mut one);
    assert_eq!(id >> 16, 0x0a01, "the process's tag");
    assert_eq!(req[8..10], [0x0a, 0x01], "in the transaction too");
    assert_eq!(field(&req, 0), id.to_be_bytes());
    assert_eq!(field(&req, 4), [0; 4]);
    assert_eq!(field(&req, 8), [0, 0, 0, 0, 1, 6, 0x1d, 0x2f]);
    assert_eq!(field(&req, 16), 0x1111_u64.to_be_bytes());
    assert_eq!(field(&req, 24), [0; 8]);
    assert_eq!(field(&req, 32), [0, 0, 0x11, 4]);
    assert_eq!(field(&req, 36), [0, 0, 0, 3]);
    assert_eq!(field(&req, 40), [0, 0, 0, 20 << 3 | 1]);
    assert_eq!(field(&req, 44), [0x11, 0x22, 0x33, 20 << 3 | 7]);
    assert_eq!(field(&req, 48), [0xff, 0xff, 3 << 4 | 6, 15 << 4]);
    assert_eq!(field(&req, 52), [0xff; 4]);
    assert_eq!(field(&req, 56), gid(1).0);
    assert_eq!(field(&req, 72), gid(2).0);
    assert_eq!(field(&req, 88), [0, 0, 0, 0, 0x20, 64, 0, 17 << 3]);
    assert_eq!(field(&req, 96), [0; 44], "no alternate path");
    assert_eq!(field(&req, 140), [0, 0x40, 0x9c, 0x40]);
    assert_eq!(field(&req, 144), [0; 12]);
    assert_eq!(field(&req, 156), [192, 0, 2, 1]);
    assert_eq!(field(&req, 172), [192, 0, 2, 2]);
    assert_eq!(field(&req, 176), *b"hello\0");
}

#[test]
fn what_comes_again_is_answered_again() {
    let mut pair = Pair::new();
    let (active, passive, req) = pair.asked(7);
    // The program has not decided: MRA, and the peer waits.
    pair.give_two(&req);
    let mra = sent(&mut pair.two);
    assert_eq!(attribute(&mra), MRA);
    pair.give_one(&mra);
    pair.now += Duration::from_secs(60);
    pair.one.tick(pair.now);
    assert!(drain(&mut pair.one).sent.is_empty());
    // It has: the same reply.
    pair.two.command(pair.now, passive, &reply(9));
    let rep = sent(&mut pair.two);
    pair.give_two(&req);
    assert_eq!(sent(&mut pair.two), rep);
    // The requester's program has not taken the reply yet.
    pair.give_one(&rep);
    event(&mut pair.one);
    pair.give_one(&rep);
    let mra = sent(&mut pair.one);
    assert_eq!(attribute(&mra), MRA);
    pair.give_two(&mra);
    pair.now += Duration::from_secs(4);
    pair.two.tick(pair.now);
    assert!(drain(&mut pair.two).sent.is_empty());
    // It has: RTU for each.
    pair.one.command(pair.now, active, &Message::ReadyToUse);
    let rtu = sent(&mut pair.one);
    pair.give_one(&rep);
    assert_eq!(sent(&mut pair.one), rtu);
    pair.give_two(&rtu);
    event(&mut pair.two);
    for late in [&rtu, &req, &mra] {
        pair.give_two(late);
        let out = drain(&mut pair.two);
        assert!(out.sent.is_empty() && out.events.is_empty());
    }
}

#[test]
fn a_rejection_that_got_lost_is_said_again() {
    let mut pair = Pair::new();
    let (_, passive, req) = pair.asked(7);
    pair.two.command(pair.now, passive, &reject(28));
    pair.two.release(pair.now, passive);
    let rej = sent(&mut pair.two);
    assert_eq!(attribute(&rej), REJ);
    pair.give_two(&req);
    assert_eq!(sent(&mut pair.two), rej);
    pair.give_one(&rej);
    assert_eq!(
        event(&mut pair.one),
        Happening::Message(Message::Reject {
            reason: 28,
            private: private(&[0; 148])
        })
    );
    pair.give_one(&rej);
    assert!(drain(&mut pair.one).events.is_empty());
}

#[test]
fn a_peer_that_does_not_answer() {
    // A request: as long as the kernel asks, 16 times 4.3 s and the path's own time.
    let mut pair = Pair::new();
    let id = pair.one.open(1, path(1, 2)).unwrap();
    pair.one.command(pair.now, id, &request(7));
    let mut sent = drain(&mut pair.one).sent.len();
    let start = pair.now;
    let happening = loop {
        pair.now = pair.one.deadline().unwrap();
        pair.one.tick(pair.now);
        let mut out = drain(&mut pair.one);
        sent += out
            .sent
            .iter()
            .filter(|(_, mad)| attribute(mad) == REQ)
            .count();
        if let Some((_, happening)) = out.events.pop() {
            break happening;
        }
    };
    assert_eq!((happening, sent), (Happening::Unreachable, 16));
    let seconds = (pair.now - start).as_secs();
    assert!((70..80).contains(&seconds), "{seconds}");

    // A reply, and a disconnection.
    let mut pair = Pair::new();
    let (_, passive, _) = pair.asked(7);
    pair.two.command(pair.now, passive, &reply(9));
    let (active, _) = Pair::new().established();
    let mut other = Pair::new();
    assert_eq!(active, other.established().0);
    other
        .one
        .command(other.now, active, &Message::DisconnectRequest);
    let cases = [
        (pair.two, Happening::Unreachable),
        (other.one, Happening::DisconnectTimedOut),
    ];
    for (mut machine, expected) in cases {
        let happening = loop {
            let now = machine.deadline().unwrap();
            machine.tick(now);
            if let Some((_, happening)) = drain(&mut machine).events.pop() {
                break happening;
            }
        };
        assert_eq!(happening, expected);
    }
}

#[test]
fn a_peer_that_has_forgotten_a_connection() {
    // Its new request with a queue pair that is in a connection: stale, and that one is ended.
    let mut pair = Pair::new();
    let (_, old) = pair.established();
    let new = pair.one.open(3, path(1, 2)).unwrap();
    // Its transport has restarted and uses the number again.
    pair.one.command(pair.now, new, &request(7));
    let req = drain(&mut pair.one).sent[0].1;
    pair.give_two(&req);
    let out = drain(&mut pair.two);
    let attributes: Vec<u16> = out.sent.iter().map(|(_, mad)| attribute(mad)).collect();
    assert_eq!(attributes, [DREQ, REJ]);
    assert_eq!(
        field(&out.sent[1].1, 10),
        10_u16.to_be_bytes(),
        "stale connection"
    );
    assert_eq!(pair.two.state(old), Some(State::DreqSent));
    pair.give_one(&out.sent[1].1);
    let stale = drain(&mut pair.one).events.remove(0);
    assert_eq!(
        stale,
        (
            3,
            Happening::Message(Message::Reject {
                reason: 10,
                private: private(&[0; 148])
            })
        )
    );
}

#[test]
fn a_reply_to_a_request_that_was_given_up() {
    let mut pair = Pair::new();
    let (active, passive, _) = pair.asked(7);
    pair.one.release(pair.now, active);
    let rej = sent(&mut pair.one);
    // REJ gets lost, and is forgotten.
    assert_eq!(attribute(&rej), REJ);
    pair.now += Duration::from_secs(90);
    pair.one.tick(pair.now);
    assert_eq!(pair.one.len(), 0);
    pair.two.command(pair.now, passive, &reply(9));
    let rep = sent(&mut pair.two);
    pair.give_one(&rep);
    let rej = sent(&mut pair.one);
    pair.give_two(&rej);
    let told = event(&mut pair.two);
    assert!(
        matches!(told, Happening::Message(Message::Reject { reason: 6, .. })),
        "{told:?}"
    );
}

/// The requester's REJ(timeout) names no connection of this side: it has not heard of it.
#[test]
fn a_request_that_is_given_up_before_the_reply() {
    let mut pair = Pair::new();
    let (active, _, _) = pair.asked(7);
    pair.one.release(pair.now, active);
    let rej = sent(&mut pair.one);
    assert_eq!(field(&rej, 4), [0; 4]);
    assert_eq!(field(&rej, 10), 4_u16.to_be_bytes());
    // More about it: 8 bytes, the adapter.
    assert_eq!(field(&rej, 9), [8 << 1]);
    assert_eq!(field(&rej, 12), 0x1111_u64.to_be_bytes());
    pair.give_two(&rej);
    let told = event(&mut pair.two);
    assert!(
        matches!(told, Happening::Message(Message::Reject { reason: 4, .. })),
        "{told:?}"
    );
}

#[test]
fn both_disconnect_at_once() {
    let mut pair = Pair::new();
    let (active, passive) = pair.established();
    pair.one
        .command(pair.now, active, &Message::DisconnectRequest);
    pair.two
        .command(pair.now, passive, &Message::DisconnectRequest);
    let (dreq_of_one, dreq_of_two) = (sent(&mut pair.one), sent(&mut pair.two));
    pair.give_two(&dreq_of_one);
    pair.give_one(&dreq_of_two);
    for (machine, state) in [(&mut pair.one, active), (&mut pair.two, passive)] {
        let out = drain(machine);
        assert_eq!((out.sent.len(), out.events.len()), (1, 1));
        assert_eq!(attribute(&out.sent[0].1), DREP);
        assert_eq!(machine.state(state), Some(State::TimeWait));
    }
}

/// A peer that says that it waits for no time at all still gets a reply that is repeated.
#[test]
fn a_peer_with_impossible_times() {
    let Pair { now, mut two, .. } = Pair::new();
    let mut req = req_of_linux();
    req[24 + 47] = 0;
    let incoming = two.received(now, &path(1, 2), &req, false).unwrap();
    let id = two.admit(&incoming, 2).unwrap();
    two.command(now, id, &reply(9));
    let rep = sent(&mut two);
    let again = two.deadline().unwrap();
    assert!(again >= now + Duration::from_millis(250));
    two.tick(again);
    assert_eq!(sent(&mut two), rep);
}

#[test]
fn an_mtu_that_this_side_has_not() {
    let mut pair = Pair::new();
    let mut two = Machine::new(3, 4, 2, 5);
    let id = pair.one.open(1, path(1, 2)).unwrap();
    pair.one.command(pair.now, id, &request(7));
    let req = sent(&mut pair.one);
    assert!(two.received(pair.now, &path(1, 2), &req, false).is_none());
    let rej = sent(&mut two);
    assert_eq!(field(&rej, 10), 26_u16.to_be_bytes());
    assert_eq!(field(&rej, 12), [2 << 4]);
}

#[test]
fn a_lookup_that_comes_again_has_the_same_answer() {
    let mut pair = Pair::new();
    let id = pair.one.open(1, path(1, 2)).unwrap();
    pair.one.command(pair.now, id, &lookup());
    let asked = sent(&mut pair.one);
    assert_eq!(field(&asked, 8), [0, 0, 0, 0, 1, 0x11, 0x1d, 0x2f]);
    let incoming = pair.two.received(pair.now, &path(1, 2), &asked, false);
    let passive = pair.two.admit(&incoming.unwrap(), 2).unwrap();
    // Not decided yet: the peer asks again later.
    pair.give_two(&asked);
    assert!(drain(&mut pair.two).sent.is_empty());
    let found = crate::message::SidrReply {
        status: 0,
        qp_num: 0x99,
        qkey: 0x0123_4567,
        gid: [0; 16],
        private: private(b"me"),
    };
    pair.two
        .command(pair.now, passive, &Message::SidrReply(found));
    pair.two.release(pair.now, passive);
    let answer = sent(&mut pair.two);
    assert_eq!(attribute(&answer), SIDR_REP);
    pair.give_two(&asked);
    assert_eq!(sent(&mut pair.two), answer);
    pair.give_one(&answer);
    let told = event(&mut pair.one);
    let Happening::Message(Message::SidrReply(told)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(
        (told.qp_num, told.qkey, told.gid),
        (0x99, 0x0123_4567, gid(2).0)
    );
}

/// The target of an extended connection says its number as end-to-end context (annex A14).
#[test]
fn an_extended_connection() {
    let mut pair = Pair::new();
    let id = pair.one.open(1, path(1, 2)).unwrap();
    let Message::Request(asks) = request(7) else {
        return;
    };
    let extended = Request { qp_type: 9, ..asks };
    pair.one.command(pair.now, id, &Message::Request(extended));
    let req = sent(&mut pair.one);
    assert_eq!(field(&req, 43), [20 << 3 | 3 << 1 | 1]);
    assert_eq!(field(&req, 51), [15 << 4 | 1]);
    let incoming = pair
        .two
        .received(pair.now, &path(1, 2), &req, false)
        .unwrap();
    let passive = pair.two.admit(&incoming, 2).unwrap();
    pair.two.command(pair.now, passive, &reply(0x99));
    let rep = sent(&mut pair.two);
    assert_eq!(field(&rep, 12), [0, 0, 0, 0, 0, 0, 0x99, 0]);
    assert_eq!(
        field(&rep, 27),
        [6 << 5 | 1 << 4],
        "it has a shared receive queue"
    );
    pair.give_one(&rep);
    let told = event(&mut pair.one);
    let Happening::Message(Message::Reply { params, .. }) = told else {
        panic!("{told:?}");
    };
    assert_eq!(params.qp_num, 0x99);
}
