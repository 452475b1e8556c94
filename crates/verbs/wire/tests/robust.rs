//! No bytes make a parser panic, and what a parser understood survives being emitted.

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_wire::bth::Bth;
use sluice_wire::capture::{self, Direction, Format};
use sluice_wire::cm::{self, Message};
use sluice_wire::ethernet::{EtherType, Mac, Vlan};
use sluice_wire::extended::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth, RnrTimer, Syndrome, XrcEth,
};
use sluice_wire::frame::Outer;
use sluice_wire::mad::Mad;
use sluice_wire::opcode::{Opcode, Position};
use sluice_wire::{Ecn, Frame, Headers, Ip, Psn, Qpn, ethernet, fuzz, ipv4, ipv6};

fn opcodes() -> impl Strategy<Value = Opcode> {
    prop::sample::select(Opcode::all().collect::<Vec<_>>())
}

prop_compose! {
    fn headers()(
        opcode in opcodes(),
        bits in any::<[bool; 5]>(),
        words in any::<[u64; 4]>(),
        syndrome in 0u8..32,
    ) -> Headers {
        let [a, b, c, d] = words;
        let following = opcode.following();
        Headers {
            bth: Bth {
                solicited: bits[0],
                migrated: bits[1],
                fecn: bits[2],
                becn: bits[3],
                ack_request: bits[4],
                pkey: d as u16,
                ..Bth::new(opcode, Qpn::new(a as u32), Psn::new(b as u32))
            },
            deth: following.deth.then(|| Deth { qkey: c as u32, source: Qpn::new(d as u32) }),
            xrceth: following.xrceth.then(|| XrcEth { srq: Qpn::new(c as u32) }),
            reth: following.reth.then_some(Reth {
                address: c,
                rkey: d as u32,
                length: a as u32 >> 1,
            }),
            atomic_eth: following.atomic_eth.then_some(AtomicEth {
                address: a,
                rkey: b as u32,
                swap_add: c,
                compare: d,
            }),
            aeth: following.aeth.then(|| Aeth {
                syndrome: Syndrome::RnrNak(RnrTimer::from_code(syndrome)),
                msn: Psn::new(c as u32),
            }),
            atomic_ack_eth: following.atomic_ack_eth.then_some(AtomicAckEth { original: d }),
            immediate: following.immediate.then(|| ImmDt((c as u32).to_ne_bytes())),
            ieth: following.ieth.then_some(Ieth { rkey: c as u32 }),
        }
    }
}

/// A payload that the opcode can have.
fn payload(opcode: Opcode, bytes: &[u8]) -> &[u8] {
    match opcode.position() {
        Position::Bare => &[],
        Position::Notification => &bytes[..16],
        Position::Report => &bytes[..bytes.len().clamp(4, 132) & !3],
        _ => bytes,
    }
}

prop_compose! {
    fn outers()(
        macs in any::<([u8; 6], [u8; 6])>(),
        vlan in proptest::option::of((0u8..8, any::<bool>(), 0u16..4096)),
        v6 in any::<bool>(),
        addresses in any::<([u8; 16], [u8; 16])>(),
        class in any::<u8>(),
        label in 0u32..1 << 20,
        hops in any::<u8>(),
        source_port in any::<u16>(),
    ) -> Outer {
        let ecn = Ecn::from_bits(class);
        let (source, destination) = addresses;
        let ip = if v6 {
            Ip::V6(ipv6::Header {
                dscp: class >> 2,
                ecn,
                flow_label: label,
                payload_bytes: 0,
                next_header: 0,
                hop_limit: hops,
                source: source.into(),
                destination: destination.into(),
            })
        } else {
            let four = |bytes: [u8; 16]| [bytes[0], bytes[1], bytes[2], bytes[3]].into();
            Ip::V4(ipv4::Header {
                dscp: class >> 2,
                ecn,
                identification: label as u16,
                dont_fragment: label & 1 == 1,
                ttl: hops,
                protocol: 0,
                source: four(source),
                destination: four(destination),
                payload_bytes: 0,
            })
        };
        Outer {
            ethernet: ethernet::Header {
                destination: Mac(macs.0),
                source: Mac(macs.1),
                vlan: vlan.map(|(priority, drop_eligible, id)| Vlan { priority, drop_eligible, id }),
                ethertype: EtherType::Arp,
            },
            ip,
            source_port,
        }
    }
}

