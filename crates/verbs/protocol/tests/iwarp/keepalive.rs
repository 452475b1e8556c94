//! A peer that does not answer is sent a WRITE of nothing, which means nothing to it.

use std::time::Duration;

use sluice_protocol::iwarp::{Config, Connection, First, Frame, Payload, Rtr, Settings, Stream};
use sluice_protocol::{Instant, Operation, Remote};
use sluice_wire::iwarp::{Kind, Segment, fpdu};

use super::harness::{Ledger, render, request};

const WAIT: Duration = Duration::from_millis(200);
const NOWHERE: Remote = Remote {
    address: 0x7000_0000_0000,
    rkey: 0xa1b2_c300,
};

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn connection(first: First, keepalive: Duration) -> Connection {
    Connection::new(&Config {
        settings: Settings {
            crc: true,
            ird: 1,
            ord: 1,
            first,
            long_frames: false,
        },
        mulpdu: 128,
        depth: 8,
        receive_wait: Duration::ZERO,
        close_wait: Duration::from_secs(1),
        keepalive,
    })
}

/// All frames that there are, written then.
fn written(connection: &mut Connection, now: Instant) -> Vec<Frame> {
    let frames: Vec<_> = core::iter::from_fn(|| connection.transmit()).collect();
    connection.sent(now);
    frames
}

fn is_keepalive(frame: &Frame) -> bool {
    let bytes = render(frame, &vec![0; frame.payload.length() as usize]);
    let (ulpdu, _) = fpdu::parse(&bytes, true).unwrap().unwrap();
    let segment = Segment::parse(ulpdu).unwrap();
    let header = segment.header();
    matches!(header.kind, Kind::Write(_)) && header.last && segment.payload().is_empty()
}

/// When keepalives left, as the deadlines say.
fn keepalives(connection: &mut Connection) -> Vec<Instant> {
    let mut ledger = Ledger::new(0);
    let mut times = Vec::new();
    while let Some(due) = connection.deadline() {
        connection.expire(due, &mut ledger);
        for frame in written(connection, due) {
            assert!(is_keepalive(&frame), "{frame:?}");
            times.push(due);
        }
        assert!(times.len() < 100, "without end");
    }
    times
}

#[test]
fn seven_each_after_twice_as_long() {
    let mut connection = connection(First::Own(None), WAIT);
    assert_eq!(connection.deadline(), None, "nothing was said");
    connection.post(request(0, Operation::Send, 10)).unwrap();
    assert_eq!(written(&mut connection, at(1000)).len(), 1);
    let wanted = [200, 600, 1400, 3000, 6200, 12_600, 25_400].map(|millis| at(1000 + millis));
    assert_eq!(keepalives(&mut connection), wanted);
    // Whatever is sent after that is a new beginning.
    connection.post(request(1, Operation::Send, 10)).unwrap();
    assert_eq!(written(&mut connection, at(50_000)).len(), 1);
    assert_eq!(keepalives(&mut connection).len(), 7);
}

/// A thread that came late, for as long as all of them would have taken, sends one, and not one for each.
#[test]
fn one_that_comes_late_is_one() {
    let mut connection = connection(First::Own(None), WAIT);
    let mut ledger = Ledger::new(0);
    connection.post(request(0, Operation::Send, 10)).unwrap();
    written(&mut connection, at(0));
    connection.expire(at(60_000), &mut ledger);
    assert_eq!(written(&mut connection, at(60_000)).len(), 1);
    connection.expire(at(60_000), &mut ledger);
    assert_eq!(written(&mut connection, at(60_000)).len(), 0);
    assert_eq!(connection.deadline(), Some(at(60_200)));
}

/// The time counts from what was sent last; who sends all the time is not looked at each time.
#[test]
fn what_is_sent_puts_it_off() {
    let mut connection = connection(First::Own(None), WAIT);
    let mut ledger = Ledger::new(0);
    for turn in 0..4 {
        let now = at(turn * 150);
        connection.post(request(turn, Operation::Send, 10)).unwrap();
        assert_eq!(written(&mut connection, now).len(), 1);
        connection.expire(now, &mut ledger);
        assert_eq!(written(&mut connection, now).len(), 0, "turn {turn}");
    }
    assert_eq!(keepalives(&mut connection)[0], at(450 + 200));
}

