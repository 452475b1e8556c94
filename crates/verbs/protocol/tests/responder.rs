//! What a responder says to each kind of packet, packet by packet, with the clause that wants it.

mod packets;

use packets::{Bench, Reply, request};
use sluice_protocol::rc::Config;
use sluice_protocol::{Operation, Refusal, Remote, Request, Status};
use sluice_wire::extended::{NakCode, XrcEth};
use sluice_wire::opcode::{Operation as Op, Service};
use sluice_wire::{Opcode, Psn, Qpn};

const MTU: usize = packets::MTU;
const FULL: usize = MTU;
const GOOD: Remote = Remote {
    address: 0x1000,
    rkey: 1,
};
const FOREIGN: Remote = Remote {
    address: 0x1000,
    rkey: 2,
};

/// Responder: requests (operation, sequence number, payload bytes) and what is answered to the
/// last of them. Catches: a check left out, a NAK code changed for another.
#[test]
fn responses_are_those_of_the_specification() {
    use NakCode::{InvalidRequest, RemoteAccess, SequenceError};
    use Op::*;
    type Row = (
        &'static str,
        &'static [(Op, u32, usize)],
        Option<Reply>,
        &'static str,
    );
    let bad = |psn| Some(Reply::Nak(psn, InvalidRequest));
    let table: &[Row] = &[
        (
            "a SEND",
            &[(SendOnly, 0, 5)],
            Some(Reply::Ack(0)),
            "9.7.5.1",
        ),
        (
            "an empty SEND",
            &[(SendOnly, 0, 0)],
            Some(Reply::Ack(0)),
            "9.7.2",
        ),
        (
            "a SEND of three",
            &[
                (SendFirst, 0, FULL),
                (SendMiddle, 1, FULL),
                (SendLast, 2, 1),
            ],
            Some(Reply::Ack(2)),
            "9.7.4.1.2",
        ),
        (
            "a WRITE of two",
            &[(WriteFirst, 0, FULL), (WriteLast, 1, FULL)],
            Some(Reply::Ack(1)),
            "9.7.4.1.2",
        ),
        (
            "a gap",
            &[(SendOnly, 0, 5), (SendOnly, 2, 5)],
            Some(Reply::Nak(1, SequenceError)),
            "9.7.5.1.3",
        ),
        (
            "a gap is reported once",
            &[(SendOnly, 1, 5), (SendOnly, 2, 5)],
            None,
            "9.7.5.1.3",
        ),
        (
            "and again after it was closed",
            &[(SendOnly, 1, 5), (SendOnly, 0, 5), (SendOnly, 2, 5)],
            Some(Reply::Nak(1, SequenceError)),
            "9.7.5.1.3",
        ),
        (
            "a duplicate SEND",
            &[(SendOnly, 0, 5), (SendOnly, 1, 5), (SendOnly, 0, 5)],
            Some(Reply::Ack(1)),
            "9.7.5.1.2, C9-105",
        ),
        (
            "a duplicate SEND after an atomic",
            &[(SendOnly, 0, 5), (FetchAdd, 1, 0), (SendOnly, 0, 5)],
            Some(Reply::Ack(0)),
            "9.7.5.1.1, 9.7.5.1.2",
        ),
        (
            "a duplicate SEND after a READ",
            &[(SendOnly, 0, 5), (ReadRequest, 1, 2000), (SendOnly, 0, 5)],
            Some(Reply::Ack(0)),
            "9.7.5.1.1, 9.7.5.1.2",
        ),
        (
            "a duplicate in a message",
            &[(WriteFirst, 0, FULL), (WriteFirst, 0, FULL)],
            Some(Reply::Ack(0)),
            "9.7.5.1.2",
        ),
        (
            "a middle without first",
            &[(SendMiddle, 0, FULL)],
            bad(0),
            "9.7.4.1.2",
        ),
        (
            "a last without first",
            &[(WriteLast, 0, 7)],
            bad(0),
            "9.7.4.1.2",
        ),
        (
            "a first in a message",
            &[(SendFirst, 0, FULL), (SendFirst, 1, FULL)],
            bad(1),
            "9.7.4.1.2",
        ),
        (
            "an only in a message",
            &[(WriteFirst, 0, FULL), (SendOnly, 1, 1)],
            bad(1),
            "9.7.4.1.2",
        ),
        (
            "a READ in a message",
            &[(WriteFirst, 0, FULL), (ReadRequest, 1, 0)],
            bad(1),
            "9.7.4.1.2",
        ),
        (
            "a SEND's middle in a WRITE",
            &[(WriteFirst, 0, FULL), (SendMiddle, 1, FULL)],
            bad(1),
            "9.7.4.1.2",
        ),
        (
            "a WRITE's last in a SEND",
            &[(SendFirst, 0, FULL), (WriteLast, 1, 7)],
            bad(1),
            "9.7.4.1.2",
        ),
        (
            "a first that is not full",
            &[(SendFirst, 0, FULL - 4)],
            bad(0),
            "9.7.4.1.4",
        ),
        (
            "a middle that is not full",
            &[(WriteFirst, 0, FULL), (WriteMiddle, 1, 8)],
            bad(1),
            "9.7.4.1.4",
        ),
        (
            "an only that is too long",
            &[(SendOnly, 0, FULL + 4)],
            bad(0),
            "9.7.4.1.4",
        ),
        (
            "a last that is too long",
            &[(SendFirst, 0, FULL), (SendLast, 1, FULL + 4)],
            bad(1),
            "9.7.4.1.4",
        ),
        (
            "a WRITE longer than it said",
            &[(WriteFirst, 0, FULL), (WriteMiddle, 1, FULL)],
            bad(1),
            "9.7.4.1.4",
        ),
        (
            "a refusal is repeated",
            &[(SendMiddle, 0, FULL), (SendOnly, 1, 5)],
            bad(0),
            "9.9.3",
        ),
    ];
    for (name, rows, wanted, clause) in table {
        let mut bench = Bench::new();
        let mut said = None;
        for (operation, psn, len) in *rows {
            // A WRITE of two packets, if it begins with a first.
            said = bench
                .deliver(&request(*operation, *psn, *len, GOOD, 2 * MTU as u32))
                .pop();
        }
        assert_eq!(said, *wanted, "{name} (IBTA {clause})");
    }
    let refusals = [
        (Refusal::Access, RemoteAccess),
        (Refusal::InvalidRequest, InvalidRequest),
        (Refusal::Operation, NakCode::RemoteOperational),
    ];
    for (refusal, code) in refusals {
        for operation in [WriteOnly, ReadRequest, FetchAdd] {
            let mut bench = Bench::new();
            bench.memory.refusal = refusal;
            let said = bench.deliver(&request(operation, 0, 4, FOREIGN, 4));
            assert_eq!(
                said,
                [Reply::Nak(0, code)],
                "{operation:?} (IBTA 9.7.5.2.3 to 5)"
            );
            assert!(bench.memory.writes.is_empty());
            assert_eq!(bench.connection.refusal(), Some(code));
        }
    }
}

