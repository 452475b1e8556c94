use proptest::prelude::*;

use super::*;

fn requests() -> impl Strategy<Value = ToDaemon> {
    let role = prop_oneof![
        Just(Role::Connected),
        Just(Role::Accepted),
        Just(Role::Unknown)
    ];
    prop_oneof![
        (any::<u32>(), any::<[u8; 40]>(), any::<u32>()).prop_map(|(pid, name, flags)| {
            let program = ProgramName::new(&name);
            ToDaemon::Hello(Hello {
                pid,
                program,
                flags,
            })
        }),
        Just(ToDaemon::Introduce),
        (any::<u32>(), any::<u32>(), role).prop_map(|(end, generation, role)| {
            ToDaemon::Announce(Announce {
                end,
                generation,
                role,
            })
        }),
        (any::<u32>(), any::<u32>())
            .prop_map(|(end, generation)| ToDaemon::Release { end, generation }),
        (any::<u32>(), any::<u32>())
            .prop_map(|(end, generation)| ToDaemon::AskPeer { end, generation }),
        Just(ToDaemon::Ping),
        Just(ToDaemon::Status),
        Just(ToDaemon::Shutdown),
    ]
}

fn answers() -> impl Strategy<Value = FromDaemon> {
    let reason = prop_oneof![
        Just(Reason::Version),
        Just(Reason::User),
        Just(Reason::Full),
        Just(Reason::Descriptors),
        Just(Reason::Protocol),
        Just(Reason::Taken)
    ];
    let lane = (
        any::<[u32; 7]>(),
        any::<(bool, bool, bool)>(),
        any::<u64>(),
        any::<u32>(),
    )
        .prop_map(|(n, flags, cookie, above)| {
            let lane = n[3] / 2;
            FromDaemon::Lane(Lane {
                end: n[0],
                generation: n[1],
                chunk: n[2],
                lane,
                lanes: lane.saturating_add(1).saturating_add(above / 2),
                ring_bytes: n[4],
                side: u8::from(flags.0),
                has_chunk_fd: flags.1,
                is_remote: !flags.2,
                is_direct: flags.2,
                offset: if flags.2 { cookie >> 7 } else { 0 },
                has_parking_fd: flags.1 && !flags.2,
                peer: n[5],
                peer_pid: n[6],
                cookie,
            })
        });
    prop_oneof![
        (any::<u16>(), any::<u32>())
            .prop_map(|(version, client)| FromDaemon::Welcome { version, client }),
        reason.prop_map(|reason| FromDaemon::Refused { reason }),
        lane,
        (any::<u32>(), any::<u32>())
            .prop_map(|(end, generation)| FromDaemon::NoPeer { end, generation }),
        any::<u32>().prop_map(|peer| FromDaemon::PeerGone { peer }),
        (any::<u32>(), any::<u32>()).prop_map(|(pid, clients)| FromDaemon::Pong { pid, clients }),
        any::<u64>().prop_map(|bytes| FromDaemon::Report { bytes }),
    ]
}

/// Bytes that pass the header's checks and so reach the bodies.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    (0..120_u16, prop::collection::vec(any::<u8>(), 0..80)).prop_map(|(kind, body)| {
        let mut message = Vec::new();
        let length = (HEADER_BYTES + body.len()) as u16;
        for field in [MAGIC, VERSION, kind, length] {
            message.extend(field.to_le_bytes());
        }
        message.extend(body);
        message
    })
}

proptest! {
    #[test]
    fn requests_come_back_as_they_went(message in requests()) {
        let mut buffer = [0xAA; MESSAGE_BYTES_MAX];
        prop_assert_eq!(ToDaemon::decode(message.encode(&mut buffer)), Ok(message));
    }

    #[test]
    fn answers_come_back_as_they_went(message in answers()) {
        let mut buffer = [0xAA; MESSAGE_BYTES_MAX];
        prop_assert_eq!(FromDaemon::decode(message.encode(&mut buffer)), Ok(message));
    }

    #[test]
    fn garbage_is_an_error_or_a_message_that_encodes(
        bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..600), plausible()]
    ) {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        if let Ok(message) = ToDaemon::decode(&bytes) {
            prop_assert_eq!(ToDaemon::decode(message.encode(&mut buffer)), Ok(message));
        }
        if let Ok(message) = FromDaemon::decode(&bytes) {
            prop_assert_eq!(FromDaemon::decode(message.encode(&mut buffer)), Ok(message));
        }
    }

    #[test]
    fn a_message_cut_anywhere_is_refused(message in requests(), cut in any::<prop::sample::Index>()) {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let whole = message.encode(&mut buffer);
        let cut = &whole[..cut.index(whole.len())];
        prop_assert_eq!(ToDaemon::decode(cut), Err(DecodeError::Length));
    }
}

#[test]
fn the_layout_is_the_documented_one() {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let announce = ToDaemon::Announce(Announce {
        end: 0x0403_0201,
        generation: 5,
        role: Role::Accepted,
    });
    let expected = [0x1E, 0x5C, 2, 0, 3, 0, 17, 0, 1, 2, 3, 4, 5, 0, 0, 0, 1];
    assert_eq!(announce.encode(&mut buffer), expected);
}

#[test]
fn another_version_is_named_whatever_follows() {
    let message = [0x1E, 0x5C, 9, 0, 0xFF, 0xFF, 0xFF, 0xFF];
    assert_eq!(ToDaemon::decode(&message), Err(DecodeError::Version(9)));
    assert_eq!(FromDaemon::decode(&message), Err(DecodeError::Version(9)));
}

#[test]
fn the_two_directions_do_not_understand_each_other() {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let ping = ToDaemon::Ping.encode(&mut buffer);
    assert_eq!(FromDaemon::decode(ping), Err(DecodeError::Kind(5)));
}

#[test]
fn program_names_are_cut_and_padded() {
    assert_eq!(
        ProgramName::new(b"redis-server").as_bytes(),
        b"redis-server"
    );
    assert_eq!(ProgramName::new(&[b'x'; 40]).as_bytes(), [b'x'; 32]);
    assert_eq!(ProgramName::new(b"a\0b").as_bytes(), b"a");
}

#[test]
fn a_direct_lane_has_its_offset_and_no_parking_table_and_no_other_has_one() {
    let lane = Lane {
        end: 1,
        generation: 2,
        chunk: 3,
        lane: 0,
        lanes: 4,
        ring_bytes: 4096,
        side: 1,
        has_chunk_fd: true,
        has_parking_fd: false,
        is_remote: false,
        is_direct: true,
        offset: 8192,
        peer: 5,
        peer_pid: 0,
        cookie: 6,
    };
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut decode = |lane| FromDaemon::decode(FromDaemon::Lane(lane).encode(&mut buffer));
    assert_eq!(decode(lane), Ok(FromDaemon::Lane(lane)));
    let is_direct = false;
    for wrong in [
        Lane {
            is_remote: true,
            ..lane
        },
        Lane {
            has_parking_fd: true,
            ..lane
        },
        Lane { is_direct, ..lane },
    ] {
        assert_eq!(decode(wrong), Err(DecodeError::Value));
    }
}
