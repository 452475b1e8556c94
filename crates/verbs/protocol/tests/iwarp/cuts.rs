//! One conversation with a message of every kind, cut at every byte, broken at every byte, and
//! closed at every byte.

use sluice_protocol::iwarp::{Failure, Stream};
use sluice_protocol::{Operation, Remote, Request, Status};
use sluice_wire::extended::ImmDt;

use super::harness::{Chance, World};

const BASE: u64 = 0x7000_0000_0000;
const KEY: u32 = 0xa1b2_c300;

/// Both ends have asked for one of each, and end 0 has written all it can. `crc` by the bytes that
/// the harness decides by.
fn world(crc: bool) -> World {
    let bytes = if crc { [0; 16] } else { [1; 16] };
    let mut world = World::new(&mut Chance::new(&bytes));
    for end in [0, 1] {
        let remote = |offset| Remote {
            address: BASE + offset,
            rkey: KEY,
        };
        let operations = [
            (Operation::Send, 300),
            (Operation::Write(remote(64)), 200),
            (Operation::SendInvalidate(9), 3),
            (
                Operation::WriteImmediate(remote(512), ImmDt([1, 2, 3, 4])),
                5,
            ),
            (
                Operation::FetchAdd {
                    remote: remote(4096 - 32),
                    add: 5,
                },
                8,
            ),
            (Operation::Read(remote(5000)), 200),
            (Operation::Send, 0),
        ];
        let here = &mut world.ends[end];
        for (seq, (operation, length)) in operations.into_iter().enumerate() {
            let request = Request {
                seq: seq as u64,
                operation,
                length,
                solicited: false,
                srq: None,
            };
            here.connection.post(request).unwrap();
            if operation.has_response_data() {
                here.ledger
                    .answers
                    .insert(seq as u64, vec![0; length as usize]);
            }
            here.posted.push(request);
        }
        here.ledger.receives = 8;
    }
    while world.transmit(0) {}
    world
}

#[test]
fn at_every_byte_in_two_pieces() {
    for crc in [false, true] {
        let length = world(crc).ends[1].pipe.len();
        assert!(length > 600);
        for direct in [false, true] {
            for cut in 0..=length {
                let mut world = world(crc);
                world.arrive(1, cut, false);
                world.arrive(1, usize::MAX, direct);
                world.settle();
                world.verify();
            }
        }
    }
}

#[test]
fn byte_by_byte() {
    for crc in [false, true] {
        for direct in [false, true] {
            let mut world = world(crc);
            while !world.ends[1].pipe.is_empty() {
                world.arrive(1, 1, direct);
            }
            world.settle();
            world.verify();
        }
    }
}

#[test]
fn broken_or_closed_at_every_byte() {
    for crc in [false, true] {
        let length = world(crc).ends[1].pipe.len();
        for cut in 0..=length {
            for reset in [false, true] {
                let mut world = world(crc);
                world.arrive(1, cut, true);
                let end = &mut world.ends[1];
                // Its own requests were not sent.
                let delivered = end.ledger.messages.len();
                if reset {
                    end.connection.lost(&mut end.ledger);
                    assert_eq!(end.connection.stream(), Stream::Reset);
                    assert_eq!(end.connection.failure(), Some(&Failure::Lost));
                } else {
                    let orderly = end.connection.peer_closed(&mut end.ledger);
                    assert_eq!(end.connection.failure().is_none(), orderly);
                    assert_eq!(end.connection.stream(), Stream::Finish);
                }
                world.collect(1);
                let end = &world.ends[1];
                assert_eq!(end.completed.len(), end.posted.len());
                assert!(
                    end.completed
                        .iter()
                        .all(|status| *status == Status::Flushed)
                );
                let messages = &end.ledger.messages;
                let whole = |status| status == Status::Success;
                assert!(
                    messages[..delivered]
                        .iter()
                        .all(|m| whole(m.received.status))
                );
                assert!(messages.len() <= delivered + 1);
                for given_back in &messages[delivered..] {
                    assert_eq!(given_back.received.status, Status::Flushed);
                }
            }
        }
    }
}