#[test]
fn a_peer_that_says_something_is_left_alone() {
    let mut initiator = connection(First::Own(None), WAIT);
    let mut peer = connection(First::Peer, WAIT);
    let mut ledgers = [Ledger::new(0), Ledger::new(1)];
    ledgers[0].receives = 1;
    ledgers[1].receives = 1;
    initiator.post(request(0, Operation::Send, 10)).unwrap();
    peer.post(request(0, Operation::Send, 10)).unwrap();
    for frame in written(&mut initiator, at(0)) {
        let bytes = render(&frame, &[0; 10]);
        assert_eq!(peer.receive(at(0), &bytes, &mut ledgers[1]), bytes.len());
    }
    for frame in written(&mut peer, at(0)) {
        let bytes = render(&frame, &[0; 10]);
        initiator.receive(at(0), &bytes, &mut ledgers[0]);
    }
    assert_eq!(keepalives(&mut initiator), []);
    // Which has said nothing since, and so has the initiator: what it says then means nothing here.
    let mut spoken = 0;
    while let Some(due) = peer.deadline() {
        peer.expire(due, &mut ledgers[1]);
        for frame in written(&mut peer, due) {
            let bytes = render(&frame, &[]);
            assert_eq!(initiator.receive(due, &bytes, &mut ledgers[0]), bytes.len());
            spoken += 1;
        }
    }
    assert_eq!((spoken, initiator.failure()), (7, None));
    assert_eq!((ledgers[0].messages.len(), ledgers[0].puts), (1, 1));
}

/// The initiator's own first frame may be the one that is missed.
#[test]
fn behind_a_ready_to_receive_too() {
    for rtr in [Rtr::Write, Rtr::Read, Rtr::Empty] {
        let mut connection = connection(First::Own(Some(rtr)), WAIT);
        assert_eq!(written(&mut connection, at(0)).len(), 1);
        assert_eq!(keepalives(&mut connection).len(), 7, "{rtr:?}");
        assert_eq!(connection.completion(), None);
    }
}

/// A responder that has heard nothing says nothing (RFC 5044 §7.1.2), and none where none are wanted.
#[test]
fn not_where_nothing_may_be_said() {
    let mut waits = connection(First::Peer, WAIT);
    waits.post(request(0, Operation::Send, 10)).unwrap();
    assert_eq!(written(&mut waits, at(0)), []);
    assert_eq!(waits.deadline(), None);
    let mut never = connection(First::Own(None), Duration::ZERO);
    never.post(request(0, Operation::Send, 10)).unwrap();
    assert_eq!(written(&mut never, at(0)).len(), 1);
    assert_eq!(never.deadline(), None);
}

/// Between two messages, never inside one; and in front of a READ that waits for its turn.
#[test]
fn its_place_is_between_messages() {
    let mut connection = connection(First::Own(None), WAIT);
    let mut ledger = Ledger::new(0);
    connection.post(request(0, Operation::Send, 300)).unwrap();
    for seq in [1, 2] {
        ledger.answers.insert(seq, vec![0; 4]);
        connection
            .post(request(seq, Operation::Read(NOWHERE), 4))
            .unwrap();
    }
    // The stream takes no more than one frame for a while.
    assert!(connection.transmit().is_some());
    connection.sent(at(0));
    connection.expire(at(300), &mut ledger);
    let order: Vec<_> = written(&mut connection, at(300))
        .iter()
        .map(|frame| match frame.payload {
            Payload::Request { .. } => "send",
            _ if is_keepalive(frame) => "keepalive",
            _ => "read",
        })
        .collect();
    assert_eq!(order, ["send", "send", "keepalive", "read"]);
    // The second READ waits for the first (ORD).
    connection.expire(at(10_000), &mut ledger);
    let frames = written(&mut connection, at(10_000));
    assert!(frames.len() == 1 && is_keepalive(&frames[0]), "{frames:?}");
}

#[test]
fn the_end_is_the_end() {
    let mut closed = connection(First::Own(None), WAIT);
    closed.post(request(0, Operation::Send, 10)).unwrap();
    written(&mut closed, at(0));
    closed.close();
    assert_eq!(closed.stream(), Stream::Finish);
    assert_eq!(closed.deadline(), None);
    let mut lost = connection(First::Own(None), WAIT);
    lost.post(request(0, Operation::Send, 10)).unwrap();
    written(&mut lost, at(0));
    lost.lost(&mut Ledger::new(0));
    assert_eq!(lost.deadline(), None);
    assert_eq!(lost.transmit(), None);
}
