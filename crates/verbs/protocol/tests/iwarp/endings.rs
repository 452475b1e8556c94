//! When a request is done, and when a connection is.

use std::time::Duration;

use sluice_protocol::iwarp::{Config, Connection, First, Settings, Stream};
use sluice_protocol::{Completion, Instant, Operation, Remote, Status};
use sluice_wire::iwarp::message::ReadRequest;
use sluice_wire::iwarp::{Header, Kind, Tagged, Untagged, fpdu};

use super::harness::{Ledger, request};

const NOW: Instant = Instant::from_nanos(0);
const REGION: Remote = Remote {
    address: 0x7000_0000_0000,
    rkey: 0xa1b2_c300,
};

fn connection() -> Connection {
    Connection::new(&Config {
        settings: Settings {
            crc: false,
            ird: 2,
            ord: 2,
            first: First::Own(None),
            long_frames: false,
        },
        mulpdu: 128,
        depth: 8,
        receive_wait: Duration::ZERO,
        close_wait: Duration::from_secs(1),
        keepalive: Duration::ZERO,
    })
}

fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let header = Header { last: true, kind };
    let mut ulpdu = vec![0; header.bytes()];
    header.emit(&mut ulpdu).unwrap();
    ulpdu.extend(payload);
    let mut bytes = vec![0; fpdu::bytes(ulpdu.len())];
    fpdu::emit(&ulpdu, false, &mut bytes).unwrap();
    bytes
}

/// A SEND or WRITE is done when the last byte of its last frame is let go of, and not before.
#[test]
fn what_is_let_go_of_is_done() {
    let mut connection = connection();
    for (seq, operation) in [Operation::Send, Operation::Write(REGION)]
        .into_iter()
        .enumerate()
    {
        connection
            .post(request(seq as u64, operation, 300))
            .unwrap();
        let frames: Vec<_> = core::iter::from_fn(|| connection.transmit()).collect();
        assert_eq!(frames.len(), 3);
        let end = frames[2].end;
        assert_eq!(connection.completion(), None, "written, and not let go of");
        for early in [frames[0].end, frames[1].end, end - 1] {
            connection.released(early);
            assert_eq!(connection.completion(), None);
        }
        connection.released(end);
        let done = Completion {
            seq: seq as u64,
            status: Status::Success,
            length: 300,
        };
        assert_eq!(connection.completion(), Some(done));
    }
}

/// What has not been let go of when the connection breaks has not been done.
#[test]
fn what_is_held_when_it_breaks_is_flushed() {
    let mut connection = connection();
    let mut ledger = Ledger::new(0);
    for seq in 0..2 {
        connection.post(request(seq, Operation::Send, 100)).unwrap();
    }
    let first = connection.transmit().unwrap();
    connection.transmit().unwrap();
    connection.released(first.end);
    connection.lost(&mut ledger);
    let statuses: Vec<_> = core::iter::from_fn(|| connection.completion())
        .map(|done| done.status)
        .collect();
    assert_eq!(statuses, [Status::Success, Status::Flushed]);
}

/// Closing waits for all that was asked for: sent, and answered, by both ends.
#[test]
fn closing_waits() {
    let mut connection = connection();
    let mut ledger = Ledger::new(0);
    ledger.answers.insert(1, vec![0; 4]);
    connection.post(request(0, Operation::Send, 300)).unwrap();
    connection
        .post(request(1, Operation::Read(REGION), 4))
        .unwrap();
    connection.close();
    for _ in 0..4 {
        assert_eq!(connection.stream(), Stream::Open, "something is to be sent");
        assert!(connection.transmit().is_some());
    }
    assert_eq!(connection.transmit(), None);
    assert_eq!(connection.stream(), Stream::Open, "an answer is to come");
    let ask = ReadRequest {
        sink_stag: 1,
        sink_offset: 0,
        length: 8,
        source_stag: REGION.rkey,
        source_offset: REGION.address,
    };
    let kind = Kind::ReadRequest(Untagged { msn: 1, offset: 0 });
    connection.receive(NOW, &frame(kind, &ask.emit()), &mut ledger);
    let kind = Kind::ReadResponse(Tagged { stag: 1, offset: 0 });
    connection.receive(NOW, &frame(kind, b"abcd"), &mut ledger);
    assert_eq!(connection.stream(), Stream::Open, "an answer is owed");
    assert!(connection.transmit().is_some());
    assert_eq!(connection.stream(), Stream::Finish);
    assert_eq!(connection.failure(), None);
}
