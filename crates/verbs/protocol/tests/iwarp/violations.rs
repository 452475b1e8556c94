//! What a peer may not do, and what it is told then: the codes of RFC 5040 §4.8, RFC 5041 §7.2 and
//! RFC 5044 §8. And what this end makes of being told.

use std::time::Duration;

use sluice_protocol::iwarp::{
    Config, Connection, Failure, First, Payload, Refusal, Rtr, Settings, Stream,
};
use sluice_protocol::{Instant, Operation, PostError, Remote, Status};
use sluice_wire::extended::ImmDt;
use sluice_wire::iwarp::message::{AtomicRequest, AtomicResponse, Operation as Op, ReadRequest};
use sluice_wire::iwarp::terminate::{Culprit, Mpa, Rdmap, TaggedError, UntaggedError};
use sluice_wire::iwarp::{Cause, Header, Kind, Segment, Tagged, Terminate, Untagged, fpdu};

use super::harness::{Ledger, render, request};

const NOW: Instant = Instant::from_nanos(0);
const KEY: u32 = 0xa1b2_c300;
const BASE: u64 = 0x7000_0000_0000;

fn settings(crc: bool) -> Settings {
    Settings {
        crc,
        ird: 1,
        ord: 2,
        first: First::Own(None),
        long_frames: false,
    }
}

fn config(settings: Settings) -> Config {
    Config {
        settings,
        mulpdu: 1442,
        depth: 4,
        receive_wait: Duration::ZERO,
        close_wait: Duration::from_secs(1),
        keepalive: Duration::ZERO,
    }
}

