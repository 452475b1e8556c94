//! What a responder says to each kind of packet, and a requester does with each kind of answer,
//! packet by packet, with the clause that wants it.

mod packets;

use packets::{Bench, Reply, ack, atomic, nak, read_data, request, rnr};
use sluice_protocol::rc::Config;
use sluice_protocol::{Operation, Refusal, Remote, Request, Status};
use sluice_wire::extended::{NakCode, XrcEth};
use sluice_wire::opcode::{Operation as Op, Service};
use sluice_wire::{Opcode, Qpn};

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

fn post(bench: &mut Bench, operations: &[(Operation, u32)]) {
    for (seq, (operation, length)) in operations.iter().enumerate() {
        let request = Request {
            seq: seq as u64,
            operation: *operation,
            length: *length,
            solicited: false,
            srq: None,
        };
        bench.connection.post(request).unwrap();
    }
}

/// Requester: what each NAK completes the request with (IBTA 9.9.2.4, 11.6.2), and that it says
/// that all before it was done.
#[test]
fn naks_have_their_status() {
    let table = [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        (NakCode::RemoteAccess, Status::RemoteAccess),
        (NakCode::RemoteOperational, Status::RemoteOperation),
    ];
    for (code, status) in table {
        let mut bench = Bench::new();
        post(
            &mut bench,
            &[
                (Operation::Send, 4),
                (Operation::Write(GOOD), 4),
                (Operation::Send, 4),
            ],
        );
        assert_eq!(bench.sent(), [0, 1, 2]);
        bench.feed(&nak(1, code));
        let wanted = [Status::Success, status, Status::Flushed];
        assert_eq!(bench.completed(), wanted);
        assert!(bench.connection.has_failed());
        bench.feed(&ack(2));
        assert_eq!((bench.completed(), bench.sent()), (vec![], vec![]));
    }
}

#[test]
fn acknowledgements_imply_earlier_ones() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[
            (Operation::Send, 4),
            (Operation::Write(GOOD), 4),
            (Operation::Send, 4),
        ],
    );
    bench.sent();
    bench.feed(&ack(1));
    assert_eq!(bench.completed(), [Status::Success; 2], "IBTA 9.7.5.1.4");
    bench.feed(&ack(1));
    bench.feed(&ack(3));
    bench.feed(&ack(0x80_0000));
    assert_eq!(bench.completed(), []);
    let counters = bench.connection.counters();
    assert_eq!(
        (counters.stale_responses, counters.future_responses),
        (1, 2)
    );
}

/// A READ is only done by its data: what acknowledges later requests says that it was lost.
#[test]
fn reads_are_not_implied() {
    for later in [ack(1), nak(1, NakCode::RemoteAccess), rnr(1)] {
        let mut bench = Bench::new();
        post(
            &mut bench,
            &[(Operation::Read(GOOD), 4), (Operation::Send, 4)],
        );
        assert_eq!(bench.sent(), [0, 1]);
        bench.feed(&later);
        assert_eq!(bench.completed(), []);
        assert_eq!(bench.sent(), [0, 1], "implied NAK, IBTA 9.7.5.1.4");
        bench.feed(&read_data(Op::ReadResponseOnly, 0, 4));
        assert_eq!(bench.completed(), [Status::Success]);
    }
}

#[test]
fn missing_packets_are_sent_again_with_all_behind_them() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[(Operation::Send, 5 * MTU as u32), (Operation::Send, 1)],
    );
    assert_eq!(bench.sent(), [0, 1, 2, 3, 4, 5]);
    bench.feed(&nak(2, NakCode::SequenceError));
    assert_eq!(bench.sent(), [2, 3, 4, 5], "IBTA 9.7.5.2.2");
    bench.feed(&nak(2, NakCode::SequenceError));
    assert_eq!(bench.sent(), [], "a copy of the same NAK");
    bench.feed(&ack(5));
    assert_eq!(bench.completed(), [Status::Success; 2]);
}

