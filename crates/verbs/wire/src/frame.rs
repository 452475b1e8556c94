//! One whole RoCEv2 frame, from Ethernet to ICRC (annex A17.3).

use core::net::{IpAddr, Ipv6Addr};

use crate::bth::Bth;
use crate::error::{Error, Result};
use crate::ethernet::{self, EtherType};
use crate::icrc::{self, Icrc};
use crate::ipv4::UDP;
use crate::number::Ecn;
use crate::packet::{Headers, Packet};
use crate::piggyback::{self, Piggyback};
use crate::udp::{self, ROCE_PORT};
use crate::{ipv4, ipv6};

/// An IP header of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    /// IPv4.
    V4(ipv4::Header),
    /// IPv6.
    V6(ipv6::Header),
}

impl Ip {
    /// The header in front of a RoCEv2 packet. Of `traffic_class` the upper six bits are sent, the
    /// DSCP; the lower two are `ecn`. The flow label has 20 bits, for IPv6. Addresses of different
    /// versions are both written as IPv6 has them, ::ffff:a.b.c.d (RFC 4291 §2.5.5.2).
    pub const fn new(
        source: IpAddr,
        destination: IpAddr,
        traffic_class: u8,
        ecn: Ecn,
        hop_limit: u8,
        flow_label: u32,
    ) -> Self {
        let dscp = traffic_class >> 2;
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Self::V4(ipv4::Header {
                dscp,
                ecn,
                identification: 0,
                dont_fragment: true,
                ttl: hop_limit,
                protocol: UDP,
                source,
                destination,
                payload_bytes: 0,
            }),
            (source, destination) => Self::V6(ipv6::Header {
                dscp,
                ecn,
                flow_label: flow_label & 0xf_ffff,
                payload_bytes: 0,
                next_header: UDP,
                hop_limit,
                source: as_v6(source),
                destination: as_v6(destination),
            }),
        }
    }

    /// From whom.
    pub const fn source(&self) -> IpAddr {
        match self {
            Self::V4(header) => IpAddr::V4(header.source),
            Self::V6(header) => IpAddr::V6(header.source),
        }
    }

    /// To whom.
    pub const fn destination(&self) -> IpAddr {
        match self {
            Self::V4(header) => IpAddr::V4(header.destination),
            Self::V6(header) => IpAddr::V6(header.destination),
        }
    }

    /// Congestion notification.
    pub const fn ecn(&self) -> Ecn {
        match self {
            Self::V4(header) => header.ecn,
            Self::V6(header) => header.ecn,
        }
    }
}

const fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Bytes that a frame has besides the packet's headers, payload and pad, at most.
pub const OVERHEAD_MAX: usize =
    ethernet::Header::BYTES_MAX + ipv6::Header::BYTES + udp::Header::BYTES + icrc::BYTES;

/// What is around a transport packet that came in, checked: lengths agree, and the ICRC is right.
/// Nobody has looked at the packet itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    ethernet: ethernet::Header,
    ip: Ip,
    udp: udp::Header,
    transport: &'a [u8],
    icrc: [u8; icrc::BYTES],
    padding: &'a [u8],
}

/// A frame that came in, checked: lengths agree, the packet is legal, and the ICRC is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    envelope: Envelope<'a>,
    packet: Packet<'a>,
}

/// A frame whose checksum nobody has looked at.
struct Unchecked<'a> {
    envelope: Envelope<'a>,
    expected: [u8; icrc::BYTES],
}

impl<'a> Envelope<'a> {
    /// Looks at a frame, not at its transport packet.
    ///
    /// [`Error::NotRoce`] for frames that are somebody else's: other protocols and ports, IPv4
    /// options and fragments, IPv6 extension headers. [`Error::Checksum`] for a wrong ICRC (or
    /// IPv4 header checksum).
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let unchecked = unchecked(bytes)?;
        if unchecked.envelope.icrc == unchecked.expected {
            Ok(unchecked.envelope)
        } else {
            Err(Error::Checksum)
        }
    }

    /// The IP header.
    pub const fn ip(&self) -> &Ip {
        &self.ip
    }

    /// The UDP header.
    pub const fn udp(&self) -> &udp::Header {
        &self.udp
    }

    /// The bytes of the transport packet, from base transport header to pad: what
    /// [`Packet::parse`] takes.
    pub const fn transport(&self) -> &'a [u8] {
        self.transport
    }

    /// An acknowledgement in what pads the frame ([`crate::piggyback`]).
    pub fn piggyback(&self) -> Option<Piggyback<'a>> {
        piggyback::parse(&self.icrc, self.padding)
    }
}

