//! iWARP's formats: no bytes make a parser panic, what a parser understood survives being emitted,
//! and no change of a bit passes the CRC.

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_wire::iwarp::message::{AtomicRequest, Operation, ReadRequest};
use sluice_wire::iwarp::terminate::{Culprit, Rdmap};
use sluice_wire::iwarp::{
    Cause, Enhanced, Error, Header, Kind, Revision, Role, Segment, Startup, Tagged, Terminate,
    Untagged, fpdu, fuzz,
};

fn kinds() -> impl Strategy<Value = Kind> {
    let place = any::<(u32, u32)>().prop_map(|(msn, offset)| Untagged { msn, offset });
    let tagged = any::<(u32, u64)>().prop_map(|(stag, offset)| Tagged { stag, offset });
    let invalidate = proptest::option::of(any::<u32>());
    (0..8, place, tagged, any::<bool>(), invalidate).prop_map(
        |(kind, place, tagged, solicited, invalidate)| match kind {
            0 => Kind::Write(tagged),
            1 => Kind::ReadResponse(tagged),
            2 => Kind::ReadRequest(place),
            3 => Kind::Send {
                place,
                solicited,
                invalidate,
            },
            4 => Kind::Terminate(place),
            5 => Kind::Immediate { place, solicited },
            6 => Kind::AtomicRequest(place),
            _ => Kind::AtomicResponse(place),
        },
    )
}

prop_compose! {
    fn startups()(
        role in prop::sample::select(vec![Role::Request, Role::Reply]),
        flags in any::<[bool; 8]>(),
        revision in 0..3,
        ird in 0u16..1 << 14,
        ord in 0u16..1 << 14,
    ) -> Startup<'static> {
        let enhanced = Enhanced {
            ird,
            ord,
            peer_to_peer: flags[0],
            empty_rtr: flags[1],
            write_rtr: flags[2],
            read_rtr: flags[3],
        };
        Startup {
            role,
            markers: flags[4],
            crc: flags[5],
            reject: flags[6] && role == Role::Reply,
            long_frames: flags[7],
            revision: match revision {
                0 => Revision::One,
                1 => Revision::Two(None),
                _ => Revision::Two(Some(enhanced)),
            },
            private_data: &[],
        }
    }
}

fn swallow(bytes: &[u8]) {
    fuzz::startup(bytes);
    fuzz::segment(bytes);
    fuzz::stream(bytes, false);
    fuzz::stream(bytes, true);
    let _ = Terminate::parse(bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_are_harmless(bytes in vec(any::<u8>(), 0..400)) {
        swallow(&bytes);
    }

    /// Random bytes seldom get past the versions: here they have them.
    #[test]
    fn random_bytes_behind_versions_are_harmless(mut bytes in vec(any::<u8>(), 2..120)) {
        bytes[0] = bytes[0] & 0xc0 | 1;
        bytes[1] = bytes[1] & 0x3f | 0x40;
        if bytes.len() > 10 && bytes[0] & 0x80 == 0 {
            bytes[6..9].fill(0);
            bytes[9] &= 3;
        }
        swallow(&bytes);
    }

    #[test]
    fn starts_come_back_whole_and_cut_ones_are_waited_for(
        startup in startups(),
        private in vec(any::<u8>(), 0..520),
        cut in any::<prop::sample::Index>(),
    ) {
        let startup = Startup { private_data: &private, ..startup };
        let mut buffer = [0; Startup::BYTES_MAX];
        let Ok(used) = startup.emit(&mut buffer) else {
            prop_assert!(private.len() > Startup::PRIVATE_BYTES_MAX - Enhanced::BYTES);
            return Ok(());
        };
        prop_assert_eq!(Startup::parse(startup.role, &buffer), Ok((startup, used)));
        let short = &buffer[..cut.index(used)];
        let known = Startup::length(startup.role, short);
        let expected = (short.len() >= Startup::HEADER_BYTES).then_some(used);
        prop_assert_eq!(known, Ok(expected));
        prop_assert_eq!(Startup::parse(startup.role, short), Err(Error::Truncated));
        prop_assert!(startup.emit(&mut [0; Startup::BYTES_MAX][..short.len()]).is_err());
        swallow(short);
    }

    #[test]
    fn segments_come_back_in_their_frames(
        kind in kinds(),
        last in any::<bool>(),
        payload in vec(any::<u8>(), 0..200),
        crc in any::<bool>(),
        cut in any::<prop::sample::Index>(),
        bit in any::<prop::sample::Index>(),
    ) {
        let header = Header { last, kind };
        let mut ulpdu = vec![0; header.bytes()];
        prop_assert_eq!(header.emit(&mut ulpdu), Ok(header.bytes()));
        ulpdu.extend(&payload);
        let mut stream = vec![0; fpdu::bytes(ulpdu.len()) + 9];
        let used = fpdu::emit(&ulpdu, crc, &mut stream).unwrap();
        let (found, taken) = fpdu::parse(&stream, crc).unwrap().unwrap();
        prop_assert_eq!((found, taken), (&ulpdu[..], used));
        let segment = Segment::parse(found).unwrap();
        prop_assert_eq!((*segment.header(), segment.payload()), (header, &payload[..]));
        prop_assert_eq!(fpdu::parse(&stream[..cut.index(used)], crc), Ok(None));
        swallow(&stream[..cut.index(used)]);
        if crc {
            // A change of the length may make it a frame that is longer than what is there.
            let bit = bit.index(used * 8);
            stream[bit / 8] ^= 1 << (bit % 8);
            let damaged = fpdu::parse(&stream, true);
            prop_assert!(matches!(damaged, Err(Error::Crc) | Ok(None)), "{:?}", damaged);
        }
    }

    #[test]
    fn requests_come_back(words in any::<[u64; 5]>(), half in any::<[u32; 3]>(), code in 0..3) {
        let [a, b, c, d, offset] = words;
        let read = ReadRequest {
            sink_stag: half[0],
            sink_offset: a,
            length: half[1],
            source_stag: half[2],
            source_offset: offset,
        };
        prop_assert_eq!(ReadRequest::parse(&read.emit()), read);
        let atomic = AtomicRequest {
            id: half[0],
            stag: half[1],
            offset,
            operation: match code {
                0 => Operation::FetchAdd { add: a, mask: b },
                1 => Operation::Swap { swap: a, mask: b },
                _ => Operation::CompareSwap { swap: a, mask: b, compare: c, compare_mask: d },
            },
        };
        prop_assert_eq!(AtomicRequest::parse(&atomic.emit()), Ok(atomic));
    }

    #[test]
    fn a_stream_is_given_up_for_any_segment(ulpdu in vec(any::<u8>(), 0..60), length in any::<u16>()) {
        let message = Terminate {
            cause: Cause::Operation(Rdmap::Opcode),
            culprit: Culprit::new(&ulpdu, length),
        };
        let mut buffer = [0; Terminate::BYTES_MAX];
        let used = message.emit(&mut buffer).unwrap();
        prop_assert_eq!(Terminate::parse(&buffer[..used]), Ok(message));
    }
}