/// READ data of the wrong length or opcode is dropped, and with it what a liar wants to place.
#[test]
fn read_data_must_fit() {
    let length = 2 * MTU as u32 + 8;
    let wrong = [
        read_data(Op::ReadResponseFirst, 0, MTU - 4),
        read_data(Op::ReadResponseFirst, 0, MTU + 4),
        read_data(Op::ReadResponseOnly, 0, MTU),
        read_data(Op::ReadResponseLast, 0, 8),
        read_data(Op::ReadResponseMiddle, 2, 8),
        read_data(Op::ReadResponseLast, 2, 9),
        read_data(Op::ReadResponseLast, 1, MTU),
        atomic(0, 1),
    ];
    let mut bench = Bench::new();
    post(&mut bench, &[(Operation::Read(GOOD), length)]);
    bench.sent();
    for packet in &wrong {
        bench.feed(packet);
    }
    assert_eq!(
        bench.connection.counters().bad_responses,
        wrong.len() as u64
    );
    assert_eq!(bench.memory.placed, []);
    let right = [
        (Op::ReadResponseFirst, MTU),
        (Op::ReadResponseMiddle, MTU),
        (Op::ReadResponseLast, 8),
    ];
    for (psn, (operation, len)) in right.into_iter().enumerate() {
        assert_eq!(bench.completed(), []);
        bench.feed(&read_data(operation, psn as u32, len));
    }
    assert_eq!(bench.completed(), [Status::Success]);
    assert_eq!(
        bench.memory.placed,
        [(0, 0, MTU), (0, MTU, MTU), (0, 2 * MTU, 8)]
    );
}

/// No more READs and atomics under way than the peer has resources for (IBTA 9.7.4.1.3), and what
/// is behind them waits, since requests leave in order.
#[test]
fn reads_under_way_are_limited() {
    let mut bench = Bench::new();
    let reads = packets::RESOURCES as usize;
    let mut operations = vec![(Operation::Read(GOOD), 4); reads + 2];
    operations.push((Operation::Send, 4));
    post(&mut bench, &operations);
    let all: Vec<u32> = (0..reads as u32 + 3).collect();
    assert_eq!(bench.sent(), all[..reads]);
    bench.feed(&read_data(Op::ReadResponseOnly, 0, 4));
    assert_eq!(bench.sent(), all[reads..=reads]);
    bench.feed(&read_data(Op::ReadResponseOnly, 1, 4));
    assert_eq!(bench.sent(), all[reads + 1..]);
}

/// Memory that cannot be had any more, of a request and of the one behind it.
#[test]
fn a_request_whose_memory_is_gone() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[
            (Operation::Send, 4),
            (Operation::Send, 4),
            (Operation::Send, 4),
        ],
    );
    assert_eq!(bench.sent(), [0, 1, 2]);
    bench.connection.fail_request(1);
    assert_eq!(bench.completed(), []);
    bench.feed(&ack(0));
    let wanted = [Status::Success, Status::LocalProtection, Status::Flushed];
    assert_eq!(bench.completed(), wanted);
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

/// The last packet of each message asks for an acknowledgement, and so does the last that the
/// window has room for. Catches: a requester that waits for what nobody was asked for.
#[test]
fn whoever_waits_has_asked() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[
            (Operation::Send, 3 * MTU as u32),
            (Operation::Write(GOOD), 200 * MTU as u32),
        ],
    );
    let asks: Vec<u32> = bench
        .take(1000)
        .iter()
        .filter(|packet| packet.headers.bth.ack_request)
        .map(|packet| packet.headers.bth.psn.get())
        .collect();
    // A window of 64 packets, and a quarter of it between two questions.
    assert_eq!(asks, [2, 19, 36, 53, 63]);
    bench.feed(&ack(53));
    assert_eq!(bench.take(1000).len(), 54);
}

/// 2²³ numbers at most are under way, so that old and new can be told apart (IBTA 9.7.5.1.1).
#[test]
fn half_of_the_numbers_are_under_way_at_most() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[(Operation::Read(GOOD), 1 << 31), (Operation::Send, 1)],
    );
    assert_eq!(bench.sent(), [0], "2³¹ bytes of 256 are all there may be");
    bench.feed(&read_data(Op::ReadResponseFirst, 0, MTU));
    assert_eq!(bench.sent(), [0x80_0000]);
    assert_eq!(bench.connection.counters().future_responses, 0);
}