impl<'a> Frame<'a> {
    /// Looks at a frame. What pads it behind the IP packet is left out.
    ///
    /// Errors are those of [`Envelope::parse`] and [`Packet::parse`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let envelope = Envelope::parse(bytes)?;
        Ok(Self {
            packet: Packet::parse(envelope.transport)?,
            envelope,
        })
    }

    /// The Ethernet header.
    pub const fn ethernet(&self) -> &ethernet::Header {
        &self.envelope.ethernet
    }

    /// The IP header.
    pub const fn ip(&self) -> &Ip {
        self.envelope.ip()
    }

    /// The UDP header.
    pub const fn udp(&self) -> &udp::Header {
        self.envelope.udp()
    }

    /// The bytes of the transport packet, from base transport header to pad.
    pub const fn transport(&self) -> &'a [u8] {
        self.envelope.transport()
    }

    /// The transport packet.
    pub const fn packet(&self) -> &Packet<'a> {
        &self.packet
    }
}

fn unchecked(bytes: &[u8]) -> Result<Unchecked<'_>> {
    let (ethernet, rest) = ethernet::Header::parse(bytes)?;
    let (ip, start, header_bytes, datagram) = match ethernet.ethertype {
        EtherType::Ipv4 => {
            let (header, payload) = ipv4::Header::parse(rest)?;
            if header.protocol != UDP {
                return Err(Error::NotRoce);
            }
            let raw = rest.first_chunk().ok_or(Error::Truncated)?;
            let udp = payload.first_chunk().ok_or(Error::Truncated)?;
            let start = Icrc::ipv4(raw, udp);
            (Ip::V4(header), start, ipv4::Header::BYTES, payload)
        }
        EtherType::Ipv6 => {
            let (header, payload) = ipv6::Header::parse(rest)?;
            if header.next_header != UDP {
                return Err(Error::NotRoce);
            }
            let raw = rest.first_chunk().ok_or(Error::Truncated)?;
            let udp = payload.first_chunk().ok_or(Error::Truncated)?;
            let start = Icrc::ipv6(raw, udp);
            (Ip::V6(header), start, ipv6::Header::BYTES, payload)
        }
        _ => return Err(Error::NotRoce),
    };
    let (udp, payload) = udp::Header::parse(datagram)?;
    if udp.destination_port != ROCE_PORT {
        return Err(Error::NotRoce);
    }
    let (transport, found) = payload.split_last_chunk().ok_or(Error::Truncated)?;
    let (bth, behind) = transport.split_first_chunk().ok_or(Error::Truncated)?;
    let expected = start.of(bth, &[behind]);
    let padding = rest.get(header_bytes + datagram.len()..);
    Ok(Unchecked {
        envelope: Envelope {
            ethernet,
            ip,
            udp,
            transport,
            icrc: *found,
            padding: padding.unwrap_or_default(),
        },
        expected,
    })
}

/// What a frame has in front of its transport packet. Lengths and the UDP checksum are filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Addresses and tag; the type becomes that of the IP header.
    pub ethernet: ethernet::Header,
    /// The IP header; protocol and length are set.
    pub ip: Ip,
    /// One of [`udp::ENTROPY_PORTS`], the same for all packets of a flow.
    pub source_port: u16,
}

impl Outer {
    /// How many bytes of a frame are in front of the transport packet.
    pub const fn bytes(&self) -> usize {
        let ip = match self.ip {
            Ip::V4(_) => ipv4::Header::BYTES,
            Ip::V6(_) => ipv6::Header::BYTES,
        };
        self.ethernet.len() + ip + udp::Header::BYTES
    }

    /// Writes a whole frame to the front of `buffer` and says how long it is.
    ///
    /// Errors are those of [`Headers::emit`] and [`Outer::wrap`].
    pub fn emit(&self, headers: &Headers, payload: &[u8], buffer: &mut [u8]) -> Result<usize> {
        let body = buffer.get_mut(self.bytes()..).ok_or(Error::NoRoom)?;
        let packet = headers.emit(payload, body)?;
        self.wrap(packet, buffer)
    }

    /// Makes a frame of a transport packet of `packet` bytes (base transport header to pad) that
    /// stands in `buffer` already, [`Outer::bytes`] behind its front: writes what belongs in
    /// front of it, and the ICRC behind it. Says how long the frame is.
    ///
    /// Over IPv6 the UDP checksum is computed, because RFC 8200 §8.1 wants one; over IPv4 it is
    /// zero, as the annex recommends. [`Error::NoRoom`] when the frame does not fit the buffer or
    /// has no base transport header, [`Error::Length`] when it does not fit an IP packet.
    pub fn wrap(&self, packet: usize, buffer: &mut [u8]) -> Result<usize> {
        self.prefix(packet)?.wrap(buffer)
    }