#[test]
fn no_key_is_needed_for_no_bytes() {
    for operation in [Op::WriteOnly, Op::ReadRequest] {
        let said = Bench::new().deliver(&request(operation, 0, 0, FOREIGN, 0));
        let wanted = match operation {
            Op::WriteOnly => Reply::Ack(0),
            _ => Reply::Read(0, Op::ReadResponseOnly, 0),
        };
        assert_eq!(said, [wanted], "IBTA 9.7.4.1.6");
    }
}

#[test]
fn a_misaligned_atomic_is_invalid() {
    let remote = Remote {
        address: 0x1004,
        ..GOOD
    };
    let said = Bench::new().deliver(&request(Op::FetchAdd, 0, 0, remote, 8));
    assert_eq!(said, [Reply::Nak(0, NakCode::InvalidRequest)], "IBTA 9.4.5");
}

#[test]
fn acknowledgements_are_put_together() {
    let mut bench = Bench::new();
    for psn in 0..10 {
        bench.feed(&request(Op::SendOnly, psn, 5, GOOD, 0));
    }
    assert_eq!(bench.replies(), [Reply::Ack(9)], "IBTA 9.7.5.1.1");
    bench.feed(&request(Op::SendOnly, 10, 5, GOOD, 0));
    bench.feed(&request(Op::ReadRequest, 11, 0, GOOD, 2 * MTU as u32 + 1));
    bench.feed(&request(Op::SendOnly, 14, 5, GOOD, 0));
    let wanted = [
        Reply::Read(11, Op::ReadResponseFirst, MTU),
        Reply::Read(12, Op::ReadResponseMiddle, MTU),
        Reply::Read(13, Op::ReadResponseLast, 1),
        Reply::Ack(14),
    ];
    assert_eq!(
        bench.replies(),
        wanted,
        "READ data acknowledges what was before it"
    );
}