/// A queue pair answers in RTR, and learns in RTS how to ask.
#[test]
fn the_sending_half_begins_later() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.deliver(&request(Op::SendOnly, 0, 5, GOOD, 0)),
        [Reply::Ack(0)]
    );
    let mut config = packets::config();
    config.send_psn = sluice_wire::Psn::new(500);
    config.retry_cnt = 0;
    bench.connection.ready_to_send(&config);
    post(&mut bench, &[(Operation::Send, 4), (Operation::Send, 4)]);
    assert_eq!(bench.sent(), [500, 501]);
    assert_eq!(
        bench.deliver(&request(Op::SendOnly, 1, 5, GOOD, 0)),
        [Reply::Ack(1)]
    );
    // Without retries the first sequence error is the last; unless there are some after all.
    config.retry_cnt = 1;
    bench.connection.change(&config);
    bench.feed(&ack(500));
    bench.feed(&nak(501, NakCode::SequenceError));
    assert_eq!(bench.sent(), [501]);
    bench.connection.stop();
    assert_eq!(bench.completed(), [Status::Success, Status::Flushed]);
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

/// Everything on its way was lost. Catches: a repair of one packet for each probe.
#[test]
fn a_lost_tail_costs_one_probe() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[(Operation::Send, 3 * MTU as u32), (Operation::Send, 1)],
    );
    assert_eq!(bench.sent(), [0, 1, 2, 3]);
    let deadline = bench.connection.deadline().expect("a probe");
    bench.expire(deadline.nanos());
    assert_eq!(bench.sent(), [0]);
    bench.feed(&ack(0));
    assert_eq!(bench.sent(), [1, 2, 3]);
    assert_eq!(bench.connection.counters().timeouts, 0);
}

/// With a peer that keeps what comes early within a WRITE, only the missing packet is sent again,
/// and what came after the WRITE, which was not kept. Catches: an assumption too much or too
/// little of what the peer has.
#[test]
fn only_what_is_missing_is_sent_again() {
    let write = Operation::Write(GOOD);
    let immediate = Operation::WriteImmediate(GOOD, sluice_wire::extended::ImmDt([0; 4]));
    let table: [(Operation, u32, &[u32]); 5] = [
        (write, 2, &[2, 6, 7]),
        (write, 5, &[5, 6, 7]),
        (write, 0, &[0, 1, 2, 3, 4, 5, 6, 7]),
        (immediate, 2, &[2, 5, 6, 7]),
        (Operation::Send, 2, &[2, 3, 4, 5, 6, 7]),
    ];
    for (operation, missing, again) in table {
        let mut bench = Bench::with(&Config {
            early: true,
            ..packets::config()
        });
        post(
            &mut bench,
            &[
                (operation, 6 * MTU as u32),
                (Operation::Send, 2 * MTU as u32),
            ],
        );
        assert_eq!(bench.sent().len(), 8);
        bench.feed(&nak(missing, NakCode::SequenceError));
        assert_eq!(bench.sent(), again, "{operation:?} {missing}");
    }
    // No more than the peer has room to remember.
    let mut bench = Bench::with(&Config {
        early: true,
        window: 1000,
        ..packets::config()
    });
    post(&mut bench, &[(write, 300 * MTU as u32)]);
    assert_eq!(bench.sent().len(), 300);
    bench.feed(&nak(7, NakCode::SequenceError));
    let again: Vec<u32> = [7].into_iter().chain(7 + 256..300).collect();
    assert_eq!(bench.sent(), again);
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

/// Copies of an RNR NAK count once (IBTA 9.7.5.2.8). Catches: a network that duplicates makes
/// connections fail.
#[test]
fn copies_of_an_rnr_nak_count_once() {
    let mut bench = Bench::with(&Config {
        rnr_retry: 1,
        ..packets::config()
    });
    post(&mut bench, &[(Operation::Send, 1)]);
    assert_eq!(bench.sent(), [0]);
    bench.feed(&rnr(0));
    bench.feed(&rnr(0));
    bench.expire(5_000);
    assert_eq!(bench.sent(), [], "10 µs are not over");
    bench.expire(10_000);
    // Before the request is sent again nobody can have an opinion on it.
    bench.feed(&rnr(0));
    assert_eq!(bench.sent(), [0]);
    assert_eq!(bench.completed(), []);
    bench.feed(&rnr(0));
    assert_eq!(bench.completed(), [Status::RnrRetryExceeded]);
}
