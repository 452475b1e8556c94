use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

fn params() -> ConnParams {
    ConnParams {
        qp_num: 0x12_3456,
        psn: 0xff_ffff,
        responder_resources: 16,
        initiator_depth: 4,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: true,
        gid: [9; 16],
        ece: Ece {
            vendor_id: 1,
            options: 2,
        },
    }
}

fn examples() -> Vec<Message> {
    let v4 = Address::new(Ipv4Addr::new(10, 0, 0, 1).into(), 7471);
    let v6 = Address {
        ip: Ipv6Addr::LOCALHOST.into(),
        port: 1,
        scope: 3,
    };
    let private = |len, max| PrivateData::new(&vec![0xa5; len], max).expect("within the limit");
    vec![
        Message::Request(Request {
            port_space: 0x106,
            qp_type: 2,
            mtu: 5,
            tos: 0xb8,
            source: v4,
            destination: v6,
            params: params(),
            private: private(REQ_PRIVATE_MAX, REQ_PRIVATE_MAX),
        }),
        Message::Reply {
            params: params(),
            private: private(REP_PRIVATE_MAX, REP_PRIVATE_MAX),
        },
        Message::ReadyToUse,
        Message::Reject {
            reason: REJ_CONSUMER_DEFINED,
            private: private(REJ_PRIVATE_MAX, REJ_PRIVATE_MAX),
        },
        Message::DisconnectRequest,
        Message::DisconnectReply,
        Message::SidrRequest(SidrRequest {
            port_space: 0x111,
            source: v6,
            destination: v4,
            private: private(0, SIDR_REQ_PRIVATE_MAX),
        }),
        Message::SidrReply(SidrReply {
            status: SIDR_SUCCESS,
            qp_num: 2,
            qkey: 0x0123_4567,
            gid: [7; 16],
            private: private(SIDR_REP_PRIVATE_MAX, SIDR_REP_PRIVATE_MAX),
        }),
    ]
}

#[test]
fn what_is_emitted_is_parsed() {
    for message in examples() {
        let bytes = message.emit();
        assert!(bytes.len() <= MESSAGE_LEN_MAX, "{message:?}");
        assert_eq!(Message::parse(&bytes), Ok(message));
    }
}

#[test]
fn every_shortening_and_lengthening_is_malformed() {
    for message in examples() {
        let mut bytes = message.emit();
        for len in 0..bytes.len() {
            assert_eq!(Message::parse(&bytes[..len]), Err(Malformed), "{message:?}");
        }
        bytes.push(0);
        assert_eq!(Message::parse(&bytes), Err(Malformed), "{message:?}");
    }
}

/// Whatever is accepted is in range: it says the same when it is emitted again.
#[test]
fn every_changed_byte_is_refused_or_stays_itself() {
    for message in examples() {
        let bytes = message.emit();
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                if let Ok(parsed) = Message::parse(&changed) {
                    assert_eq!(parsed.emit(), changed);
                }
            }
        }
    }
}

#[test]
fn private_data_beyond_the_limit_is_refused() {
    assert_eq!(PrivateData::new(&[0; 57], REQ_PRIVATE_MAX), None);
    let mut bytes = Message::Reject {
        reason: 1,
        private: PrivateData::default(),
    }
    .emit();
    bytes.pop();
    bytes.push(149);
    bytes.extend_from_slice(&[0; 149]);
    assert_eq!(Message::parse(&bytes), Err(Malformed));
}

#[test]
fn numbers_out_of_range_are_refused() {
    let reply = Message::SidrReply(SidrReply {
        status: 0,
        qp_num: 0x0100_0000,
        qkey: 0,
        gid: [0; 16],
        private: PrivateData::default(),
    });
    assert_eq!(Message::parse(&reply.emit()), Err(Malformed));
}