    /// What stands in front of every transport packet of that many bytes (base transport header
    /// to pad), ready to be copied. [`Error::Length`] when it does not fit an IP packet.
    pub fn prefix(&self, packet: usize) -> Result<Prefix> {
        let behind_udp = packet.checked_add(icrc::BYTES).ok_or(Error::Length)?;
        let behind_udp = u16::try_from(behind_udp).map_err(|_| Error::Length)?;
        let payload_bytes = behind_udp
            .checked_add(udp::Header::BYTES as u16)
            .ok_or(Error::Length)?;
        let udp = udp::Header {
            source_port: self.source_port,
            destination_port: ROCE_PORT,
            payload_bytes: behind_udp,
            checksum: 0,
        };
        let udp_bytes = udp.emit()?;
        let mut bytes = [0; PREFIX_MAX];
        let mut writer = crate::bytes::Writer::new(&mut bytes);
        let ethertype = match self.ip {
            Ip::V4(_) => EtherType::Ipv4,
            Ip::V6(_) => EtherType::Ipv6,
        };
        let mut ethernet = [0; ethernet::Header::BYTES_MAX];
        let header = ethernet::Header {
            ethertype,
            ..self.ethernet
        };
        let used = header.emit(&mut ethernet)?;
        writer.put(ethernet.get(..used).unwrap_or_default());
        let (icrc, checksum) = match self.ip {
            Ip::V4(header) => {
                let ip = ipv4::Header {
                    protocol: UDP,
                    payload_bytes,
                    ..header
                }
                .emit()?;
                writer.put(&ip);
                (Icrc::ipv4(&ip, &udp_bytes), None)
            }
            Ip::V6(header) => {
                let ip = ipv6::Header {
                    next_header: UDP,
                    payload_bytes,
                    ..header
                };
                let bytes = ip.emit();
                writer.put(&bytes);
                let addresses = (ip.source.octets(), ip.destination.octets());
                (Icrc::ipv6(&bytes, &udp_bytes), Some((udp, addresses)))
            }
        };
        writer.put(&udp_bytes);
        let len = writer.finish()?;
        Ok(Prefix {
            bytes,
            len,
            packet,
            icrc,
            checksum,
        })
    }
}

/// The most that stands in front of a transport packet.
const PREFIX_MAX: usize = ethernet::Header::BYTES_MAX + ipv6::Header::BYTES + udp::Header::BYTES;

/// Source and destination.
type Addresses = ([u8; 16], [u8; 16]);

/// Ethernet, IP and UDP headers of all packets of one length on one path, and the beginning of
/// their checksum ([`Outer::prefix`]).
#[derive(Clone, Debug)]
pub struct Prefix {
    bytes: [u8; PREFIX_MAX],
    len: usize,
    packet: usize,
    icrc: Icrc,
    /// IPv6: what the UDP checksum is made of, besides the packet.
    checksum: Option<(udp::Header, Addresses)>,
}

