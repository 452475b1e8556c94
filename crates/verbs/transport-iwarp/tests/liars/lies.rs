//! Lies of few bytes, at every place of a stream.

use std::net::Shutdown;

use sluice_verbs::{QpState, Sge, WcStatus, WrOpcode};
use sluice_verbs_testing::{End, request, until};
use sluice_wire::iwarp::message::{AtomicRequest, AtomicResponse, Operation};
use sluice_wire::iwarp::terminate::{Mpa, Rdmap, TaggedError, UntaggedError};
use sluice_wire::iwarp::{Cause, Kind, Segment, Tagged, Untagged, fpdu};

use crate::peer::{
    Heard, Host, Liar, RECEIVE, RECEIVES, REGION, SEED, address, is_over, read, segment, send,
    write,
};

/// A peer with a neighbour, which is served before, and behind.
fn alone(crc: bool, lie: impl FnOnce(&End, &mut Liar)) -> Heard {
    let host = Host::new(crc);
    let (other, mut neighbour) = host.join();
    neighbour.fetches(1, &other, 8, 100_000);
    let (end, mut liar) = host.join();
    // It has told the truth before.
    liar.fetches(1, &end, 3, 5000);
    lie(&end, &mut liar);
    let heard = liar.hears();
    is_over(&end);
    neighbour.fetches(2, &other, 16, 100_000);
    assert_eq!(other.qp.state(), QpState::Rts);
    heard
}

/// The same with and without CRCs; whoever lies is told so.
fn is_told(cause: Cause, lie: impl Fn(&End, &mut Liar)) {
    for crc in [false, true] {
        assert_eq!(alone(crc, &lie), Heard::Told(cause), "crc: {crc}");
    }
}

const TOO_FAR: usize = REGION - 4;

#[test]
fn keys_that_open_nothing() {
    let stranger = |end: &End| end.mr.rkey() ^ 0x100;
    is_told(Cause::Tagged(TaggedError::InvalidStag), |end, liar| {
        liar.sends(&[write(stranger(end), address(end, 0), b"1234")]);
    });
    is_told(Cause::Protection(Rdmap::InvalidStag), |end, liar| {
        liar.sends(&[read(2, stranger(end), address(end, 0), 4)]);
    });
    is_told(Cause::Protection(Rdmap::InvalidStag), |end, liar| {
        let request = AtomicRequest {
            id: 7,
            stag: stranger(end),
            offset: address(end, 0),
            operation: Operation::FetchAdd { add: 1, mask: 0 },
        };
        let kind = Kind::AtomicRequest(Untagged { msn: 2, offset: 0 });
        liar.sends(&[segment(true, kind, &request.emit())]);
    });
}

#[test]
fn ranges_that_reach_out_of_the_region() {
    is_told(Cause::Tagged(TaggedError::InvalidStag), |end, liar| {
        liar.sends(&[write(end.mr.rkey(), address(end, TOO_FAR), b"12345")]);
    });
    is_told(Cause::Tagged(TaggedError::InvalidStag), |end, liar| {
        liar.sends(&[write(end.mr.rkey(), address(end, 0) - 1, b"12")]);
    });
    is_told(Cause::Tagged(TaggedError::Wrap), |end, liar| {
        liar.sends(&[write(end.mr.rkey(), u64::MAX, b"12")]);
    });
    is_told(Cause::Protection(Rdmap::InvalidStag), |end, liar| {
        liar.sends(&[read(2, end.mr.rkey(), address(end, TOO_FAR), 5)]);
    });
    is_told(Cause::Protection(Rdmap::InvalidStag), |end, liar| {
        liar.sends(&[read(2, end.mr.rkey(), address(end, 0), u32::MAX)]);
    });
    is_told(Cause::Protection(Rdmap::Wrap), |end, liar| {
        liar.sends(&[read(2, end.mr.rkey(), u64::MAX, 2)]);
    });
}