/// Programs that sleep on one channel for both count on that.
#[test]
fn an_acknowledgement_goes_in_front_of_the_answer() {
    let mut bench = Bench::new();
    for seq in 0..6 {
        let post = Request {
            seq,
            operation: Operation::Send,
            length: 5,
            solicited: false,
            srq: None,
        };
        bench.connection.post(post).expect("room");
    }
    let mut sent = Vec::new();
    for psn in 0..3 {
        bench.feed(&request(Op::SendOnly, psn, 5, GOOD, 0));
        let two = bench.take(2);
        sent.extend(two.iter().map(|one| one.headers.bth.opcode.operation()));
        assert!(!bench.connection.owes_acknowledgement_only());
    }
    let both = [Op::Acknowledge, Op::SendOnly];
    assert_eq!(sent, [both, both, both].concat());
    assert_eq!(bench.take(9).len(), 3);
    assert!(!bench.connection.is_ready());
    bench.feed(&request(Op::SendOnly, 3, 5, GOOD, 0));
    assert!(bench.connection.is_ready() && bench.connection.owes_acknowledgement_only());
    assert_eq!(bench.replies(), [Reply::Ack(3)]);
    bench.feed(&request(Op::SendOnly, 5, 5, GOOD, 0));
    assert!(!bench.connection.owes_acknowledgement_only(), "a NAK");
}

#[test]
fn who_does_not_ask_is_not_acknowledged() {
    let mut packet = request(Op::SendOnly, 0, 5, GOOD, 0);
    packet.headers.bth.ack_request = false;
    assert_eq!(Bench::new().deliver(&packet), []);
}

#[test]
fn no_receive_is_said_once_and_nothing_overtakes() {
    let mut bench = Bench::new();
    bench.memory.receives = 0;
    let send = |psn| request(Op::SendOnly, psn, 5, GOOD, 0);
    assert_eq!(bench.deliver(&send(0)), [Reply::Rnr(0)], "IBTA 9.7.5.2.8");
    bench.memory.receives = 9;
    assert_eq!(bench.deliver(&send(1)), [], "it has to come in order");
    assert_eq!(bench.deliver(&send(0)), [Reply::Ack(0)]);
    assert_eq!(bench.memory.received, [5]);
}

#[test]
fn immediate_data_needs_a_receive_before_anything_is_written() {
    let mut bench = Bench::new();
    bench.memory.receives = 0;
    let write = request(Op::WriteOnlyWithImmediate, 0, 8, GOOD, 8);
    assert_eq!(bench.deliver(&write), [Reply::Rnr(0)], "IBTA 9.7.5.2.8");
    assert!(bench.memory.writes.is_empty());
}

#[test]
fn a_message_longer_than_its_receive() {
    let mut bench = Bench::new();
    bench.memory.receive_bytes = MTU as u32;
    bench.deliver(&request(Op::SendFirst, 0, MTU, GOOD, 0));
    let said = bench.deliver(&request(Op::SendLast, 1, 1, GOOD, 0));
    assert_eq!(
        said,
        [Reply::Nak(1, NakCode::InvalidRequest)],
        "IBTA 9.9.3.1"
    );
    assert_eq!(bench.memory.failed, [Status::LocalLength]);
}

/// A READ again, from the beginning or from inside, but not another one (IBTA 9.7.5.1.9).
/// Catches: ranges that are not compared, or data read beyond what was asked.
#[test]
fn reads_are_repeated_as_they_were() {
    let length = 3 * MTU as u32 + 10;
    let asked = |psn: u32, offset: u64, length| {
        let remote = Remote {
            address: GOOD.address + offset,
            ..GOOD
        };
        request(Op::ReadRequest, psn, 0, remote, length)
    };
    let mut bench = Bench::new();
    assert_eq!(bench.deliver(&asked(0, 0, length)).len(), 4);
    assert_eq!(bench.deliver(&asked(0, 0, length)).len(), 4);
    let mtu = MTU as u64;
    let rest = [
        Reply::Read(2, Op::ReadResponseFirst, MTU),
        Reply::Read(3, Op::ReadResponseLast, 10),
    ];
    assert_eq!(bench.deliver(&asked(2, 2 * mtu, MTU as u32 + 10)), rest);
    let piece = [Reply::Read(1, Op::ReadResponseOnly, MTU)];
    assert_eq!(bench.deliver(&asked(1, mtu, MTU as u32)), piece);
    let strange = [
        asked(1, 0, length),
        asked(1, 0, length - MTU as u32),
        asked(2, 2 * mtu, length),
        asked(2, 2 * mtu, 11),
        asked(2, 2 * mtu, 0),
        asked(3, 3 * mtu, MTU as u32),
        asked(0xff_fff0, 0, 10),
    ];
    for packet in strange {
        assert_eq!(bench.deliver(&packet), [], "{packet:?}");
    }
    assert_eq!(bench.connection.counters().bad_duplicates, 7);
}

