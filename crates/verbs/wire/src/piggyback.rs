//! An acknowledgement that rides in the padding of a frame.
//!
//! Behind the IP packet a frame may have any bytes, which nobody looks at (RFC 894; RFC 1122
//! §2.3.3): the IP header says where the packet ends. Sluice puts a copy of an acknowledgement
//! there that has left just before, in a frame of its own as the specification wants it. That frame,
//! which may cost a microsecond, is left out for a peer that says again and again, by piggybacked acknowledgements of
//! its own, that it gets them ([`Piggyback::got`]). A piggybacked acknowledgement is taken in before the packet that
//! carries it.
//!
//! | bytes | |
//! |---|---|
//! | 3 | [`MAGIC`] |
//! | 1 | length of the packet; the highest bit: [`Piggyback::got`] |
//! | 12 to [`PACKET_MAX`] | an acknowledgement, from base transport header to pad |
//! | 4 | CRC-32 over the ICRC of the frame's own packet and all of the above, lowest byte first |
//!
//! The checksum takes in the ICRC of the packet in front, and so the addresses, which are the
//! piggyback's too.

use crc32fast::Hasher;

use crate::bth::Bth;
use crate::error::{Error, Result};
use crate::icrc;
use crate::opcode::{Opcode, Operation};

/// What rides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piggyback<'a> {
    /// An acknowledgement, from base transport header to pad.
    pub packet: &'a [u8],
    /// The sender has got piggybacked acknowledgements from the one to whom it sends this one.
    pub got: bool,
}

/// How a piggybacked acknowledgement begins.
pub const MAGIC: [u8; 3] = *b"Slr";

/// Bytes of the longest packet that rides: an acknowledgement has 16.
pub const PACKET_MAX: usize = 16;

/// The bit of the length's byte that is [`Piggyback::got`].
const GOT: u8 = 0x80;

/// Bytes in front of the packet.
const FRONT: usize = MAGIC.len() + 1;

/// Bytes of a piggybacked acknowledgement with such a packet.
pub const fn bytes(packet: usize) -> usize {
    FRONT + packet + icrc::BYTES
}

/// Whether this packet may ride: an acknowledgement that is no NAK. It says nothing new when it
/// comes twice.
pub fn may_piggyback(packet: &[u8]) -> bool {
    /// The upper three bits of the syndrome, 0 in an ACK (IBTA 9.7.5.2, table 43).
    const SYNDROME_KIND: u8 = 0xe0;
    let [opcode, ..] = *packet else { return false };
    let syndrome = packet.get(Bth::BYTES);
    packet.len() <= PACKET_MAX
        && Opcode::from_byte(opcode)
            .is_ok_and(|opcode| opcode.operation() == Operation::Acknowledge)
        && syndrome.is_some_and(|syndrome| syndrome & SYNDROME_KIND == 0)
}

/// Writes a piggybacked acknowledgement to the front of `buffer`, which is behind a packet with that ICRC. Bytes
/// written; [`Error::NoRoom`], [`Error::Length`] for what is too long to be a piggybacked acknowledgement.
pub fn emit(
    carrier: &[u8; icrc::BYTES],
    piggyback: Piggyback<'_>,
    buffer: &mut [u8],
) -> Result<usize> {
    let Piggyback { packet, got } = piggyback;
    if packet.len() > PACKET_MAX {
        return Err(Error::Length);
    }
    let buffer = buffer.get_mut(..bytes(packet.len())).ok_or(Error::NoRoom)?;
    let (front, place) = buffer.split_last_chunk_mut().ok_or(Error::NoRoom)?;
    let (head, body) = front.split_at_mut_checked(FRONT).ok_or(Error::NoRoom)?;
    let [m0, m1, m2] = MAGIC;
    let flag = if got { GOT } else { 0 };
    head.copy_from_slice(&[m0, m1, m2, packet.len() as u8 | flag]);
    body.copy_from_slice(packet);
    *place = check(carrier, front);
    Ok(bytes(packet.len()))
}

/// What rides in the padding behind a packet with that ICRC.
pub fn parse<'a>(carrier: &[u8; icrc::BYTES], padding: &'a [u8]) -> Option<Piggyback<'a>> {
    let [m0, m1, m2, length, ..] = *padding else {
        return None;
    };
    if [m0, m1, m2] != MAGIC {
        return None;
    }
    let piggyback = padding.get(..bytes(usize::from(length & !GOT)))?;
    let (front, found) = piggyback.split_last_chunk()?;
    let packet = front.get(FRONT..)?;
    let got = length & GOT != 0;
    (may_piggyback(packet) && *found == check(carrier, front)).then_some(Piggyback { packet, got })
}