#[test]
fn frames_that_are_none() {
    for length in [1, 2, 13, 17, 18, 600, u16::MAX] {
        // Bits that no header has, and more of them than any frame is long.
        let mut bytes = vec![0xff; 70_000];
        bytes[..2].copy_from_slice(&length.to_be_bytes());
        let heard = alone(false, |_, liar| liar.says(&bytes));
        assert!(
            matches!(heard, Heard::Told(_) | Heard::Reset),
            "{length}: {heard:?}"
        );
    }
    // A frame of nothing, which only the first one may be.
    let heard = alone(false, |_, liar| liar.says(&[0; fpdu::bytes(0)]));
    assert!(matches!(heard, Heard::Told(_)), "{heard:?}");
    is_told(Cause::DdpCatastrophic, |_, liar| {
        // Half a READ request.
        let kind = Kind::ReadRequest(Untagged { msn: 2, offset: 0 });
        liar.sends(&[segment(true, kind, &[0; 14])]);
    });
    is_told(Cause::Untagged(UntaggedError::TooLong), |_, liar| {
        let kind = Kind::ReadRequest(Untagged { msn: 2, offset: 0 });
        liar.sends(&[segment(true, kind, &[0; 29])]);
    });
}

#[test]
fn a_frame_that_its_crc_does_not_fit() {
    let heard = alone(true, |end, liar| {
        let mut frame = liar.framed(&write(end.mr.rkey(), address(end, 0), b"12345678"));
        let last = frame.len() - 1;
        frame[last] ^= 1;
        liar.says(&frame);
    });
    assert_eq!(heard, Heard::Told(Cause::Mpa(Mpa::Crc)));
}

#[test]
fn messages_that_go_wrong_in_the_middle() {
    is_told(Cause::Untagged(UntaggedError::TooLong), |_, liar| {
        liar.sends(&[
            send(false, 1, 0, &[1; RECEIVE]),
            send(true, 1, RECEIVE as u32, &[2]),
        ]);
    });
    is_told(Cause::Untagged(UntaggedError::Offset), |_, liar| {
        liar.sends(&[send(false, 1, 0, &[1; 100]), send(true, 1, 99, &[2; 100])]);
    });
    is_told(Cause::Untagged(UntaggedError::MsnRange), |_, liar| {
        liar.sends(&[send(false, 1, 0, &[1; 100]), send(true, 2, 0, &[2; 100])]);
    });
    // A right message, of which the next piece is nothing that there is.
    let heard = alone(false, |_, liar| {
        let mut bytes = liar.framed(&send(false, 1, 0, &[1; 100]));
        bytes.extend([0xa5; 200]);
        liar.says(&bytes);
    });
    assert!(matches!(heard, Heard::Told(_)), "{heard:?}");
}

/// The stream ends where nothing may end: in a head, in payload that goes straight to its place, between
/// two segments of a message.
#[test]
fn the_end_in_the_middle() {
    for resets in [false, true] {
        for cut in 0..5 {
            let host = Host::new(false);
            let (other, mut neighbour) = host.join();
            let (end, mut liar) = host.join();
            let whole = liar.framed(&send(true, 1, 0, &[1; 3000]));
            match cut {
                0 => liar.says(&whole[..1]),
                1 => liar.says(&whole[..11]),
                2 => liar.says(&whole[..1500]),
                3 => liar.says(&whole[..whole.len() - 1]),
                _ => liar.sends(&[send(false, 1, 0, &[1; 3000])]),
            }
            if resets {
                liar.resets();
            } else {
                liar.tcp.shutdown(Shutdown::Write).unwrap();
                let heard = liar.hears();
                assert!(
                    matches!(heard, Heard::End | Heard::Reset),
                    "{cut}: {heard:?}"
                );
            }
            is_over(&end);
            neighbour.fetches(1, &other, 16, 10_000);
        }
    }
}

/// An end in order is one, and what came before it counts.
#[test]
fn the_end_between_messages() {
    let host = Host::new(false);
    let (end, mut liar) = host.join();
    liar.sends(&[send(true, 1, 0, b"farewell")]);
    liar.tcp.shutdown(Shutdown::Write).unwrap();
    let wc = end.good();
    assert_eq!((wc.wr_id, wc.byte_len), (0, 8));
    assert_eq!(end.memory.bytes(RECEIVES, 8), b"farewell");
    assert_eq!(liar.hears(), Heard::End);
    is_over(&end);
}