fn ulpdu(last: bool, kind: Kind, payload: &[u8]) -> Vec<u8> {
    let header = Header { last, kind };
    let mut bytes = vec![0; header.bytes()];
    header.emit(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn framed(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut bytes = vec![0; fpdu::bytes(ulpdu.len())];
    fpdu::emit(ulpdu, crc, &mut bytes).unwrap();
    bytes
}

fn at(msn: u32, offset: u32) -> Untagged {
    Untagged { msn, offset }
}

fn send(msn: u32, offset: u32) -> Kind {
    Kind::Send {
        place: at(msn, offset),
        solicited: false,
        invalidate: None,
    }
}

fn write(stag: u32, offset: u64) -> Kind {
    Kind::Write(Tagged { stag, offset })
}

fn read(source_stag: u32, source_offset: u64, length: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: 1,
        sink_offset: 0,
        length,
        source_stag,
        source_offset,
    };
    request.emit().to_vec()
}

fn atomic(stag: u32, offset: u64, operation: Op) -> Vec<u8> {
    let request = AtomicRequest {
        id: 1,
        stag,
        offset,
        operation,
    };
    request.emit().to_vec()
}

const REGION: Remote = Remote {
    address: BASE,
    rkey: KEY,
};

/// An end with a receive, a READ of 8 bytes and a SEND that wait.
fn victim(crc: bool) -> (Connection, Ledger) {
    let mut connection = Connection::new(&config(settings(crc)));
    let mut ledger = Ledger::new(0);
    ledger.receives = 1;
    ledger.answers.insert(0, vec![0; 8]);
    connection
        .post(request(0, Operation::Read(REGION), 8))
        .unwrap();
    assert!(connection.transmit().is_some());
    connection.post(request(1, Operation::Send, 4)).unwrap();
    (connection, ledger)
}

/// The same with an atomic operation in place of the READ.
fn atomic_victim(crc: bool) -> (Connection, Ledger) {
    let mut connection = Connection::new(&config(settings(crc)));
    let mut ledger = Ledger::new(0);
    ledger.answers.insert(0, vec![0; 8]);
    let add = Operation::FetchAdd {
        remote: REGION,
        add: 1,
    };
    connection.post(request(0, add, 8)).unwrap();
    assert!(connection.transmit().is_some());
    connection.post(request(1, Operation::Send, 4)).unwrap();
    (connection, ledger)
}

/// What the peer is told.
fn told(connection: &mut Connection) -> Option<Terminate> {
    let frame = connection.transmit()?;
    let bytes = render(&frame, &[]);
    let (ulpdu, _) = fpdu::parse(&bytes, frame.has_crc()).unwrap().unwrap();
    let segment = Segment::parse(ulpdu).unwrap();
    assert!(segment.header().last);
    match segment.header().kind {
        Kind::Terminate(place) => assert_eq!((place.msn, place.offset), (1, 0)),
        kind => panic!("{kind:?} instead of a Terminate message"),
    }
    Some(Terminate::parse(segment.payload()).unwrap())
}

/// The frames are refused for that reason, be there CRCs or not, and however they are cut.
#[track_caller]
fn refused(ulpdus: &[&[u8]], cause: Cause) {
    refused_by(victim, ulpdus, cause);
}

#[track_caller]
fn refused_by(victim: fn(bool) -> (Connection, Ledger), ulpdus: &[&[u8]], cause: Cause) {
    for crc in [false, true] {
        for piece in [1, 7, usize::MAX] {
            let (mut connection, mut ledger) = victim(crc);
            let stream: Vec<u8> = ulpdus.iter().flat_map(|ulpdu| framed(ulpdu, crc)).collect();
            let mut staged = Vec::new();
            for bytes in stream.chunks(piece.min(stream.len())) {
                assert_eq!(connection.failure(), None, "not yet");
                staged.extend(bytes);
                let used = connection.receive(NOW, &staged, &mut ledger);
                staged.drain(..used);
                if connection.failure().is_some() {
                    break;
                }
            }
            assert_eq!(connection.failure(), Some(&Failure::Own(cause)));
            assert_eq!(connection.stream(), Stream::Open, "it is still to be said");
            let said = told(&mut connection).unwrap();
            assert_eq!(said.cause, cause);
            let culprit = said.culprit.expect("the segment is named");
            let at_fault = ulpdus.last().unwrap();
            assert!(at_fault.starts_with(culprit.header()));
            assert_eq!(usize::from(culprit.length), at_fault.len());
            assert_eq!(connection.transmit(), None, "only once");
            assert_eq!(connection.stream(), Stream::Finish);
            // All is over, in order, and nothing more is looked at.
            let ended: Vec<_> = core::iter::from_fn(|| connection.completion()).collect();
            let statuses: Vec<_> = ended.iter().map(|done| done.status).collect();
            assert_eq!(statuses, [Status::Flushed, Status::Flushed]);
            assert_eq!(
                connection.post(request(2, Operation::Send, 1)),
                Err(PostError::Failed)
            );
            let puts = ledger.puts;
            let more = framed(&ulpdu(true, write(KEY, BASE), b"x"), crc);
            assert_eq!(connection.receive(NOW, &more, &mut ledger), more.len());
            assert_eq!(ledger.puts, puts);
            // And a peer that stays is reset.
            let deadline = connection.deadline().expect("some time");
            connection.expire(deadline, &mut ledger);
            assert_eq!(connection.stream(), Stream::Reset);
        }
    }
}

#[test]
fn wrong_versions_opcodes_and_queues() {
    let good = ulpdu(true, send(1, 0), b"abc");
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let version = Cause::Untagged(UntaggedError::Version);
    refused(&[&with(0, 0x42)], version);
    let version = Cause::Operation(Rdmap::Version);
    refused(&[&with(1, 0x83)], version);
    refused(&[&with(1, 0x4c)], Cause::Operation(Rdmap::Opcode));
    refused(&[&with(9, 1)], Cause::Untagged(UntaggedError::Queue));
    let mut tagged = ulpdu(true, write(KEY, BASE), b"abc");
    tagged[0] = 0xc2;
    refused(&[&tagged], Cause::Tagged(TaggedError::Version));
    tagged[0] = 0xc1;
    tagged[1] = 0x43;
    refused(&[&tagged], Cause::Operation(Rdmap::Opcode));
}

#[test]
fn writes_that_are_not_allowed() {
    let tagged = Cause::Tagged;
    let try_at =
        |stag, offset, cause| refused(&[&ulpdu(true, write(stag, offset), b"abcd")], cause);
    try_at(KEY + 1, BASE, tagged(TaggedError::InvalidStag));
    try_at(KEY, BASE - 1, tagged(TaggedError::Bounds));
    try_at(KEY, BASE + 8190, tagged(TaggedError::Bounds));
    try_at(KEY, u64::MAX - 2, tagged(TaggedError::Wrap));
    // Of the half that may be read only.
    try_at(KEY, BASE + 4096, Cause::Protection(Rdmap::AccessRights));
}

#[test]
fn sends_out_of_order_or_too_long() {
    let untagged = Cause::Untagged;
    refused(
        &[&ulpdu(true, send(2, 0), b"a")],
        untagged(UntaggedError::MsnRange),
    );
    refused(
        &[&ulpdu(true, send(1, 1), b"a")],
        untagged(UntaggedError::Offset),
    );
    let first = ulpdu(false, send(1, 0), b"abcd");
    refused(
        &[&first, &ulpdu(true, send(1, 3), b"a")],
        untagged(UntaggedError::Offset),
    );
    refused(
        &[&ulpdu(true, send(1, 0), &[0; 3001])],
        untagged(UntaggedError::TooLong),
    );
    refused(
        &[&first, &ulpdu(true, send(1, 4), &[0; 2997])],
        untagged(UntaggedError::TooLong),
    );
    let whole = ulpdu(true, send(1, 0), b"abcd");
    refused(
        &[&whole, &ulpdu(true, send(2, 0), b"a")],
        untagged(UntaggedError::NoBuffer),
    );
    let immediate = Kind::Immediate {
        place: at(2, 0),
        solicited: false,
    };
    refused(
        &[&whole, &ulpdu(true, immediate, &[0; 8])],
        untagged(UntaggedError::NoBuffer),
    );
    let invalidate = Kind::Send {
        place: at(1, 0),
        solicited: true,
        invalidate: Some(0),
    };
    let cause = Cause::Protection(Rdmap::CannotInvalidate);
    refused(&[&ulpdu(true, invalidate, b"")], cause);
}

#[test]
fn reads_that_are_not_allowed() {
    let ask = |msn, message: &[u8]| ulpdu(true, Kind::ReadRequest(at(msn, 0)), message);
    let good = read(KEY, BASE, 8);
    let protection = Cause::Protection;
    let cases = [
        (read(KEY + 1, BASE, 8), protection(Rdmap::InvalidStag)),
        (read(KEY, BASE + 8185, 8), protection(Rdmap::Bounds)),
        (read(KEY, u64::MAX - 3, 8), protection(Rdmap::Wrap)),
    ];
    for (message, cause) in cases {
        refused(&[&ask(1, &message)], cause);
    }
    refused(&[&ask(2, &good)], Cause::Untagged(UntaggedError::MsnRange));
    // More at a time than was agreed on.
    let flood = Cause::Untagged(UntaggedError::NoBuffer);
    refused(&[&ask(1, &good), &ask(2, &good)], flood);
    refused(&[&ask(1, &good[..27])], Cause::DdpCatastrophic);
    let long = [&good[..], &[0; 5000]].concat();
    refused(&[&ask(1, &long)], Cause::Untagged(UntaggedError::TooLong));
    let split = ulpdu(false, Kind::ReadRequest(at(1, 0)), &good);
    refused(&[&split], Cause::DdpCatastrophic);
}

#[test]
fn atomics_that_are_not_allowed() {
    let add = Op::FetchAdd { add: 1, mask: 0 };
    let ask = |message: &[u8]| ulpdu(true, Kind::AtomicRequest(at(1, 0)), message);
    let rights = Cause::Protection(Rdmap::AccessRights);
    refused(&[&ask(&atomic(KEY, BASE + 4096, add))], rights);
    let unsupported = Cause::Operation(Rdmap::Unspecified);
    refused(&[&ask(&atomic(KEY, BASE + 1, add))], unsupported);
    let fields = Op::FetchAdd { add: 1, mask: 2 };
    refused(&[&ask(&atomic(KEY, BASE, fields))], unsupported);
    let mut unknown = atomic(KEY, BASE, add);
    unknown[3] = 7;
    refused(&[&ask(&unknown)], unsupported);
    let good = atomic(KEY, BASE, add);
    refused(&[&ask(&good[..good.len() - 1])], Cause::DdpCatastrophic);
    let long = [&good[..], &[0]].concat();
    refused(&[&ask(&long)], Cause::Untagged(UntaggedError::TooLong));
}

#[test]
fn answers_that_nobody_asked_for() {
    let answer = |stag, offset| Kind::ReadResponse(Tagged { stag, offset });
    let tagged = Cause::Tagged;
    // The READ that waits is number 0, and wants 8 bytes.
    refused(
        &[&ulpdu(true, answer(1, 0), &[0; 8])],
        tagged(TaggedError::InvalidStag),
    );
    for (last, offset, length) in [
        (true, 1, 7),
        (true, 0, 7),
        (false, 0, 8),
        (true, 0, 9),
        (false, 0, 0),
    ] {
        refused(
            &[&ulpdu(last, answer(0, offset), &vec![0; length])],
            tagged(TaggedError::Bounds),
        );
    }
    // A second segment that runs over, with the end of the answer or without.
    for last in [true, false] {
        let first = ulpdu(false, answer(0, 0), &[0; 4]);
        let second = ulpdu(last, answer(0, 4), &[0; 5]);
        refused(&[&first, &second], tagged(TaggedError::Bounds));
    }
    let response = AtomicResponse { id: 0, original: 1 };
    let kind = Kind::AtomicResponse(at(1, 0));
    let unexpected = Cause::Operation(Rdmap::Opcode);
    refused(&[&ulpdu(true, kind, &response.emit())], unexpected);
}

/// Its size is fixed: 12 bytes, in one segment.
#[test]
fn answers_to_an_atomic_that_have_another_size() {
    let response = AtomicResponse { id: 0, original: 1 }.emit();
    let longer = [&response[..], &[0; 4]].concat();
    let answer = |last, offset, bytes: &[u8]| {
        let kind = Kind::AtomicResponse(at(1, offset));
        ulpdu(last, kind, bytes)
    };
    let untagged = Cause::Untagged;
    for length in [0, 1, 4, 8, 11] {
        refused_by(
            atomic_victim,
            &[&answer(true, 0, &response[..length])],
            Cause::DdpCatastrophic,
        );
    }
    for length in [13, 16] {
        refused_by(
            atomic_victim,
            &[&answer(true, 0, &longer[..length])],
            untagged(UntaggedError::TooLong),
        );
    }
    // The first of several segments.
    refused_by(
        atomic_victim,
        &[&answer(false, 0, &response)],
        Cause::DdpCatastrophic,
    );
    refused_by(
        atomic_victim,
        &[&answer(true, 4, &response[4..])],
        untagged(UntaggedError::Offset),
    );
    let (mut connection, mut ledger) = atomic_victim(false);
    let right = framed(&answer(true, 0, &response), false);
    assert_eq!(
        connection.receive(NOW, &right, &mut ledger),
        right.len(),
        "one of the right size is taken"
    );
    assert_eq!(connection.failure(), None);
    let done = connection.completion().unwrap();
    assert_eq!((done.seq, done.status), (0, Status::Success));
}

#[test]
fn segments_that_are_no_segments() {
    refused_bare(&[0, 0, 0, 0, 0, 0, 0, 0]);
    refused_bare(&framed(&[0xc1], false));
    refused_bare(&framed(&[0xc1, 0x40, 0, 0], false));
}

/// A frame too short for a header, which then is not named.
fn refused_bare(stream: &[u8]) {
    let (mut connection, mut ledger) = victim(false);
    assert_eq!(connection.receive(NOW, stream, &mut ledger), stream.len());
    let said = told(&mut connection).unwrap();
    assert_eq!((said.cause, said.culprit), (Cause::DdpCatastrophic, None));
}

#[test]
fn a_damaged_frame_is_not_placed() {
    let good = framed(&ulpdu(true, write(KEY, BASE), b"abcd"), true);
    for at in 2..good.len() {
        let (mut connection, mut ledger) = victim(true);
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        assert_eq!(connection.expected(), None);
        connection.receive(NOW, &bytes, &mut ledger);
        assert_eq!(told(&mut connection).unwrap().cause, Cause::Mpa(Mpa::Crc));
        assert_eq!(ledger.puts, 0);
    }
}

/// Placed as it comes, and not delivered before the last byte of the frame.
#[test]
fn placement_comes_before_delivery() {
    let (mut connection, mut ledger) = victim(false);
    let bytes = framed(&ulpdu(true, send(1, 0), b"abcdef"), false);
    for end in 1..bytes.len() {
        let (mut connection, mut ledger) = victim(false);
        let used = connection.receive(NOW, &bytes[..end], &mut ledger);
        assert!(ledger.messages.is_empty(), "delivered after {end} bytes");
        assert_eq!(ledger.puts > 0, end > 20, "placed after {end} bytes");
        let rest = [&bytes[used..end], &bytes[end..]].concat();
        assert_eq!(connection.receive(NOW, &rest, &mut ledger), rest.len());
        assert_eq!(ledger.messages.len(), 1);
    }
    // What a program has taken back meanwhile is not written.
    connection.receive(NOW, &bytes[..22], &mut ledger);
    assert!(connection.expected().is_some());
    connection.refuse_placement(NOW, Refusal::InvalidStag, &mut ledger);
    let said = told(&mut connection).unwrap();
    assert_eq!(said.cause, Cause::DdpCatastrophic);
    assert_eq!(ledger.messages[0].received.status, Status::LocalProtection);
}

/// Programs look at the end of a WRITE until it has come: it is stored once, when all of it is there.
#[test]
fn the_end_of_a_write_is_placed_at_once() {
    for (last, direct) in [(true, 12), (false, 20)] {
        let ulpdu = ulpdu(last, write(KEY, BASE), b"aaaabbbbccccdddddddd");
        let bytes = framed(&ulpdu, false);
        let head = fpdu::LENGTH_BYTES + ulpdu.len() - 20;
        for end in head..head + 20 {
            let (mut connection, mut ledger) = victim(false);
            let used = connection.receive(NOW, &bytes[..end], &mut ledger);
            assert_eq!(used - head, (end - head).min(direct), "of {end} bytes");
            let next = connection.expected().map(|next| next.length);
            assert_eq!(next, (used < head + direct).then_some(direct + head - used));
            let puts = ledger.puts;
            let rest = &bytes[used..];
            assert_eq!(connection.receive(NOW, rest, &mut ledger), rest.len());
            assert_eq!(ledger.puts, puts + 1);
        }
    }
}

#[test]
fn a_send_waits_for_its_receive() {
    let wait = Duration::from_millis(5);
    let mut connection = Connection::new(&Config {
        receive_wait: wait,
        ..config(settings(true))
    });
    let mut ledger = Ledger::new(0);
    let bytes = framed(&ulpdu(true, send(1, 0), b"abc"), true);
    assert_eq!(connection.receive(NOW, &bytes, &mut ledger), 0);
    assert!(connection.is_stalled());
    let deadline = connection.deadline().unwrap();
    assert_eq!(deadline, NOW.after(wait));
    // Looking again does not begin the time anew.
    connection.receive(Instant::from_nanos(1000), &bytes, &mut ledger);
    assert_eq!(connection.deadline(), Some(deadline));
    connection.expire(Instant::from_nanos(2000), &mut ledger);
    assert!(connection.is_stalled(), "too early");
    ledger.receives = 1;
    assert_eq!(connection.receive(NOW, &bytes, &mut ledger), bytes.len());
    assert_eq!(ledger.messages[0].bytes.as_deref(), Some(&b"abc"[..]));
    assert_eq!(
        (connection.is_stalled(), connection.deadline()),
        (false, None)
    );
    // And none comes.
    let bytes = framed(&ulpdu(true, send(2, 0), b"abc"), true);
    assert_eq!(connection.receive(NOW, &bytes, &mut ledger), 0);
    connection.expire(deadline, &mut ledger);
    let said = told(&mut connection).unwrap();
    assert_eq!(said.cause, Cause::Untagged(UntaggedError::NoBuffer));
    assert!(said.culprit.is_some(), "the sender learns which one");
}

/// The peer gives the connection up; how the requests end.
fn ended_by(connection: &mut Connection, message: Terminate, ledger: &mut Ledger) -> Vec<Status> {
    let mut buffer = [0; Terminate::BYTES_MAX];
    let used = message.emit(&mut buffer).unwrap();
    let kind = Kind::Terminate(at(1, 0));
    let bytes = framed(&ulpdu(true, kind, &buffer[..used]), false);
    connection.receive(NOW, &bytes, ledger);
    assert_eq!(connection.failure(), Some(&Failure::Peer(message)));
    let ended = core::iter::from_fn(|| connection.completion());
    ended.map(|done| done.status).collect()
}

#[test]
fn being_told_ends_the_request_at_fault() {
    let ask = ulpdu(true, Kind::ReadRequest(at(2, 0)), &read(KEY, 0, 8));
    let sent = ulpdu(true, send(1, 0), b"abcd");
    let cases = [
        (
            Cause::Protection(Rdmap::Bounds),
            Some(&ask),
            [Status::Flushed, Status::RemoteAccess, Status::Flushed],
        ),
        (
            Cause::Untagged(UntaggedError::NoBuffer),
            Some(&sent),
            [Status::Flushed, Status::Flushed, Status::RnrRetryExceeded],
        ),
        // Which one is not said: the oldest that waits.
        (
            Cause::Protection(Rdmap::InvalidStag),
            None,
            [Status::RemoteAccess, Status::Flushed, Status::Flushed],
        ),
        (
            Cause::Mpa(Mpa::Crc),
            None,
            [Status::Flushed, Status::Flushed, Status::Flushed],
        ),
    ];
    for (cause, culprit, wanted) in cases {
        let mut connection = Connection::new(&config(settings(false)));
        let mut ledger = Ledger::new(0);
        for (seq, operation) in [
            Operation::Read(REGION),
            Operation::Read(REGION),
            Operation::Send,
        ]
        .into_iter()
        .enumerate()
        {
            let length = 8;
            connection
                .post(request(seq as u64, operation, length))
                .unwrap();
            assert!(connection.transmit().is_some());
        }
        let message = Terminate {
            cause,
            culprit: culprit.map(|bytes| Culprit::new(bytes, bytes.len() as u16).unwrap()),
        };
        let statuses = ended_by(&mut connection, message, &mut ledger);
        assert_eq!(statuses, wanted);
        // It is not answered.
        assert_eq!(connection.transmit(), None);
        assert_eq!(connection.stream(), Stream::Finish);
    }
}

/// A peer may refuse a WRITE whose last bytes have not left; one that has left altogether was done.
#[test]
fn being_told_ends_the_write_under_way() {
    let begun = [Status::RemoteAccess, Status::Flushed];
    let left = [Status::Success, Status::Flushed];
    // Frames given out, of which the first so many have left; what was refused; how both end.
    let cases = [
        (1, 1, write(KEY, BASE), begun),
        (3, 2, write(KEY, BASE + 299), begun),
        (3, 3, write(KEY, BASE), left),
        (0, 0, write(KEY, BASE), [Status::Flushed; 2]),
        (1, 1, write(KEY, BASE + 300), [Status::Flushed; 2]),
        (1, 1, write(KEY, BASE - 1), [Status::Flushed; 2]),
        (1, 1, write(KEY ^ 1, BASE), [Status::Flushed; 2]),
    ];
    for (given, gone, kind, wanted) in cases {
        let mut connection = Connection::new(&Config {
            mulpdu: 128,
            ..config(settings(false))
        });
        let mut ledger = Ledger::new(0);
        for seq in 0..2 {
            let write = request(seq, Operation::Write(REGION), 300);
            connection.post(write).unwrap();
        }
        let frames: Vec<_> = core::iter::from_fn(|| connection.transmit())
            .take(given)
            .collect();
        if let Some(last) = usize::checked_sub(gone, 1) {
            connection.released(frames[last].end);
        }
        let header = ulpdu(false, kind, &[]);
        let message = Terminate {
            cause: Cause::Protection(Rdmap::AccessRights),
            culprit: Culprit::new(&header, 100),
        };
        let statuses = ended_by(&mut connection, message, &mut ledger);
        assert_eq!(statuses, wanted, "{given} {gone} {message:?}");
    }
}

/// READs wait for each other, at most as many as were agreed on, and what is behind them too.
#[test]
fn no_more_reads_than_ord() {
    let mut connection = Connection::new(&config(settings(false)));
    let mut ledger = Ledger::new(0);
    for seq in 0..3 {
        ledger.answers.insert(seq, vec![0; 4]);
        connection
            .post(request(seq, Operation::Read(REGION), 4))
            .unwrap();
    }
    connection.post(request(3, Operation::Send, 4)).unwrap();
    assert_eq!(
        connection.post(request(4, Operation::Send, 4)),
        Err(PostError::Full)
    );
    let asked = core::iter::from_fn(|| connection.transmit()).count();
    assert_eq!(asked, 2);
    let place = Tagged { stag: 0, offset: 0 };
    let answer = framed(&ulpdu(true, Kind::ReadResponse(place), b"wxyz"), false);
    connection.receive(NOW, &answer, &mut ledger);
    assert_eq!(ledger.answers[&0], b"wxyz");
    let frames: Vec<_> = core::iter::from_fn(|| connection.transmit()).collect();
    assert_eq!(frames.len(), 2);
    assert!(matches!(frames[1].payload, Payload::Request { seq: 3, .. }));
    assert_eq!(connection.completion().map(|done| done.seq), Some(0));
    // The SEND is written, but not before the READs that were asked for earlier.
    connection.released(frames[1].end);
    assert_eq!(connection.completion(), None);
}

#[test]
fn what_there_is_not_is_not_taken() {
    let none = Settings {
        ord: 0,
        ..settings(false)
    };
    let mut connection = Connection::new(&config(none));
    let immediate = Operation::SendImmediate(ImmDt([0; 4]));
    let add = Operation::FetchAdd {
        remote: REGION,
        add: 1,
    };
    for (operation, length) in [(immediate, 4), (add, 8), (Operation::Read(REGION), 4)] {
        let refused = connection.post(request(0, operation, length));
        assert_eq!(refused, Err(PostError::Illegal));
    }
    let mut connection = Connection::new(&config(settings(false)));
    assert_eq!(connection.post(request(0, add, 4)), Err(PostError::Illegal));
    let long = request(0, Operation::Send, (1 << 31) + 1);
    assert_eq!(connection.post(long), Err(PostError::Illegal));
}

/// A responder keeps silent until the initiator has sent something, be that nothing.
#[test]
fn the_initiator_sends_first() {
    for rtr in [Rtr::Empty, Rtr::Write, Rtr::Read] {
        let first = |first| Settings {
            first,
            ..settings(true)
        };
        let mut initiator = Connection::new(&config(first(First::Own(Some(rtr)))));
        let mut responder = Connection::new(&config(first(First::Peer)));
        let (mut own, mut other) = (Ledger::new(0), Ledger::new(1));
        responder.post(request(0, Operation::Send, 0)).unwrap();
        assert_eq!(responder.transmit(), None);
        let frame = initiator.transmit().expect("ready to receive");
        assert_eq!(initiator.transmit(), None);
        initiator.released(frame.end);
        assert_eq!(initiator.completion(), None, "no program asked for it");
        let bytes = render(&frame, &[]);
        let used = responder.receive(NOW, &bytes, &mut other);
        assert_eq!((used, other.puts), (bytes.len(), 0));
        assert_eq!(responder.failure(), None);
        own.receives = 1;
        while let Some(frame) = responder.transmit() {
            let bytes = render(&frame, &[]);
            initiator.receive(NOW, &bytes, &mut own);
        }
        assert_eq!((initiator.failure(), own.messages.len()), (None, 1));
        initiator.close();
        assert_eq!(initiator.stream(), Stream::Finish);
    }
}

#[test]
fn memory_that_is_gone_ends_the_connection() {
    // Of a request of our own.
    let mut connection = Connection::new(&config(settings(false)));
    let mut ledger = Ledger::new(0);
    connection.post(request(0, Operation::Send, 8)).unwrap();
    connection.post(request(1, Operation::Send, 8)).unwrap();
    let frame = connection.transmit().unwrap();
    connection.fail_gather(NOW, &frame, Refusal::Local, &mut ledger);
    assert_eq!(
        told(&mut connection).unwrap().cause,
        Cause::RdmapCatastrophic
    );
    let statuses: Vec<_> = core::iter::from_fn(|| connection.completion())
        .map(|done| done.status)
        .collect();
    assert_eq!(statuses, [Status::LocalProtection, Status::Flushed]);
    // Of a region that the peer reads: its frame takes no place in the stream.
    let mut connection = Connection::new(&config(settings(false)));
    let ask = framed(
        &ulpdu(true, Kind::ReadRequest(at(1, 0)), &read(KEY, BASE, 8)),
        false,
    );
    connection.receive(NOW, &ask, &mut ledger);
    let frame = connection.transmit().unwrap();
    connection.fail_gather(NOW, &frame, Refusal::InvalidStag, &mut ledger);
    let last = connection.transmit().unwrap();
    assert_eq!(last.end, last.bytes() as u64);
    let bytes = render(&last, &[]);
    let (ulpdu, _) = fpdu::parse(&bytes, false).unwrap().unwrap();
    let said = Terminate::parse(Segment::parse(ulpdu).unwrap().payload()).unwrap();
    assert_eq!(said.cause, Cause::Protection(Rdmap::InvalidStag));
}

/// Whoever has closed its direction cannot answer, and does not leave the peer waiting.
#[test]
fn a_read_after_the_end_breaks_the_connection() {
    let mut connection = Connection::new(&config(settings(false)));
    let mut ledger = Ledger::new(0);
    connection.close();
    assert_eq!(connection.stream(), Stream::Finish);
    let ask = framed(
        &ulpdu(true, Kind::ReadRequest(at(1, 0)), &read(KEY, BASE, 8)),
        false,
    );
    connection.receive(NOW, &ask, &mut ledger);
    assert_eq!(connection.transmit(), None);
    assert_eq!(connection.stream(), Stream::Reset);
}