/// IBTA 9.7.5.1.5. Catches: an atomic that is carried out again, or answered with what is there
/// now.
#[test]
fn atomics_are_repeated_without_being_carried_out() {
    let mut bench = Bench::new();
    let add = request(Op::FetchAdd, 0, 0, GOOD, 3);
    assert_eq!(bench.deliver(&add), [Reply::Atomic(0, 0)]);
    assert_eq!(
        bench.deliver(&request(Op::FetchAdd, 1, 0, GOOD, 3)),
        [Reply::Atomic(1, 3)]
    );
    assert_eq!(bench.deliver(&add), [Reply::Atomic(0, 0)]);
    assert_eq!(bench.memory.counter, 6);
    let other = request(Op::FetchAdd, 0, 0, GOOD, 4);
    assert_eq!(bench.deliver(&other), [], "another operand");
    let swap = request(Op::CompareSwap, 0, 0, GOOD, 3);
    assert_eq!(bench.deliver(&swap), [], "another operation");
}

/// As many are remembered as may be under way (IBTA 9.7.4.1.3).
#[test]
fn resources_are_limited() {
    let mut bench = Bench::new();
    for psn in 0..packets::RESOURCES {
        bench.feed(&request(Op::ReadRequest, psn, 0, GOOD, 8));
    }
    bench.feed(&request(Op::ReadRequest, packets::RESOURCES, 0, GOOD, 8));
    let said = bench.replies();
    assert_eq!(said.len() as u32, packets::RESOURCES + 1);
    let refused = Reply::Nak(packets::RESOURCES, NakCode::InvalidRequest);
    assert_eq!(said.last(), Some(&refused));
    let mut bench = Bench::new();
    for psn in 0..50 {
        let said = bench.deliver(&request(Op::FetchAdd, psn, 0, GOOD, 1));
        assert_eq!(said, [Reply::Atomic(psn, u64::from(psn))]);
    }
    for psn in 0..50 {
        let known = psn >= 50 - packets::RESOURCES;
        let said = bench.deliver(&request(Op::FetchAdd, psn, 0, GOOD, 1));
        assert_eq!(!said.is_empty(), known, "{psn}");
    }
    assert_eq!(bench.memory.counter, 50);
}

#[test]
fn a_region_that_goes_away_during_a_read() {
    let mut bench = Bench::new();
    bench.memory.readable = MTU as u32;
    let said = bench.deliver(&request(Op::ReadRequest, 0, 0, GOOD, 3 * MTU as u32));
    let wanted = [
        Reply::Read(0, Op::ReadResponseFirst, MTU),
        Reply::Nak(1, NakCode::RemoteAccess),
    ];
    assert_eq!(said, wanted, "IBTA 9.7.5.2.4");
}

/// Messages completed are counted in every AETH (IBTA 9.7.7.1): READs when they are carried out.
/// Catches: a count that is left behind, or that is one for each packet.
#[test]
fn messages_are_counted() {
    let mut bench = Bench::new();
    let requests = [
        (request(Op::SendOnly, 0, 5, GOOD, 0), vec![1]),
        (
            request(Op::WriteFirst, 1, MTU, GOOD, 2 * MTU as u32),
            vec![1],
        ),
        (request(Op::WriteLast, 2, MTU, GOOD, 0), vec![2]),
        (
            request(Op::ReadRequest, 3, 0, GOOD, 3 * MTU as u32),
            vec![3, 3],
        ),
        (request(Op::FetchAdd, 6, 0, GOOD, 1), vec![4]),
        (request(Op::SendOnly, 6, 5, GOOD, 0), vec![4]),
        (
            request(Op::ReadRequest, 3, 0, GOOD, 3 * MTU as u32),
            vec![3, 3],
        ),
    ];
    for (packet, wanted) in requests {
        bench.feed(&packet);
        let sent = bench.take(10);
        let counts: Vec<u32> = sent
            .iter()
            .filter_map(|packet| packet.headers.aeth)
            .map(|aeth| aeth.msn.get())
            .collect();
        assert_eq!(counts, wanted, "{packet:?}");
        for packet in sent {
            let bth = packet.headers.bth;
            assert_eq!((bth.destination.get(), bth.pkey), (6, 0xffff));
        }
    }
}