/// What a peer answers to a READ of ours.
#[test]
fn answers_that_were_not_asked_for() {
    let answer = |stag: u32, offset: u64, last: bool, bytes: usize| {
        let kind = Kind::ReadResponse(Tagged { stag, offset });
        segment(last, kind, &vec![0xee; bytes])
    };
    for lie in 0..6 {
        let host = Host::new(false);
        let (other, mut neighbour) = host.join();
        let (end, mut liar) = host.join();
        // The initiator's first frame, which the responder waits for.
        liar.sends(&[write(0, 0, &[])]);
        let sges = [Sge {
            length: 1000,
            ..end.sge(RECEIVES + 2 * RECEIVE, 1000)
        }];
        let post = request(WrOpcode::RdmaRead, 9, &sges, 0x1000, 0x77);
        end.qp.post_send(&post).unwrap();
        let asked = liar.next().unwrap().unwrap();
        let asked = Segment::parse(&asked).unwrap();
        assert!(matches!(asked.header().kind, Kind::ReadRequest(_)));
        let stag = u32::from_be_bytes(asked.payload()[..4].try_into().unwrap());
        match lie {
            0 => liar.sends(&[answer(stag ^ 1, 0, true, 1000)]),
            1 => liar.sends(&[answer(stag, 8, true, 992)]),
            2 => liar.sends(&[answer(stag, 0, true, 1001)]),
            3 => liar.sends(&[answer(stag, 0, true, 999)]),
            4 => liar.sends(&[answer(stag, 0, false, 0)]),
            // Half of one, and then another message.
            _ => liar.sends(&[answer(stag, 0, false, 500), answer(stag, 499, true, 501)]),
        }
        let heard = liar.hears();
        assert!(matches!(heard, Heard::Told(_)), "{lie}: {heard:?}");
        ends_badly(&end, 9);
        is_over(&end);
        neighbour.fetches(1, &other, 16, 10_000);
    }
}

/// What a peer answers to an atomic operation of ours, whose answer has 12 bytes in one segment.
#[test]
fn answers_to_an_atomic_that_have_another_size() {
    let answer = |last, offset, bytes: &[u8]| {
        let kind = Kind::AtomicResponse(Untagged { msn: 1, offset });
        segment(last, kind, bytes)
    };
    for lie in 0..6 {
        let host = Host::new(false);
        let (other, mut neighbour) = host.join();
        let (end, mut liar) = host.join();
        // The initiator's first frame, which the responder waits for.
        liar.sends(&[write(0, 0, &[])]);
        // The other receives are flushed, and what is behind the result stays as it is.
        let result = RECEIVES + 2 * RECEIVE;
        end.memory.fill(result, 64, SEED);
        let sges = [end.sge(result, 8)];
        let add = request(WrOpcode::AtomicFetchAndAdd, 9, &sges, 0x1000, 0x77);
        end.qp.post_send(&add).unwrap();
        let asked = liar.next().unwrap().unwrap();
        let asked = Segment::parse(&asked).unwrap();
        assert!(matches!(asked.header().kind, Kind::AtomicRequest(_)));
        let id = u32::from_be_bytes(asked.payload()[4..8].try_into().unwrap());
        let response = AtomicResponse { id, original: 0xee }.emit();
        let longer = [&response[..], &[0xee; 50]].concat();
        match lie {
            0 => liar.sends(&[answer(true, 0, &response[..11])]),
            1 => liar.sends(&[answer(true, 0, &[])]),
            2 => liar.sends(&[answer(true, 0, &longer[..13])]),
            3 => liar.sends(&[answer(true, 0, &longer)]),
            4 => liar.sends(&[
                answer(false, 0, &response[..8]),
                answer(true, 8, &response[8..]),
            ]),
            _ => liar.sends(&[answer(false, 0, &response), answer(true, 12, &longer)]),
        }
        let heard = liar.hears();
        assert!(matches!(heard, Heard::Told(_)), "{lie}: {heard:?}");
        ends_badly(&end, 9);
        end.memory.check(result, 64, SEED);
        is_over(&end);
        neighbour.fetches(1, &other, 16, 10_000);
    }
}

/// Waits for the end of this request, which is an error.
fn ends_badly(end: &End, id: u64) {
    let mut status = None;
    until("the end of the request", || {
        while let Some(wc) = end.cq.poll_one() {
            if wc.wr_id == id {
                status = Some(wc.status);
            }
        }
        status.is_some()
    });
    assert_ne!(status, Some(WcStatus::Success as u32));
}

/// Bytes one by one are slow, and right.
#[test]
fn the_truth_by_single_bytes() {
    for crc in [false, true] {
        let host = Host::new(crc);
        let (end, mut liar) = host.join();
        let frame = liar.framed(&send(true, 1, 0, &[7; 300]));
        for byte in frame {
            liar.says(&[byte]);
        }
        let wc = end.good();
        assert_eq!((wc.wr_id, wc.byte_len), (0, 300));
        assert_eq!(end.memory.bytes(RECEIVES, 300), [7; 300]);
    }
}
