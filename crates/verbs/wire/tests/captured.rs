//! Packets that others made, captured from their wires.

use sluice_wire::frame::Outer;
use sluice_wire::icrc::{self, Icrc, Unseen};
use sluice_wire::opcode::{Opcode, Service};
use sluice_wire::{Ecn, Error, Frame, Psn, Qpn, cnp};

/// A congestion notification of a ConnectX-4 Lx, as it is among the tests of the scapy project
/// (`test/contrib/roce.uts`, "RoCE CNP captured on ConnectX-4 Lx").
const NOTIFICATION: [u8; 74] = [
    0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00, //
    0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01,
    0x0a, 0x00, 0x12, 0x01, //
    0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, //
    0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x82, 0xfd, 0x00, 0x2a,
];

/// A SEND over UC from the same tests, sent by an endpoint to itself.
const SEND: [u8; 78] = [
    0x24, 0x8a, 0x07, 0xa8, 0xfa, 0x22, 0x24, 0x8a, 0x07, 0xa8, 0xfa, 0x22, 0x08, 0x00, //
    0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11, 0xb4, 0xd5, 0xc0, 0xa8, 0x00, 0x07,
    0xc0, 0xa8, 0x00, 0x07, //
    0xc0, 0x00, 0x12, 0xb7, 0x00, 0x2c, 0xac, 0xa2, //
    0x24, 0x60, 0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10, //
    0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01, 0xbe, 0x88,
    0x5e, 0x50, 0x00, 0x00, //
    0x78, 0xf3, 0x53, 0xf3,
];

#[test]
fn an_adapters_notification_is_understood_and_made_again() {
    let frame = Frame::parse(&NOTIFICATION).unwrap();
    let headers = frame.packet().headers();
    assert_eq!(headers, &cnp::headers(Qpn::new(0x118), 0xffff));
    assert_eq!(frame.packet().payload(), cnp::PAYLOAD);
    assert_eq!(frame.ip().ecn(), Ecn::Capable0);
    let outer = Outer {
        ethernet: *frame.ethernet(),
        ip: *frame.ip(),
        source_port: frame.udp().source_port,
    };
    let mut buffer = [0; 128];
    let used = outer.emit(headers, &cnp::PAYLOAD, &mut buffer).unwrap();
    assert_eq!(buffer[..used], NOTIFICATION);
}

/// What a UDP socket would have seen of it: everything but the identification, which adapters set.
#[test]
fn an_adapters_identification_is_found_from_its_checksum() {
    let mut ip: [u8; 20] = NOTIFICATION[14..34].try_into().unwrap();
    ip[4..8].copy_from_slice(&Unseen::USUAL.bytes());
    let udp = NOTIFICATION[34..42].try_into().unwrap();
    let bth = NOTIFICATION[42..54].try_into().unwrap();
    let expected = Icrc::ipv4(&ip, &udp).of(&bth, &[&NOTIFICATION[54..70]]);
    let found = NOTIFICATION[70..].try_into().unwrap();
    assert_ne!(expected, found);
    let unseen = icrc::unseen(expected, found, 70 - 42).unwrap();
    assert_eq!(unseen.identification, 0x718c);
    assert!(unseen.dont_fragment);
}

#[test]
fn anothers_send_is_understood() {
    let frame = Frame::parse(&SEND).unwrap();
    let bth = frame.packet().bth();
    assert_eq!(bth.opcode.service(), Service::Uc);
    assert_eq!(bth.opcode, Opcode::from_byte(0x24).unwrap());
    assert_eq!(bth.destination, Qpn::new(211));
    assert_eq!(bth.psn, Psn::new(13_571_856));
    assert_eq!(bth.pad, 2);
    assert_eq!(frame.packet().payload().len(), 18);
}

/// Routers change these on the way, and the checksum must not see it.
#[test]
fn a_router_may_mark_and_count_hops() {
    let mut packet = SEND;
    // Congestion experienced in place of ECT(1), one hop less; the header checksum follows.
    packet[15] = 3;
    packet[22] -= 1;
    assert_eq!(Frame::parse(&packet), Err(Error::Checksum));
    let sum = u16::from_be_bytes([packet[24], packet[25]]);
    let (sum, _) = (u32::from(sum) + 0x100).overflowing_sub(2);
    packet[24..26].copy_from_slice(&(sum as u16).to_be_bytes());
    let frame = Frame::parse(&packet).unwrap();
    assert_eq!(frame.ip().ecn(), Ecn::Congestion);
}