impl Prefix {
    /// As [`Outer::wrap`].
    pub fn wrap(&self, buffer: &mut [u8]) -> Result<usize> {
        let (head, body) = buffer.split_at_mut_checked(self.len).ok_or(Error::NoRoom)?;
        let front = self.bytes.get(..self.len).ok_or(Error::NoRoom)?;
        let (transport, rest) = body
            .split_at_mut_checked(self.packet)
            .ok_or(Error::NoRoom)?;
        let place = rest.first_chunk_mut().ok_or(Error::NoRoom)?;
        let (bth, behind) = transport
            .split_first_chunk::<{ Bth::BYTES }>()
            .ok_or(Error::NoRoom)?;
        head.copy_from_slice(front);
        *place = self.icrc.clone().of(bth, &[behind]);
        if let Some((udp, (source, destination))) = &self.checksum {
            let whole = body.get(..self.packet + icrc::BYTES).unwrap_or_default();
            let folded = ipv4::sum_wide(whole).to_be_bytes();
            let checksum = udp::checksum(source, destination, udp, &folded);
            let udp = udp::Header { checksum, ..*udp };
            *head.last_chunk_mut().ok_or(Error::NoRoom)? = udp.emit()?;
        }
        Ok(self.len + self.packet + icrc::BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{Psn, Qpn};
    use crate::opcode::Opcode;

    /// A frame from a RoCEv2 adapter's capture format built by hand: RC ACK, IPv4.
    fn outer() -> Outer {
        Outer {
            ethernet: ethernet::Header {
                destination: ethernet::Mac([2, 0, 0, 0, 0, 1]),
                source: ethernet::Mac([2, 0, 0, 0, 0, 2]),
                vlan: None,
                ethertype: EtherType::Ipv4,
            },
            ip: Ip::V4(ipv4::Header {
                dscp: 0,
                ecn: Ecn::Capable0,
                identification: 0,
                dont_fragment: true,
                ttl: 64,
                protocol: UDP,
                source: [192, 0, 2, 1].into(),
                destination: [192, 0, 2, 2].into(),
                payload_bytes: 0,
            }),
            source_port: 0xc000,
        }
    }

    fn frame(buffer: &mut [u8]) -> usize {
        let opcode = Opcode::from_byte(0x04).unwrap();
        let headers = Headers::new(Bth::new(opcode, Qpn::new(5), Psn::new(6)));
        outer().emit(&headers, b"hello", buffer).unwrap()
    }

    #[test]
    fn any_change_of_what_is_invariant_is_seen() {
        let mut buffer = [0; 128];
        let used = frame(&mut buffer);
        assert_eq!(used, 14 + 20 + 8 + 12 + 8 + 4);
        let good = Frame::parse(&buffer[..used]).unwrap();
        assert_eq!(good.packet().payload(), b"hello");
        for bit in 34 * 8..used * 8 {
            let byte = bit / 8;
            let mut changed = buffer;
            changed[byte] ^= 1 << (bit % 8);
            let free = matches!(byte, 40 | 41) || byte == 46;
            // The UDP checksum and the congestion bits may change.
            assert_eq!(Frame::parse(&changed[..used]).is_ok(), free, "bit {bit}");
        }
    }

    #[test]
    fn a_packet_in_place_gets_the_frame_that_emit_makes() {
        let opcode = Opcode::from_byte(0x04).unwrap();
        let headers = Headers::new(Bth::new(opcode, Qpn::new(5), Psn::new(6)));
        let v6 = Ip::V6(ipv6::Header {
            dscp: 1,
            ecn: Ecn::Capable0,
            flow_label: 0xabcde,
            payload_bytes: 0,
            next_header: 0,
            hop_limit: 9,
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
        });
        for outer in [outer(), Outer { ip: v6, ..outer() }] {
            let (mut whole, mut placed) = ([0; 128], [0xee; 128]);
            let used = outer.emit(&headers, b"hello", &mut whole).unwrap();
            let front = outer.bytes();
            let packet = headers.emit(b"hello", &mut placed[front..]).unwrap();
            assert_eq!(outer.wrap(packet, &mut placed), Ok(used));
            assert_eq!(placed[..used], whole[..used]);
            let frame = Frame::parse(&placed[..used]).unwrap();
            assert_eq!(frame.transport(), &placed[front..front + packet]);
            let short = &mut placed[..used - 1];
            assert_eq!(outer.wrap(packet, short), Err(Error::NoRoom));
            assert_eq!(outer.wrap(11, &mut placed), Err(Error::NoRoom));
            for long in [usize::from(u16::MAX) - 11, usize::MAX] {
                assert_eq!(outer.wrap(long, &mut placed), Err(Error::Length));
            }
        }
    }

    #[test]
    fn the_udp_checksum_over_ipv6_is_right() {
        let mut buffer = [0; 128];
        let opcode = Opcode::from_byte(0x04).unwrap();
        let headers = Headers::new(Bth::new(opcode, Qpn::new(5), Psn::new(6)));
        let ip = Ip::V6(ipv6::Header {
            dscp: 0,
            ecn: Ecn::Capable0,
            flow_label: 0,
            payload_bytes: 0,
            next_header: 0,
            hop_limit: 9,
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
        });
        let outer = Outer { ip, ..outer() };
        let used = outer.emit(&headers, b"hello", &mut buffer).unwrap();
        // Addresses, the pseudo header's length and protocol, and the datagram (RFC 8200 §8.1).
        let datagram = &buffer[54..used];
        let pseudo = [&[0, 0, 0, datagram.len() as u8, 0, 0, 0, UDP], datagram];
        let start = ipv4::sum(0, &buffer[22..54]);
        let total = pseudo.iter().fold(start, |sum, part| ipv4::sum(sum, part));
        assert_eq!(total, 0xffff);
    }

    #[test]
    fn other_peoples_frames_are_told_apart() {
        let mut buffer = [0; 128];
        let used = frame(&mut buffer);
        let with = |at: usize, byte: u8| {
            let mut changed = buffer;
            changed[at] = byte;
            Frame::parse(&changed[..used]).unwrap_err()
        };
        assert_eq!(with(12, 0x81), Error::NotRoce);
        assert_eq!(with(37, 0), Error::NotRoce);
        for short in 0..used {
            assert!(Frame::parse(&buffer[..short]).is_err(), "{short}");
        }
        assert!(Frame::parse(&buffer[..used + 20]).is_ok(), "padding");
    }
}