/// A receive that is half full comes back when the queue pair stops.
#[test]
fn a_message_under_way_is_given_back() {
    let mut bench = Bench::new();
    bench.deliver(&request(Op::SendFirst, 0, MTU, GOOD, 0));
    bench.connection.stop_receiving(&mut bench.memory);
    bench.connection.stop_receiving(&mut bench.memory);
    assert_eq!(bench.memory.failed, [Status::Flushed]);
}

/// However often a READ is asked for again, it is answered once more. Catches: a reply queued for
/// each duplicate.
#[test]
fn duplicates_do_not_pile_up() {
    let mut bench = Bench::new();
    for _ in 0..1000 {
        bench.feed(&request(Op::ReadRequest, 0, 0, GOOD, 2 * MTU as u32));
        bench.feed(&request(Op::FetchAdd, 2, 0, GOOD, 1));
        bench.feed(&request(Op::SendOnly, 3, 1, GOOD, 0));
    }
    let wanted = [
        Reply::Read(0, Op::ReadResponseFirst, MTU),
        Reply::Read(1, Op::ReadResponseLast, MTU),
        Reply::Atomic(2, 0),
        Reply::Ack(3),
    ];
    assert_eq!(bench.replies(), wanted);
}

/// Packets that come in the wrong order within one batch: what is said at its end is true then.
/// Catches: a NAK for what has come in the meantime, and silence about what was dropped.
#[test]
fn a_verdict_is_that_of_its_moment() {
    let send = |psn| request(Op::SendOnly, psn, 1, GOOD, 0);
    let batch = |psns: &[u32]| {
        let mut bench = Bench::new();
        for psn in psns {
            bench.feed(&send(*psn));
        }
        bench.replies()
    };
    assert_eq!(batch(&[1, 0, 1]), [Reply::Ack(1)]);
    assert_eq!(batch(&[1, 0]), [Reply::Nak(1, NakCode::SequenceError)]);
    assert_eq!(batch(&[2, 0, 1, 2]), [Reply::Ack(2)]);
    let mut bench = Bench::new();
    bench.memory.receives = 0;
    bench.feed(&send(0));
    bench.memory.receives = 1;
    let mut quiet = send(0);
    quiet.headers.bth.ack_request = false;
    assert_eq!(bench.deliver(&quiet), [Reply::Ack(0)]);
}

/// Responses leave in the order of their requests, repeated ones too (IBTA 9.7.5.1.1). Catches:
/// a repeated response behind later ones, from which the requester would take it that the
/// repeated one was lost as well.
#[test]
fn repeated_responses_keep_their_order() {
    let read = |psn| request(Op::ReadRequest, psn, 0, GOOD, 2 * MTU as u32);
    let mut bench = Bench::new();
    bench.deliver(&read(0));
    bench.feed(&read(2));
    bench.feed(&read(0));
    let psns: Vec<u32> = bench
        .take(10)
        .iter()
        .map(|packet| packet.headers.bth.psn.get())
        .collect();
    assert_eq!(psns, [0, 1, 2, 3]);
}

/// The whole range of a WRITE is looked at before its first byte is written (IBTA 9.7.4.1.6).
#[test]
fn a_write_that_ends_outside_does_not_begin() {
    let mut bench = Bench::new();
    bench.memory.region_bytes = 2 * MTU as u32 - 1;
    let said = bench.deliver(&request(Op::WriteFirst, 0, MTU, GOOD, 2 * MTU as u32));
    assert_eq!(said, [Reply::Nak(0, NakCode::RemoteAccess)]);
    assert!(bench.memory.writes.is_empty());
}