fn check(carrier: &[u8; icrc::BYTES], front: &[u8]) -> [u8; icrc::BYTES] {
    let mut hasher = Hasher::new();
    hasher.update(carrier);
    hasher.update(front);
    hasher.finalize().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extended::{Aeth, NakCode, Syndrome};
    use crate::frame::Outer;
    use crate::{Ecn, Envelope, Frame, Headers, Ip, Psn, Qpn, ethernet, ipv4};

    fn answer(syndrome: Syndrome) -> [u8; 16] {
        let opcode = Opcode::from_byte(0x11).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(7), Psn::new(9)));
        headers.aeth = Some(Aeth {
            syndrome,
            msn: Psn::new(3),
        });
        let mut bytes = [0; 16];
        assert_eq!(headers.emit(&[], &mut bytes), Ok(16));
        bytes
    }

    /// A frame with a piggybacked acknowledgement behind it.
    fn frame(got: bool, buffer: &mut [u8]) -> (usize, usize) {
        let outer = Outer {
            ethernet: ethernet::Header {
                destination: ethernet::Mac([2, 0, 0, 0, 0, 1]),
                source: ethernet::Mac([2, 0, 0, 0, 0, 2]),
                vlan: None,
                ethertype: ethernet::EtherType::Ipv4,
            },
            ip: Ip::V4(ipv4::Header {
                dscp: 0,
                ecn: Ecn::Capable0,
                identification: 0,
                dont_fragment: true,
                ttl: 64,
                protocol: ipv4::UDP,
                source: [192, 0, 2, 1].into(),
                destination: [192, 0, 2, 2].into(),
                payload_bytes: 0,
            }),
            source_port: 0xc000,
        };
        let opcode = Opcode::from_byte(0x04).unwrap();
        let headers = Headers::new(Bth::new(opcode, Qpn::new(5), Psn::new(6)));
        let used = outer.emit(&headers, b"hello", buffer).unwrap();
        let (front, rest) = buffer.split_at_mut(used);
        let carrier = front.last_chunk().unwrap();
        let packet = &answer(Syndrome::Ack(None));
        let piggyback = emit(carrier, Piggyback { packet, got }, rest).unwrap();
        (used, used + piggyback)
    }

    #[test]
    fn it_comes_beside_the_packet_that_it_leaves_alone() {
        let mut buffer = [0; 128];
        let (used, all) = frame(true, &mut buffer);
        assert_eq!(all - used, bytes(16));
        let alone = Frame::parse(&buffer[..used]).unwrap();
        let both = Frame::parse(&buffer[..all]).unwrap();
        assert_eq!(alone.packet(), both.packet());
        let envelope = Envelope::parse(&buffer[..all]).unwrap();
        assert_eq!(envelope.transport(), alone.transport());
        let piggyback = envelope.piggyback().unwrap();
        assert_eq!(piggyback.packet, answer(Syndrome::Ack(None)));
        assert!(piggyback.got);
        // Padding behind it, as some adapters make.
        let envelope = Envelope::parse(&buffer).unwrap();
        assert_eq!(envelope.piggyback(), Some(piggyback));
        assert_eq!(Envelope::parse(&buffer[..used]).unwrap().piggyback(), None);
    }

    #[test]
    fn any_change_makes_it_padding() {
        let mut buffer = [0; 128];
        let (used, all) = frame(false, &mut buffer);
        for bit in used * 8..all * 8 {
            let mut changed = buffer;
            changed[bit / 8] ^= 1 << (bit % 8);
            let envelope = Envelope::parse(&changed[..all]).unwrap();
            assert_eq!(envelope.piggyback(), None, "bit {bit}");
        }
        for end in used..all {
            assert_eq!(Envelope::parse(&buffer[..end]).unwrap().piggyback(), None);
        }
        // Behind another packet.
        let piggyback = &buffer[used..all];
        assert_eq!(parse(&[0; 4], piggyback), None);
    }

    #[test]
    fn only_acknowledgements_ride() {
        assert!(may_piggyback(&answer(Syndrome::Ack(None))));
        let nak = answer(Syndrome::Nak(NakCode::SequenceError));
        assert!(!may_piggyback(&nak));
        let mut send = answer(Syndrome::Ack(None));
        send[0] = 0x04;
        let piggyback = |packet| Piggyback { packet, got: false };
        for packet in [&nak[..], &send, &[], &[0x11]] {
            assert!(!may_piggyback(packet));
            let mut buffer = [0; 64];
            let used = emit(&[1; 4], piggyback(packet), &mut buffer).unwrap();
            assert_eq!(parse(&[1; 4], &buffer[..used]), None);
        }
        assert_eq!(
            emit(&[1; 4], piggyback(&nak), &mut [0; 23]),
            Err(Error::NoRoom)
        );
        let long = emit(&[1; 4], piggyback(&[0x11; 17]), &mut [0; 64]);
        assert_eq!(long, Err(Error::Length));
    }
}