/// Everything that a stranger's bytes are given to.
fn swallow(bytes: &[u8]) {
    fuzz::packet(bytes);
    fuzz::frame(bytes);
    fuzz::management(bytes);
    let _ = ethernet::Header::parse(bytes);
    let _ = ipv4::Header::parse(bytes);
    let _ = ipv6::Header::parse(bytes);
    let _ = sluice_wire::udp::Header::parse(bytes);
    let _ = cm::IpService::parse(bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_are_harmless(bytes in vec(any::<u8>(), 0..400)) {
        swallow(&bytes);
    }

    /// Random bytes seldom get past the opcode: here they have one, and a frame around it.
    #[test]
    fn random_bytes_behind_an_opcode_are_harmless(
        opcode in opcodes(),
        mut bytes in vec(any::<u8>(), 2..120),
    ) {
        bytes[0] = opcode.byte();
        bytes[1] &= 0xf0;
        swallow(&bytes);
    }

    #[test]
    fn random_management_messages_are_harmless(
        attribute in 0x10u8..0x1a,
        mut bytes in vec(any::<u8>(), 256),
    ) {
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        swallow(&bytes);
    }

    #[test]
    fn frames_come_back_whole_and_cut_ones_do_not(
        outer in outers(),
        headers in headers(),
        bytes in vec(any::<u8>(), 16..300),
        cut in any::<prop::sample::Index>(),
    ) {
        let payload = payload(headers.bth.opcode, &bytes);
        let mut buffer = [0; 512];
        let used = outer.emit(&headers, payload, &mut buffer).unwrap();
        let frame = Frame::parse(&buffer[..used]).unwrap();
        let packet = frame.packet();
        prop_assert_eq!(packet.payload(), payload);
        let pad = packet.bth().pad;
        let expected = Headers { bth: Bth { pad, ..headers.bth }, ..headers };
        prop_assert_eq!(packet.headers(), &expected);
        prop_assert_eq!(frame.ip().ecn(), outer.ip.ecn());
        prop_assert_eq!(frame.ip().source(), outer.ip.source());
        prop_assert_eq!(frame.ip().destination(), outer.ip.destination());
        prop_assert_eq!(frame.udp().source_port, outer.source_port);
        prop_assert_eq!(frame.ethernet().vlan, outer.ethernet.vlan);
        let short = cut.index(used);
        prop_assert!(Frame::parse(&buffer[..short]).is_err());
        swallow(&buffer[..short]);
        // No buffer that is too short is written beyond, or makes it panic.
        prop_assert!(outer.emit(&headers, payload, &mut [0; 512][..short]).is_err());
    }

    #[test]
    fn captured_packets_fit_their_bound(bytes in vec(any::<u8>(), 0..300), pcap in any::<bool>()) {
        let format = if pcap { Format::Pcap } else { Format::PcapNg };
        let mut buffer = vec![0; bytes.len() + capture::PACKET_OVERHEAD_MAX];
        prop_assert!(capture::packet(format, 7, Direction::Inbound, &bytes, &mut buffer).is_ok());
    }

    #[test]
    fn private_data_is_bounded(len in 0usize..300, byte in any::<u8>()) {
        let data = vec![byte; len];
        let message = Message::Rtu(cm::Rtu {
            local_comm_id: 1,
            remote_comm_id: 2,
            private_data: &data,
        });
        match message.emit(3) {
            Err(_) => prop_assert!(len > cm::Rtu::PRIVATE_BYTES),
            Ok(bytes) => {
                let mad = Mad::parse(&bytes).unwrap();
                let (Message::Rtu(rtu), 3) = Message::parse(&mad).unwrap() else {
                    return Err(TestCaseError::fail("another message"));
                };
                let (front, back) = rtu.private_data.split_at(len);
                prop_assert_eq!(front, &data[..]);
                prop_assert!(back.iter().all(|byte| *byte == 0));
            }
        }
    }
}