/// Extended connections (annex A14.4): every request packet names the shared receive queue, and
/// all of a message the same. Catches: a header that is missing from middle packets, or a queue
/// that changes in a message.
#[test]
fn extended_connections_name_a_receive_queue() {
    let extended = || {
        Bench::with(&Config {
            extended: true,
            ..packets::config()
        })
    };
    let mut bench = extended();
    let mut ask = |operation, length, srq| {
        let request = Request {
            seq: 0,
            operation,
            length,
            solicited: false,
            srq,
        };
        bench.connection.post(request)
    };
    let srq = Some(Qpn::new(77));
    let three = 3 * MTU as u32;
    assert!(ask(Operation::Send, three, srq).is_ok());
    assert!(ask(Operation::Read(GOOD), 10, srq).is_ok());
    assert!(ask(Operation::Send, 1, None).is_err(), "nowhere to go");
    let sent = bench.take(10);
    assert_eq!(sent.len(), 4);
    for packet in &sent {
        assert_eq!(packet.headers.bth.opcode.service(), Service::Xrc);
        assert_eq!(packet.headers.xrceth.map(|header| header.srq), srq);
        let payload = [0; MTU];
        let payload = &payload[..packet.payload.length() as usize];
        assert!(packet.headers.emit(payload, &mut [0; 400]).is_ok());
    }
    let xrc = |psn, operation, len, srq| {
        let mut packet = request(operation, psn, len, GOOD, three);
        let opcode = Opcode::new(Service::Xrc, operation).expect("it has all");
        packet.headers.bth.opcode = opcode;
        packet.headers.xrceth = Some(XrcEth { srq: Qpn::new(srq) });
        packet
    };
    let mut bench = extended();
    assert_eq!(
        bench.deliver(&request(Op::SendOnly, 0, 5, GOOD, 0)),
        [],
        "not of this service"
    );
    assert_eq!(bench.deliver(&xrc(0, Op::SendOnly, 5, 8)), [Reply::Ack(0)]);
    assert_eq!(bench.deliver(&xrc(1, Op::ReadRequest, 0, 9)).len(), 3);
    assert_eq!(
        bench.deliver(&xrc(4, Op::WriteFirst, MTU, 10)),
        [Reply::Ack(4)]
    );
    let said = bench.deliver(&xrc(5, Op::WriteMiddle, MTU, 11));
    assert_eq!(said, [Reply::Nak(5, NakCode::InvalidRequest)]);
    assert_eq!(bench.memory.selected, [8, 9, 10, 11]);
}

/// A response that is repeated and has not left is given up when its resource is needed: nobody
/// waits for it who sends that much more.
#[test]
fn what_is_forgotten_is_not_answered() {
    let mut bench = Bench::new();
    let read = request(Op::ReadRequest, 0, 0, GOOD, 8);
    assert_eq!(bench.deliver(&read).len(), 1);
    bench.feed(&read);
    for psn in 1..=packets::RESOURCES {
        bench.feed(&request(Op::FetchAdd, psn, 0, GOOD, 1));
    }
    let wanted: Vec<Reply> = (1..=packets::RESOURCES)
        .map(|psn| Reply::Atomic(psn, u64::from(psn) - 1))
        .collect();
    assert_eq!(bench.replies(), wanted);
}

/// READ data is refused, and then asked for again from before that place: the queue pair has
/// failed meanwhile and has another reason, but the peer learns the first, at the place that it
/// asked for; and who goes on behind the first place learns it there.
#[test]
fn the_first_refusal_is_the_reason() {
    let mut bench = Bench::new();
    bench.feed(&request(Op::ReadRequest, 0, 0, GOOD, 4 * MTU as u32));
    assert_eq!(bench.take(3).len(), 3);
    bench.connection.refuse_read(Psn::new(2), Refusal::Access);
    let refused = |psn| vec![Reply::Nak(psn, NakCode::RemoteAccess)];
    assert_eq!(bench.replies(), refused(2));
    let second = Remote {
        address: GOOD.address + MTU as u64,
        ..GOOD
    };
    bench.feed(&request(Op::ReadRequest, 1, 0, second, 3 * MTU as u32));
    assert_eq!(bench.take(1).len(), 1);
    bench
        .connection
        .refuse_read(Psn::new(1), Refusal::InvalidRequest);
    assert_eq!(bench.replies(), refused(1));
    assert_eq!(
        bench.deliver(&request(Op::ReadRequest, 2, 0, GOOD, 2 * MTU as u32)),
        refused(2)
    );
}
